/* moe_dense - grouped products of many rows with the chosen experts on tensor cores of NVIDIA GPUs (sm_80 and up): inputs and
 * weights in bf16, sums in f32. Contract: kernels/moe.k.c, in order, tiles of 128 rows of one expert.
 *
 *   MOE_PAIR   h[place] = act(gate x + bias) * (up x + bias), bf16; x by row. grid: (out / 64, tiles)
 *   otherwise  made[place] = down h[place] + bias, f32. grid: (out / 128, tiles)
 *
 * Four warps make 128 rows times 128 outputs (64 of gate and the same 64 of up), 64 x 64 each, 64 inputs a stage, STAGES
 * stages on their way. in % 64 == 0, out % 2 == 0. The unpacked matrices of all experts stand one after the other. */
#include "dialect.h"
#include "args/args.h"

#define ROWS_TILE   128u
#define STAGE_K     64u
#define HALF_BYTES  (128u * STAGE_K * 2u)
#define STAGE_BYTES (2u * HALF_BYTES)
extern __shared__ __align__(128) u8 shared[];

FN u32 shared_at(const void *p) {
    u64 a;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(a) : "l"(p));
    return (u32)a;
}
FN void copy16(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
FN void four(u32 *r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
FN void mma(f32 *c, const u32 *a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FN u32 two_bf16(f32 lo, f32 hi) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}
/* Row r, 16 bytes number c of it: spread, so that eight rows of one column lie in different banks. */
FN u32 spread(u32 r, u32 c) { return 128u * r + ((c ^ (r & 7u)) << 4); }

#ifdef ACT_SWIGLU_CLAMPED
FN f32 gated(f32 g, f32 u) {
    g = FMIN(g, 7.0f);
    u = FMAX(FMIN(u, 7.0f), -7.0f);
    return (u + 1.0f) * __fdividef(g, 1.0f + __expf(-1.702f * g));
}
#elif defined(ACT_GELU_TANH)
FN f32 gated(f32 g, f32 u) { return 0.5f * g * (1.0f + TANH(0.7978845608028654f * g * (1.0f + 0.044715f * g * g))) * u; }
#else
FN f32 gated(f32 g, f32 u) { return __fdividef(g, 1.0f + __expf(-g)) * u; }
#endif

struct sources {
    const u16 *x[8], *w[8]; /* this thread's rows */
};
FN void bring(const struct sources *s, u32 stage, u32 k) {
    u32 base = shared_at(shared) + stage * STAGE_BYTES, c = LOCAL_X & 7u;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) {
        u32 at = spread(LOCAL_X / 8u + 16u * i, c);
        copy16(base + at, s->x[i] + k * STAGE_K);
        copy16(base + HALF_BYTES + at, s->w[i] + k * STAGE_K);
    }
}

KERNEL(moe_dense)(const u16 *__restrict__ x, const u16 *__restrict__ w0, const u16 *__restrict__ w1, const f32 *b0, const f32 *b1,
                  const u32 *list, void *y, u32 *witness, const struct pl_args_moe a) {
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, wm = warp & 1u, wn = warp >> 1, steps = a.in / STAGE_K;
    count_launch(witness);
    if (GROUP_Y >= list[PL_ORDER_TILES]) return;
    uint4 tile = *(const uint4 *)(list + PL_ORDER_TILE(a.stride) + (u64)GROUP_Y * PL_TILE_WORDS); /* expert, first, rows */
#ifdef MOE_PAIR
    const u32 first_out = GROUP_X * 64u;
#else
    const u32 first_out = GROUP_X * 128u;
    (void)w1;
    (void)b1;
#endif
    struct sources s;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) {
        u32 r = LOCAL_X / 8u + 16u * i, place = tile.y + PL_MIN(r, tile.z - 1u), c = 8u * (LOCAL_X & 7u);
#ifdef MOE_PAIR
        u32 row = list[PL_ORDER_SLOT(0) + place] / a.used, q = r & 63u, o = first_out + 32u * (r >> 6) + (q & 31u);
        const u16 *w = q < 32u ? w0 : w1;
#else
        u32 row = place, o = first_out + r;
        const u16 *w = w0;
#endif
        s.x[i] = x + (u64)row * a.in + c;
        s.w[i] = w + ((u64)tile.x * a.out + PL_MIN(o, a.out - 1u)) * a.in + c;
    }
    f32 acc[4][8][4];
#pragma unroll
    for (u32 i = 0; i < 128u; i++) acc[i >> 5][(i >> 2) & 7u][i & 3u] = 0.0f;
#pragma unroll
    for (u32 p = 0; p + 1u < STAGES; p++) {
        if (p < steps) bring(&s, p, p);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    u32 base = shared_at(shared);
    for (u32 k = 0; k < steps; k++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        BARRIER();
        if (k + STAGES - 1u < steps) bring(&s, (k + STAGES - 1u) % STAGES, k + STAGES - 1u);
        asm volatile("cp.async.commit_group;" ::: "memory");
        u32 at = base + k % STAGES * STAGE_BYTES;
#pragma unroll
        for (u32 q = 0; q < STAGE_K / 16u; q++) {
            u32 ra[4][4], rb[4][4];
#pragma unroll
            for (u32 m = 0; m < 4u; m++) four(ra[m], at + spread(64u * wm + 16u * m + (lane & 15u), 2u * q + (lane >> 4)));
#pragma unroll
            for (u32 n = 0; n < 4u; n++)
                four(rb[n], at + HALF_BYTES + spread(64u * wn + 16u * n + (lane & 7u) + ((lane >> 4) << 3), 2u * q + ((lane >> 3) & 1u)));
#pragma unroll
            for (u32 m = 0; m < 4u; m++) {
#pragma unroll
                for (u32 n = 0; n < 8u; n++) mma(acc[m][n], ra[m], rb[n >> 1][2u * (n & 1u)], rb[n >> 1][2u * (n & 1u) + 1u]);
            }
        }
    }
    bool biased = (a.flags & PL_LINEAR_BIAS) != 0u;
#pragma unroll
    for (u32 m = 0; m < 4u; m++) {
#pragma unroll
        for (u32 half = 0; half < 2u; half++) {
            u32 r = 64u * wm + 16u * m + (lane >> 2) + 8u * half;
            if (r >= tile.z) continue;
            u64 to = (u64)(tile.y + r) * a.out, from = (u64)tile.x * a.out;
#ifdef MOE_PAIR
#pragma unroll
            for (u32 n = 0; n < 4u; n++) {
                u32 o = first_out + 32u * wn + 8u * n + 2u * (lane & 3u);
                f32 g0 = acc[m][n][2u * half], g1 = acc[m][n][2u * half + 1u], u0 = acc[m][n + 4u][2u * half], u1 = acc[m][n + 4u][2u * half + 1u];
                if (o >= a.out) continue;
                if (biased) g0 += b0[from + o], g1 += b0[from + o + 1u], u0 += b1[from + o], u1 += b1[from + o + 1u];
                *(u32 *)((u16 *)y + to + o) = two_bf16(gated(g0, u0), gated(g1, u1));
            }
#else
#pragma unroll
            for (u32 n = 0; n < 8u; n++) {
                u32 o = first_out + 64u * wn + 8u * n + 2u * (lane & 3u);
                f32 v0 = acc[m][n][2u * half], v1 = acc[m][n][2u * half + 1u];
                if (o >= a.out) continue;
                if (biased) v0 += b0[from + o], v1 += b0[from + o + 1u];
                *(float2 *)((f32 *)y + to + o) = make_float2(v0, v1);
            }
#endif
        }
    }
}
