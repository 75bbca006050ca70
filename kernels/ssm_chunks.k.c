/* ssm_chunks - Mamba-2's recurrence (src/cpu/ssm.h; one decay a head) over many rows of a sequence, by chunks of Q in products.
 * With A_t the sum of the chunk's exponents d a up to row t, and S the state before it:
 *   y_t = e^A_t C_t S + sum over s <= t of e^(A_t - A_s) d_s (C_t . B_s) x_s + skip x_t, times silu(z_t)
 *   S   = e^A_last S + sum over s of e^(A_last - A_s) d_s x_s B_s
 * pk_ssm_dots: what all heads or all columns of a chunk share: dots [rows, G, Q], C_t . B_s for s <= t; steps [rows, 3, H],
 *   d and A in two parts whose sum is exact to 2^-48 of the largest, so that differences of large sums stay good.
 * pk_ssm_chunks: a group has SLICE columns of a head's x and walks the chunks of one sequence. Sequences of fewer rows than
 *   a.split are left to pk_ssm. STATE: N; HAS_BIAS of dt, HAS_SKIP, HAS_GATE. y may be z.
 * Numerics: f32, fixed order; chunks are counted from the sequence's first row of the step, so cuts change the rounding.
 * Cost: 2 Q P + 4 N P flops a row and head, and 2 Q N a row and group. */
#include "dialect.h"
#include "args/args.h"
#include "ssm_math.h"

#define STRIP 16u /* rows of dots of one group */
#define TILE  32u /* of N at a time */

#ifdef DOTS
/* One thread a head. */
FN void add_steps(GLOBAL const f32 *dt, f32 shift, f32 rate, u32 n, u32 heads, f32 least, f32 most, GLOBAL f32 *steps) {
    f32 high = 0.0f, low = 0.0f;
    ROLLED
    for (u32 t = 0; t < n; t++) {
        EXACT
        f32 d = clipped_softplus(dt[(u64)t * heads] + shift, least, most), v = MUL(d, rate);
        f32 sum = ADD(high, v), back = ADD(sum, -high);
        low = ADD(low, ADD(ADD(high, -ADD(sum, -back)), ADD(v, -back)));
        high = sum;
        steps[(u64)t * 3u * heads] = d;
        steps[((u64)t * 3u + 1u) * heads] = high;
        steps[((u64)t * 3u + 2u) * heads] = low;
    }
}

KERNEL(ssm_dots)(GLOBAL const f32 *b, GLOBAL const f32 *c, GLOBAL const f32 *dt, GLOBAL const f32 *decay,
                 GLOBAL const f32 *dt_bias, GLOBAL const u32 *seqs, GLOBAL f32 *dots, GLOBAL f32 *steps, GLOBAL u32 *witness,
                 const struct pl_args_ssm a) {
    LOCAL f32 cs[STRIP][TILE + 1u], bs[Q][TILE + 1u];
    count_launch(witness);
    u32 strips = a.groups * (Q / STRIP), each = strips + (a.heads + GROUP - 1u) / GROUP, t0 = GROUP_X / each * Q,
        part = GROUP_X % each;
    GLOBAL const u32 *seq = seqs + GROUP_Y * PL_SEQ_WORDS;
    u32 rows = seq[PL_SEQ_ROWS];
    if (rows < a.split || t0 >= rows) return;
    u64 first = (u64)seq[PL_SEQ_FIRST] + t0;
    u32 n = PL_MIN(Q, rows - t0);
    if (part >= strips) {
        u32 h = (part - strips) * GROUP + LOCAL_X;
        f32 shift = 0.0f;
        if (h >= a.heads) return;
#ifdef HAS_BIAS
        shift = dt_bias[h];
#endif
        add_steps(dt + first * a.heads + h, shift, decay[h], n, a.heads, a.dt_min, a.dt_max, steps + first * 3u * a.heads + h);
        return;
    }
    u32 g = part / (Q / STRIP), r0 = part % (Q / STRIP) * STRIP, last = PL_MIN(n, r0 + STRIP); /* rows and columns of use */
    if (r0 >= n) return;
    u32 row = LOCAL_X / 8u, col = LOCAL_X % 8u;
    f32 sum[Q / 8u];
    for (u32 j = 0; j < Q / 8u; j++) sum[j] = 0.0f;
    ROLLED
    for (u32 k0 = 0; k0 < STATE; k0 += TILE) {
        BARRIER();
        for (u32 i = LOCAL_X; i < STRIP * TILE; i += GROUP) {
            u32 t = r0 + i / TILE, k = k0 + i % TILE;
            cs[i / TILE][i % TILE] = t < n && k < STATE ? c[(first + t) * a.c_stride + a.c_first + g * STATE + k] : 0.0f;
        }
        for (u32 i = LOCAL_X; i < Q * TILE; i += GROUP) {
            u32 s = i / TILE, k = k0 + i % TILE;
            bs[s][i % TILE] = s < last && k < STATE ? b[(first + s) * a.b_stride + a.b_first + g * STATE + k] : 0.0f;
        }
        BARRIER();
        for (u32 k = 0; k < TILE; k++)
            for (u32 j = 0; j < Q / 8u; j++) sum[j] = FMA(cs[row][k], bs[j * 8u + col][k], sum[j]);
    }
    for (u32 j = 0; j < Q / 8u && r0 + row < n; j++)
        if (j * 8u + col <= r0 + row) dots[((first + r0 + row) * a.groups + g) * Q + j * 8u + col] = sum[j];
    (void)dt_bias;
}
#endif

#ifdef CHUNKS
#define ROWS_EACH (Q / 16u)    /* rows of y of a thread, 16 apart */
#define COLS_EACH (SLICE / 8u) /* columns, 8 apart */
#define P_EACH    (SLICE / 4u) /* columns of the state, 4 apart */

KERNEL(ssm_chunks)(GLOBAL const f32 *x, GLOBAL const f32 *b, GLOBAL const f32 *c, GLOBAL const f32 *z, GLOBAL const f32 *skip,
                   GLOBAL const f32 *dots, GLOBAL const f32 *steps, GLOBAL f32 *state, GLOBAL const u32 *seqs, GLOBAL f32 *y,
                   GLOBAL u32 *witness, const struct pl_args_ssm a) {
    LOCAL f32 cs[Q][TILE + 1u], bs[Q][TILE + 1u], ss[TILE][SLICE], xs[Q][SLICE], m[Q][Q + 1u], step[Q], high[Q], low[Q], w[Q];
    count_launch(witness);
    GLOBAL const u32 *seq = seqs + GROUP_Y * PL_SEQ_WORDS;
    u32 rows = seq[PL_SEQ_ROWS], slices = (a.head_dim + SLICE - 1u) / SLICE;
    if (rows < a.split) return;
    u32 h = GROUP_X / slices, p0 = GROUP_X % slices * SLICE, g = h / (a.heads / a.groups), inner = a.heads * a.head_dim;
    GLOBAL f32 *own = state + seq[PL_SEQ_SLOT] * a.slot_stride + a.state_first + ((u64)h * a.head_dim + p0) * STATE;
    u32 width = PL_MIN(SLICE, a.head_dim - p0), i = LOCAL_X;
    bool past = seq[PL_SEQ_PAST] > 0;
    f32 direct = 0.0f;
#ifdef HAS_SKIP
    direct = skip[h];
#endif
    ROLLED
    for (u32 t0 = 0; t0 < rows; t0 += Q) {
        u64 first = (u64)seq[PL_SEQ_FIRST] + t0;
        u32 n = PL_MIN(Q, rows - t0);
        f32 sum[ROWS_EACH][COLS_EACH];
        BARRIER();
        for (u32 k = i; k < Q * SLICE; k += GROUP) {
            u32 t = k / SLICE, p = k % SLICE;
            xs[t][p] = t < n && p < width ? x[(first + t) * a.x_stride + a.x_first + h * a.head_dim + p0 + p] : 0.0f;
        }
        for (u32 t = i; t < n; t += GROUP) {
            GLOBAL const f32 *at = steps + (first + t) * 3u * a.heads + h, *end = steps + (first + n - 1u) * 3u * a.heads + h;
            step[t] = at[0], high[t] = at[a.heads], low[t] = at[2u * a.heads];
            w[t] = EXP((end[a.heads] - high[t]) + (end[2u * a.heads] - low[t])) * step[t];
        }
        BARRIER();
        for (u32 k = i; k < Q * Q; k += GROUP) {
            u32 t = k / Q, s = k % Q;
            f32 v = 0.0f;
            if (t < n && s <= t)
                v = EXP((high[t] - high[s]) + (low[t] - low[s])) * step[s] * dots[((first + t) * a.groups + g) * Q + s];
            m[t][s] = v;
        }
        f32 keep = EXP(high[n - 1u] + low[n - 1u]);
        for (u32 k = 0; k < ROWS_EACH; k++)
            for (u32 j = 0; j < COLS_EACH; j++) sum[k][j] = 0.0f;
        ROLLED
        for (u32 k0 = 0; k0 < STATE; k0 += TILE) {
            u32 col = i % TILE, p4 = i / TILE;
            f32 v[P_EACH];
            BARRIER();
            for (u32 k = i; k < Q * TILE; k += GROUP) {
                u32 t = k / TILE, q = k0 + k % TILE;
                bool in = t < n && q < STATE;
                cs[t][k % TILE] = in ? c[(first + t) * a.c_stride + a.c_first + g * STATE + q] : 0.0f;
                bs[t][k % TILE] = in ? b[(first + t) * a.b_stride + a.b_first + g * STATE + q] : 0.0f;
            }
            for (u32 j = 0; j < P_EACH; j++) { /* only this thread touches these of the state */
                u32 p = p4 + j * 4u;
                v[j] = (past || t0 > 0) && p < width && k0 + col < STATE ? own[(u64)p * STATE + k0 + col] : 0.0f;
                ss[col][p] = v[j];
                v[j] *= keep;
            }
            BARRIER();
            for (u32 q = 0; q < TILE; q++)
                for (u32 k = 0; k < ROWS_EACH; k++)
                    for (u32 j = 0; j < COLS_EACH; j++)
                        sum[k][j] = FMA(cs[i / 8u + k * 16u][q], ss[q][i % 8u + j * 8u], sum[k][j]);
            for (u32 s = 0; s < n; s++) {
                f32 bw = bs[s][col] * w[s];
                for (u32 j = 0; j < P_EACH; j++) v[j] = FMA(xs[s][p4 + j * 4u], bw, v[j]);
            }
            for (u32 j = 0; j < P_EACH; j++)
                if (p4 + j * 4u < width && k0 + col < STATE) own[(u64)(p4 + j * 4u) * STATE + k0 + col] = v[j];
        }
        for (u32 k = 0; k < ROWS_EACH; k++) {
            u32 t = i / 8u + k * 16u;
            f32 grown = t < n ? EXP(high[t] + low[t]) : 0.0f;
            for (u32 j = 0; j < COLS_EACH; j++) sum[k][j] *= grown;
        }
        for (u32 s = 0; s < n; s++)
            for (u32 k = 0; k < ROWS_EACH; k++)
                for (u32 j = 0; j < COLS_EACH; j++)
                    sum[k][j] = FMA(m[i / 8u + k * 16u][s], xs[s][i % 8u + j * 8u], sum[k][j]);
        for (u32 k = 0; k < ROWS_EACH; k++)
            for (u32 j = 0; j < COLS_EACH; j++) {
                u32 t = i / 8u + k * 16u, p = i % 8u + j * 8u;
                if (t >= n || p >= width) continue;
                u64 at = (first + t) * inner + h * a.head_dim + p0 + p;
                f32 v = FMA(direct, xs[t][p], sum[k][j]);
#ifdef HAS_GATE
                v *= silu(z[at]);
#endif
                y[at] = v;
            }
    }
    (void)z;
    (void)skip;
}
#endif
