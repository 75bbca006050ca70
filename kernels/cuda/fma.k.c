/* fma - products with f32 weights, in f32, on NVIDIA GPUs: what may not be rounded (the logits of routers).
 * Contract: kernels/linear.k.c. Many rows: 256 threads make 64 rows x 64 outputs, 16 inputs at a time. With ROWS, up to so
 * many rows: a warp an output, whose first weights are on their way before the launch before is done. in % 4 == 0.
 * Numerics: f32, inputs in order, bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"

#ifdef ROWS
#define PARTS 16u /* float4 of a row of weights that a lane holds at a time */
#define SPAN  (32u * 4u * PARTS)

FN void take(float4 *v, const f32 *row, u32 at, u32 in) {
#pragma unroll
    for (u32 i = 0; i < PARTS; i++) {
        u32 c = at + 128u * i + 4u * (LOCAL_X % 32u);
        v[i] = c < in ? *(const float4 *)(row + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}
/* grid: (out / warps) */
KERNEL(fma)(const f32 *__restrict__ w, const f32 *x, const f32 *__restrict__ bias, f32 *y, u32 *witness, const struct pl_args_linear a) {
    u32 o = GROUP_X * (GROUP / 32u) + LOCAL_X / 32u;
    const f32 *row = w + (u64)PL_MIN(o, a.out - 1u) * a.in;
    float4 v[PARTS];
    f32 sum[ROWS];
    take(v, row, 0u, a.in); /* weights depend on no launch before this one */
    count_launch(witness);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) sum[r] = 0.0f;
    for (u32 k = 0; k < a.in; k += SPAN) {
        if (k > 0u) take(v, row, k, a.in);
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            if (r >= a.rows) continue; /* the same for all threads */
            float4 p[PARTS];
            take(p, x + (u64)r * a.in, k, a.in);
#pragma unroll
            for (u32 i = 0; i < PARTS; i++)
                sum[r] = FMA(v[i].x, p[i].x, FMA(v[i].y, p[i].y, FMA(v[i].z, p[i].z, FMA(v[i].w, p[i].w, sum[r]))));
        }
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        if (r >= a.rows) continue;
        f32 s = sum[r];
#pragma unroll
        for (u32 m = 16u; m > 0u; m >>= 1) s += lane_xor(s, m);
        if (LOCAL_X % 32u != 0u || o >= a.out) continue;
        u64 at = (u64)r * a.out + o;
        if ((a.flags & PL_LINEAR_BIAS) != 0u) s += bias[o];
        if ((a.flags & PL_LINEAR_ADD) != 0u) s += y[at];
        y[at] = s;
    }
}
#else
#define TILE 64u
#define STEP 16u
#define PITCH (TILE + 4u)

/* grid: (out / TILE, rows / TILE) */
KERNEL(fma)(const f32 *__restrict__ w, const f32 *__restrict__ x, const f32 *__restrict__ bias, f32 *y, u32 *witness,
            const struct pl_args_linear a) {
    __shared__ __align__(16) f32 xs[2][STEP][PITCH], ws[2][STEP][PITCH];
    count_launch(witness);
    u32 row0 = GROUP_Y * TILE, out0 = GROUP_X * TILE, mine = LOCAL_X / 4u, k4 = 4u * (LOCAL_X % 4u);
    u32 ty = LOCAL_X / 16u, tx = LOCAL_X % 16u, stage = 0u;
    const f32 *px = x + (u64)PL_MIN(row0 + mine, a.rows - 1u) * a.in + k4, *pw = w + (u64)PL_MIN(out0 + mine, a.out - 1u) * a.in + k4;
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 nx = k4 < a.in ? *(const float4 *)px : none, nw = k4 < a.in ? *(const float4 *)pw : none;
    f32 acc[4][4];
#pragma unroll
    for (u32 i = 0; i < 16u; i++) acc[i >> 2][i & 3u] = 0.0f;
    for (u32 k = 0; k < a.in; k += STEP, stage ^= 1u) {
        xs[stage][k4][mine] = nx.x, xs[stage][k4 + 1u][mine] = nx.y, xs[stage][k4 + 2u][mine] = nx.z, xs[stage][k4 + 3u][mine] = nx.w;
        ws[stage][k4][mine] = nw.x, ws[stage][k4 + 1u][mine] = nw.y, ws[stage][k4 + 2u][mine] = nw.z, ws[stage][k4 + 3u][mine] = nw.w;
        BARRIER(); /* the other stage was left by all before the barrier of the last round */
        bool more = k + STEP + k4 < a.in;
        nx = more ? *(const float4 *)(px + k + STEP) : none;
        nw = more ? *(const float4 *)(pw + k + STEP) : none;
#pragma unroll
        for (u32 i = 0; i < STEP; i++) {
            float4 u = *(const float4 *)&xs[stage][i][4u * ty], v = *(const float4 *)&ws[stage][i][4u * tx];
            f32 p[4] = {u.x, u.y, u.z, u.w}, q[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (u32 n = 0; n < 16u; n++) acc[n >> 2][n & 3u] = FMA(p[n >> 2], q[n & 3u], acc[n >> 2][n & 3u]);
        }
    }
#pragma unroll
    for (u32 n = 0; n < 16u; n++) {
        u32 r = row0 + 4u * ty + (n >> 2), o = out0 + 4u * tx + (n & 3u);
        if (r >= a.rows || o >= a.out) continue;
        u64 at = (u64)r * a.out + o;
        f32 v = acc[n >> 2][n & 3u];
        if ((a.flags & PL_LINEAR_BIAS) != 0u) v += bias[o];
        if ((a.flags & PL_LINEAR_ADD) != 0u) v += y[at];
        y[at] = v;
    }
}
#endif
