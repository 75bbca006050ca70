/* attention_wide - attention of many rows of one sequence on Hopper's tensor cores (sm_90a): 128 rows of one head meet BLOCK cached tokens
 * at a time, softmax runs along (one pass). Contract: kernels/attention.k.c; fewer rows, other devices and heads: attention_tiles.k.c.
 *
 * Teams of four warps: 0 and 1 multiply 64 rows each (wgmma), team 2 copies tiles of keys and values into a ring. While the values of one
 * tile are weighed, the softmax of the next one's scores is taken. q and the weights of the softmax are rounded to the cache's type, sums
 * are f32; HALF_OUT: the result is bf16, for the product after it. Requires: HEAD_DIM 128, PAGE_TOKENS % 16 == 0 or PAGES_IN_ORDER, f16 or bf16 pages, BLOCK 64 or 128, GROUP 384.
 * Order is fixed: bitwise repeatable. */
/* EXPANDED: keys and values of one chunk of latents (src/ops/expand.h) as bf16: kv [C, H, NOPE + VALUE] and rotated [C, ROPE], NOPE + ROPE
 * = KEY_DIM 192 numbers for a key, 128 for a value; queries from q and qa. What earlier chunks gave stands in out and lse. */
#ifndef KEY_DIM
#define KEY_DIM HEAD_DIM
#endif
#if HEAD_DIM != 128
#error "attention_wide is for heads of 128"
#endif
#include "dialect.h"
#include "args/args.h"
#include "kv.h"
#include "cuda/units.h"

#define TEAM       128u
#define ME         (LOCAL_X % TEAM)
#define ROWS       128u
#define MINE       64u                  /* rows of a team */
#define UNITS      (HEAD_DIM / 8u)      /* of 16 bytes */
#define STEPS      (KEY_DIM / 16u)
#define COLUMNS    (HEAD_DIM / 8u)      /* of 8 values */
#define PANEL      (BLOCK * 128u)
#define SIDE       (KEY_DIM / 64u * PANEL)
#define TILE_BYTES (SIDE + HEAD_DIM / 64u * PANEL)
#define BEHIND     (RING / 2u)          /* tiles that may still be on their way when one is waited for */
#define RUN        16u                  /* tokens that no end of a page parts */
#define RUNS       (BLOCK / RUN)
#define LOG2E      1.4426950408889634f
#include "cuda/wide.h"

extern __shared__ __align__(1024) u8 shared[];

/* d (+)= 64 rows x 16 inputs, by BLOCK tokens */
FN void meet(f32 (*d)[4], const u32 *a, u64 b, u32 go_on) {
#if BLOCK == 64
    score(d, a, b, go_on);
#else
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3), OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7),
                   OUT4(d, 8), OUT4(d, 9), OUT4(d, 10), OUT4(d, 11), OUT4(d, 12), OUT4(d, 13), OUT4(d, 14), OUT4(d, 15)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(go_on));
#endif
}
/* The units may still read these until now: nobody else gets the registers. */
template <u32 N> FN void hold(u32 (*a)[4]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}
FN void wait_but_one(void) { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }

/* Tokens [first, end) in tiles of BLOCK from `first` on. */
struct span {
    const u32 *table;
    u32 first, end, tiles, g, kv_heads;
};
struct ring {
    u32 at, full, empty; /* signs, 8 bytes each: RING of either */
};

/* --- team 2 --- */

#ifdef EXPANDED
#define VECTOR (KEY_DIM - ROPE + HEAD_DIM)
#define COPIED ((KEY_DIM + HEAD_DIM) / 8u) /* units of a token: keys, rotated part, values */
struct chunk {
    const u16 *kv, *rotated; /* of the head */
    u32 tokens;
    u64 step; /* from a token to the next */
};
FN void copy_tile(u32 to, const struct chunk *c, u32 tile) {
#pragma unroll 4
    for (u32 i = 0; i < BLOCK * COPIED / TEAM; i++) {
        u32 at = ME + TEAM * i, row = at / COPIED, unit = at % COPIED, token = tile * BLOCK + row;
        bool turned = unit >= (KEY_DIM - ROPE) / 8u && unit < KEY_DIM / 8u;
        u64 place = PL_MIN(token, c->tokens - 1u);
        const u16 *from = turned ? c->rotated + place * ROPE + 8u * unit - (KEY_DIM - ROPE)
                                 : c->kv + place * c->step + 8u * unit - (unit < KEY_DIM / 8u ? 0u : ROPE);
        u32 side = unit < KEY_DIM / 8u ? to + unit_at(row, unit) : to + SIDE + unit_at(row, unit - KEY_DIM / 8u);
        copy16(side, from, token < c->tokens ? 16u : 0u);
    }
    copies_close();
}
FN void copy_chunk(const struct chunk *c, const struct span *s, const struct ring *r) {
    for (u32 t = 0; t < s->tiles + BEHIND; t++) {
        if (t < s->tiles) {
            if (t >= RING) sign_wait(r->empty + 8u * (t % RING), t / RING - 1u & 1u);
            copy_tile(r->at + t % RING * TILE_BYTES, c, t);
        } else {
            copies_close();
        }
        if (t < BEHIND) continue;
        COPIES_WAIT(BEHIND);
        units_see();
        sign_arrive(r->full + 8u * ((t - BEHIND) % RING));
    }
}
#endif
#ifndef EXPANDED
FN void look_up(u32 page[RUNS], const struct span *s, u32 tile) {
#pragma unroll
    for (u32 i = 0; i < RUNS; i++) {
#ifdef PAGES_IN_ORDER
        page[i] = 0u;
#else
        page[i] = s->table[PL_MIN(s->first + tile * BLOCK + RUN * i, s->end - 1u) / PAGE_TOKENS];
#endif
    }
}
FN void copy_tile(u32 to, const struct span *s, const KV_TYPE *k, const KV_TYPE *v, u32 tile, const u32 page[RUNS]) {
    u32 unit = ME % UNITS, row0 = ME / UNITS;
#pragma unroll
    for (u32 i = 0; i < BLOCK * UNITS / TEAM; i++) {
        u32 row = row0 + TEAM / UNITS * i, token = s->first + tile * BLOCK + row, bytes = token < s->end ? 16u : 0u;
#ifdef PAGES_IN_ORDER
        u64 place = PL_MIN(token, s->end - 1u);
#else
        u64 place = (u64)page[TEAM / UNITS * i / RUN] * PAGE_TOKENS + token % PAGE_TOKENS;
#endif
        u64 from = (place * s->kv_heads + s->g) * HEAD_DIM + 8u * unit;
        u32 at = to + unit_at(row, unit);
        copy16(at, k + from, bytes);
        copy16(at + SIDE, v + from, bytes);
    }
    copies_close();
}
FN void copy_tiles(const struct span *s, const struct ring *r, const KV_TYPE *k, const KV_TYPE *v) {
    u32 page[RUNS];
    look_up(page, s, 0u);
    for (u32 t = 0; t < s->tiles + BEHIND; t++) {
        if (t < s->tiles) {
            if (t >= RING) sign_wait(r->empty + 8u * (t % RING), t / RING - 1u & 1u);
            copy_tile(r->at + t % RING * TILE_BYTES, s, k, v, t, page);
            look_up(page, s, t + 1u); /* on its way while others are waited for */
        } else {
            copies_close();
        }
        if (t < BEHIND) continue;
        COPIES_WAIT(BEHIND);
        units_see();
        sign_arrive(r->full + 8u * ((t - BEHIND) % RING));
    }
}

#endif

/* --- teams 0 and 1 --- */

struct rows {
    f32 o[COLUMNS][4], m[2], l[2];
    u32 at[2]; /* positions: of a thread's first row, and of that eight further */
};

#ifdef EXPANDED
#define BEHIND_OF(token, at) ((i32)(token) > (i32)(at)) /* rows before the chunk are at negative places */
#else
#define BEHIND_OF(token, at) ((token) > (at))
#endif
/* Scores of a tile at token t0 become weights; true: what the rows have has to be multiplied by keep. */
FN bool soften(struct rows *a, f32 (*s)[4], f32 keep[2], u32 t0, bool edge, const struct pl_args_tiles *p) {
    u32 t = t0 + 2u * (LOCAL_X % 4u);
    f32 top[2] = {a->m[0], a->m[1]};
    if (p->softcap > 0.0f) { /* cap tanh(s / cap), in powers of two */
        f32 by = 2.0f * LOG2E / p->softcap, cap = p->softcap * LOG2E;
#pragma unroll
        for (u32 i = 0; i < BLOCK / 8u; i++)
#pragma unroll
            for (u32 j = 0; j < 4u; j++) s[i][j] = cap - __fdividef(2.0f * cap, 1.0f + power2(s[i][j] * by));
    }
    if (edge) {
#pragma unroll
        for (u32 i = 0; i < BLOCK / 8u; i++)
#pragma unroll
            for (u32 j = 0; j < 4u; j++) {
                u32 token = t + 8u * i + (j & 1u), at = a->at[j >> 1];
                if (BEHIND_OF(token, at) || (p->window != 0u && token + p->window <= at)) s[i][j] = NEG_INF;
            }
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
    bool more = any_lane(top[0] > a->m[0] || top[1] > a->m[1]);
    if (more) {
#pragma unroll
        for (u32 h = 0; h < 2u; h++) {
            keep[h] = a->m[h] == NEG_INF ? 0.0f : power2(a->m[h] - top[h]);
            a->m[h] = top[h];
            a->l[h] *= keep[h];
        }
    }
#pragma unroll
    for (u32 h = 0; h < 2u; h++) top[h] = top[h] == NEG_INF ? 0.0f : top[h]; /* nothing seen yet: all weights are exp2(-inf) */
#pragma unroll
    for (u32 i = 0; i < BLOCK / 8u; i++)
#pragma unroll
        for (u32 j = 0; j < 4u; j++) a->l[j >> 1] += s[i][j] = power2(s[i][j] - top[j >> 1]);
    return more;
}
FN void factors_of(u32 (*p)[4], f32 (*s)[4]) {
#pragma unroll
    for (u32 i = 0; i < BLOCK / 16u; i++)
#pragma unroll
        for (u32 j = 0; j < 4u; j++) p[i][j] = two(s[2u * i + j / 2u][2u * (j & 1u)], s[2u * i + j / 2u][2u * (j & 1u) + 1u]);
}

#ifndef EXPANDED
FN void take_q(u32 q[STEPS][4], const f32 *from, u32 row, const struct pl_args_tiles *a, u32 head) {
    f32 scale = a->softcap > 0.0f ? a->scale : a->scale * LOG2E;
    u32 t = 2u * (LOCAL_X % 4u);
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) {
#pragma unroll
        for (u32 j = 0; j < 4u; j++) {
            u32 r = PL_MIN(row + 8u * (j & 1u), a->rows - 1u) + a->row0;
            float2 v = *(const float2 *)(from + ((u64)r * a->heads + head) * HEAD_DIM + 16u * i + 8u * (j >> 1) + t);
            q[i][j] = two(v.x * scale, v.y * scale);
        }
    }
}
#endif

FN void ask_scores(f32 (*s)[4], u32 (*q)[4], u32 k) {
    settle<BLOCK / 8u>(s);
    wide_begin();
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) meet(s, q[i], panels_at(k + i / 4u * PANEL + i % 4u * 32u, 16u), i);
    wide_commit();
}
FN void ask_values(struct rows *a, u32 (*w)[4], u32 v) {
#pragma unroll
    for (u32 i = 0; i < BLOCK / 16u; i++) weigh(a->o, w[i], panels_at(v + 2048u * i, PANEL));
    wide_commit();
}
/* Whether a tile at t0 holds tokens that some of this team's rows do not see. */
FN bool is_edge(u32 t0, u32 low, u32 high, u32 window) { return t0 + BLOCK > low + 1u || (window != 0u && t0 + window <= high); }

FN void keep_rows(struct rows *a, const f32 keep[2]) {
#pragma unroll
    for (u32 i = 0; i < COLUMNS; i++)
#pragma unroll
        for (u32 j = 0; j < 4u; j++) a->o[i][j] *= keep[j >> 1];
}
/* This team's tiles of the span; low, high: positions of its first row and its last. */
FN void meet_tiles(struct rows *a, u32 (*q)[4], const struct span *span, const struct ring *r, u32 low, u32 high, const struct pl_args_tiles *p) {
    u32 tiles = (high - span->first) / BLOCK + 1u, slot = 0u, phase = 0u;
    f32 s[BLOCK / 8u][4], keep[2] = {1.0f, 1.0f};
    u32 w[BLOCK / 16u][4];
    sign_wait(r->full, 0u);
    ask_scores(s, q, r->at);
    wide_wait();
    settle<BLOCK / 8u>(s);
    hold<STEPS>(q);
    bool more = soften(a, s, keep, span->first, is_edge(span->first, low, high, p->window), p);
    (void)more;
#ifdef EXPANDED /* what earlier chunks gave */
    if (more) keep_rows(a, keep);
#endif
    factors_of(w, s);
    for (u32 tile = 1; tile < tiles; tile++) {
        u32 before = slot, t0 = span->first + tile * BLOCK;
        if (++slot == RING) slot = 0u, phase ^= 1u;
        sign_wait(r->full + 8u * slot, phase);
        settle<COLUMNS>(a->o);
        hold<BLOCK / 16u>(w);
        ask_scores(s, q, r->at + slot * TILE_BYTES);
        ask_values(a, w, r->at + before * TILE_BYTES + SIDE);
        wait_but_one();
        settle<BLOCK / 8u>(s);
        hold<STEPS>(q);
        more = soften(a, s, keep, t0, is_edge(t0, low, high, p->window), p);
        wide_wait();
        settle<COLUMNS>(a->o);
        hold<BLOCK / 16u>(w);
        if (SAYS) sign_arrive(r->empty + 8u * before);
        if (more) keep_rows(a, keep);
        factors_of(w, s);
    }
    settle<COLUMNS>(a->o);
    hold<BLOCK / 16u>(w);
    wide_begin();
    ask_values(a, w, r->at + slot * TILE_BYTES + SIDE);
    wide_wait();
    settle<COLUMNS>(a->o);
    hold<BLOCK / 16u>(w);
}

#ifdef HALF_OUT
#define OUT u16
FN void put_two(u16 *to, f32 x, f32 y) { *(u32 *)to = bf16_bits(x) | bf16_bits(y) << 16; }
#else
#define OUT f32
FN void put_two(f32 *to, f32 x, f32 y) { *(float2 *)to = make_float2(x, y); }
#endif
FN void put_rows(struct rows *a, OUT *out, u32 row, u32 head, const struct pl_args_tiles *p) {
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        a->l[h] += lane_xor(a->l[h], 1);
        a->l[h] += lane_xor(a->l[h], 2);
        if (row + 8u * h >= p->rows) continue;
        f32 by = a->l[h] > 0.0f ? 1.0f / a->l[h] : 0.0f;
        OUT *to = out + ((u64)(p->row0 + row + 8u * h) * p->heads + head) * HEAD_DIM + 2u * (LOCAL_X % 4u);
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) put_two(to + 8u * i, a->o[i][2u * h] * by, a->o[i][2u * h + 1u] * by);
    }
}

#ifndef EXPANDED
/* grid: (heads, tiles of 128 rows) */
KERNEL(attention_wide)(const f32 *__restrict__ q, const KV_TYPE *__restrict__ k_pages, const KV_TYPE *__restrict__ v_pages,
                       const u32 *__restrict__ step, OUT *__restrict__ out, u32 *witness, const struct pl_args_tiles a) {
    __shared__ __align__(8) u64 signs[2u * RING];
    count_launch(witness);
    u32 head = GROUP_X, tile = (a.rows + ROWS - 1u) / ROWS - 1u - GROUP_Y, team = LOCAL_X / TEAM; /* longest first */
    u32 past = step[PL_STEP_POSITION(a.stride) + a.row0], row0 = tile * ROWS, rows = PL_MIN(a.rows - row0, ROWS), low = past + row0;
    u32 first = a.window != 0u && low + 1u > a.window ? (low + 1u - a.window) / BLOCK * BLOCK : 0u, end = low + rows;
    struct span span = {step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + a.row0],
                        first,
                        end,
                        (end - first + BLOCK - 1u) / BLOCK,
                        head / (a.heads / a.kv_heads),
                        a.kv_heads};
    struct ring r = {(shared_at(shared) + 1023u) & ~1023u, shared_at(signs), shared_at(signs) + 8u * RING};
    if (LOCAL_X == 0u) {
        for (u32 i = 0; i < RING; i++) {
            sign_init(r.full + 8u * i, TEAM);
            sign_init(r.empty + 8u * i, VOICES * (rows > MINE ? 8u : 4u));
        }
        signs_ready();
    }
    BARRIER();
    if (team == 2u) {
        FEW_REGISTERS();
        copy_tiles(&span, &r, k_pages, v_pages);
        return;
    }
    MANY_REGISTERS();
    if (MINE * team >= rows) return;
    struct rows mine;
    u32 factor[STEPS][4], row = row0 + MINE * team + 16u * (ME / 32u) + LOCAL_X % 32u / 4u;
    mine.at[0] = past + row, mine.at[1] = past + row + 8u;
    mine.m[0] = mine.m[1] = NEG_INF;
    mine.l[0] = mine.l[1] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < COLUMNS; i++) mine.o[i][0] = mine.o[i][1] = mine.o[i][2] = mine.o[i][3] = 0.0f;
    take_q(factor, q, row, &a, head);
    meet_tiles(&mine, factor, &span, &r, low + MINE * team, low + PL_MIN(rows, MINE * (team + 1u)) - 1u, &a);
    put_rows(&mine, out, row, head, &a);
}
#else
FN void take_parts(u32 q[STEPS][4], const f32 *whole, const f32 *turned, u32 row, const struct pl_args_expand *a, u32 head) {
    u32 t = 2u * (LOCAL_X % 4u);
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) {
#pragma unroll
        for (u32 j = 0; j < 4u; j++) {
            u64 at = (u64)(PL_MIN(row + 8u * (j & 1u), a->rows - 1u) + a->row0) * a->heads + head;
            u32 d = 16u * i + 8u * (j >> 1) + t;
            const f32 *from = d < KEY_DIM - ROPE ? whole + at * KEY_DIM + d : turned + (at + 1u) * (LATENT + ROPE) + d - KEY_DIM;
            float2 v = *(const float2 *)from;
            q[i][j] = two(v.x * a->scale * LOG2E, v.y * a->scale * LOG2E);
        }
    }
}
/* The chunks before: one state of weight 2^lse. l is summed over four lanes at the end. */
FN void take_state(struct rows *m, const f32 *out, const f32 *lse, u32 row, const struct pl_args_expand *a, u32 head) {
#pragma unroll
    for (u32 h = 0; h < 2u; h++) {
        u64 at = (u64)(PL_MIN(row + 8u * h, a->rows - 1u) + a->row0) * a->heads + head;
        m->m[h] = a->first > 0u ? lse[at] : NEG_INF;
        m->l[h] = a->first > 0u && LOCAL_X % 4u == 0u ? 1.0f : 0.0f;
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) {
            float2 v = a->first > 0u ? *(const float2 *)(out + at * HEAD_DIM + 8u * i + 2u * (LOCAL_X % 4u)) : make_float2(0.0f, 0.0f);
            m->o[i][2u * h] = v.x, m->o[i][2u * h + 1u] = v.y;
        }
    }
}
/* grid: (heads, tiles of 128 rows); tokens and positions are counted from the chunk's first. A launch is for rows that see some of it. */
KERNEL(attention_wide)(const f32 *__restrict__ q, const f32 *__restrict__ qa, const u16 *__restrict__ kv, const u16 *__restrict__ rotated,
                       f32 *out, f32 *lse, u32 *witness, const struct pl_args_expand a) {
    __shared__ __align__(8) u64 signs[2u * RING];
    count_launch(witness);
    u32 head = GROUP_X, tile = (a.rows + ROWS - 1u) / ROWS - 1u - GROUP_Y, team = LOCAL_X / TEAM; /* longest first */
    u32 row0 = tile * ROWS, rows = PL_MIN(a.rows - row0, ROWS);
    if (a.past + row0 + rows <= a.first) return; /* none of these rows sees any of it */
    u32 end = PL_MIN(a.tokens, a.past + row0 + rows - a.first);
    struct span span = {nullptr, 0u, end, (end + BLOCK - 1u) / BLOCK, 0u, 1u};
    struct chunk chunk = {kv + (u64)head * VECTOR, rotated, a.tokens, (u64)a.heads * VECTOR};
    struct ring r = {(shared_at(shared) + 1023u) & ~1023u, shared_at(signs), shared_at(signs) + 8u * RING};
    if (LOCAL_X == 0u) {
        for (u32 i = 0; i < RING; i++) {
            sign_init(r.full + 8u * i, TEAM);
            sign_init(r.empty + 8u * i, VOICES * (rows > MINE ? 8u : 4u));
        }
        signs_ready();
    }
    BARRIER();
    if (team == 2u) {
        FEW_REGISTERS();
        copy_chunk(&chunk, &span, &r);
        return;
    }
    MANY_REGISTERS();
    if (MINE * team >= rows) return;
    struct rows mine;
    u32 factor[STEPS][4], row = row0 + MINE * team + 16u * (ME / 32u) + LOCAL_X % 32u / 4u;
    const struct pl_args_tiles p = {a.heads, a.heads, 0u, a.stride, a.scale, 0.0f, a.row0, a.rows};
    i32 most = (i32)a.tokens - 1, at = (i32)(a.past + row) - (i32)a.first, low = (i32)(a.past + row0 + MINE * team) - (i32)a.first;
    low = low < 0 ? 0 : PL_MIN(low, most);                                              /* nothing is hidden from any row up to here */
    mine.at[0] = (u32)PL_MIN(at, most), mine.at[1] = (u32)PL_MIN(at + 8, most); /* what is behind the chunk is zeros, not tokens */
    take_state(&mine, out, lse, row, &a, head);
    take_parts(factor, q, qa, row, &a, head);
    meet_tiles(&mine, factor, &span, &r, (u32)low, end - 1u, &p); /* both teams all tiles */
    put_rows(&mine, out, row, head, &p);
#pragma unroll
    for (u32 h = 0; h < 2u; h++)
        if (LOCAL_X % 4u == 0u && row + 8u * h < a.rows) lse[(u64)(a.row0 + row + 8u * h) * a.heads + head] = mine.m[h] + LOG2(mine.l[h]);
}
#endif
