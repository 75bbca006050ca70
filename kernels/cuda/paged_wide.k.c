/* paged_wide - decode attention by plan with shared chunks on Hopper's tensor cores (sm_90a): a shared chunk is multiplied by four warps
 * together (wgmma), 64 rows a team, keys and values read from shared memory once for them. Contract, parts and their weights:
 * kernels/paged.k.c; chunks of one member: paged_lone.h.
 *
 * The plan's shared chunks come first. A group takes one of them for HEADS query heads of one KV head and up to ROWS rows, the heads of
 * its members: teams 0 and 1 multiply, team 2 copies tiles of BLOCK tokens into a ring. Up to 64 rows both teams hold all of them and
 * take every other tile; their states are combined at the end. Two chunks of one member fit into a group, one a team.
 * q and the softmax's weights are rounded to the cache's type; TWICE (bf16): what that loses is multiplied as well. It is rounded
 * towards zero there, so that what is lost has the sign of what is kept and infinities do not meet their opposites.
 * Tiles lie as the matrix units want them: panels of 64 elements (128 bytes) a token, 16-byte units exchanged by token % 8.
 * Requires: HEAD_DIM 128 (with 64 the compiler of CUDA 13.0 gives the weights the registers of q, which the next tile needs),
 * PAGE_TOKENS % 16 == 0, f16 or bf16 pages, GROUP 384, RING even. Parts are merged by paged_mma_merge.
 * Relative error to src/ref <= 2e-3. Bitwise repeatable. */
#if HEAD_DIM != 128
#error "paged_wide is for heads of 128"
#endif
#include "dialect.h"
#include "args/args.h"
#include "kv.h"
#include "cuda/units.h"

extern __shared__ __align__(1024) u8 shared[];
#define TEAM           128u
#define ME             (LOCAL_X % TEAM)
#ifndef PL_EMULATED
#define TEAM_BARRIER() asm volatile("bar.sync %0, 128;" ::"r"(1u + LOCAL_X / TEAM) : "memory")
#define BOTH_BARRIER() asm volatile("bar.sync 4, 256;" ::: "memory") /* teams 0 and 1 */
#endif
#define team_shared()  (shared + LOCAL_X / TEAM * TEAM_BYTES)
#if HEADS > 8
#define TEAM_BYTES (STAGES * STAGE + 16u * PITCH)
#else
#define TEAM_BYTES (STAGES * STAGE)
#endif
#include "cuda/paged_lone.h"

#define BLOCK      64u
#define PANEL      (BLOCK * 128u)
#define PANELS     (HEAD_DIM / 64u)
#define ROWS_BYTES (PANELS * PANEL) /* 64 rows or tokens */
#define TILE_BYTES (2u * ROWS_BYTES)
#define BEHIND     (RING / 2u) /* tiles that may still be on their way when one is waited for */
/* Shared memory of a shared chunk, from a multiple of 1024 on: the ring, then what q lost by rounding, 64 rows a team. */
#define LOW_Q_AT (RING * TILE_BYTES)

#include "cuda/wide.h"
#ifndef PL_EMULATED
#ifdef TWICE
FN void score_low(f32 (*d)[4], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, %32, %33, 1, 1, 1, 0, 0;"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3), OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7)
                 : "l"(a), "l"(b));
}
#endif
#endif

/* --- a shared chunk --- */

struct ring {
    u32 tiles, full, empty; /* signs, 8 bytes each: RING of either */
};
FN u32 phase_of(u32 t) { return t / RING & 1u; }

#define RUNS (BLOCK / RUN) /* of a tile's tokens, none across the end of a page */
FN void look_up_tile(u32 page[RUNS], const struct work *w, u32 t0) {
#pragma unroll
    for (u32 i = 0; i < RUNS; i++) page[i] = w->pages[PL_MIN((t0 + RUN * i) / PAGE_TOKENS, w->last_page)];
}
FN void copy_tile(u32 to, const struct work *w, const struct pools *p, u32 t0, const u32 page[RUNS]) {
    u32 unit = ME % UNITS, first = ME / UNITS;
#pragma unroll
    for (u32 i = 0; i < BLOCK * UNITS / TEAM; i++) {
        u32 row = first + TEAM / UNITS * i, token = t0 + row, bytes = token < w->tokens ? 16u : 0u;
        u64 from = (((u64)page[TEAM / UNITS * i / RUN] * PAGE_TOKENS + token % PAGE_TOKENS) * w->kv_heads + w->g) * HEAD_DIM + 8u * unit;
        u32 at = to + unit_at(row, unit);
        copy16(at, p->k + from, bytes);
        copy16(at + ROWS_BYTES, p->v + from, bytes);
    }
    copies_close();
}
/* Team 2. The first tiles, written by no launch of this step, begin before the launch before this one is done. */
FN void copy_tiles(u32 base, const struct work *w, const struct pools *p, const struct ring *r, bool old, u32 *witness) {
    u32 early = old ? PL_MIN(r->tiles, BEHIND) : 0u, page[RUNS];
    look_up_tile(page, w, 0u);
    for (u32 t = 0; t < early; t++) {
        copy_tile(base + t * TILE_BYTES, w, p, t * BLOCK, page);
        look_up_tile(page, w, (t + 1u) * BLOCK);
    }
    count_launch(witness);
    for (u32 t = early; t < r->tiles + BEHIND; t++) {
        u32 slot = t % RING;
        if (t < r->tiles) {
            if (t >= RING) sign_wait(r->empty + 8u * slot, phase_of(t - RING));
            copy_tile(base + slot * TILE_BYTES, w, p, t * BLOCK, page);
            look_up_tile(page, w, (t + 1u) * BLOCK); /* on its way while others are waited for */
        } else {
            copies_close();
        }
        if (t < BEHIND) continue;
        COPIES_WAIT(BEHIND);
        units_see();
        sign_arrive(r->full + 8u * ((t - BEHIND) % RING));
    }
}

struct rows {
    f32 o[COLUMNS][4], m[2], l[2];
};

/* Two numbers as two of the cache's type; TWICE: *low gets what is lost. */
FN u32 split(f32 x, f32 y, u32 *low) {
#ifdef TWICE
    u32 high = f32_bits(x) >> 16 | (f32_bits(y) & 0xFFFF0000u);
    *low = two(x - low_of(high), y - high_of(high));
    return high;
#else
    (void)low;
    return two(x, y);
#endif
}
#ifdef TWICE
/* Nothing lost is a very small number: zero by infinity is no number. */
FN u32 not_zero(u32 low, u32 high) {
    if ((low & 0x7FFFu) == 0u) low |= 0x0080u | (high & 0x8000u);
    if ((low & 0x7FFF0000u) == 0u) low |= 0x00800000u | (high & 0x80000000u);
    return low;
}
#endif

/* This team's rows from `first` on: as factors in registers, and in shared memory at `low` what they lost. */
FN void take_q(u32 q[STEPS][4], u32 low, const f32 *from, const u32 *members, u32 first, u32 used, u32 y, u32 heads, f32 scale) {
    u32 lane = LOCAL_X % 32u, row = 16u * (ME / 32u) + lane / 4u;
    const f32 *at[2];
    bool there[2];
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        u32 r = first + row + 8u * h;
        there[h] = r < used;
        r = there[h] ? r : 0u;
        at[h] = from + ((u64)members[r / HEADS] * heads + y * HEADS + r % HEADS) * HEAD_DIM + 2u * (lane % 4u);
    }
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) {
#pragma unroll
        for (u32 j = 0; j < 4u; j++) {
            u32 d = 16u * i + 8u * (j >> 1), lost = 0u;
            float2 v = make_float2(0.0f, 0.0f);
            if (there[j & 1u]) v = *(const float2 *)(at[j & 1u] + d);
            q[i][j] = split(v.x * scale, v.y * scale, &lost);
#ifdef TWICE
            shared_put4(low + unit_at(row + 8u * (j & 1u), d / 8u) + 4u * (lane % 4u), not_zero(lost, q[i][j]));
#endif
        }
    }
    units_see();
    TEAM_BARRIER();
}

/* Scores of BLOCK tokens become weights; what the rows have so far is scaled to the new maximum. */
FN void soften(struct rows *a, f32 (*s)[4], u32 live, f32 softcap) {
    u32 t = LOCAL_X % 4u;
    f32 top[2] = {a->m[0], a->m[1]};
    if (softcap > 0.0f) {
#pragma unroll
        for (u32 i = 0; i < BLOCK / 8u; i++)
#pragma unroll
            for (u32 j = 0; j < 4u; j++) s[i][j] = soft_capped(s[i][j], softcap);
    }
    if (live < BLOCK) {
#pragma unroll
        for (u32 i = 0; i < BLOCK / 8u; i++)
#pragma unroll
            for (u32 j = 0; j < 4u; j++) s[i][j] = 8u * i + 2u * t + (j & 1u) < live ? s[i][j] : NEG_INF;
    }
#pragma unroll
    for (u32 i = 0; i < BLOCK / 8u; i++)
#pragma unroll
        for (u32 j = 0; j < 4u; j++) top[j >> 1] = FMAX(top[j >> 1], s[i][j]);
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        top[h] = FMAX(top[h], lane_xor(top[h], 1));
        top[h] = FMAX(top[h], lane_xor(top[h], 2));
    }
    if (any_lane(top[0] > a->m[0] || top[1] > a->m[1])) {
        f32 keep[2] = {weight_of(a->m[0], top[0]), weight_of(a->m[1], top[1])};
#pragma unroll
        for (u32 h = 0; h < 2u; h++) a->m[h] = top[h], a->l[h] *= keep[h];
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++)
#pragma unroll
            for (u32 j = 0; j < 4u; j++) a->o[i][j] *= keep[j >> 1];
    }
#pragma unroll
    for (u32 h = 0; h < 2u; h++) top[h] = top[h] == NEG_INF ? 0.0f : top[h];
#pragma unroll
    for (u32 i = 0; i < BLOCK / 8u; i++)
#pragma unroll
        for (u32 j = 0; j < 4u; j++) a->l[j >> 1] += s[i][j] = power2(s[i][j] - top[j >> 1]);
}

/* Teams 0 and 1: every `per`-th tile from `first` on. */
FN void meet_tiles(struct rows *a, const u32 q[STEPS][4], u32 low, u32 base, const struct work *w, const struct ring *r, u32 first, u32 per,
                   f32 softcap) {
    for (u32 tile = first; tile < r->tiles; tile += per) {
        f32 s[BLOCK / 8u][4];
        u32 p[BLOCK / 16u][4], p_low[BLOCK / 16u][4];
        u32 slot = tile % RING, k = base + slot * TILE_BYTES, v = k + ROWS_BYTES;
        sign_wait(r->full + 8u * slot, phase_of(tile));
        settle<BLOCK / 8u>(s);
        wide_begin();
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) score(s, q[i], panels_at(k + i / 4u * PANEL + i % 4u * 32u, 16u), i);
#ifdef TWICE
#pragma unroll
        for (u32 i = 0; i < STEPS; i++)
            score_low(s, panels_at(low + i / 4u * PANEL + i % 4u * 32u, 16u), panels_at(k + i / 4u * PANEL + i % 4u * 32u, 16u));
#endif
        wide_commit();
        wide_wait();
        settle<BLOCK / 8u>(s);
        settle<COLUMNS>(a->o);
        if (tile != first && SAYS) sign_arrive(r->empty + 8u * ((tile - per) % RING)); /* nobody reads its values now */
        soften(a, s, w->tokens - tile * BLOCK, softcap);
#pragma unroll
        for (u32 i = 0; i < BLOCK / 16u; i++)
#pragma unroll
            for (u32 j = 0; j < 4u; j++) p[i][j] = split(s[2u * i + j / 2u][2u * (j & 1u)], s[2u * i + j / 2u][2u * (j & 1u) + 1u], &p_low[i][j]);
        settle<COLUMNS>(a->o);
        wide_begin();
#pragma unroll
        for (u32 i = 0; i < BLOCK / 16u; i++) {
            weigh(a->o, p[i], panels_at(v + 2048u * i, PANEL));
#ifdef TWICE
            weigh(a->o, p_low[i], panels_at(v + 2048u * i, PANEL));
#endif
        }
        wide_commit();
    }
    wide_wait();
    settle<COLUMNS>(a->o);
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        a->l[h] += lane_xor(a->l[h], 1);
        a->l[h] += lane_xor(a->l[h], 2);
    }
}

#define WORDS (4u * COLUMNS + 4u) /* of a thread's rows */
/* Both teams hold the same rows: team 1 hands its own to team 0. */
FN void one_of_two(struct rows *a) {
    f32 *to = (f32 *)shared + ME;
    BOTH_BARRIER(); /* nobody reads tiles any more */
    if (LOCAL_X >= TEAM) {
#pragma unroll
        for (u32 i = 0; i < 4u * COLUMNS; i++) to[TEAM * i] = a->o[i / 4u][i % 4u];
#pragma unroll
        for (u32 h = 0; h < 2u; h++) to[TEAM * (4u * COLUMNS + h)] = a->m[h], to[TEAM * (4u * COLUMNS + 2u + h)] = a->l[h];
    }
    BOTH_BARRIER();
    if (LOCAL_X >= TEAM) return;
    f32 mine[2], other[2];
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        f32 m = to[TEAM * (4u * COLUMNS + h)], top = FMAX(a->m[h], m);
        mine[h] = weight_of(a->m[h], top), other[h] = weight_of(m, top);
        a->l[h] = a->l[h] * mine[h] + to[TEAM * (4u * COLUMNS + 2u + h)] * other[h];
        a->m[h] = top;
    }
#pragma unroll
    for (u32 i = 0; i < 4u * COLUMNS; i++) {
        u32 h = i % 4u >> 1;
        a->o[i / 4u][i % 4u] = a->o[i / 4u][i % 4u] * mine[h] + to[TEAM * i] * other[h];
    }
}

FN void put_rows(const struct rows *a, u32 first, u32 used, f32 *to, f32 *lse) {
    u32 lane = LOCAL_X % 32u, t = lane % 4u;
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        u32 r = first + 16u * (ME / 32u) + 8u * h + lane / 4u;
        f32 by = a->l[h] > 0.0f ? 1.0f / a->l[h] : 0.0f;
        if (r >= used) continue;
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++)
            *(float2 *)(to + r * HEAD_DIM + 8u * i + 2u * t) = make_float2(a->o[i][2u * h] * by, a->o[i][2u * h + 1u] * by);
        if (t == 0u) lse[r] = a->l[h] > 0.0f ? a->m[h] + LOG2(a->l[h]) : NEG_INF;
    }
}

FN void shared_chunk(const f32 *q, const struct pools *pools, const u32 *plan, f32 *parts, f32 *lse_log2, u32 *witness, u32 x, u32 y,
                     const struct pl_args_paged *a) {
    __shared__ __align__(8) u64 signs[2u * RING];
    const uint4 *chunk = (const uint4 *)(plan + PL_PLAN_HEADER_WORDS + x * PL_PLAN_CHUNK_WORDS);
    const uint4 c0 = chunk[0], c1 = chunk[1], c2 = chunk[2]; /* args.h: words of a chunk */
    struct work w = {plan + c1.w, 0u, c0.w, c0.y > 0u ? c0.y - 1u : 0u, y / (a->heads / a->kv_heads / HEADS), a->kv_heads};
    u32 used = c1.y * HEADS, team = LOCAL_X / TEAM, base = (shared_at(shared) + 1023u) & ~1023u;
    bool split_tiles = used <= 64u;
    struct ring r = {(w.tokens + BLOCK - 1u) / BLOCK, shared_at(signs), shared_at(signs) + 8u * RING};
    if (LOCAL_X == 0u) {
        for (u32 i = 0; i < RING; i++) {
            sign_init(r.full + 8u * i, TEAM);
            sign_init(r.empty + 8u * i, VOICES * (split_tiles ? 4u : 8u));
        }
        signs_ready();
    }
    BARRIER();
    if (team == 2u) {
        FEW_REGISTERS();
        copy_tiles(base, &w, pools, &r, a->fresh != PL_PAGED_ALL_FRESH, witness);
        return;
    }
    MANY_REGISTERS();
    struct rows rows;
    u32 factor[STEPS][4], low = base + LOW_Q_AT + team * ROWS_BYTES, first = split_tiles ? 0u : 64u * team;
    u64 at = (u64)c1.z * a->heads + (u64)y * used;
    rows.m[0] = rows.m[1] = NEG_INF;
    rows.l[0] = rows.l[1] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < COLUMNS; i++) rows.o[i][0] = rows.o[i][1] = rows.o[i][2] = rows.o[i][3] = 0.0f;
    count_launch(witness);
    take_q(factor, low, q, plan + c2.x, first, used, y, a->heads, a->softcap > 0.0f ? a->scale : a->scale * LOG2E);
    meet_tiles(&rows, factor, low, base, &w, &r, split_tiles ? team : 0u, split_tiles ? 2u : 1u, a->softcap);
    if (split_tiles) one_of_two(&rows);
    if (!split_tiles || team == 0u) put_rows(&rows, first, used, parts + at * HEAD_DIM, lse_log2 + at);
}

/* --- a chunk of one member, as in paged_mma --- */

FN void own_chunk(const f32 *q, const struct pools *pools, const u32 *plan, f32 *out, f32 *parts, f32 *lse_log2, u32 *witness, u32 x, u32 y,
                  const struct pl_args_paged *a) {
    u32 base = shared_at(team_shared()), page[2];
    const uint4 *chunk = (const uint4 *)(plan + PL_PLAN_HEADER_WORDS + x * PL_PLAN_CHUNK_WORDS);
    const uint4 c0 = chunk[0], c1 = chunk[1], c2 = chunk[2];
    u32 count = c1.y, part_first = c1.z, row = c2.y;
    struct work w = {plan + c1.w, c0.z, c0.w, c0.y > 0u ? c0.y - 1u : 0u, y / (a->heads / a->kv_heads / HEADS), a->kv_heads};
    u32 first = begin_lone(base, &w, pools, page, c2.z != 0u || a->fresh == PL_PAGED_ALL_FRESH ? a->fresh : 0u);
    count_launch(witness);
    if (count == 0u) return; /* the grid is larger than the plan */
    go_on_lone(base, &w, pools, page, first);
    bool direct = part_first == PL_PLAN_DIRECT;
    u64 mine = (u64)row * a->heads + y * HEADS, at = direct ? mine : (u64)part_first * a->heads + y * HEADS;
    u32 qf[STEPS][4];
    load_q(qf, q + mine * HEAD_DIM, a->softcap > 0.0f ? a->scale : a->scale * LOG2E);
    lone_chunk(&w, pools, page, qf, (direct ? out : parts) + at * HEAD_DIM, direct ? 0 : lse_log2 + at, a->softcap);
}

/* grid: shared chunks x H / HEADS, the latter first, then pairs of other chunks x H / HEADS */
KERNEL(paged_wide)(const f32 *q, const KV_TYPE *k_pages, const KV_TYPE *v_pages, const u32 *__restrict__ plan, f32 *out, f32 *parts, f32 *lse_log2,
                   u32 *witness, const struct pl_args_paged a) {
    u32 tiles = a.heads / HEADS, wide = plan[PL_PLAN_SHARED_COUNT], team = LOCAL_X / TEAM;
    const struct pools pools = {k_pages, v_pages};
    if (GROUP_X < wide * tiles) {
        shared_chunk(q, &pools, plan, parts, lse_log2, witness, GROUP_X / tiles, GROUP_X % tiles, &a);
        return;
    }
    u32 unit = 2u * (GROUP_X - wide * tiles) + team;
    if (team == 2u) {
        count_launch(witness);
        return;
    }
    own_chunk(q, &pools, plan, out, parts, lse_log2, witness, wide + unit / tiles, unit % tiles, &a);
}
