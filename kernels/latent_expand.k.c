/* latent_expand - latent attention of many rows by keys and values of each head, made from the cached latents.
 * Contract: pl_ops_latent_attention in src/ops/ops.h. One sequence and CHUNK of its tokens at a time; L = VALUE_DIM of the
 * cache, R = ROPE, N = NOPE, V = VALUE, C the tokens of the chunk in tiles of 16.
 *
 *   latent_turn    TURN: the matrices of all heads in f32, w [H, N + V, L]: 32 elements of a row a thread
 *   latent_widen   WIDEN: a group takes 16 tokens of the cache apart: latents [C / 16, L, 16], rotated parts [C, R]; what is
 *                  behind the last token is zero
 *   latent_keys    KEYS: kv [H, C, VECTOR] = keys [N] and values [V] of each head. A thread owns HELD of them for 16 tokens
 *   HALVES: w, latents and rotated parts in bf16, latents [C, L] as products of tensor cores read them; what stands for keys and attend
 *                  then: src/ops/expand.h
 *   latent_attend  ATTEND: a group takes 16 rows of one head through the chunk, TILE tokens at a time. What earlier chunks gave
 *                  stands in out and lse_log2: they are one more state of weight 2^lse that this chunk's are merged with
 * Numerics: f32, online softmax in base 2; orders are fixed, so bitwise repeatable. A row's order knows where its chunks and
 * tiles of tokens begin (at the sequence's first token) and nothing of the rows beside it.
 * Cost of a head: L (N + V) multiply-adds a token, N + R + V for each pair of row and token. */
#include "dialect.h"
#include "args/args.h"

#define ROWS_HELD 16
#define HELD      4 /* outputs, keys or values of a thread */
#define VECTOR    (NOPE + VALUE + 16) /* neighbours in other sets of a cache */

#ifdef HALVES
#define PART u16
#define PUT(p, v) bf16_store(p, v)
#else
#define PART f32
#define PUT(p, v) (*(p) = (v))
#endif

#ifdef TURN
#include "weights.h"

/* grid: ceil(rows * ceil(cols / 32) / GROUP) */
KERNEL(latent_turn)(GLOBAL const u8 *data, GLOBAL const u8 *scales, GLOBAL const u8 *biases, GLOBAL PART *to,
                    GLOBAL u32 *witness, const struct pl_args_turn a) {
    struct weight w;
    count_launch(witness);
    u32 blocks = (a.cols + 31u) / 32u, at = GROUP_X * GROUP + LOCAL_X, row = at / blocks, k = at % blocks;
    w.data = data;
    w.scales = scales;
    w.biases = biases;
    w.row_bytes = a.row_bytes;
    w.cols = a.cols;
    if (row < a.rows) {
        f32 v[32];
        u32 n = PL_MIN(32u, a.cols - 32u * k);
        GLOBAL PART *p = to + row / a.each * a.head_stride + a.first + (u64)(row % a.each) * a.row_stride;
        dequant32(&w, row, k, n, v);
        for (u32 i = 0; i < n; i++) PUT(p + (u64)(32u * k + i) * a.col_stride, v[i]);
    }
}
#endif

#ifdef WIDEN
#include "kv.h"

/* grid: C / 16 */
KERNEL(latent_widen)(GLOBAL const KV_TYPE *pages, GLOBAL const u32 *step, GLOBAL PART *latents, GLOBAL PART *rotated,
                     GLOBAL u32 *witness, const struct pl_args_expand a) {
    count_launch(witness);
    GLOBAL const u32 *table = step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + a.row0];
    u32 t0 = GROUP_X * 16u;
    for (u32 t = 0; t < 16u; t++) {
        bool live = t0 + t < a.tokens;
        GLOBAL const KV_TYPE *from = pages + kv_offset(table, a.first + (live ? t0 + t : 0u), 0u, 1u);
        for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) {
            f32 v = live ? kv_load(from + i) : 0.0f;
            if (i < VALUE_DIM)
#ifdef HALVES
                PUT(latents + (u64)(t0 + t) * VALUE_DIM + i, v);
#else
                PUT(latents + ((u64)GROUP_X * VALUE_DIM + i) * 16u + t, v);
#endif
            else
                PUT(rotated + (u64)(t0 + t) * (HEAD_DIM - VALUE_DIM) + i - VALUE_DIM, v);
        }
    }
}
#endif

#ifdef KEYS
#define OUTPUTS (NOPE + VALUE)

/* grid: (C / 16, heads * ceil(OUTPUTS / (HELD * GROUP))) */
KERNEL(latent_keys)(GLOBAL const f32 *latents, GLOBAL const f32 *w, GLOBAL f32 *kv, GLOBAL u32 *witness,
                    const struct pl_args_expand a) {
    count_launch(witness);
    u32 each = (OUTPUTS + HELD * GROUP - 1u) / (HELD * GROUP), head = GROUP_Y / each;
    u32 o = (GROUP_Y % each * GROUP + LOCAL_X) * HELD;
    GLOBAL const f32 *c = latents + (u64)GROUP_X * VALUE_DIM * 16u;
    GLOBAL const f32 *from = w + (u64)head * OUTPUTS * VALUE_DIM;
    f32 sum[HELD][16];
    u32 at[HELD];
    if (o < OUTPUTS) {
        for (u32 i = 0; i < HELD; i++) {
            at[i] = PL_MIN(o + i, OUTPUTS - 1u) * VALUE_DIM;
            for (u32 t = 0; t < 16u; t++) sum[i][t] = 0.0f;
        }
        ROLLED for (u32 r = 0; r < VALUE_DIM; r++)
            for (u32 i = 0; i < HELD; i++)
                for (u32 t = 0; t < 16u; t++) sum[i][t] += from[at[i] + r] * c[r * 16u + t];
        for (u32 i = 0; i < HELD; i++)
            for (u32 t = 0; o + i < OUTPUTS && t < 16u; t++)
                kv[((u64)head * a.padded + GROUP_X * 16u + t) * VECTOR + o + i] = sum[i][t];
    }
}
#endif

#ifdef ATTEND
#define TILE  (HELD * GROUP)
#define SHARE ((VALUE + HELD * GROUP - 1) / (HELD * GROUP))
#define KEY   (NOPE + ROPE)
#define LOG2E 1.4426950408889634f

/* grid: (heads, ceil(rows / 16)) */
KERNEL(latent_attend)(GLOBAL const f32 *q, GLOBAL const f32 *qa, GLOBAL const f32 *kv, GLOBAL const f32 *rotated,
                      GLOBAL f32 *out, GLOBAL f32 *lse, GLOBAL u32 *witness, const struct pl_args_expand a) {
    LOCAL f32 qs[KEY * ROWS_HELD];
    LOCAL f32 p[TILE * ROWS_HELD];
    LOCAL f32 part[GROUP * ROWS_HELD];
    LOCAL f32 top[ROWS_HELD];
    LOCAL f32 total[ROWS_HELD];
    LOCAL f32 keep[ROWS_HELD];
    count_launch(witness);
    u32 head = GROUP_X, row0 = GROUP_Y * ROWS_HELD, rows = PL_MIN((u32)ROWS_HELD, a.rows - row0);
    u32 before = a.past + row0, end = PL_MIN(a.first + a.tokens, before + rows); /* the last row sees up to here */
    GLOBAL const f32 *keys = kv + (u64)head * a.padded * VECTOR;
    f32 acc[SHARE][HELD][ROWS_HELD];
    for (u32 i = LOCAL_X; i < KEY * ROWS_HELD; i += GROUP) {
        u32 r = i / KEY, d = i % KEY;
        u64 at = (u64)(a.row0 + row0 + PL_MIN(r, rows - 1u)) * a.heads + head;
        qs[d * ROWS_HELD + r] = d < NOPE ? q[at * KEY + d] : qa[at * (LATENT + ROPE) + LATENT + d - NOPE];
    }
    for (u32 r = LOCAL_X; r < ROWS_HELD; r += GROUP) {
        u64 at = (u64)(a.row0 + row0 + PL_MIN(r, rows - 1u)) * a.heads + head;
        top[r] = a.first > 0u ? lse[at] : NEG_INF;
        total[r] = a.first > 0u ? 1.0f : 0.0f;
    }
    for (u32 s = 0; s < SHARE; s++)
        for (u32 i = 0; i < HELD; i++)
            for (u32 r = 0; r < ROWS_HELD; r++) {
                u32 v = (s * GROUP + LOCAL_X) * HELD + i;
                u64 at = (u64)(a.row0 + row0 + PL_MIN(r, rows - 1u)) * a.heads + head;
                acc[s][i][r] = a.first > 0u && v < VALUE ? out[at * VALUE + v] : 0.0f;
            }
    BARRIER();
    ROLLED for (u32 t0 = a.first; t0 < end; t0 += TILE) {
        u32 mine = LOCAL_X * HELD, last = a.first + a.tokens - 1u, count = PL_MIN((u32)TILE, end - t0);
        f32 sum[HELD][ROWS_HELD];
        GLOBAL const f32 *k[HELD];
        GLOBAL const f32 *turned[HELD];
        for (u32 i = 0; i < HELD; i++) {
            u32 t = PL_MIN(t0 + mine + i, last) - a.first;
            k[i] = keys + (u64)t * VECTOR;
            turned[i] = rotated + (u64)t * ROPE;
            for (u32 r = 0; r < ROWS_HELD; r++) sum[i][r] = 0.0f;
        }
        ROLLED for (u32 d = 0; d < NOPE; d++)
            for (u32 i = 0; i < HELD; i++)
                for (u32 r = 0; r < ROWS_HELD; r++) sum[i][r] += k[i][d] * qs[d * ROWS_HELD + r];
        ROLLED for (u32 d = 0; d < ROPE; d++)
            for (u32 i = 0; i < HELD; i++)
                for (u32 r = 0; r < ROWS_HELD; r++) sum[i][r] += turned[i][d] * qs[(NOPE + d) * ROWS_HELD + r];
        for (u32 r = 0; r < ROWS_HELD; r++) {
            f32 most = NEG_INF;
            for (u32 i = 0; i < HELD; i++) {
                f32 s = t0 + mine + i < end && t0 + mine + i <= before + r ? sum[i][r] * (a.scale * LOG2E) : NEG_INF;
                p[(mine + i) * ROWS_HELD + r] = s;
                most = FMAX(most, s);
            }
            part[LOCAL_X * ROWS_HELD + r] = most;
        }
        BARRIER();
        for (u32 r = LOCAL_X; r < ROWS_HELD; r += GROUP) {
            f32 m = top[r];
            for (u32 g = 0; g < GROUP; g++) m = FMAX(m, part[g * ROWS_HELD + r]);
            keep[r] = EXP2(top[r] - m); /* finite: every row sees token 0 */
            top[r] = m;
        }
        BARRIER();
        for (u32 r = 0; r < ROWS_HELD; r++) part[LOCAL_X * ROWS_HELD + r] = 0.0f;
        for (u32 i = 0; i < HELD; i++)
            for (u32 r = 0; r < ROWS_HELD; r++) {
                f32 e = EXP2(p[(mine + i) * ROWS_HELD + r] - top[r]);
                p[(mine + i) * ROWS_HELD + r] = e;
                part[LOCAL_X * ROWS_HELD + r] += e;
            }
        BARRIER();
        for (u32 r = LOCAL_X; r < ROWS_HELD; r += GROUP) {
            f32 l = total[r] * keep[r];
            for (u32 g = 0; g < GROUP; g++) l += part[g * ROWS_HELD + r];
            total[r] = l;
        }
        for (u32 s = 0; s < SHARE; s++) {
            u32 v = PL_MIN((s * GROUP + LOCAL_X) * HELD, (u32)(VALUE - 1) / HELD * HELD);
            GLOBAL const f32 *from = keys + (u64)(t0 - a.first) * VECTOR + NOPE + v; /* a vector's end is room enough */
            for (u32 i = 0; i < HELD; i++)
                for (u32 r = 0; r < ROWS_HELD; r++) acc[s][i][r] *= keep[r];
            ROLLED for (u32 j = 0; j < count; j++)
                for (u32 i = 0; i < HELD; i++)
                    for (u32 r = 0; r < ROWS_HELD; r++) acc[s][i][r] += from[j * VECTOR + i] * p[j * ROWS_HELD + r];
        }
        BARRIER();
    }
    for (u32 s = 0; s < SHARE; s++)
        for (u32 i = 0; i < HELD; i++) {
            u32 v = (s * GROUP + LOCAL_X) * HELD + i;
            for (u32 r = 0; v < VALUE && r < rows; r++)
                out[((u64)(a.row0 + row0 + r) * a.heads + head) * VALUE + v] = acc[s][i][r] / total[r];
        }
    for (u32 r = LOCAL_X; r < rows; r += GROUP)
        lse[(u64)(a.row0 + row0 + r) * a.heads + head] = top[r] + LOG2(total[r]);
}
#endif
