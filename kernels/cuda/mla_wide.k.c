/* mla_wide - decode attention by plan over latent keys on Hopper's tensor cores (sm_90a), for 64 query heads a group: four warps
 * together multiply 64 rows (wgmma), keys and values from shared memory. Contract, parts and their weights: kernels/paged.k.c;
 * other devices and fewer heads: mla.k.c, whose merge joins the parts.
 *
 * Teams 0 and 1 take the scores and softmaxes of every other tile of TILE tokens, and both weigh every tile, one half of the values
 * each; team 2 copies tiles into a ring. What one team's softmax gives, weights, what is kept of what the rows have and the maximum so
 * far, stands in shared memory in two places in turn; while one takes a softmax the other has the matrix units.
 * Tiles lie as the matrix units want them: panels of 64 elements (128 bytes) a token, 16-byte units exchanged by token % 8.
 * q and weights are rounded to the cache's type. Requires: VALUE_DIM 512, HEAD_DIM % 64 == 0, HEADS 64, PAGE_TOKENS % 16 == 0, f16 or
 * bf16 pages, GROUP 384. Relative error to src/ref <= 6e-3 (f16). Bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"
#include "cuda/units.h"

extern __shared__ __align__(1024) u8 shared[];
#define TEAM      128u
#define ME        (LOCAL_X % TEAM)
#define LOG2E     1.4426950408889634f
#define TILE      32u
#define RING      4u
#define UNITS     (HEAD_DIM / 8u)          /* of 16 bytes */
#define PANELS    (HEAD_DIM / 64u)
#define K_PANEL   (TILE * 128u)
#define ROW_PANEL (64u * 128u)             /* of 64 rows: q, and the weights of two tiles */
#define TILE_BYTES (PANELS * K_PANEL)
#define STEPS     (HEAD_DIM / 16u)
#define MINE      (VALUE_DIM / 2u)         /* values of a team */
#define RING_AT   (PANELS * ROW_PANEL)
#define P_AT      (RING_AT + RING * TILE_BYTES)

/* exp2(a - b) where b >= a; nothing weighs nothing. */
FN f32 weight_of(f32 a, f32 b) { return a == NEG_INF ? 0.0f : power2(a - b); }

#define BOTH_BARRIER() asm volatile("bar.sync 4, 256;" ::: "memory") /* teams 0 and 1 */
#ifdef KV_BF16
#define WIDE_TYPE "bf16.bf16"
#else
#define WIDE_TYPE "f16.f16"
#endif
#define OUT4(d, i) "+f"((d)[i][0]), "+f"((d)[i][1]), "+f"((d)[i][2]), "+f"((d)[i][3])
FN void wide_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void wide_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
#define WIDE_WAIT(groups) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory")
/* Registers that the units write: nobody reads them before this. */
template <u32 N> FN void settle(f32 (*d)[4]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) asm volatile("" : OUT4(d, i)::"memory");
}
/* What lies in panels at `at`: 8 rows of 128 bytes, then the next 8; `lead` bytes to the next panel where columns are the long side. */
FN u64 panels_at(u32 at, u32 lead) {
    return (u64)((at & 0x3FFFFu) >> 4) | (u64)(lead >> 4) << 16 | (u64)(1024u >> 4) << 32 | 1ull << 62;
}
/* d (+)= 64 rows x 16 inputs, by TILE tokens */
FN void score(f32 (*d)[4], u64 a, u64 b, u32 go_on) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                 "}, %16, %17, p, 1, 1, 0, 0;\n}"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3)
                 : "l"(a), "l"(b), "r"(go_on));
}
/* d += 64 rows x 16 tokens, by MINE values */
FN void weigh(f32 (*d)[4], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
                 "}, %128, %129, 1, 1, 1, 0, 1;"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3), OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7),
                   OUT4(d, 8), OUT4(d, 9), OUT4(d, 10), OUT4(d, 11), OUT4(d, 12), OUT4(d, 13), OUT4(d, 14), OUT4(d, 15),
                   OUT4(d, 16), OUT4(d, 17), OUT4(d, 18), OUT4(d, 19), OUT4(d, 20), OUT4(d, 21), OUT4(d, 22), OUT4(d, 23),
                   OUT4(d, 24), OUT4(d, 25), OUT4(d, 26), OUT4(d, 27), OUT4(d, 28), OUT4(d, 29), OUT4(d, 30), OUT4(d, 31)
                 : "l"(a), "l"(b));
}
/* What this thread wrote, or was told of by a sign, is seen by the matrix units. */
FN void units_see(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FN void sign_init(u32 sign, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sign), "r"(arrivals) : "memory"); }
FN void sign_arrive(u32 sign) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sign) : "memory"); }
FN void sign_wait(u32 sign, u32 phase) {
    asm volatile("{\n.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(sign), "r"(phase) : "memory");
}
/* Arrives once this thread's copies so far are there. */
FN void sign_copied(u32 sign) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(sign) : "memory"); }
FN void signs_ready(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
#define FEW_REGISTERS()  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;")
#define MANY_REGISTERS() asm volatile("setmaxnreg.inc.sync.aligned.u32 232;")

struct signs {
    u32 full, empty, ready, free; /* of 8 bytes each: RING, RING, 2, 2 */
};
struct work {
    const u32 *pages;
    u32 skip, tokens, last_page, tiles;
};
FN u32 ring_phase(u32 t) { return t / RING & 1u; }
FN u32 turn_phase(u32 t) { return t / 2u & 1u; }

/* --- team 2 --- */

FN void copy_tile(u32 to, const KV_TYPE *pool, const struct work *w, u32 t0) {
#pragma unroll 3
    for (u32 i = 0; i < TILE * UNITS / TEAM; i++) {
        u32 j = ME + TEAM * i, row = j / UNITS, unit = j % UNITS, pos = w->skip + t0 + row;
        u32 page = w->pages[PL_MIN(pos / PAGE_TOKENS, w->last_page)];
        u64 from = ((u64)page * PAGE_TOKENS + pos % PAGE_TOKENS) * HEAD_DIM + 8u * unit;
        copy16(to + unit / 8u * K_PANEL + row * 128u + ((unit ^ row) & 7u) * 16u, pool + from, t0 + row < w->tokens ? 16u : 0u);
    }
}
FN void copy_tiles(u32 ring, const KV_TYPE *pool, const struct work *w, const struct signs *s) {
    for (u32 t = 0; t < w->tiles; t++) {
        if (t >= RING) sign_wait(s->empty + 8u * (t % RING), ring_phase(t - RING));
        copy_tile(ring + t % RING * TILE_BYTES, pool, w, t * TILE);
        sign_copied(s->full + 8u * (t % RING));
    }
    copies_close();
    COPIES_WAIT(0);
}

/* --- teams 0 and 1 --- */

/* q of all heads, scaled, into panels. */
FN void take_q(u32 to, const f32 *q, f32 scale) {
    for (u32 i = LOCAL_X; i < 64u * UNITS; i += 2u * TEAM) {
        u32 row = i / UNITS, unit = i % UNITS;
        const float4 a = *(const float4 *)(q + row * HEAD_DIM + 8u * unit), b = *(const float4 *)(q + row * HEAD_DIM + 8u * unit + 4u);
        shared_put16(to + unit / 8u * ROW_PANEL + row * 128u + ((unit ^ row) & 7u) * 16u, two(a.x * scale, a.y * scale),
                     two(a.z * scale, a.w * scale), two(b.x * scale, b.y * scale), two(b.z * scale, b.w * scale));
    }
    units_see();
    BOTH_BARRIER();
}

FN void scores(f32 (*s)[4], u32 q, u32 k) {
    settle<TILE / 8u>(s);
    wide_begin();
#pragma unroll
    for (u32 i = 0; i < STEPS; i++)
        score(s, panels_at(q + i / 4u * ROW_PANEL + i % 4u * 32u, 16u), panels_at(k + i / 4u * K_PANEL + i % 4u * 32u, 16u), i);
    wide_commit();
}
/* What the rows have so far; no matrix instruction that adds to it is under way. */
FN void keep_rows(f32 (*o)[4], const f32 *by) {
    settle<MINE / 8u>(o);
    if (any_lane(by[0] != 1.0f || by[1] != 1.0f)) {
#pragma unroll
        for (u32 i = 0; i < MINE / 8u; i++) o[i][0] *= by[0], o[i][1] *= by[0], o[i][2] *= by[1], o[i][3] *= by[1];
    }
    settle<MINE / 8u>(o);
}
/* A tile's values of this team, by weights at p. */
FN void values(f32 (*o)[4], u32 p, u32 k, u32 team) {
    wide_begin();
#pragma unroll
    for (u32 i = 0; i < TILE / 16u; i++) weigh(o, panels_at(p + 32u * i, 16u), panels_at(k + team * (MINE / 64u) * K_PANEL + 2048u * i, K_PANEL));
    wide_commit();
}

/* Scores become weights at p; *keep is what the rows keep, top the maximum before and after, last that of this team's softmax before. */
FN void soften(f32 (*s)[4], f32 *top, f32 *keep, f32 *last, f32 *l, u32 live, f32 softcap) {
    u32 t = LOCAL_X % 4u;
    f32 before[2] = {top[0], top[1]};
#pragma unroll
    for (u32 i = 0; i < TILE / 8u; i++)
#pragma unroll
        for (u32 j = 0; j < 4u; j++) {
            f32 x = s[i][j];
            if (softcap > 0.0f) x = softcap * TANH(x / softcap) * LOG2E;
            s[i][j] = 8u * i + 2u * t + (j & 1u) < live ? x : NEG_INF;
            top[j >> 1] = FMAX(top[j >> 1], s[i][j]);
        }
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        top[h] = FMAX(top[h], lane_xor(top[h], 1));
        top[h] = FMAX(top[h], lane_xor(top[h], 2));
        keep[h] = weight_of(before[h], top[h]);
        l[h] *= weight_of(last[h], top[h]);
        last[h] = top[h];
    }
    f32 from[2] = {top[0] == NEG_INF ? 0.0f : top[0], top[1] == NEG_INF ? 0.0f : top[1]};
#pragma unroll
    for (u32 i = 0; i < TILE / 8u; i++)
#pragma unroll
        for (u32 j = 0; j < 4u; j++) l[j >> 1] += s[i][j] = power2(s[i][j] - from[j >> 1]);
}
FN void put_weights(f32 (*s)[4], u32 p, u32 odd) {
    u32 lane = LOCAL_X % 32u, row = 16u * (ME / 32u) + lane / 4u;
#pragma unroll
    for (u32 i = 0; i < TILE / 8u; i++)
#pragma unroll
        for (u32 h = 0; h < 2u; h++)
            shared_put4(p + (row + 8u * h) * 128u + (((4u * odd + i) ^ (row + 8u * h)) & 7u) * 16u + 4u * (lane % 4u), two(s[i][2u * h], s[i][2u * h + 1u]));
}

/* What a team's softmax gives stands in its place: weights, what is kept, the maximum. */
struct given {
    f32 (*tops)[64], (*kept)[64];
    u32 p, row;
};
FN void give(const struct given *g, f32 (*s)[4], const f32 *top, const f32 *keep, u32 team, const struct signs *sign, u32 phase) {
    put_weights(s, g->p, team);
    if (LOCAL_X % 4u == 0u) {
#pragma unroll
        for (u32 h = 0; h < 2u; h++) g->tops[team][g->row + 8u * h] = top[h], g->kept[team][g->row + 8u * h] = keep[h];
    }
    units_see();
    sign_arrive(sign->ready + 8u * team);
    sign_wait(sign->ready + 8u * team, phase);
}

/* grid: chunks x H / HEADS, the latter first */
KERNEL(mla_wide)(const f32 *q, const KV_TYPE *pages, const u32 *__restrict__ plan, f32 *out, f32 *parts, f32 *lse_log2, u32 *witness,
                 const struct pl_args_paged a) {
    __shared__ __align__(8) u64 places[2u * RING + 4u];
    __shared__ f32 tops[2][64], kept[2][64];
    u32 heads_tiles = a.heads / HEADS, x = GROUP_X / heads_tiles, y = GROUP_X % heads_tiles, base = (shared_at(shared) + 1023u) & ~1023u;
    const uint4 *chunk = (const uint4 *)(plan + PL_PLAN_HEADER_WORDS + x * PL_PLAN_CHUNK_WORDS);
    const uint4 c0 = chunk[0], c1 = chunk[1], c2 = chunk[2]; /* args.h: words of a chunk */
    const struct work w = {plan + c1.w, c0.z, c0.w, c0.y > 0u ? c0.y - 1u : 0u, (c0.w + TILE - 1u) / TILE};
    u32 at0 = shared_at(places), team = LOCAL_X / TEAM;
    const struct signs sign = {at0, at0 + 8u * RING, at0 + 16u * RING, at0 + 16u * RING + 16u};
    if (LOCAL_X == 0u) {
        for (u32 i = 0; i < RING; i++) {
            sign_init(sign.full + 8u * i, TEAM);
            sign_init(sign.empty + 8u * i, 8u);
        }
        for (u32 i = 0; i < 2u; i++) {
            sign_init(sign.ready + 8u * i, TEAM);
            sign_init(sign.free + 8u * i, 4u);
        }
        signs_ready();
    }
    count_launch(witness);
    if (c1.y == 0u) return; /* the grid is larger than the plan */
    BARRIER();
    if (team == 2u) {
        FEW_REGISTERS();
        copy_tiles(base + RING_AT, pages, &w, &sign);
        return;
    }
    MANY_REGISTERS();
    bool direct = c1.z == PL_PLAN_DIRECT, first_lane = LOCAL_X % 32u == 0u;
    u64 mine = (u64)c2.y * a.heads + y * HEADS, at = direct ? mine : (u64)c1.z * a.heads + y * HEADS;
    u32 row = 16u * (ME / 32u) + LOCAL_X % 32u / 4u, p = base + P_AT, ring = base + RING_AT;
    take_q(base, q + mine * HEAD_DIM, a.softcap > 0.0f ? a.scale : a.scale * LOG2E);
    f32 o[MINE / 8u][4], l[2] = {0.0f, 0.0f}, last[2] = {NEG_INF, NEG_INF};
#pragma unroll
    for (u32 i = 0; i < MINE / 8u; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
    const struct given g = {tops, kept, p, row};
    u32 other = team ^ 1u;
    if (team == 0u && w.tiles > 0u) { /* the first tile: nothing before it */
        f32 s[TILE / 8u][4], top[2] = {NEG_INF, NEG_INF}, keep[2];
        sign_wait(sign.full, 0u);
        units_see();
        scores(s, base, ring);
        WIDE_WAIT(0);
        settle<TILE / 8u>(s);
        soften(s, top, keep, last, l, w.tokens, a.softcap);
        give(&g, s, top, keep, team, &sign, 0u);
        settle<MINE / 8u>(o);
        values(o, p, ring, team);
    }
#pragma unroll 1
    for (u32 t = 2u - team; t < w.tiles; t += 2u) {
        f32 s[TILE / 8u][4], by[2], top[2], keep[2];
        u32 slot = t % RING, before = (t - 1u) % RING;
        WIDE_WAIT(0);
        settle<MINE / 8u>(o);
        if (t >= 2u && first_lane) sign_arrive(sign.empty + 8u * ((t - 2u) % RING));
        sign_wait(sign.full + 8u * slot, ring_phase(t));
        units_see();
        scores(s, base, ring + slot * TILE_BYTES); /* while the other team takes its softmax of the tile before */
        sign_wait(sign.ready + 8u * other, turn_phase(t - 1u));
#pragma unroll
        for (u32 h = 0; h < 2u; h++) by[h] = kept[other][row + 8u * h], top[h] = tops[other][row + 8u * h];
        keep_rows(o, by);
        values(o, p + 64u * other, ring + before * TILE_BYTES, team); /* of the tile before, by the other team's weights */
        WIDE_WAIT(1);
        settle<TILE / 8u>(s);
        soften(s, top, keep, last, l, w.tokens - t * TILE, a.softcap);
        if (t >= 2u) sign_wait(sign.free + 8u * team, turn_phase(t - 2u));
        give(&g, s, top, keep, team, &sign, turn_phase(t));
        WIDE_WAIT(0);
        settle<MINE / 8u>(o);
        if (first_lane) {
            sign_arrive(sign.empty + 8u * before);
            sign_arrive(sign.free + 8u * other);
        }
        keep_rows(o, keep);
        values(o, p + 64u * team, ring + slot * TILE_BYTES, team);
    }
    WIDE_WAIT(0);
    settle<MINE / 8u>(o);
    if (w.tiles > 0u && ((w.tiles - 1u) & 1u) != team) { /* the last tile is the other team's */
        u32 t = w.tiles - 1u;
        f32 by[2];
        sign_wait(sign.ready + 8u * other, turn_phase(t));
        units_see();
#pragma unroll
        for (u32 h = 0; h < 2u; h++) by[h] = kept[other][row + 8u * h];
        keep_rows(o, by);
        values(o, p + 64u * other, ring + t % RING * TILE_BYTES, team);
        WIDE_WAIT(0);
        settle<MINE / 8u>(o);
    }
    f32 *sums = (f32 *)(shared + 1024u); /* of q's place: nobody reads it any more, after the barrier */
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        l[h] += lane_xor(l[h], 1);
        l[h] += lane_xor(l[h], 2);
    }
    BOTH_BARRIER();
    if (LOCAL_X % 4u == 0u) {
#pragma unroll
        for (u32 h = 0; h < 2u; h++) sums[128u * team + row + 8u * h] = l[h], sums[256u + 128u * team + row + 8u * h] = last[h];
    }
    BOTH_BARRIER();
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        u32 r = row + 8u * h;
        f32 m0 = sums[256u + r], m1 = sums[384u + r], most = FMAX(m0, m1);
        f32 total = sums[r] * weight_of(m0, most) + sums[128u + r] * weight_of(m1, most), by = total > 0.0f ? 1.0f / total : 0.0f;
        f32 *to = (direct ? out : parts) + (at + r) * VALUE_DIM + MINE * team + 2u * (LOCAL_X % 4u);
#pragma unroll
        for (u32 i = 0; i < MINE / 8u; i++) *(float2 *)(to + 8u * i) = make_float2(o[i][2u * h] * by, o[i][2u * h + 1u] * by);
        if (!direct && team == 0u && LOCAL_X % 4u == 0u) lse_log2[at + r] = total > 0.0f ? most + LOG2(total) : NEG_INF;
    }
}
