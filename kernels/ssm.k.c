/* ssm - state-space layers over slots of recurrent state (src/cpu/ssm.h has the definitions).
 * pk_causal_conv: one thread a channel and PL_CONV_CHUNK rows; K taps; the thread of a sequence's first rows alone touches
 *   its state. HAS_BIAS, ACT_SILU. x may not be y.
 * pk_ssm: TEAM threads share a row (h, p) of the state [H, P, N], held in registers over all rows of a sequence. STATE: N;
 *   FULL: decays for each of N; HAS_BIAS of dt, HAS_SKIP, HAS_GATE; ONE_ROW: every sequence has one. Sequences of a.split
 *   rows and more are left to kernels/ssm_chunks.k.c.
 * pk_gated_norm: one group a row and group of columns; y may be x. HAS_GATE.
 * Numerics: f32, fixed order; an element's result depends neither on chunks nor on other sequences. */
#include "dialect.h"
#include "args/args.h"
#include "ssm_math.h"

#ifdef CONV
KERNEL(causal_conv)(GLOBAL const f32 *x, GLOBAL const f32 *w, GLOBAL const f32 *bias, GLOBAL f32 *state, GLOBAL const u32 *seqs,
                    GLOBAL f32 *y, GLOBAL u32 *witness, const struct pl_args_conv a) {
    count_launch(witness);
    u32 c = GROUP_X * GROUP + LOCAL_X, chunk = GROUP_Y % a.chunks;
    GLOBAL const u32 *seq = seqs + GROUP_Y / a.chunks * PL_SEQ_WORDS;
    u32 rows = seq[PL_SEQ_ROWS], t0 = chunk * PL_CONV_CHUNK, end = PL_MIN(rows, t0 + PL_CONV_CHUNK);
    if (c >= a.channels || t0 >= rows) return;
    GLOBAL f32 *past = state + seq[PL_SEQ_SLOT] * a.slot_stride + c;
    u64 first = (u64)seq[PL_SEQ_FIRST] * a.channels + c;
    f32 taps[K], in[K];
    for (u32 k = 0; k < K; k++) taps[k] = w[(u64)k * a.channels + c];
    for (u32 k = 0; k + 1 < K; k++) { /* what stands before row t0 */
        in[k + 1] = 0.0f;
        if (t0 > 0)
            in[k + 1] = x[first + (u64)(t0 + k + 1 - K) * a.channels];
        else if (seq[PL_SEQ_PAST] > 0)
            in[k + 1] = past[(u64)k * a.channels];
    }
    if (t0 == 0) /* the state after the last row; rows fewer than K-1 push the older ones on */
        for (u32 k = 0; k + 1 < K; k++) {
            u32 t = rows + k;
            f32 v = 0.0f;
            for (u32 j = 0; j + 1 < K; j++) v = j == t ? in[j + 1] : v;
            past[(u64)k * a.channels] = t + 1 < K ? v : x[first + (u64)(t + 1 - K) * a.channels];
        }
    for (u32 t = t0; t < end; t++) {
#ifdef HAS_BIAS
        f32 sum = bias[c];
#else
        f32 sum = 0.0f;
        (void)bias;
#endif
        for (u32 k = 0; k + 1 < K; k++) in[k] = in[k + 1];
        in[K - 1] = x[first + (u64)t * a.channels];
        for (u32 k = 0; k < K; k++) sum = FMA(taps[k], in[k], sum);
#ifdef ACT_SILU
        sum = silu(sum);
#endif
        y[first + (u64)t * a.channels] = sum;
    }
}
#endif

#ifdef SSM
#define PER ((STATE + TEAM - 1) / TEAM)

KERNEL(ssm)(GLOBAL const f32 *x, GLOBAL const f32 *b, GLOBAL const f32 *c, GLOBAL const f32 *dt, GLOBAL const f32 *z,
            GLOBAL const f32 *decay, GLOBAL const f32 *dt_bias, GLOBAL const f32 *skip, GLOBAL f32 *state,
            GLOBAL const u32 *seqs, GLOBAL f32 *y, GLOBAL u32 *witness, const struct pl_args_ssm a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    u32 inner = a.heads * a.head_dim, lane = LOCAL_X % TEAM, at = GROUP_X * (GROUP / TEAM) + LOCAL_X / TEAM;
    u32 row = PL_MIN(at, inner - 1u), h = row / a.head_dim, g = h / (a.heads / a.groups); /* past the end: again, not stored */
    GLOBAL const u32 *seq = seqs + GROUP_Y * PL_SEQ_WORDS;
    GLOBAL f32 *own = state + seq[PL_SEQ_SLOT] * a.slot_stride + a.state_first + (u64)row * STATE;
    f32 s[PER], keep[PER];
#ifdef FULL
    for (u32 i = 0; i < PER; i++) keep[i] = i * TEAM + lane < STATE ? decay[(u64)h * STATE + i * TEAM + lane] : 0.0f;
#else
    f32 rate = decay[h];
    for (u32 i = 0; i < PER; i++) keep[i] = 0.0f;
#endif
    f32 shift = 0.0f, direct = 0.0f;
#ifdef HAS_BIAS
    shift = dt_bias[h];
#endif
#ifdef HAS_SKIP
    direct = skip[h];
#endif
    for (u32 i = 0; i < PER; i++)
        s[i] = seq[PL_SEQ_PAST] > 0 && i * TEAM + lane < STATE ? own[i * TEAM + lane] : 0.0f;
#ifdef ONE_ROW
    const u32 rows = 1;
#else
    u32 rows = a.split > 0 && seq[PL_SEQ_ROWS] >= a.split ? 0 : seq[PL_SEQ_ROWS]; /* none: left to pk_ssm_chunks */
#endif
    ROLLED
    for (u32 t = 0; t < rows; t++) {
        u64 r = seq[PL_SEQ_FIRST] + t;
        f32 d = clipped_softplus(dt[r * a.heads + h] + shift, a.dt_min, a.dt_max), in = x[r * a.x_stride + a.x_first + row];
        GLOBAL const f32 *bt = b + r * a.b_stride + a.b_first + (u64)g * STATE, *ct = c + r * a.c_stride + a.c_first + (u64)g * STATE;
        f32 sum = 0.0f, push = d * in;
#ifndef FULL
        f32 same = EXP(d * rate);
#endif
        for (u32 i = 0; i < PER; i++) {
            u32 n = i * TEAM + lane;
            if (STATE % TEAM != 0 && n >= STATE) continue;
#ifdef FULL
            f32 same = EXP(d * keep[i]);
#endif
            s[i] = FMA(s[i], same, push * bt[n]);
            sum = FMA(s[i], ct[n], sum);
        }
        sum = team_sum(sum, scratch);
        if (lane == 0 && at < inner) {
            sum = FMA(direct, in, sum);
#ifdef HAS_GATE
            sum *= silu(z[r * inner + row]);
#endif
            y[r * inner + row] = sum;
        }
    }
    if (at < inner && rows > 0)
        for (u32 i = 0; i < PER; i++)
            if (i * TEAM + lane < STATE) own[i * TEAM + lane] = s[i];
    (void)z;
    (void)dt_bias;
    (void)skip;
    (void)keep;
}
#endif

#ifdef GATED_NORM
KERNEL(gated_norm)(GLOBAL const f32 *x, GLOBAL const f32 *z, GLOBAL const f32 *w, GLOBAL f32 *y, GLOBAL u32 *witness,
                   const struct pl_args_gated a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    u32 n = a.cols / a.groups, first = GROUP_X * n;
    u64 base = (u64)GROUP_Y * a.cols + first;
    f32 sum = 0.0f;
    for (u32 i = LOCAL_X; i < n; i += GROUP) {
        f32 v = x[base + i];
#ifdef HAS_GATE
        if (a.norm_first == 0) v *= silu(z[base + i]);
#endif
        sum += v * v;
    }
    sum = group_sum(sum, scratch);
    f32 inverse = 1.0f / SQRT(sum / (f32)n + a.eps);
    for (u32 i = LOCAL_X; i < n; i += GROUP) {
        f32 v = x[base + i] * inverse * w[first + i];
#ifdef HAS_GATE
        v *= silu(z[base + i]);
#endif
        y[base + i] = v;
    }
    (void)z;
}
#endif
