/* latent - multi-head latent attention's own parts: a product of each head, and the append of the one key a token.
 * Contract: struct pl_latent and pl_ops_heads_linear in src/ops/ops.h; the attention between them is the usual one, with
 * values that are the first VALUE_DIM numbers of each key.
 *
 *   heads_linear   y[r, h, o] = sum_i x[r, h, i] w[h][o, i]: a team of TEAM threads owns one output of one head; each weight
 *                  is unpacked once for ROWS rows; groups along y take further blocks of rows
 *   heads_tile     the same for many rows: 64 outputs of one head by 64 rows a group of 256, through local memory, 32 inputs
 *                  after the other; a thread owns four by four
 *   latent_append  group 0 of a row norms the first VALUE_DIM numbers of its latent row, rotates the others and stores the
 *                  key; the others rotate the last numbers of each head of q into the last of each head of qa
 * Numerics: f32; orders are fixed by TEAM and GROUP, so bitwise repeatable, whatever the number of rows. */
#include "dialect.h"
#include "args/args.h"

#ifdef HEADS_LINEAR
#include "weights.h"

#ifdef HEADS_TILE
#define TILE  64u
#define PITCH (TILE + 1u)
#define SIDE  16u /* GROUP is its square; of a thread are TILE / SIDE rows by as many outputs */
#define EACH  (TILE / SIDE)

/* grid: (heads * ceil(out / TILE), ceil(rows / TILE)) */
KERNEL(heads_tile)(GLOBAL const u8 *data, GLOBAL const u8 *scales, GLOBAL const u8 *biases, GLOBAL const f32 *x, GLOBAL f32 *y,
                   GLOBAL u32 *witness, const struct pl_args_heads a) {
    LOCAL f32 weights[32u * PITCH], inputs[32u * PITCH];
    count_launch(witness);
    u32 tiles = (a.out + TILE - 1u) / TILE, head = GROUP_X / tiles, out0 = GROUP_X % tiles * TILE, row0 = GROUP_Y * TILE;
    u32 mine = LOCAL_X % SIDE, line = LOCAL_X / SIDE;
    f32 sum[EACH][EACH];
    struct weight w;
    w.data = data;
    w.scales = scales;
    w.biases = biases;
    w.row_bytes = a.row_bytes;
    w.cols = a.in;
    for (u32 r = 0; r < EACH; r++)
        for (u32 c = 0; c < EACH; c++) sum[r][c] = 0.0f;
    for (u32 k = 0; 32u * k < a.in; k++) {
        u32 n = PL_MIN(32u, a.in - 32u * k);
        if (LOCAL_X < TILE) { /* outputs past the end are the last one again, and not stored */
            f32 v[32];
            dequant32(&w, head * a.out + PL_MIN(out0 + LOCAL_X, a.out - 1u), k, n, v);
            for (u32 i = 0; i < 32u; i++) weights[i * PITCH + LOCAL_X] = i < n ? v[i] : 0.0f;
        } else {
            for (u32 j = LOCAL_X - TILE; j < 32u * TILE; j += GROUP - TILE) {
                u32 r = j / 32u, i = j % 32u;
                inputs[i * PITCH + r] =
                    i < n && row0 + r < a.rows ? x[((u64)(row0 + r) * a.heads + head) * a.x_head + 32u * k + i] : 0.0f;
            }
        }
        BARRIER();
        for (u32 i = 0; i < 32u; i++) {
            f32 p[EACH], q[EACH];
            for (u32 r = 0; r < EACH; r++) p[r] = inputs[i * PITCH + line + SIDE * r];
            for (u32 c = 0; c < EACH; c++) q[c] = weights[i * PITCH + mine + SIDE * c];
            for (u32 r = 0; r < EACH; r++)
                for (u32 c = 0; c < EACH; c++) sum[r][c] += p[r] * q[c];
        }
        BARRIER();
    }
    for (u32 r = 0; r < EACH; r++) {
        u32 row = row0 + line + SIDE * r;
        for (u32 c = 0; c < EACH; c++) {
            u32 o = out0 + mine + SIDE * c;
            if (row < a.rows && o < a.out) y[((u64)row * a.heads + head) * a.y_head + o] = sum[r][c];
        }
    }
}
#else
#define OUTPUTS (GROUP / TEAM)

/* grid: (heads * ceil(out / OUTPUTS), ceil(rows / ROWS)) */
KERNEL(heads_linear)(GLOBAL const u8 *data, GLOBAL const u8 *scales, GLOBAL const u8 *biases, GLOBAL const f32 *x,
                     GLOBAL f32 *y, GLOBAL u32 *witness, const struct pl_args_heads a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    u32 each = (a.out + OUTPUTS - 1u) / OUTPUTS, head = GROUP_X / each;
    u32 o = GROUP_X % each * OUTPUTS + LOCAL_X / TEAM, lane = LOCAL_X % TEAM, row0 = GROUP_Y * ROWS;
    u32 owned = head * a.out + PL_MIN(o, a.out - 1u); /* threads past the end repeat the last output and store nothing */
    f32 sum[ROWS];
    u64 at[ROWS];
    struct weight w;
    w.data = data;
    w.scales = scales;
    w.biases = biases;
    w.row_bytes = a.row_bytes;
    w.cols = a.in;
    for (u32 r = 0; r < ROWS; r++) {
        sum[r] = 0.0f;
        at[r] = ((u64)PL_MIN(row0 + r, a.rows - 1u) * a.heads + head) * a.x_head;
    }
    for (u32 k = lane; 32u * k < a.in; k += TEAM) {
        f32 v[32];
        u32 n = PL_MIN(32u, a.in - 32u * k);
        dequant32(&w, owned, k, n, v);
        for (u32 r = 0; r < ROWS; r++) {
            GLOBAL const f32 *p = x + at[r] + 32u * k;
            f32 s = 0.0f;
            if (n == 32u) {
                for (u32 i = 0; i < 32u; i++) s += v[i] * p[i];
            } else {
                for (u32 i = 0; i < n; i++) s += v[i] * p[i];
            }
            sum[r] += s;
        }
    }
    for (u32 r = 0; r < ROWS; r++) {
        f32 s = team_sum(sum[r], scratch);
        if (lane == 0u && o < a.out && row0 + r < a.rows) y[((u64)(row0 + r) * a.heads + head) * a.y_head + o] = s;
    }
}
#endif
#else
#include "kv.h"

#define TURNED (HEAD_DIM - VALUE_DIM)
#ifdef ROPE_HALVES
#define FIRST(i)  (i)
#define SECOND(i) ((i) + TURNED / 2u)
#else
#define FIRST(i)  (2u * (i))
#define SECOND(i) (2u * (i) + 1u)
#endif

/* grid: (1 + ceil(heads * TURNED / 2 / GROUP), rows) */
KERNEL(latent_append)(GLOBAL const f32 *q, GLOBAL const f32 *latent, GLOBAL f32 *qa, GLOBAL const f32 *norm,
                      GLOBAL const f32 *cos_sin, GLOBAL const u32 *step, GLOBAL KV_TYPE *pages, GLOBAL u32 *witness,
                      const struct pl_args_latent a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    u32 row = GROUP_Y, position = step[PL_STEP_POSITION(a.stride) + row];
    GLOBAL const f32 *t = cos_sin + (u64)position * TURNED;
    if (GROUP_X == 0u) {
        GLOBAL const f32 *x = latent + (u64)row * HEAD_DIM;
        f32 sum = 0.0f;
        for (u32 i = LOCAL_X; i < VALUE_DIM; i += GROUP) sum += x[i] * x[i];
        sum = group_sum(sum, scratch);
        f32 inverse = 1.0f / SQRT(sum / (f32)VALUE_DIM + a.norm_eps);
        GLOBAL KV_TYPE *to = pages + kv_offset(step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + row],
                                               position, 0u, 1u);
        for (u32 i = LOCAL_X; i < VALUE_DIM; i += GROUP) kv_store(to + i, x[i] * inverse * norm[i]);
        for (u32 i = LOCAL_X; i < TURNED / 2u; i += GROUP) {
            f32 c = t[2u * i], s = t[2u * i + 1u], x0 = x[VALUE_DIM + FIRST(i)], x1 = x[VALUE_DIM + SECOND(i)];
            kv_store(to + VALUE_DIM + FIRST(i), x0 * c - x1 * s);
            kv_store(to + VALUE_DIM + SECOND(i), x0 * s + x1 * c);
        }
    } else {
        u32 at = (GROUP_X - 1u) * GROUP + LOCAL_X, head = at / (TURNED / 2u), i = at % (TURNED / 2u);
        if (head < a.heads) {
            GLOBAL const f32 *x = q + ((u64)row * a.heads + head + 1u) * a.q_head - TURNED;
            GLOBAL f32 *y = qa + ((u64)row * a.heads + head + 1u) * HEAD_DIM - TURNED;
            f32 c = t[2u * i], s = t[2u * i + 1u], x0 = x[FIRST(i)], x1 = x[SECOND(i)];
            y[FIRST(i)] = x0 * c - x1 * s;
            y[SECOND(i)] = x0 * s + x1 * c;
        }
    }
}
#endif
