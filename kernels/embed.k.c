/* embed - rows of the embedding table as f32, times scale. One thread 32 elements. A token with PL_STEP_CHOSEN is an index
 * into what the step before chose. */
#include "weights.h"
#include "args/args.h"

KERNEL(embed)(GLOBAL const u8 *data, GLOBAL const u8 *scales, GLOBAL const u8 *biases, GLOBAL const u32 *step,
              GLOBAL const u32 *chosen, GLOBAL f32 *x, GLOBAL u32 *witness, const struct pl_args_linear a, const f32 scale, const u32 stride) {
    count_launch(witness);
    u32 k = GROUP_X * GROUP + LOCAL_X;
    if (32u * k < a.in) {
        struct weight w;
        f32 v[32];
        w.data = data;
        w.scales = scales;
        w.biases = biases;
        w.row_bytes = a.row_bytes;
        w.cols = a.in;
        u32 n = PL_MIN(32u, a.in - 32u * k);
        u32 token = step[PL_STEP_TOKEN(stride) + GROUP_Y];
        if (token & PL_STEP_CHOSEN) token = chosen[token & ~PL_STEP_CHOSEN];
        dequant32(&w, PL_MIN(token, a.out - 1u), k, n, v); /* where nothing could be chosen, any row does */
        GLOBAL f32 *y = x + (u64)GROUP_Y * a.in + 32u * k;
        for (u32 i = 0; i < 32u; i++) {
            if (i < n) y[i] = v[i] * scale;
        }
    }
}
