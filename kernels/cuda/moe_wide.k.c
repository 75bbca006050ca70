/* moe_wide - moe_dense for sm_90a: four warps multiply together (wgmma), rows and weights from shared memory. Contract, arguments
 * and rounding: moe_dense.k.c.
 *
 *   MOE_PAIR   grid: (out / 128, tiles)
 *   otherwise  grid: (out / 256, tiles)
 *
 * Two teams of four warps make 128 rows times 256 outputs (128 of gate and the same 128 of up), 64 rows each, 64 inputs a stage,
 * STAGES (4) stages. A stage is brought two ahead: its place was last read two stages before, which both teams have left when
 * they meet. A row of a stage is 128 bytes, its eight 16 bytes spread as the matrix units expect it (128-byte swizzle). */
#include "dialect.h"
#include "args/args.h"

#define ROWS_TILE   128u
#define OUTS_TILE   256u
#define STAGE_K     64u
#define ROWS_BYTES  (ROWS_TILE * STAGE_K * 2u)
#define STAGE_BYTES ((ROWS_TILE + OUTS_TILE) * STAGE_K * 2u)
extern __shared__ __align__(1024) u8 shared[];

FN u32 shared_at(const void *p) {
    u64 a;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(a) : "l"(p));
    return (u32)a;
}
FN void copy16(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
FN u32 two_bf16(f32 lo, f32 hi) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}
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

/* Eight rows lie 1024 bytes apart, rows of 128 bytes, swizzled. */
FN u64 described(u32 at) { return (u64)((at & 0x3FFFFu) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
/* d (+)= 64 rows times 256 outputs over 16 inputs, both in shared memory. */
#define OUT4(d, i) "+f"((d)[i][0]), "+f"((d)[i][1]), "+f"((d)[i][2]), "+f"((d)[i][3])
FN void wide(f32 (*d)[4], u64 rows, u64 outs, u32 go_on) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
                 "}, %128, %129, p, 1, 1, 0, 0;\n}"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3),
                   OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7),
                   OUT4(d, 8), OUT4(d, 9), OUT4(d, 10), OUT4(d, 11),
                   OUT4(d, 12), OUT4(d, 13), OUT4(d, 14), OUT4(d, 15),
                   OUT4(d, 16), OUT4(d, 17), OUT4(d, 18), OUT4(d, 19),
                   OUT4(d, 20), OUT4(d, 21), OUT4(d, 22), OUT4(d, 23),
                   OUT4(d, 24), OUT4(d, 25), OUT4(d, 26), OUT4(d, 27),
                   OUT4(d, 28), OUT4(d, 29), OUT4(d, 30), OUT4(d, 31)
                 : "l"(rows), "l"(outs), "r"(go_on));
}

struct sources {
    const u16 *x[4], *w[8]; /* this thread's rows */
};
FN void bring(const struct sources *s, u32 base, u32 k) {
    u32 r = LOCAL_X / 8u, c = LOCAL_X & 7u;
#pragma unroll
    for (u32 i = 0; i < 4u; i++) copy16(base + spread(r + 32u * i, c), s->x[i] + k * STAGE_K);
#pragma unroll
    for (u32 i = 0; i < 8u; i++) copy16(base + ROWS_BYTES + spread(r + 32u * i, c), s->w[i] + k * STAGE_K);
}

KERNEL(moe_wide)(const u16 *__restrict__ x, const u16 *__restrict__ w0, const u16 *__restrict__ w1, const f32 *b0, const f32 *b1,
                 const u32 *list, void *y, u32 *witness, const struct pl_args_moe a) {
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, team = warp >> 2, steps = a.in / STAGE_K, base = shared_at(shared);
    count_launch(witness);
    if (GROUP_Y >= list[PL_ORDER_TILES]) return;
    uint4 tile = *(const uint4 *)(list + PL_ORDER_TILE(a.stride) + (u64)GROUP_Y * PL_TILE_WORDS); /* expert, first, rows */
#ifdef MOE_PAIR
    const u32 first_out = GROUP_X * 128u;
#else
    const u32 first_out = GROUP_X * 256u;
    (void)w1;
    (void)b1;
#endif
    struct sources s;
    u32 c = 8u * (LOCAL_X & 7u);
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        u32 place = tile.y + PL_MIN(LOCAL_X / 8u + 32u * i, tile.z - 1u);
#ifdef MOE_PAIR
        place = list[PL_ORDER_SLOT(0) + place] / a.used;
#endif
        s.x[i] = x + (u64)place * a.in + c;
    }
#pragma unroll
    for (u32 i = 0; i < 8u; i++) {
        u32 r = LOCAL_X / 8u + 32u * i;
#ifdef MOE_PAIR
        u32 o = first_out + (r & 127u);
        const u16 *w = i < 4u ? w0 : w1;
#else
        u32 o = first_out + r;
        const u16 *w = w0;
#endif
        s.w[i] = w + ((u64)tile.x * a.out + PL_MIN(o, a.out - 1u)) * a.in + c;
    }
    f32 acc[32][4];
#pragma unroll
    for (u32 i = 0; i < 128u; i++) acc[i >> 2][i & 3u] = 0.0f;
#pragma unroll
    for (u32 p = 0; p < 2u; p++) {
        if (p < steps) bring(&s, base + p * STAGE_BYTES, p);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (u32 k = 0; k < steps; k++) {
        asm volatile("cp.async.wait_group 1;\n fence.proxy.async.shared::cta;" ::: "memory");
        BARRIER();
        if (k + 2u < steps) bring(&s, base + (k + 2u) % 4u * STAGE_BYTES, k + 2u);
        asm volatile("cp.async.commit_group;" ::: "memory");
        u32 at = base + k % 4u * STAGE_BYTES;
        u64 rows = described(at + team * 64u * 128u), outs = described(at + ROWS_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (u32 q = 0; q < STAGE_K / 16u; q++) wide(acc, rows + 2u * q, outs + 2u * q, 1u);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    bool biased = (a.flags & PL_LINEAR_BIAS) != 0u;
#pragma unroll
    for (u32 half = 0; half < 2u; half++) {
        u32 r = 64u * team + 16u * (warp & 3u) + (lane >> 2) + 8u * half;
        if (r >= tile.z) continue;
        u64 to = (u64)(tile.y + r) * a.out, from = (u64)tile.x * a.out;
#ifdef MOE_PAIR
#pragma unroll
        for (u32 n = 0; n < 16u; n++) {
            u32 o = first_out + 8u * n + 2u * (lane & 3u);
            f32 g0 = acc[n][2u * half], g1 = acc[n][2u * half + 1u], u0 = acc[n + 16u][2u * half], u1 = acc[n + 16u][2u * half + 1u];
            if (o >= a.out) continue;
            if (biased) g0 += b0[from + o], g1 += b0[from + o + 1u], u0 += b1[from + o], u1 += b1[from + o + 1u];
            *(u32 *)((u16 *)y + to + o) = two_bf16(gated(g0, u0), gated(g1, u1));
        }
#else
#pragma unroll
        for (u32 n = 0; n < 32u; n++) {
            u32 o = first_out + 8u * n + 2u * (lane & 3u);
            f32 v0 = acc[n][2u * half], v1 = acc[n][2u * half + 1u];
            if (o >= a.out) continue;
            if (biased) v0 += b0[from + o], v1 += b0[from + o + 1u];
            *(float2 *)((f32 *)y + to + o) = make_float2(v0, v1);
        }
#endif
    }
}
