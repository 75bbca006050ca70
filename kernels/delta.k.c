/* delta - the gated delta rule over slots of recurrent state (src/cpu/ssm.h has the definition). A group of COLS * PARTS threads has COLS
 * columns of one head's state [N, P] in registers over all rows of a sequence: thread p * COLS + c the values p * PER.. of column c.
 * q and k of a row stand in local memory and are scaled by their lengths on the sums; those of the next row are asked for meanwhile.
 * STATE: N; PARTS a power of two; IN_TURN: the key head of h is h mod G, else h / (H / G).
 * Numerics: f32, fixed order; an element's result depends neither on chunks nor on other sequences.
 * Cost: the state read and written once for all rows of a step; 8 N operations an element and row, three barriers a row. */
#include "dialect.h"
#include "args/args.h"
#include "ssm_math.h"

#define PADDED (PARTS * PER)
#define LOADS  ((2u * PADDED + GROUP - 1u) / GROUP)

/* What this thread reads of a row: values of q and k for all, and its own numbers. */
#define ASK(row)                                                                                                         \
    do {                                                                                                                 \
        u64 from = seq[PL_SEQ_FIRST] + (row);                                                                            \
        GLOBAL const f32 *q = x + from * a.x_stride + a.q_first + (u64)g * STATE;                                        \
        GLOBAL const f32 *k = x + from * a.x_stride + a.k_first + (u64)g * STATE;                                        \
        UNROLLED                                                                                                         \
        for (u32 i = 0; i < LOADS; i++) {                                                                                \
            u32 j = i * GROUP + LOCAL_X, n = j % PADDED;                                                                 \
            next[i] = j >= 2u * PADDED || n >= STATE ? 0.0f : j < PADDED ? q[n] : k[n];                                  \
        }                                                                                                                \
        v = x[from * a.x_stride + a.v_first + (u64)h * a.head_dim + col];                                                \
        step = dt[from * a.heads + h];                                                                                   \
        pull = beta[from * a.heads + h];                                                                                 \
    } while (0)

KERNEL(delta)(GLOBAL const f32 *x, GLOBAL const f32 *dt, GLOBAL const f32 *beta, GLOBAL const f32 *decay,
              GLOBAL const f32 *dt_bias, GLOBAL f32 *state, GLOBAL const u32 *seqs, GLOBAL f32 *y, GLOBAL u32 *witness,
              const struct pl_args_delta a) {
    LOCAL f32 qk[2 * PADDED];
#if PARTS > 1
    LOCAL f32 met[3 * GROUP], made[GROUP];
#endif
    count_launch(witness);
    u32 slices = (a.head_dim + COLS - 1u) / COLS, h = GROUP_X / slices, c = LOCAL_X % COLS, part = LOCAL_X / COLS;
    u32 at = GROUP_X % slices * COLS + c, col = PL_MIN(at, a.head_dim - 1u); /* past the end: again, not stored */
#ifdef IN_TURN
    u32 g = h % a.groups;
#else
    u32 g = h / (a.heads / a.groups);
#endif
    GLOBAL const u32 *seq = seqs + GROUP_Y * PL_SEQ_WORDS;
    GLOBAL f32 *own = state + seq[PL_SEQ_SLOT] * a.slot_stride + a.state_first + (u64)h * STATE * a.head_dim + col;
    u32 first = part * PER, rows = seq[PL_SEQ_ROWS];
    f32 s[PER], rate = decay[h], shift = dt_bias[h], next[LOADS], v = 0.0f, step = 0.0f, pull = 0.0f;
    UNROLLED
    for (u32 n = 0; n < PER; n++)
        s[n] = seq[PL_SEQ_PAST] > 0 && first + n < STATE ? own[(u64)(first + n) * a.head_dim] : 0.0f;
    if (rows > 0) ASK(0);
    ROLLED
    for (u32 t = 0; t < rows; t++) {
        u64 r = seq[PL_SEQ_FIRST] + t;
        f32 value = v, keep = EXP(clipped_softplus(step + shift, 0.0f, 3e38f) * rate), gate = 1.0f / (1.0f + EXP(-pull));
        UNROLLED
        for (u32 i = 0; i < LOADS; i++)
            if (i * GROUP + LOCAL_X < 2u * PADDED) qk[i * GROUP + LOCAL_X] = next[i];
        BARRIER();
        ASK(PL_MIN(t + 1u, rows - 1u)); /* one row ahead */
        f32 held = 0.0f, qq = 0.0f, kk = 0.0f, sum = 0.0f;
        UNROLLED
        for (u32 n = 0; n < PER; n++) {
            f32 qn = qk[first + n], kn = qk[PADDED + first + n];
            held = FMA(kn, s[n], held);
            qq = FMA(qn, qn, qq);
            kk = FMA(kn, kn, kk);
        }
#if PARTS > 1
        met[LOCAL_X] = held;
        met[GROUP + LOCAL_X] = qq;
        met[2 * GROUP + LOCAL_X] = kk;
        BARRIER();
        held = qq = kk = 0.0f;
        UNROLLED
        for (u32 p = 0; p < PARTS; p++) {
            held += met[p * COLS + c];
            qq += met[GROUP + p * COLS + c];
            kk += met[2 * GROUP + p * COLS + c];
        }
#endif
        f32 q_scale = 1.0f / SQRT((qq + 1e-6f) * (f32)STATE), k_scale = 1.0f / SQRT(kk + 1e-6f);
        f32 put = (value - held * (keep * k_scale)) * (gate * k_scale);
        UNROLLED
        for (u32 n = 0; n < PER; n++) {
            s[n] = FMA(s[n], keep, qk[PADDED + first + n] * put);
            sum = FMA(qk[first + n], s[n], sum);
        }
#if PARTS > 1
        made[LOCAL_X] = sum;
#endif
        BARRIER(); /* q and k of the next row go to the same place */
#if PARTS > 1
        sum = 0.0f;
        UNROLLED
        for (u32 p = 0; p < PARTS; p++) sum += made[p * COLS + c];
#endif
        if (part == 0 && at < a.head_dim) y[(r * a.heads + h) * a.head_dim + col] = sum * q_scale;
    }
    if (at < a.head_dim && rows > 0) {
        UNROLLED
        for (u32 n = 0; n < PER; n++)
            if (first + n < STATE) own[(u64)(first + n) * a.head_dim] = s[n];
    }
}
