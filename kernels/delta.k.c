/* delta - the gated delta rule over slots of recurrent state (src/cpu/ssm.h has the definition). A group of GROUP threads has as many
 * columns of one head's state [N, P], each thread one of them in registers over all rows of a sequence; q and k of a row stand in local
 * memory and are scaled by their lengths on the sums. STATE: N; IN_TURN: the key head of h is h mod G, else h / (H / G).
 * Numerics: f32, fixed order; an element's result depends neither on chunks nor on other sequences.
 * Cost: the state read and written once for all rows of a step; 6 N operations an element and row. */
#include "dialect.h"
#include "args/args.h"
#include "ssm_math.h"

KERNEL(delta)(GLOBAL const f32 *x, GLOBAL const f32 *dt, GLOBAL const f32 *beta, GLOBAL const f32 *decay,
              GLOBAL const f32 *dt_bias, GLOBAL f32 *state, GLOBAL const u32 *seqs, GLOBAL f32 *y, GLOBAL u32 *witness,
              const struct pl_args_delta a) {
    LOCAL f32 scratch[GROUP];
    LOCAL f32 qk[2 * STATE];
    count_launch(witness);
    u32 slices = (a.head_dim + GROUP - 1u) / GROUP, h = GROUP_X / slices, at = GROUP_X % slices * GROUP + LOCAL_X;
    u32 col = PL_MIN(at, a.head_dim - 1u); /* past the end: again, not stored */
#ifdef IN_TURN
    u32 g = h % a.groups;
#else
    u32 g = h / (a.heads / a.groups);
#endif
    GLOBAL const u32 *seq = seqs + GROUP_Y * PL_SEQ_WORDS;
    GLOBAL f32 *own = state + seq[PL_SEQ_SLOT] * a.slot_stride + a.state_first + (u64)h * STATE * a.head_dim + col;
    f32 s[STATE], rate = decay[h], shift = dt_bias[h];
    UNROLLED
    for (u32 n = 0; n < STATE; n++) s[n] = seq[PL_SEQ_PAST] > 0 ? own[(u64)n * a.head_dim] : 0.0f;
    ROLLED
    for (u32 t = 0; t < seq[PL_SEQ_ROWS]; t++) {
        u64 r = seq[PL_SEQ_FIRST] + t;
        GLOBAL const f32 *q = x + r * a.x_stride + a.q_first + (u64)g * STATE, *k = x + r * a.x_stride + a.k_first + (u64)g * STATE;
        f32 qq = 0.0f, kk = 0.0f;
        for (u32 n = LOCAL_X; n < STATE; n += GROUP) {
            f32 qn = q[n], kn = k[n];
            qk[n] = qn;
            qk[STATE + n] = kn;
            qq = FMA(qn, qn, qq);
            kk = FMA(kn, kn, kk);
        }
        qq = group_sum(qq, scratch); /* whose barriers make q and k visible */
        kk = group_sum(kk, scratch);
        f32 q_scale = 1.0f / SQRT((qq + 1e-6f) * (f32)STATE), k_scale = 1.0f / SQRT(kk + 1e-6f);
        f32 keep = EXP(clipped_softplus(dt[r * a.heads + h] + shift, 0.0f, 3e38f) * rate);
        f32 gate = 1.0f / (1.0f + EXP(-beta[r * a.heads + h]));
        f32 held = 0.0f, sum = 0.0f;
        UNROLLED
        for (u32 n = 0; n < STATE; n++) held = FMA(qk[STATE + n], s[n], held);
        f32 put = (x[r * a.x_stride + a.v_first + (u64)h * a.head_dim + col] - held * (keep * k_scale)) * (gate * k_scale);
        UNROLLED
        for (u32 n = 0; n < STATE; n++) {
            s[n] = FMA(s[n], keep, qk[STATE + n] * put);
            sum = FMA(qk[n], s[n], sum);
        }
        if (at < a.head_dim) y[(r * a.heads + h) * a.head_dim + col] = sum * q_scale;
        BARRIER(); /* q and k of the next row go to the same place */
    }
    if (at < a.head_dim && seq[PL_SEQ_ROWS] > 0)
        for (u32 n = 0; n < STATE; n++) own[(u64)n * a.head_dim] = s[n];
}
