/* attention_wide - attention of many rows of one sequence on Hopper's tensor cores (sm_90a): 128 rows of one head meet 64 cached tokens
 * at a time, four warps together (wgmma). Contract: kernels/attention.k.c, as attention_tiles.k.c serves it elsewhere.
 *
 * Teams 0 and 1 multiply, 64 rows each: while one has its softmax the other keeps the units busy. Team 2 copies tiles of K and V
 * into a ring. q and the weights of the softmax are rounded to the cache's type, sums are f32; softmax runs along (one pass).
 * Tiles lie as in paged_wide.k.c: panels of 64 elements (128 bytes) a token, 16-byte units exchanged by token % 8.
 * Requires: HEAD_DIM 64 or 128; f16 or bf16 pages; GROUP 384. Order is fixed: bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"
#include "cuda/units.h"
#include "cuda/wide.h"

#define ROWS    128u
#define RING    4u
#define BEHIND  2u /* tiles that may still be on their way when one is waited for */
#define UNITS   (HEAD_DIM / 8u)
#define STEPS   (HEAD_DIM / 16u)
#define COLUMNS (HEAD_DIM / 8u)

extern __shared__ __align__(1024) u8 shared[]; /* from a multiple of 1024 on: the ring */

/* What a group of threads works on: its sequence's tokens from `first` to `last`, rows [tile * ROWS, + ROWS) of the sequence. */
struct work {
    const u32 *table;
    u32 past, first, last, tiles, g, kv_heads;
};

FN void copy_tile(u32 to, const struct work *w, const KV_TYPE *k_pages, const KV_TYPE *v_pages, u32 t0) {
    u32 unit = ME % UNITS, first = ME / UNITS;
#pragma unroll
    for (u32 i = 0; i < BLOCK * UNITS / TEAM; i++) {
        u32 row = first + TEAM / UNITS * i, token = PL_MIN(t0 + row, w->last), at = to + unit_at(row, unit);
        u64 from = kv_offset(w->table, token, w->g, w->kv_heads) + 8u * unit;
        copy16(at, k_pages + from, 16u);
        copy16(at + ROWS_BYTES, v_pages + from, 16u);
    }
    copies_close();
}
/* Team 2. */
FN void copy_tiles(u32 base, const struct work *w, const KV_TYPE *k_pages, const KV_TYPE *v_pages, u32 full, u32 empty) {
    for (u32 t = 0; t < w->tiles + BEHIND; t++) {
        u32 slot = t % RING;
        if (t < w->tiles) {
            if (t >= RING) sign_wait(empty + 8u * slot, (t / RING - 1u) & 1u);
            copy_tile(base + slot * TILE_BYTES, w, k_pages, v_pages, w->first + t * BLOCK);
        } else {
            copies_close();
        }
        if (t < BEHIND) continue;
        COPIES_WAIT(BEHIND);
        units_see();
        sign_arrive(full + 8u * ((t - BEHIND) % RING));
    }
}

struct rows {
    f32 o[COLUMNS][4], m[2], l[2];
};
/* Scores of BLOCK tokens from t0 on become weights; what the rows have so far is scaled to the new maximum. at: position of this
 * thread's first row, the other is 8 further. */
FN void soften(struct rows *r, f32 (*s)[4], u32 t0, u32 at, bool edge, const struct pl_args_tiles *a) {
    f32 top[2] = {r->m[0], r->m[1]};
#pragma unroll
    for (u32 i = 0; i < BLOCK / 8u; i++) {
#pragma unroll
        for (u32 j = 0; j < 4u; j++) {
            if (a->softcap > 0.0f) s[i][j] = a->softcap * TANH(s[i][j] / a->softcap) * 1.4426950408889634f;
            if (edge) {
                u32 t = t0 + 8u * i + 2u * (LOCAL_X % 4u) + (j & 1u), mine = at + 8u * (j >> 1);
                if (t > mine || (a->window != 0u && t + a->window <= mine)) s[i][j] = NEG_INF;
            }
            top[j >> 1] = FMAX(top[j >> 1], s[i][j]);
        }
    }
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        top[h] = FMAX(top[h], lane_xor(top[h], 1));
        top[h] = FMAX(top[h], lane_xor(top[h], 2));
    }
    if (any_lane(top[0] > r->m[0] || top[1] > r->m[1])) {
        f32 keep[2];
#pragma unroll
        for (u32 h = 0; h < 2u; h++) {
            keep[h] = r->m[h] == NEG_INF ? 0.0f : power2(r->m[h] - top[h]);
            r->m[h] = top[h];
            r->l[h] *= keep[h];
        }
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) {
#pragma unroll
            for (u32 j = 0; j < 4u; j++) r->o[i][j] *= keep[j >> 1];
        }
    }
#pragma unroll
    for (u32 h = 0; h < 2u; h++) top[h] = top[h] == NEG_INF ? 0.0f : top[h]; /* nothing seen yet: all weights are exp2(-inf) */
#pragma unroll
    for (u32 i = 0; i < BLOCK / 8u; i++) {
#pragma unroll
        for (u32 j = 0; j < 4u; j++) r->l[j >> 1] += s[i][j] = power2(s[i][j] - top[j >> 1]);
    }
}
/* Teams 0 and 1, rows from position `low` on. A team passes tiles by that lie behind all of its rows. */
FN void meet_tiles(struct rows *r, const u32 q[STEPS][4], u32 base, const struct work *w, u32 full, u32 empty, u32 low, u32 at,
                   const struct pl_args_tiles *a) {
    for (u32 tile = 0; tile < w->tiles; tile++) {
        f32 s[BLOCK / 8u][4];
        u32 p[BLOCK / 16u][4], slot = tile % RING, k = base + slot * TILE_BYTES, v = k + ROWS_BYTES, t0 = w->first + tile * BLOCK;
        sign_wait(full + 8u * slot, tile / RING & 1u);
        bool live = t0 < low + 64u;
        settle<BLOCK / 8u>(s);
        if (live) {
            wide_begin();
#pragma unroll
            for (u32 i = 0; i < STEPS; i++) score(s, q[i], panels_at(k + i / 4u * PANEL + i % 4u * 32u, 16u), i);
            wide_commit();
        }
        wide_wait();
        settle<BLOCK / 8u>(s);
        settle<COLUMNS>(r->o);
        if (tile > 0u && LOCAL_X % 32u == 0u) sign_arrive(empty + 8u * ((tile - 1u) % RING)); /* nobody reads its values now */
        if (!live) continue;
        soften(r, s, t0, at, t0 + BLOCK > low || (a->window != 0u && t0 + a->window <= low + 63u), a);
#pragma unroll
        for (u32 i = 0; i < BLOCK / 16u; i++) {
#pragma unroll
            for (u32 j = 0; j < 4u; j++) p[i][j] = two(s[2u * i + j / 2u][2u * (j & 1u)], s[2u * i + j / 2u][2u * (j & 1u) + 1u]);
        }
        settle<COLUMNS>(r->o);
        wide_begin();
#pragma unroll
        for (u32 i = 0; i < BLOCK / 16u; i++) weigh(r->o, p[i], panels_at(v + 2048u * i, PANEL));
        wide_commit();
    }
    wide_wait();
    settle<COLUMNS>(r->o);
}

/* grid: (tiles of 128 rows, heads) */
KERNEL(attention_wide)(const f32 *__restrict__ q, const KV_TYPE *__restrict__ k_pages, const KV_TYPE *__restrict__ v_pages,
                       const u32 *__restrict__ step, f32 *__restrict__ out, u32 *witness, const struct pl_args_tiles a) {
    __shared__ __align__(8) u64 signs[2u * RING];
    u32 base = (shared_at(shared) + 1023u) & ~1023u, full = shared_at(signs), empty = full + 8u * RING, team = LOCAL_X / TEAM;
    if (LOCAL_X == 0u) {
        for (u32 i = 0; i < RING; i++) sign_init(full + 8u * i, TEAM), sign_init(empty + 8u * i, 8u);
        signs_ready();
    }
    BARRIER();
    count_launch(witness);
    u32 tile = (a.rows + ROWS - 1u) / ROWS - 1u - GROUP_X, head = GROUP_Y; /* longest first */
    struct work w;
    w.past = step[PL_STEP_POSITION(a.stride) + a.row0];
    w.table = step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + a.row0];
    w.g = head / (a.heads / a.kv_heads);
    w.kv_heads = a.kv_heads;
    u32 low = w.past + tile * ROWS;
    w.last = w.past + PL_MIN(tile * ROWS + ROWS, a.rows) - 1u;
    w.first = a.window != 0u && low + 1u > a.window ? low + 1u - a.window : 0u;
    w.tiles = (w.last - w.first) / BLOCK + 1u;
    if (team == 2u) {
        FEW_REGISTERS();
        copy_tiles(base, &w, k_pages, v_pages, full, empty);
        return;
    }
    MANY_REGISTERS();
    struct rows r;
    u32 factor[STEPS][4], lane = LOCAL_X % 32u, row = tile * ROWS + 64u * team + 16u * (ME / 32u) + lane / 4u; /* and row + 8 */
    f32 scale = a.softcap > 0.0f ? a.scale : a.scale * 1.4426950408889634f;
    r.m[0] = r.m[1] = NEG_INF;
    r.l[0] = r.l[1] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < COLUMNS; i++) r.o[i][0] = r.o[i][1] = r.o[i][2] = r.o[i][3] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) {
#pragma unroll
        for (u32 j = 0; j < 4u; j++) {
            u32 from = PL_MIN(row + 8u * (j & 1u), a.rows - 1u) + a.row0;
            float2 v = *(const float2 *)(q + ((u64)from * a.heads + head) * HEAD_DIM + 16u * i + 8u * (j >> 1) + 2u * (lane % 4u));
            factor[i][j] = two(v.x * scale, v.y * scale);
        }
    }
    meet_tiles(&r, factor, base, &w, full, empty, low + 64u * team, w.past + row, &a);
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        r.l[h] += lane_xor(r.l[h], 1);
        r.l[h] += lane_xor(r.l[h], 2);
        if (row + 8u * h >= a.rows) continue;
        f32 by = r.l[h] > 0.0f ? 1.0f / r.l[h] : 0.0f;
        f32 *to = out + ((u64)(a.row0 + row + 8u * h) * a.heads + head) * HEAD_DIM + 2u * (lane % 4u);
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) *(float2 *)(to + 8u * i) = make_float2(r.o[i][2u * h] * by, r.o[i][2u * h + 1u] * by);
    }
}
