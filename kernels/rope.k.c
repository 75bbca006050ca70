/* rope - per head and row: RMS norm (when weights are given), rotation, and append of k and v to the layer's pages.
 *
 * One group per (head, row); heads [0,H) are q, [H,H+G) are k, then G of v. q is written in place, k and v only into
 * the pages [P,S,G,D]. HEAD_DIM, PAGE_TOKENS, KV_* (kv.h), Q_NORM, K_NORM, ROPE_HALVES | ROPE_PAIRS. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"

#ifdef KV_K8V4
/* x [HEAD_DIM] as levels and their scale: src/tensor/kv4.h. */
FN void put_levels(LOCAL_PTR f32 *x, GLOBAL u8 *to, LOCAL_PTR f32 *scratch) {
    f32 squares = 0.0f, along = 0.0f, levels = 0.0f;
    for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) x[i] *= value_sign(i);
    values_transform(x);
    for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) squares += x[i] * x[i];
    squares = group_sum(squares, scratch);
    f32 by = squares > 1e-30f ? SQRT((f32)HEAD_DIM / squares) : 0.0f;
    for (u32 i = LOCAL_X; i < HEAD_DIM / 2; i += GROUP) {
        u32 a = value_code(x[2u * i] * by), b = value_code(x[2u * i + 1u] * by);
        f32 va = value_level(a), vb = value_level(b);
        to[i] = (u8)(a | b << 4);
        along += x[2u * i] * va + x[2u * i + 1u] * vb;
        levels += va * va + vb * vb;
    }
    along = group_sum(along, scratch);
    levels = group_sum(levels, scratch);
    if (LOCAL_X == 0u) *(GLOBAL f32 *)(to + HEAD_DIM / 2) = along / levels / (f32)VALUE_BLOCK;
}
#endif

KERNEL(rope_append)(GLOBAL f32 *q, GLOBAL const f32 *k, GLOBAL const f32 *v, GLOBAL const f32 *q_norm,
                    GLOBAL const f32 *k_norm, GLOBAL const f32 *cos_sin, GLOBAL const u32 *step, GLOBAL KV_TYPE *k_pages,
                    GLOBAL KV_TYPE *v_pages, GLOBAL u32 *witness, const struct pl_args_rope a) {
    LOCAL f32 x[HEAD_DIM];
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    u32 head = GROUP_X, row = GROUP_Y, position = step[PL_STEP_POSITION(a.stride) + row];
    bool is_q = head < a.heads, is_k = !is_q && head < a.heads + a.kv_heads;
    u32 g = is_q ? head : is_k ? head - a.heads : head - a.heads - a.kv_heads;
    GLOBAL const f32 *from = is_q ? q + ((u64)row * a.heads + g) * HEAD_DIM
                                  : (is_k ? k : v) + ((u64)row * a.kv_heads + g) * HEAD_DIM;
    f32 sum = 0.0f;
    for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) {
        x[i] = from[i];
        sum += x[i] * x[i];
    }
#if defined(Q_NORM) || defined(K_NORM)
    sum = group_sum(sum, scratch);
    f32 inverse = 1.0f / SQRT(sum / (f32)HEAD_DIM + a.norm_eps);
    for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) {
#ifdef Q_NORM
        if (is_q) x[i] = x[i] * inverse * (a.norm_offset + q_norm[i]);
#endif
#ifdef K_NORM
        if (is_k) x[i] = x[i] * inverse * (a.norm_offset + k_norm[i]);
#endif
    }
#else
    (void)scratch;
    (void)sum;
#endif
    (void)q_norm;
    (void)k_norm;
    BARRIER();
#if defined(ROPE_HALVES) || defined(ROPE_PAIRS)
    u32 half_dim = a.rope_dim / 2u;
    if (is_q || is_k) {
        GLOBAL const f32 *t = cos_sin + (u64)position * a.rope_dim;
        for (u32 i = LOCAL_X; i < half_dim; i += GROUP) {
#ifdef ROPE_HALVES
            u32 i0 = i, i1 = i + half_dim;
#else
            u32 i0 = 2u * i, i1 = i0 + 1u;
#endif
            f32 c = t[2u * i], s = t[2u * i + 1u], x0 = x[i0], x1 = x[i1];
            x[i0] = x0 * c - x1 * s;
            x[i1] = x0 * s + x1 * c;
        }
    }
    BARRIER();
#else
    (void)cos_sin;
#endif
    if (is_q) {
        GLOBAL f32 *to = q + ((u64)row * a.heads + g) * HEAD_DIM;
        for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) to[i] = x[i];
    } else {
        GLOBAL const u32 *table = step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + row];
        u64 at = is_k ? kv_offset(table, position, g, a.kv_heads) : value_offset(table, position, g, a.kv_heads);
        GLOBAL KV_TYPE *to = (is_k ? k_pages : v_pages) + at;
#ifdef KV_K8V4
        if (!is_k) {
            put_levels(x, to, scratch);
            return;
        }
#endif
#ifdef KV_MOST
        f32 top = 0.0f;
        for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) top = FMAX(top, FABS(x[i]));
        top = group_max(top, scratch);
        f32 by = top > 1e-30f ? DIV(KV_MOST, top) : 0.0f;
        for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) kv_store(to + i, x[i] * by);
        if (LOCAL_X == 0u) *(GLOBAL f32 *)(to + HEAD_DIM) = DIV(top, KV_MOST);
#else
        for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) kv_store(to + i, x[i]);
#endif
    }
}
