/* ssm_step - one token of a Mamba-2 layer in one launch: the causal convolution over x, B and C, then the recurrence and its gate,
 * as kernels/ssm.k.c has them one after the other (src/cpu/ssm.h has the definitions).
 *
 * A group of threads has 32 rows of a head's state, four of each of eight warps, held in registers, 4 values of N a lane and VECTORS
 * times. It convolves its own 32 channels of x and all of its group's B and C; the last of those that share B and C to have read them
 * (arrived [sequences, groups], zero before and after) writes what the convolution keeps of them.
 * State and weights are fetched before the launch before this one is done: a step begins with a copy, so what wrote the state is over.
 * STATE: N, a multiple of 128; K taps; HAS_CONV_BIAS, ACT_SILU; HAS_BIAS of dt, HAS_SKIP, HAS_GATE. head_dim % 32 == 0. y may be z.
 * Numerics: f32, fixed order; sums over N in another order than kernels/ssm.k.c. GROUP 288. */
#include "dialect.h"
#include "args/args.h"
#include "ssm_math.h"

#define ROWS     32u
#define EACH     4u /* rows of a warp */
#define VECTORS  (STATE / 128u)
#define CHANNELS (ROWS + 2u * STATE)
#define MINE     ((CHANNELS + GROUP - 1u) / GROUP) /* channels of a thread */

FN float4 load4(const f32 *p) { return *(const float4 *)p; }

/* grid: (heads x head_dim / 32, sequences) */
KERNEL(ssm_step)(const f32 *x, const f32 *__restrict__ w, const f32 *__restrict__ bias, const f32 *dt, const f32 *z,
                 const f32 *__restrict__ decay, const f32 *__restrict__ dt_bias, const f32 *__restrict__ skip, f32 *state,
                 const u32 *seqs, f32 *y, u32 *arrived, u32 *witness, const struct pl_args_step a) {
    LOCAL __align__(16) f32 made[CHANNELS];
    LOCAL u32 is_last;
    u32 parts = a.head_dim / ROWS, h = GROUP_X / parts, p0 = GROUP_X % parts * ROWS, share = a.heads / a.groups, g = h / share;
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, inner = a.heads * a.head_dim;
    const u32 *seq = seqs + GROUP_Y * PL_SEQ_WORDS;
    u64 row = seq[PL_SEQ_FIRST];
    bool has_past = seq[PL_SEQ_PAST] > 0u;
    f32 *slot = state + seq[PL_SEQ_SLOT] * a.slot_stride;
    f32 *own = slot + a.state_first + ((u64)h * a.head_dim + p0 + EACH * warp) * STATE + 4u * lane;
    float4 s[EACH][VECTORS];
#pragma unroll
    for (u32 i = 0; i < EACH * VECTORS; i++) {
        s[i / VECTORS][i % VECTORS] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (has_past && warp < ROWS / EACH) s[i / VECTORS][i % VECTORS] = load4(own + i / VECTORS * STATE + 128u * (i % VECTORS));
    }
    u32 channel[MINE];
    f32 taps[MINE][K], in[MINE][K], add[MINE];
#pragma unroll
    for (u32 j = 0; j < MINE; j++) {
        u32 i = LOCAL_X + j * GROUP, b = i - ROWS;
        channel[j] = i < ROWS ? a.x_first + h * a.head_dim + p0 + i
                              : b < STATE ? a.b_first + g * STATE + b : a.c_first + g * STATE + (b - STATE);
        if (i >= CHANNELS) channel[j] = a.x_first;
        add[j] = 0.0f;
#ifdef HAS_CONV_BIAS
        add[j] = bias[channel[j]];
#endif
#pragma unroll
        for (u32 k = 0; k < K; k++) taps[j][k] = w[(u64)k * a.channels + channel[j]];
#pragma unroll
        for (u32 k = 0; k + 1u < K; k++) in[j][k] = has_past ? slot[(u64)k * a.channels + channel[j]] : 0.0f;
    }
    f32 rate = decay[h], shift = 0.0f, direct = 0.0f;
#ifdef HAS_BIAS
    shift = dt_bias[h];
#endif
#ifdef HAS_SKIP
    direct = skip[h];
#endif
    count_launch(witness);
#pragma unroll
    for (u32 j = 0; j < MINE; j++) in[j][K - 1u] = x[row * a.channels + channel[j]];
    f32 d = dt[row * a.heads + h], gate = 1.0f;
    u64 at = row * inner + h * a.head_dim + p0 + EACH * warp + lane % EACH;
#ifdef HAS_GATE
    if (warp < ROWS / EACH && lane < EACH) gate = z[at];
#endif
#pragma unroll
    for (u32 j = 0; j < MINE; j++) {
        f32 sum = add[j];
#pragma unroll
        for (u32 k = 0; k < K; k++) sum = FMA(taps[j][k], in[j][k], sum);
#ifdef ACT_SILU
        sum = silu(sum);
#endif
        if (LOCAL_X + j * GROUP < CHANNELS) made[LOCAL_X + j * GROUP] = sum;
    }
    BARRIER();
    if (LOCAL_X == GROUP - 1u) { /* all threads of this group have read */
        __threadfence();
        u32 *meet = arrived + GROUP_Y * a.groups + g;
        is_last = atomicAdd(meet, 1u) + 1u == share * parts ? 1u : 0u;
        if (is_last != 0u) *meet = 0u;
        __threadfence();
    }
    if (warp < ROWS / EACH) {
        f32 sum[EACH], push[EACH];
        d = clipped_softplus(d + shift, a.dt_min, a.dt_max);
        f32 keep = EXP(d * rate);
#pragma unroll
        for (u32 r = 0; r < EACH; r++) sum[r] = 0.0f, push[r] = d * made[EACH * warp + r];
#pragma unroll
        for (u32 v = 0; v < VECTORS; v++) {
            float4 b = *(const float4 *)(made + ROWS + 128u * v + 4u * lane), c = *(const float4 *)(made + ROWS + STATE + 128u * v + 4u * lane);
#pragma unroll
            for (u32 r = 0; r < EACH; r++) {
                float4 *q = &s[r][v];
                q->x = FMA(q->x, keep, push[r] * b.x), q->y = FMA(q->y, keep, push[r] * b.y);
                q->z = FMA(q->z, keep, push[r] * b.z), q->w = FMA(q->w, keep, push[r] * b.w);
                sum[r] = FMA(q->x, c.x, FMA(q->y, c.y, FMA(q->z, c.z, FMA(q->w, c.w, sum[r]))));
                *(float4 *)(own + r * STATE + 128u * v) = *q;
            }
        }
        f32 total = 0.0f;
#pragma unroll
        for (u32 r = 0; r < EACH; r++) {
            for (u32 m = 16u; m > 0u; m >>= 1) sum[r] += lane_xor(sum[r], m);
            if (lane % EACH == r) total = sum[r];
        }
        if (lane < EACH) {
            total = FMA(direct, made[EACH * warp + lane], total);
#ifdef HAS_GATE
            total *= silu(gate);
#endif
            y[at] = total;
        }
    }
    BARRIER();
#pragma unroll
    for (u32 j = 0; j < MINE; j++) {
        u32 i = LOCAL_X + j * GROUP;
        if (i >= CHANNELS || (i >= ROWS && is_last == 0u)) continue;
#pragma unroll
        for (u32 k = 0; k + 1u < K; k++) slot[(u64)k * a.channels + channel[j]] = in[j][k + 1u];
    }
    (void)bias;
    (void)dt_bias;
    (void)skip;
    (void)gate;
}
