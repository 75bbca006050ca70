/* attention - out = softmax(softcap(q k^T * scale)) v over paged keys and values; prefill and decode alike.
 *
 * One group per (query head, row): GROUP tokens at a time are scored by one thread each, then every thread adds up its
 * share of the head's dimensions. A row at position p sees [0, p], or (p-window, p]. Work follows the visible length.
 * With SINKS each head has one more score, which weighs nothing. With VALUE_DIM values are so many first numbers of a row.
 * SPARSE_V: values whose weight is below a.least of the largest so far are not read; it stays in the sum of weights.
 * Numerics: online softmax in base 2 with f32 sums in token order: bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"

#ifndef VALUE_DIM
#define VALUE_DIM HEAD_DIM
#endif
#define SHARE ((VALUE_DIM + GROUP - 1) / GROUP)

FN f32 score(LOCAL_PTR const f32 *q, GLOBAL const KV_TYPE *k, f32 scale, f32 cap) {
    f32 s = 0.0f;
    for (u32 i = 0; i < HEAD_DIM; i++) s += q[i] * kv_load(k + i);
    s = kv_scaled(k, s) * scale;
    if (cap > 0.0f) s = cap * TANH(s / cap);
    return s * 1.4426950408889634f;
}

KERNEL(attention)(GLOBAL const f32 *q, GLOBAL const KV_TYPE *k_pages, GLOBAL const KV_TYPE *v_pages, GLOBAL const u32 *step,
                  GLOBAL const f32 *sinks, GLOBAL f32 *out, GLOBAL u32 *witness, const struct pl_args_attention a) {
    LOCAL f32 qs[HEAD_DIM];
    LOCAL f32 p[GROUP];
    LOCAL f32 scratch[GROUP];
#ifdef SPARSE_V
    u32 skipped = 0u;
#endif
    count_launch(witness);
    u32 head = GROUP_X, row = GROUP_Y, g = head / (a.heads / a.kv_heads);
    u32 last = step[PL_STEP_POSITION(a.stride) + row];
    u32 first = a.window != 0u && last + 1u > a.window ? last + 1u - a.window : 0u;
    GLOBAL const u32 *table = step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + row];
    u64 base = ((u64)row * a.heads + head) * HEAD_DIM;
    f32 acc[SHARE], m = NEG_INF, l = 0.0f;
    for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) qs[i] = q[base + i];
    for (u32 c = 0; c < SHARE; c++) acc[c] = 0.0f;
    BARRIER();
    for (u32 t0 = first; t0 <= last; t0 += GROUP) {
        u32 t = t0 + LOCAL_X, count = PL_MIN((u32)GROUP, last + 1u - t0);
        f32 s = t <= last ? score(qs, k_pages + kv_offset(table, t, g, a.kv_heads), a.scale, a.softcap) : NEG_INF;
        f32 m_new = FMAX(m, group_max(s, scratch));
        f32 e = t <= last ? EXP2(s - m_new) : 0.0f, keep = EXP2(m - m_new);
#ifdef SPARSE_V
        p[LOCAL_X] = e < a.least ? 0.0f : e;
        skipped += t <= last && e < a.least ? 1u : 0u;
#else
        p[LOCAL_X] = e;
#endif
        l = l * keep + group_sum(e, scratch); /* its barriers also publish p */
        m = m_new;
        for (u32 c = 0; c < SHARE; c++) acc[c] *= keep;
        BARRIER();
        for (u32 j = 0; j < count; j++) {
#ifdef SPARSE_V
            if (p[j] == 0.0f) continue;
#endif
            GLOBAL const KV_TYPE *v = v_pages + value_offset(table, t0 + j, g, a.kv_heads);
            f32 w = value_scaled(v, p[j]);
            for (u32 c = 0; c < SHARE; c++) {
                u32 i = c * GROUP + LOCAL_X;
                if (i < VALUE_DIM) acc[c] += w * value_load(v, i);
            }
        }
        BARRIER();
    }
#ifdef SPARSE_V
    skipped = (u32)group_sum((f32)skipped, scratch); /* whole numbers: below 2^24 */
    if (LOCAL_X == 0u) count_values(witness, last + 1u - first, skipped);
#endif
#ifdef SINKS
    l += EXP2(sinks[head] * 1.4426950408889634f - m);
#else
    (void)sinks;
#endif
#ifdef KV_K8V4
    for (u32 c = 0; c < SHARE; c++) {
        u32 i = c * GROUP + LOCAL_X;
        if (i < VALUE_DIM) qs[i] = acc[c]; /* all scores are made */
    }
    values_turn_back(qs);
    for (u32 c = 0; c < SHARE; c++) {
        u32 i = c * GROUP + LOCAL_X;
        if (i < VALUE_DIM) acc[c] = qs[i];
    }
#endif
    for (u32 c = 0; c < SHARE; c++) {
        u32 i = c * GROUP + LOCAL_X;
        if (i < VALUE_DIM) out[((u64)row * a.heads + head) * VALUE_DIM + i] = acc[c] / l;
    }
}
