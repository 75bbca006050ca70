/* elementwise - add, gated and plain activation, scale, softcap, row gather. One thread an element; GROUP threads a group.
 * Numerics: f32; add and gather are exact. Cost: bytes read and written once. */
#include "dialect.h"
#include "args/args.h"

/* x += add */
KERNEL(add)(GLOBAL f32 *x, GLOBAL const f32 *add, GLOBAL u32 *witness, const struct pl_args_rows a) {
    count_launch(witness);
    u64 i = (u64)GROUP_X * GROUP + LOCAL_X;
    if (i < (u64)a.rows * a.cols) x[i] += add[i];
}

#ifdef ACT_GELU_TANH
FN f32 activate(f32 x) { return 0.5f * x * (1.0f + TANH(0.7978845608028654f * x * (1.0f + 0.044715f * x * x))); }
#elif defined(ACT_GELU_ERF)
FN f32 activate(f32 x) { return 0.5f * x * ERFC(-0.7071067811865476f * x); }
#elif defined(ACT_RELU2)
FN f32 activate(f32 x) { return FMAX(x, 0.0f) * FMAX(x, 0.0f); }
#elif defined(ACT_NONE)
FN f32 activate(f32 x) { return x; }
#elif defined(ACT_SIGMOID)
FN f32 activate(f32 x) { return 1.0f / (1.0f + EXP(-x)); }
#else
FN f32 activate(f32 x) { return x / (1.0f + EXP(-x)); }
#endif

/* y = act(gate) * up; y may be gate */
KERNEL(glu)(GLOBAL const f32 *gate, GLOBAL const f32 *up, GLOBAL f32 *y, GLOBAL u32 *witness, const struct pl_args_rows a) {
    count_launch(witness);
    u64 i = (u64)GROUP_X * GROUP + LOCAL_X;
    if (i < (u64)a.rows * a.cols) y[i] = activate(gate[i]) * up[i];
}

/* y = act(gate), ungated */
KERNEL(act)(GLOBAL const f32 *gate, GLOBAL f32 *y, GLOBAL u32 *witness, const struct pl_args_rows a) {
    count_launch(witness);
    u64 i = (u64)GROUP_X * GROUP + LOCAL_X;
    if (i < (u64)a.rows * a.cols) y[i] = activate(gate[i]);
}

/* x *= scale */
KERNEL(scale)(GLOBAL f32 *x, GLOBAL u32 *witness, const struct pl_args_rows a) {
    count_launch(witness);
    u64 i = (u64)GROUP_X * GROUP + LOCAL_X;
    if (i < (u64)a.rows * a.cols) x[i] *= a.value;
}

/* x[r] *= sigmoid(gate[r]) */
KERNEL(gate_rows)(GLOBAL f32 *x, GLOBAL const f32 *gate, GLOBAL u32 *witness, const struct pl_args_rows a) {
    count_launch(witness);
    u64 i = (u64)GROUP_X * GROUP + LOCAL_X;
    if (i < (u64)a.rows * a.cols) x[i] *= 1.0f / (1.0f + EXP(-gate[i / a.cols]));
}

/* x = cap * tanh(x / cap) */
KERNEL(softcap)(GLOBAL f32 *x, GLOBAL u32 *witness, const struct pl_args_rows a) {
    count_launch(witness);
    u64 i = (u64)GROUP_X * GROUP + LOCAL_X;
    if (i < (u64)a.rows * a.cols) x[i] = a.value * TANH(x[i] / a.value);
}

/* y[r] = x[logit_rows[r]]; list points at the step record's logit rows */
KERNEL(gather)(GLOBAL const f32 *x, GLOBAL const u32 *step, GLOBAL f32 *y, GLOBAL u32 *witness, const struct pl_args_rows a,
               const u32 stride) {
    count_launch(witness);
    u32 col = GROUP_X * GROUP + LOCAL_X;
    if (col < a.cols) {
        u32 from = step[PL_STEP_LOGIT(stride) + GROUP_Y];
        y[(u64)GROUP_Y * a.cols + col] = x[(u64)from * a.cols + col];
    }
}

/* The largest element of each row, the first of equals; NaN never wins. One group a row. */
KERNEL(argmax)(GLOBAL const f32 *x, GLOBAL u32 *best, GLOBAL u32 *witness, const struct pl_args_rows a) {
    LOCAL f32 value[GROUP];
    LOCAL u32 index[GROUP];
    count_launch(witness);
    GLOBAL const f32 *row = x + (u64)GROUP_X * a.cols;
    f32 v = NEG_INF;
    u32 at = 0xFFFFFFFFu;
    for (u32 i = LOCAL_X; i < a.cols; i += GROUP) {
        if (row[i] > v || (at == 0xFFFFFFFFu && row[i] == v)) {
            v = row[i];
            at = i;
        }
    }
    value[LOCAL_X] = v;
    index[LOCAL_X] = at;
    for (u32 m = GROUP / 2; m > 0; m >>= 1) {
        BARRIER();
        if (LOCAL_X < m) {
            f32 other = value[LOCAL_X + m];
            if (other > value[LOCAL_X] || (other == value[LOCAL_X] && index[LOCAL_X + m] < index[LOCAL_X])) {
                value[LOCAL_X] = other;
                index[LOCAL_X] = index[LOCAL_X + m];
            }
        }
    }
    if (LOCAL_X == 0) best[GROUP_X] = index[0] == 0xFFFFFFFFu ? 0u : index[0];
}
