/* tf32x3 - products of f32 weights with many rows on tensor cores of NVIDIA GPUs (sm_80 and up), for what may not be rounded
 * (the logits of routers). Contract: kernels/linear.k.c, forms: fma.k.c.
 *
 * Both sides are cut into what tf32 holds and what is left of it, again in tf32: 22 to 23 bits, and three of the four products of the
 * parts are added. A warp makes 32 rows x 16 outputs; OUTS / 16 warps beside each other, and 16 / (OUTS / 16) of them share the inputs, 16
 * at a time in turn. Sums of 64 inputs are taken out of the matrix units, which cut off what they add, and added in f32.
 * in % 4 == 0. Numerics: a term to 2^-21 of its size; fixed order, bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"
#include "cuda/tf32x3.h"

#define WARPS  (GROUP / 32u)
#define BESIDE (OUTS / 16u)
#define SHARE  (WARPS / BESIDE)
#define CHAIN  4u /* of 16 inputs */

/* Rows lane / 4 + 8 i of x and of w, inputs 4 (lane % 4) and up of 16: their order is the same on both sides. */
struct part {
    float4 x[4], w[2];
};
FN void take(struct part *p, const f32 *const *x, const f32 *const *w, u32 k, u32 in) {
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    bool live = k + 4u * (LOCAL_X & 3u) < in;
#pragma unroll
    for (u32 i = 0; i < 4u; i++) p->x[i] = live ? *(const float4 *)(x[i] + k) : none;
#pragma unroll
    for (u32 i = 0; i < 2u; i++) p->w[i] = live ? *(const float4 *)(w[i] + k) : none;
}
FN void multiply(const struct part *p, f32 (*c)[2][4]) {
#pragma unroll
    for (u32 s = 0; s < 2u; s++) {
        u32 wh[2][2], wl[2][2];
#pragma unroll
        for (u32 i = 0; i < 4u; i++) cut(of(&p->w[i >> 1], 2u * s + (i & 1u)), &wh[i >> 1][i & 1u], &wl[i >> 1][i & 1u]);
#pragma unroll
        for (u32 m = 0; m < 2u; m++) {
            u32 xh[4], xl[4];
#pragma unroll
            for (u32 i = 0; i < 4u; i++) cut(of(&p->x[2u * m + (i & 1u)], 2u * s + (i >> 1)), &xh[i], &xl[i]);
#pragma unroll
            for (u32 n = 0; n < 2u; n++) {
                mma_tf32(c[m][n], xl, wh[n]);
                mma_tf32(c[m][n], xh, wl[n]);
                mma_tf32(c[m][n], xh, wh[n]);
            }
        }
    }
}
/* grid: (out / OUTS, rows / 32) */
KERNEL(tf32x3)(const f32 *__restrict__ w, const f32 *x, const f32 *__restrict__ bias, f32 *y, u32 *witness,
               const struct pl_args_linear a) {
    __shared__ f32 held[WARPS][16][32];
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, g = lane >> 2, t = lane & 3u, share = warp / BESIDE;
    u32 row0 = 32u * GROUP_Y, out0 = OUTS * GROUP_X + 16u * (warp % BESIDE);
    const f32 *px[4], *pw[2];
    count_launch(witness);
#pragma unroll
    for (u32 i = 0; i < 4u; i++) px[i] = x + (u64)PL_MIN(row0 + g + 8u * i, a.rows - 1u) * a.in + 4u * t;
#pragma unroll
    for (u32 i = 0; i < 2u; i++) pw[i] = w + (u64)PL_MIN(out0 + g + 8u * i, a.out - 1u) * a.in + 4u * t;
    f32 acc[16], c[2][2][4];
    struct part now, next;
#pragma unroll
    for (u32 i = 0; i < 16u; i++) acc[i] = 0.0f, c[i >> 3][i >> 2 & 1u][i & 3u] = 0.0f;
    u32 n = 0u;
    take(&next, px, pw, 16u * share, a.in);
    for (u32 k = 16u * share; k < a.in; k += 16u * SHARE) {
        now = next;
        take(&next, px, pw, k + 16u * SHARE, a.in);
        multiply(&now, c);
        if (++n % CHAIN != 0u) continue;
#pragma unroll
        for (u32 i = 0; i < 16u; i++) acc[i] += c[i >> 3][i >> 2 & 1u][i & 3u], c[i >> 3][i >> 2 & 1u][i & 3u] = 0.0f;
    }
#pragma unroll
    for (u32 i = 0; i < 16u; i++) held[warp][i][lane] = acc[i] + c[i >> 3][i >> 2 & 1u][i & 3u];
    BARRIER();
    for (u32 i = LOCAL_X; i < 32u * OUTS; i += GROUP) { /* consecutive threads: consecutive outputs of one row */
        u32 o = i % OUTS, r = i / OUTS, beside = o / 16u, e = 8u * (r >> 4) + 4u * (o >> 3 & 1u) + 2u * (r >> 3 & 1u) + (o & 1u);
        u32 from = 4u * (r & 7u) + ((o & 7u) >> 1);
        if (row0 + r >= a.rows || OUTS * GROUP_X + o >= a.out) continue;
        f32 v = 0.0f;
#pragma unroll
        for (u32 s = 0; s < SHARE; s++) v += held[s * BESIDE + beside][e][from];
        u64 at = (u64)(row0 + r) * a.out + OUTS * GROUP_X + o;
        if ((a.flags & PL_LINEAR_BIAS) != 0u) v += bias[OUTS * GROUP_X + o];
        if ((a.flags & PL_LINEAR_ADD) != 0u) v += y[at];
        y[at] = v;
    }
}
