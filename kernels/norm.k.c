/* norm - pk_norm: y = x / rms(x) * (offset + w), one group a row; with HAS_ADD x += add first. y may be x.
 * pk_layer_norm: y = (x - mean) / deviation * w, plus bias with HAS_BIAS.
 * Numerics: the mean square accumulates in f32 in a fixed order: bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"

KERNEL(norm)(GLOBAL f32 *x, GLOBAL const f32 *add, GLOBAL const f32 *w, GLOBAL f32 *y, GLOBAL u32 *witness,
             const struct pl_args_rows a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    u64 base = (u64)GROUP_X * a.cols;
    f32 sum = 0.0f;
    for (u32 i = LOCAL_X; i < a.cols; i += GROUP) {
        f32 v = x[base + i];
#ifdef HAS_ADD
        v += add[base + i];
        x[base + i] = v; /* read again below by this same thread */
#endif
        sum += v * v;
    }
    sum = group_sum(sum, scratch);
    f32 inverse = 1.0f / SQRT(sum / (f32)a.cols + a.value);
    for (u32 i = LOCAL_X; i < a.cols; i += GROUP) y[base + i] = x[base + i] * inverse * (a.offset + w[i]);
#ifndef HAS_ADD
    (void)add;
#endif
}

KERNEL(layer_norm)(GLOBAL const f32 *x, GLOBAL const f32 *w, GLOBAL const f32 *bias, GLOBAL f32 *y, GLOBAL u32 *witness,
                   const struct pl_args_rows a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    u64 base = (u64)GROUP_X * a.cols;
    f32 sum = 0.0f, squares = 0.0f;
    for (u32 i = LOCAL_X; i < a.cols; i += GROUP) sum += x[base + i];
    f32 mean = group_sum(sum, scratch) / (f32)a.cols;
    BARRIER();
    for (u32 i = LOCAL_X; i < a.cols; i += GROUP) squares += (x[base + i] - mean) * (x[base + i] - mean);
    squares = group_sum(squares, scratch);
    f32 inverse = 1.0f / SQRT(squares / (f32)a.cols + a.value);
    for (u32 i = LOCAL_X; i < a.cols; i += GROUP) {
        f32 v = (x[base + i] - mean) * inverse * w[i];
#ifdef HAS_BIAS
        v += bias[i];
#endif
        y[base + i] = v;
    }
    (void)bias;
}
