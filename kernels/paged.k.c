/* paged - decode attention by plan: one query row per row of the plan, keys and values in pages.
 *
 *   paged_v1      one group per (row, query head): teams of TEAM lanes stripe the visible tokens, one combine at the end
 *   paged_v2      one group per (chunk, HEADS query heads of one KV head [x members]): each key and value is loaded once
 *                 for all of them; writes parts, or the row itself where one chunk is all of it
 *   paged_merge   one group per (merged row, query head): its states in the plan's order
 *   paged_gather  one group per (page, row): visible keys and values one after the other
 *   paged_dense   paged_v1 over what paged_gather wrote
 *
 * HEADS divides H / G. Query heads are taken HEADS at a time: tile y holds heads [y * HEADS, + HEADS) of KV head
 * y / (H / G / HEADS). The part rows of a chunk of M members are tile-major: row = y * (M * HEADS) + m * HEADS + r.
 * Values are VALUE_DIM wide with VALUE_STRIDE from token to token (MLA: a part of the key's own row).
 * SPARSE_V: values whose weight is below a.least of the largest that their team (v1) or chunk (v2) has seen are not read; the
 * weight stays in the sum, so it is below a.least of the whole.
 * Numerics: f32, online softmax in base 2, parts normalised, weight lse_log2 = m + log2(l), -inf where nothing is visible;
 * (-inf) - (-inf) is never computed. Orders are fixed: bitwise repeatable. Relative error to src/ref <= 2e-3.
 * Cost: v2 reads each visible key and value once per HEADS heads. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"

#ifndef VALUE_DIM
#define VALUE_DIM HEAD_DIM
#endif
#ifndef VALUE_STRIDE
#define VALUE_STRIDE VALUE_DIM
#endif
#define LOG2E 1.4426950408889634f

FN f32 capped(f32 s, f32 scale, f32 cap) {
    s *= scale;
    if (cap > 0.0f) s = cap * TANH(s / cap);
    return s * LOG2E;
}

/* A token's place in the pool, in tokens; `position` counts from the first token of pages[0]. */
FN u64 slot_of(GLOBAL const u32 *pages, u32 position) {
    return (u64)pages[position / PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS;
}

/* exp2(a - b) where b >= a; nothing weighs nothing. */
FN f32 weight_of(f32 a, f32 b) { return a == NEG_INF ? 0.0f : EXP2(a - b); }

#if defined(PAGED_V1) || defined(PAGED_DENSE)
#define TEAMS   (GROUP / TEAM)
#define K_SHARE ((HEAD_DIM + TEAM - 1) / TEAM)
#define V_SHARE ((VALUE_DIM + TEAM - 1) / TEAM)
#ifdef PAGED_V1
#define PLACE(t) slot_of(pages, skip + (t))
KERNEL(paged_v1)(GLOBAL const f32 *q, GLOBAL const KV_TYPE *k_pages, GLOBAL const KV_TYPE *v_pages, GLOBAL const u32 *plan, GLOBAL f32 *out,
 GLOBAL u32 *witness, const struct pl_args_paged a) {
#else
#define PLACE(t) ((u64)skip + (t))
KERNEL(paged_dense)(GLOBAL const f32 *q, GLOBAL const KV_TYPE *k_pages, GLOBAL const KV_TYPE *v_pages, GLOBAL const u32 *plan, GLOBAL f32 *out,
 GLOBAL u32 *witness, const struct pl_args_paged a) {
#endif
    LOCAL f32 qs[HEAD_DIM];
    LOCAL f32 sum[VALUE_DIM];
    LOCAL f32 scratch[GROUP];
    LOCAL f32 team_m[TEAMS];
    LOCAL f32 team_l[TEAMS];
#ifdef SPARSE_V
    u32 skipped = 0u;
#endif
    count_launch(witness);
    u32 head = GROUP_X, row = GROUP_Y, g = head / (a.heads / a.kv_heads), team = LOCAL_X / TEAM, lane = LOCAL_X % TEAM;
    u32 tokens = plan[plan[PL_PLAN_VISIBLE] + row];
#ifdef PAGED_V1
    GLOBAL const u32 *pages = plan + plan[PL_PLAN_PAGE_INDEX] + plan[plan[PL_PLAN_PAGE_START] + row];
    u32 skip = plan[plan[PL_PLAN_FIRST_OFFSET] + row];
#else
    u32 skip = plan[plan[PL_PLAN_DENSE_START] + row];
#endif
    f32 acc[V_SHARE], m = NEG_INF, l = 0.0f;
    for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) qs[i] = q[((u64)row * a.heads + head) * HEAD_DIM + i];
    ROLLED for (u32 c = 0; c < V_SHARE; c++) acc[c] = 0.0f;
    BARRIER();
    for (u32 t0 = 0; t0 < tokens; t0 += TEAMS) { /* the same number of rounds for every thread */
        bool live = t0 + team < tokens;
        u64 at = PLACE(live ? t0 + team : tokens - 1u) * a.kv_heads + g;
        GLOBAL const KV_TYPE *k = k_pages + at * KV_VECTOR;
        GLOBAL const KV_TYPE *v = v_pages + at * VALUE_STRIDE;
        f32 s = 0.0f;
        ROLLED for (u32 c = 0; c < K_SHARE; c++) {
            u32 i = c * TEAM + lane;
            if (i < HEAD_DIM) s += qs[i] * kv_load(k + i);
        }
        s = capped(kv_scaled(k, team_sum(s, scratch)), a.scale, a.softcap);
        if (live) {
            f32 m_new = FMAX(m, s), keep = weight_of(m, m_new), e = weight_of(s, m_new);
            m = m_new;
            l = l * keep + e;
#ifdef SPARSE_V
            bool weighed = e >= a.least;
            skipped += weighed ? 0u : 1u;
#else
            bool weighed = true;
#endif
            if (weighed) e = value_scaled(v, e);
            ROLLED for (u32 c = 0; c < V_SHARE; c++) {
                u32 i = c * TEAM + lane;
                acc[c] *= keep;
                if (weighed && i < VALUE_DIM) acc[c] += e * value_load(v, i);
            }
        }
    }
#ifdef SPARSE_V
    if (lane == 0u) count_values(witness, (tokens + TEAMS - 1u - team) / TEAMS, skipped);
#endif
    for (u32 i = LOCAL_X; i < VALUE_DIM; i += GROUP) sum[i] = 0.0f;
    if (lane == 0u) {
        team_m[team] = m;
        team_l[team] = l;
    }
    BARRIER();
    f32 top = NEG_INF, total = 0.0f;
    ROLLED for (u32 i = 0; i < TEAMS; i++) top = FMAX(top, team_m[i]);
    ROLLED for (u32 i = 0; i < TEAMS; i++) total += team_l[i] * weight_of(team_m[i], top);
    f32 mine = weight_of(m, top);
    ROLLED for (u32 i = 0; i < TEAMS; i++) { /* one team after the other: a fixed order */
        ROLLED for (u32 c = 0; team == i && c < V_SHARE; c++) {
            u32 d = c * TEAM + lane;
            if (d < VALUE_DIM) sum[d] += acc[c] * mine;
        }
        BARRIER();
    }
#ifdef KV_K8V4
    values_turn_back(sum);
#endif
    u64 to = ((u64)row * a.heads + head) * VALUE_DIM;
    for (u32 i = LOCAL_X; i < VALUE_DIM; i += GROUP) out[to + i] = total > 0.0f ? sum[i] / total : 0.0f;
}
#endif

#ifdef PAGED_V2
#define K_PAD   ((HEAD_DIM + 15) / 16 * 16)
#define V_SHARE ((VALUE_DIM + GROUP - 1) / GROUP)

FN f32 team_max(f32 v) {
#if TEAM > 1
    for (u32 i = TEAM / 2; i > 0; i >>= 1) v = FMAX(v, lane_xor(v, i));
#endif
    return v;
}

/* One row of scores becomes weights; m, l and keep of the row are updated. All lanes of a team come along. */
FN void soften(LOCAL_PTR f32 *p, u32 count, f32 least, LOCAL_PTR f32 *m, LOCAL_PTR f32 *l, LOCAL_PTR f32 *keep) {
    u32 lane = LOCAL_X % TEAM;
    f32 top = NEG_INF, sum = 0.0f;
    for (u32 j = lane; j < count; j += TEAM) top = FMAX(top, p[j]);
    top = FMAX(team_max(top), *m);
    for (u32 j = lane; j < count; j += TEAM) {
        f32 e = weight_of(p[j], top);
        p[j] = e < least ? 0.0f : e;
        sum += e;
    }
#if TEAM > 1
    for (u32 i = TEAM / 2; i > 0; i >>= 1) sum += lane_xor(sum, i);
#endif
    if (lane == 0u) {
        *keep = weight_of(*m, top);
        *l = *l * *keep + sum;
        *m = top;
    }
}

/* Members that a chunk does not have are skipped as a whole: sums stay in registers, and nobody computes them. */
#define EACH_MEMBER ROLLED for (u32 n = 0; n < ROWS / HEADS; n++)

/* grid: (chunks, H / HEADS) */
KERNEL(paged_v2)(GLOBAL const f32 *q, GLOBAL const KV_TYPE *k_pages, GLOBAL const KV_TYPE *v_pages, GLOBAL const u32 *plan, GLOBAL f32 *out,
 GLOBAL f32 *parts, GLOBAL f32 *lse_log2, GLOBAL u32 *witness, const struct pl_args_paged a) {
    LOCAL f32 qs[ROWS * K_PAD];
    LOCAL f32 p[ROWS * GROUP];
    LOCAL f32 m[ROWS];
    LOCAL f32 l[ROWS];
    LOCAL f32 keep[ROWS];
#ifdef SPARSE_V
    LOCAL u32 weighed[GROUP];
    LOCAL u32 skipped;
    f32 least = a.least;
    if (LOCAL_X == 0u) skipped = 0u;
#else
    f32 least = 0.0f;
#endif
    count_launch(witness);
    bool there = GROUP_X < plan[PL_PLAN_CHUNK_COUNT]; /* the grid may be larger than the plan */
    GLOBAL const u32 *chunk = plan + plan[PL_PLAN_CHUNKS] + (there ? GROUP_X : 0u) * PL_PLAN_CHUNK_WORDS;
    GLOBAL const u32 *pages = plan + plan[PL_PLAN_PAGE_INDEX] + chunk[0];
    GLOBAL const u32 *members = plan + plan[PL_PLAN_MEMBERS] + chunk[4];
    u32 skip = chunk[2], tokens = there ? chunk[3] : 0u, count_m = there ? chunk[5] : 0u, part_first = chunk[6];
    u32 g = GROUP_Y / (a.heads / a.kv_heads / HEADS), used = count_m * HEADS;
    f32 acc[ROWS][V_SHARE];
    ROLLED for (u32 r = 0; r < ROWS; r++) { ROLLED for (u32 c = 0; c < V_SHARE; c++) acc[r][c] = 0.0f; }
    for (u32 i = LOCAL_X; i < used * K_PAD; i += GROUP) {
        u32 r = i / K_PAD, d = i % K_PAD;
        u64 row = members[r / HEADS];
        qs[i] = d < HEAD_DIM ? q[(row * a.heads + GROUP_Y * HEADS + r % HEADS) * HEAD_DIM + d] : 0.0f;
    }
    for (u32 r = LOCAL_X; r < used; r += GROUP) {
        m[r] = NEG_INF;
        l[r] = 0.0f;
    }
    BARRIER();
    for (u32 t0 = 0; t0 < tokens; t0 += GROUP) {
        u32 count = PL_MIN((u32)GROUP, tokens - t0);
        if (LOCAL_X < count) {
            GLOBAL const KV_TYPE *k = k_pages + (slot_of(pages, skip + t0 + LOCAL_X) * a.kv_heads + g) * KV_VECTOR;
            f32 s[ROWS];
            ROLLED for (u32 r = 0; r < ROWS; r++) s[r] = 0.0f;
            ROLLED for (u32 i = 0; i < K_PAD; i += 16u) {
                f32 x[16];
                for (u32 j = 0; j < 16u; j++) x[j] = i + j < HEAD_DIM ? kv_load(k + i + j) : 0.0f;
                EACH_MEMBER {
                    ROLLED for (u32 h = 0; n < count_m && h < HEADS; h++) {
                        u32 r = n * HEADS + h;
                        f32 sum = 0.0f;
                        for (u32 j = 0; j < 16u; j++) sum += qs[r * K_PAD + i + j] * x[j];
                        s[r] += sum;
                    }
                }
            }
            ROLLED for (u32 r = 0; r < ROWS; r++) {
                if (r < used) p[r * GROUP + LOCAL_X] = capped(kv_scaled(k, s[r]), a.scale, a.softcap);
            }
        }
        BARRIER();
        for (u32 r = LOCAL_X / TEAM; r < used; r += GROUP / TEAM) soften(p + r * GROUP, count, least, m + r, l + r, keep + r);
        BARRIER();
#ifdef SPARSE_V
        if (LOCAL_X < count) {
            f32 top = 0.0f;
            for (u32 r = 0; r < used; r++) top = FMAX(top, p[r * GROUP + LOCAL_X]);
            weighed[LOCAL_X] = top > 0.0f ? 1u : 0u;
            if (top == 0.0f) LOCAL_COUNT(&skipped);
        }
        BARRIER();
#endif
        EACH_MEMBER {
            ROLLED for (u32 h = 0; n < count_m && h < HEADS; h++) {
                ROLLED for (u32 c = 0; c < V_SHARE; c++) acc[n * HEADS + h][c] *= keep[n * HEADS + h];
            }
        }
        for (u32 j = 0; j < count; j++) {
#ifdef SPARSE_V
            if (weighed[j] == 0u) continue;
#endif
            GLOBAL const KV_TYPE *v = v_pages + (slot_of(pages, skip + t0 + j) * a.kv_heads + g) * VALUE_STRIDE;
            ROLLED for (u32 c = 0; c < V_SHARE; c++) {
                u32 i = c * GROUP + LOCAL_X;
                f32 x = i < VALUE_DIM ? value_scaled(v, value_load(v, i)) : 0.0f;
                EACH_MEMBER {
                    ROLLED for (u32 h = 0; n < count_m && h < HEADS; h++) acc[n * HEADS + h][c] +=
                        p[(n * HEADS + h) * GROUP + j] * x;
                }
            }
        }
        BARRIER();
    }
#ifdef SPARSE_V
    if (LOCAL_X == 0u && tokens > 0u) count_values(witness, tokens, skipped);
#endif
    ROLLED for (u32 r = 0; r < ROWS; r++) {
        if (r < used) {
            bool direct = part_first == PL_PLAN_DIRECT;
            u64 to = direct ? (u64)members[0] * a.heads + GROUP_Y * HEADS + r
                            : (u64)part_first * a.heads + (u64)GROUP_Y * used + r;
            GLOBAL f32 *o = (direct ? out : parts) + to * VALUE_DIM;
            f32 total = l[r];
#ifdef KV_K8V4
            if (direct) { /* parts stay turned: whoever merges them turns the row back */
                BARRIER();
                ROLLED for (u32 c = 0; c < V_SHARE; c++) {
                    u32 i = c * GROUP + LOCAL_X;
                    if (i < VALUE_DIM) qs[i] = acc[r][c];
                }
                values_turn_back(qs);
                ROLLED for (u32 c = 0; c < V_SHARE; c++) {
                    u32 i = c * GROUP + LOCAL_X;
                    if (i < VALUE_DIM) acc[r][c] = qs[i];
                }
            }
#endif
            ROLLED for (u32 c = 0; c < V_SHARE; c++) {
                u32 i = c * GROUP + LOCAL_X;
                if (i < VALUE_DIM) o[i] = total > 0.0f ? acc[r][c] / total : 0.0f;
            }
            if (LOCAL_X == 0u && !direct) lse_log2[to] = total > 0.0f ? m[r] + LOG2(total) : NEG_INF;
        }
    }
}
#endif

#ifdef PAGED_MERGE
/* grid: (merged rows, H) */
KERNEL(paged_merge)(GLOBAL const f32 *parts, GLOBAL const f32 *lse_log2, GLOBAL const u32 *plan, GLOBAL f32 *out, GLOBAL u32 *witness,
 const struct pl_args_paged a) {
#ifdef KV_K8V4
    LOCAL f32 sum[VALUE_DIM];
#endif
    count_launch(witness);
    if (GROUP_X < plan[PL_PLAN_MERGE_COUNT]) {
        GLOBAL const u32 *start = plan + plan[PL_PLAN_MERGE_START] + GROUP_X;
        GLOBAL const u32 *states = plan + plan[PL_PLAN_STATES];
        u32 row = plan[plan[PL_PLAN_MERGE_ROW] + GROUP_X], head = GROUP_Y, tile = head / HEADS, r = head % HEADS;
        f32 top = NEG_INF, total = 0.0f;
        for (u32 i = start[0]; i < start[1]; i++) {
            GLOBAL const u32 *s = states + i * PL_PLAN_STATE_WORDS;
            top = FMAX(top, lse_log2[(u64)s[0] * a.heads + (tile * s[1] + s[2]) * HEADS + r]);
        }
        for (u32 i = start[0]; i < start[1]; i++) {
            GLOBAL const u32 *s = states + i * PL_PLAN_STATE_WORDS;
            total += weight_of(lse_log2[(u64)s[0] * a.heads + (tile * s[1] + s[2]) * HEADS + r], top);
        }
        for (u32 d = LOCAL_X; d < VALUE_DIM; d += GROUP) {
            f32 v = 0.0f;
            for (u32 i = start[0]; i < start[1]; i++) {
                GLOBAL const u32 *s = states + i * PL_PLAN_STATE_WORDS;
                u64 at = (u64)s[0] * a.heads + (tile * s[1] + s[2]) * HEADS + r;
                f32 e = weight_of(lse_log2[at], top);
                if (e > 0.0f) v += e * parts[at * VALUE_DIM + d];
            }
#ifdef KV_K8V4
            sum[d] = total > 0.0f ? v / total : 0.0f;
        }
        values_turn_back(sum);
        for (u32 d = LOCAL_X; d < VALUE_DIM; d += GROUP) out[((u64)row * a.heads + head) * VALUE_DIM + d] = sum[d];
#else
            out[((u64)row * a.heads + head) * VALUE_DIM + d] = total > 0.0f ? v / total : 0.0f;
        }
#endif
    }
}
#endif

#ifdef PAGED_GATHER
/* grid: (pages of the longest row, rows) */
KERNEL(paged_gather)(GLOBAL const KV_TYPE *k_pages, GLOBAL const KV_TYPE *v_pages, GLOBAL const u32 *plan, GLOBAL KV_TYPE *k, GLOBAL KV_TYPE *v,
 GLOBAL u32 *witness, const struct pl_args_paged a) {
    count_launch(witness);
    u32 row = GROUP_Y, skip = plan[plan[PL_PLAN_FIRST_OFFSET] + row], visible = plan[plan[PL_PLAN_VISIBLE] + row];
    u32 begin = GROUP_X * PAGE_TOKENS, from = begin > skip ? begin : skip;
    u32 to = PL_MIN(begin + PAGE_TOKENS, skip + visible);
    if (from < to) {
        u64 page = plan[plan[PL_PLAN_PAGE_INDEX] + plan[plan[PL_PLAN_PAGE_START] + row] + GROUP_X];
        u64 source = page * PAGE_TOKENS + (from - begin),
            target = (u64)plan[plan[PL_PLAN_DENSE_START] + row] + (from - skip);
        u64 keys = (u64)a.kv_heads * KV_VECTOR, values = (u64)a.kv_heads * VALUE_STRIDE;
        for (u64 i = LOCAL_X; i < (to - from) * keys; i += GROUP) k[target * keys + i] = k_pages[source * keys + i];
        for (u64 i = LOCAL_X; i < (to - from) * values; i += GROUP) v[target * values + i] = v_pages[source * values + i];
    }
}
#endif
