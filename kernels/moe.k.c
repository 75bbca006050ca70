/* moe - the products of the chosen experts, any weight type: gate and up in one (pair), any one of the matrices (one), and
 * down with the weighted sum (mix).
 *
 * The matrices [out, in] of all experts stand one after the other, so an expert's row is row expert * out + o of one tall
 * matrix; its byte offset is a 64-bit product. A team of TEAM threads owns one output and walks its row 32 elements at a
 * time; each weight is unpacked once for the ROWS rows of a tile. With MOE_DIRECT there is no order: slot i is tile and
 * place i, of one row.
 * Biases, where flags say so, are [experts, out]. Numerics: f32, order fixed by TEAM, so bitwise repeatable. */
#include "weights.h"
#include "args/args.h"

#define OUTPUTS (GROUP / TEAM)

#ifdef ACT_SWIGLU_CLAMPED
FN f32 gated(f32 g, f32 u) {
    g = FMIN(g, 7.0f);
    u = FMAX(FMIN(u, 7.0f), -7.0f);
    return (u + 1.0f) * (g / (1.0f + EXP(-1.702f * g)));
}
#elif defined(ACT_GELU_TANH)
FN f32 gated(f32 g, f32 u) { return 0.5f * g * (1.0f + TANH(0.7978845608028654f * g * (1.0f + 0.044715f * g * g))) * u; }
#elif defined(ACT_RELU2)
FN f32 gated(f32 g, f32 u) {
    f32 v = FMAX(g, 0.0f);
    return v * v * u;
}
#else
FN f32 gated(f32 g, f32 u) { return g / (1.0f + EXP(-g)) * u; }
#endif

struct tile {
    u32 expert, first, rows;
};
/* False: there is no such tile. */
FN bool tile_of(struct tile *t, GLOBAL const u32 *list, u32 i, u32 stride) {
#ifdef MOE_DIRECT
    (void)stride;
    t->expert = list[i];
    t->first = i;
    t->rows = 1u;
    return true;
#else
    if (i >= list[PL_ORDER_TILES]) return false;
    GLOBAL const u32 *at = list + PL_ORDER_TILE(stride) + (u64)i * PL_TILE_WORDS;
    t->expert = at[0];
    t->first = at[1];
    t->rows = at[2];
    return true;
#endif
}
FN u32 slot_at(GLOBAL const u32 *list, u32 place) {
#ifdef MOE_DIRECT
    (void)list;
    return place;
#else
    return list[PL_ORDER_SLOT(0) + place];
#endif
}

FN f32 dot32(const f32 *v, GLOBAL const f32 *p, u32 n) {
    f32 s = 0.0f;
    if (n == 32u) {
        for (u32 i = 0; i < 32u; i++) s += v[i] * p[i];
    } else {
        for (u32 i = 0; i < n; i++) s += v[i] * p[i];
    }
    return s;
}

#if defined(MOE_PAIR)
/* h[place] = act(gate x) * up x. grid: (out / OUTPUTS, tiles at most) */
KERNEL(moe_pair)(GLOBAL const u8 *gate, GLOBAL const u8 *gate_scales, GLOBAL const u8 *gate_biases, GLOBAL const u8 *up,
               GLOBAL const u8 *up_scales, GLOBAL const u8 *up_biases, GLOBAL const f32 *x, GLOBAL const f32 *gate_bias,
               GLOBAL const f32 *up_bias, GLOBAL const u32 *list, GLOBAL f32 *h, GLOBAL u32 *witness, const struct pl_args_moe a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    struct tile t;
    if (!tile_of(&t, list, GROUP_Y, a.stride)) return; /* the whole group */
    u32 o = GROUP_X * OUTPUTS + LOCAL_X / TEAM, lane = LOCAL_X % TEAM, owned = PL_MIN(o, a.out - 1u);
    u64 row = (u64)t.expert * a.out + owned;
    struct weight w;
    w.row_bytes = a.row_bytes;
    w.cols = a.in;
    f32 sum_g[ROWS], sum_u[ROWS];
    u64 at[ROWS];
    for (u32 r = 0; r < ROWS; r++) {
        sum_g[r] = sum_u[r] = 0.0f;
        at[r] = r < t.rows ? (u64)(slot_at(list, t.first + r) / a.used) * a.in : 0u;
    }
    for (u32 k = lane; 32u * k < a.in; k += TEAM) {
        f32 v[32];
        u32 n = PL_MIN(32u, a.in - 32u * k);
        w.data = gate;
        w.scales = gate_scales;
        w.biases = gate_biases;
        dequant32(&w, row, k, n, v);
        for (u32 r = 0; r < ROWS; r++) {
            if (r < t.rows) sum_g[r] += dot32(v, x + at[r] + 32u * k, n);
        }
        w.data = up;
        w.scales = up_scales;
        w.biases = up_biases;
        dequant32(&w, row, k, n, v);
        for (u32 r = 0; r < ROWS; r++) {
            if (r < t.rows) sum_u[r] += dot32(v, x + at[r] + 32u * k, n);
        }
    }
    f32 bg = 0.0f, bu = 0.0f;
    if ((a.flags & PL_LINEAR_BIAS) != 0u) {
        bg = gate_bias[row];
        bu = up_bias[row];
    }
    for (u32 r = 0; r < ROWS; r++) {
        f32 g = team_sum(sum_g[r], scratch), u = team_sum(sum_u[r], scratch);
        if (lane == 0u && o < a.out && r < t.rows) h[(u64)(t.first + r) * a.out + o] = gated(g + bg, u + bu);
    }
}
#elif defined(MOE_ONE)
/* y[place] = w x, of the place's row, or with PL_MOE_BY_PLACE of the place itself; with PL_MOE_GATED y[place] = act(y[place]) * w x,
 * with PL_MOE_ALONE y[place] = act(w x). grid: (out / OUTPUTS, tiles at most) */
KERNEL(moe_one)(GLOBAL const u8 *data, GLOBAL const u8 *scales, GLOBAL const u8 *biases, GLOBAL const f32 *x,
                GLOBAL const f32 *bias, GLOBAL const u32 *list, GLOBAL f32 *y, GLOBAL u32 *witness, const struct pl_args_moe a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    struct tile t;
    if (!tile_of(&t, list, GROUP_Y, a.stride)) return;
    u32 o = GROUP_X * OUTPUTS + LOCAL_X / TEAM, lane = LOCAL_X % TEAM, owned = PL_MIN(o, a.out - 1u);
    u64 row = (u64)t.expert * a.out + owned;
    struct weight w;
    w.data = data;
    w.scales = scales;
    w.biases = biases;
    w.row_bytes = a.row_bytes;
    w.cols = a.in;
    f32 sum[ROWS];
    u64 at[ROWS];
    for (u32 r = 0; r < ROWS; r++) {
        u32 place = t.first + PL_MIN(r, t.rows - 1u);
        sum[r] = 0.0f;
        at[r] = (u64)((a.flags & PL_MOE_BY_PLACE) != 0u ? place : slot_at(list, place) / a.used) * a.in;
    }
    for (u32 k = lane; 32u * k < a.in; k += TEAM) {
        f32 v[32];
        u32 n = PL_MIN(32u, a.in - 32u * k);
        dequant32(&w, row, k, n, v);
        for (u32 r = 0; r < ROWS; r++) {
            if (r < t.rows) sum[r] += dot32(v, x + at[r] + 32u * k, n);
        }
    }
    f32 b = (a.flags & PL_LINEAR_BIAS) != 0u ? bias[row] : 0.0f;
    for (u32 r = 0; r < ROWS; r++) {
        f32 s = team_sum(sum[r], scratch) + b;
        if (lane != 0u || o >= a.out || r >= t.rows) continue;
        u64 i = (u64)(t.first + r) * a.out + o;
        if ((a.flags & PL_MOE_ALONE) != 0u) s = gated(s, 1.0f);
        y[i] = (a.flags & PL_MOE_GATED) != 0u ? gated(y[i], s) : s;
    }
}
#else
/* y[row] += sum over k of weight * down h. grid: (out / OUTPUTS, rows) */
KERNEL(moe_mix)(GLOBAL const u8 *data, GLOBAL const u8 *scales, GLOBAL const u8 *biases, GLOBAL const f32 *h,
                 GLOBAL const f32 *bias, GLOBAL const u32 *list, GLOBAL const f32 *weights, GLOBAL f32 *y, GLOBAL u32 *witness,
                 const struct pl_args_moe a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    u32 o = GROUP_X * OUTPUTS + LOCAL_X / TEAM, lane = LOCAL_X % TEAM, owned = PL_MIN(o, a.out - 1u);
    struct weight w;
    w.data = data;
    w.scales = scales;
    w.biases = biases;
    w.row_bytes = a.row_bytes;
    w.cols = a.in;
    u64 to = (u64)GROUP_Y * a.out + owned;
    f32 all = y[to];
    ROLLED for (u32 k = 0; k < a.used; k++) {
        struct tile t;
        tile_of(&t, list, GROUP_Y * a.used + k, 0u);
        u64 row = (u64)t.expert * a.out + owned;
        f32 sum = 0.0f;
        for (u32 c = lane; 32u * c < a.in; c += TEAM) {
            f32 v[32];
            u32 n = PL_MIN(32u, a.in - 32u * c);
            dequant32(&w, row, c, n, v);
            sum += dot32(v, h + (u64)t.first * a.in + 32u * c, n);
        }
        sum = team_sum(sum, scratch);
        if ((a.flags & PL_LINEAR_BIAS) != 0u) sum += bias[row];
        all = FMA(weights[t.first], sum, all);
    }
    if (lane == 0u && o < a.out) y[to] = all;
}
#endif
