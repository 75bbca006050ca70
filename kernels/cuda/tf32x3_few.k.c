/* tf32x3_few - tf32x3.k.c for 2 to 16 rows: a group makes 16 outputs of up to 8 ROWS_8 rows, its warps share the inputs, 16 at a time
 * in turn. Weights are what rows are there, so that few rows waste nothing; the first of them are on their way before the launch
 * before is done. in % 4 == 0. Contract and numerics as there. */
#include "dialect.h"
#include "args/args.h"
#include "cuda/tf32x3.h"

#define WARPS (GROUP / 32u)
#define HOLD  8u /* times 16 inputs of a warp fetched at once */
#define CHAIN 4u

struct weights {
    float4 w[2]; /* inputs 4 (lane % 4) and up of 16, outputs lane / 4 and 8 further */
};
FN float4 four_at(const f32 *p, u32 k, u32 in) {
    return k + 4u * (LOCAL_X & 3u) < in ? *(const float4 *)(p + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
/* grid: (out / 16, rows / (8 ROWS_8)) */
KERNEL(tf32x3)(const f32 *__restrict__ w, const f32 *x, const f32 *__restrict__ bias, f32 *y, u32 *witness,
               const struct pl_args_linear a) {
    __shared__ f32 held[WARPS][4u * ROWS_8][32];
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, g = lane >> 2, t = lane & 3u, row0 = 8u * ROWS_8 * GROUP_Y, out0 = 16u * GROUP_X;
    const f32 *pw[2], *px[ROWS_8];
    struct weights v[HOLD];
#pragma unroll
    for (u32 i = 0; i < 2u; i++) pw[i] = w + (u64)PL_MIN(out0 + g + 8u * i, a.out - 1u) * a.in + 4u * t;
#pragma unroll
    for (u32 n = 0; n < ROWS_8; n++) px[n] = x + (u64)PL_MIN(row0 + 8u * n + g, a.rows - 1u) * a.in + 4u * t;
#pragma unroll
    for (u32 h = 0; h < HOLD; h++) /* weights depend on no launch before this one */
#pragma unroll
        for (u32 i = 0; i < 2u; i++) v[h].w[i] = four_at(pw[i], 16u * (warp + WARPS * h), a.in);
    count_launch(witness);
    f32 acc[ROWS_8][4];
#pragma unroll
    for (u32 i = 0; i < 4u * ROWS_8; i++) acc[i / 4u][i % 4u] = 0.0f;
    for (u32 k0 = 16u * warp; k0 < a.in; k0 += 16u * WARPS * HOLD) {
#pragma unroll
        for (u32 h0 = 0; h0 < HOLD; h0 += CHAIN) {
            f32 c[ROWS_8][4];
#pragma unroll
            for (u32 i = 0; i < 4u * ROWS_8; i++) c[i / 4u][i % 4u] = 0.0f;
#pragma unroll
            for (u32 h = h0; h < h0 + CHAIN; h++) {
                u32 k = k0 + 16u * WARPS * h;
                if (k >= a.in) continue; /* the same for the warp */
                float4 u[ROWS_8];
#pragma unroll
                for (u32 n = 0; n < ROWS_8; n++) u[n] = four_at(px[n], k, a.in);
#pragma unroll
                for (u32 s = 0; s < 2u; s++) {
                    u32 wh[4], wl[4];
#pragma unroll
                    for (u32 i = 0; i < 4u; i++) cut(of(&v[h].w[i & 1u], 2u * s + (i >> 1)), &wh[i], &wl[i]);
#pragma unroll
                    for (u32 n = 0; n < ROWS_8; n++) {
                        u32 xh[2], xl[2];
                        cut(of(&u[n], 2u * s), &xh[0], &xl[0]);
                        cut(of(&u[n], 2u * s + 1u), &xh[1], &xl[1]);
                        mma_tf32(c[n], wl, xh);
                        mma_tf32(c[n], wh, xl);
                        mma_tf32(c[n], wh, xh);
                    }
                }
            }
#pragma unroll
            for (u32 i = 0; i < 4u * ROWS_8; i++) acc[i / 4u][i % 4u] += c[i / 4u][i % 4u];
        }
#pragma unroll
        for (u32 h = 0; h < HOLD; h++)
#pragma unroll
            for (u32 i = 0; i < 2u; i++) v[h].w[i] = four_at(pw[i], k0 + 16u * WARPS * (HOLD + h), a.in);
    }
#pragma unroll
    for (u32 i = 0; i < 4u * ROWS_8; i++) held[warp][i][lane] = acc[i / 4u][i % 4u];
    BARRIER();
    for (u32 i = LOCAL_X; i < 128u * ROWS_8; i += GROUP) { /* consecutive threads: consecutive outputs of one row */
        u32 o = i % 16u, r = i / 16u, e = 4u * (r / 8u) + 2u * (o >> 3) + (r & 1u), from = 4u * (o & 7u) + ((r & 7u) >> 1);
        if (row0 + r >= a.rows || out0 + o >= a.out) continue;
        f32 sum = 0.0f;
#pragma unroll
        for (u32 s = 0; s < WARPS; s++) sum += held[s][e][from];
        u64 at = (u64)(row0 + r) * a.out + out0 + o;
        if ((a.flags & PL_LINEAR_BIAS) != 0u) sum += bias[out0 + o];
        if ((a.flags & PL_LINEAR_ADD) != 0u) sum += y[at];
        y[at] = sum;
    }
}
