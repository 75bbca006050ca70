/* linear - y[r, o] = sum_i x[r, i] w[o, i] (+ bias[o]) (added to y), any weight type, any row count.
 *
 * A team of TEAM threads owns one output and walks its row 32 elements at a time; each weight is unpacked once for ROWS
 * rows of x. Groups along y take further blocks of ROWS rows.
 * Numerics: f32 products of the dequantised weight and f32 x; order fixed by TEAM, so bitwise repeatable. */
#include "weights.h"
#include "args/args.h"

#define OUTPUTS (GROUP / TEAM)

KERNEL(linear)(GLOBAL const u8 *data, GLOBAL const u8 *scales, GLOBAL const u8 *biases, GLOBAL const f32 *x,
               GLOBAL const f32 *bias, GLOBAL f32 *y, GLOBAL u32 *witness, const struct pl_args_linear a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    u32 o = GROUP_X * OUTPUTS + LOCAL_X / TEAM, lane = LOCAL_X % TEAM, row0 = GROUP_Y * ROWS;
    u32 owned = PL_MIN(o, a.out - 1u); /* threads past the end repeat the last output and store nothing */
    f32 sum[ROWS];
    u64 at[ROWS];
    struct weight w;
    w.data = data;
    w.scales = scales;
    w.biases = biases;
    w.row_bytes = a.row_bytes;
    w.cols = a.in;
    for (u32 r = 0; r < ROWS; r++) {
        sum[r] = 0.0f;
        at[r] = (u64)PL_MIN(row0 + r, a.rows - 1u) * a.in;
    }
    for (u32 k = lane; 32u * k < a.in; k += TEAM) {
        f32 v[32];
        u32 n = PL_MIN(32u, a.in - 32u * k);
        dequant32(&w, owned, k, n, v);
        for (u32 r = 0; r < ROWS; r++) {
            GLOBAL const f32 *p = x + at[r] + 32u * k;
            f32 s = 0.0f;
            if (n == 32u) {
                for (u32 i = 0; i < 32u; i++) s += v[i] * p[i];
            } else {
                for (u32 i = 0; i < n; i++) s += v[i] * p[i];
            }
            sum[r] += s;
        }
    }
    for (u32 r = 0; r < ROWS; r++) {
        f32 s = team_sum(sum[r], scratch);
        if (lane == 0u && o < a.out && row0 + r < a.rows) {
            u64 i = (u64)(row0 + r) * a.out + o;
            if ((a.flags & PL_LINEAR_BIAS) != 0u) s += bias[o];
            if ((a.flags & PL_LINEAR_ADD) != 0u) s += y[i];
            y[i] = s;
        }
    }
}
