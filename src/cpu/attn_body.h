/* attn_body - one chunk of paged attention for one tile of queries, in the words of vec.h.
 *
 * A chunk is ATTN_CHUNK tokens at an absolute multiple, whatever was asked for, and a query's state over a chunk is
 * computed by the same operations in the same order in decode and in prefill; chunks are merged in ascending order. So
 * neither the thread count, nor the split of the context, nor the number of rows of a step changes a bit.
 * K and V are widened to f32 sixteen tokens at a time and used for every query of the tile. */
#ifndef PL_CPU_ATTN_BODY_H
#define PL_CPU_ATTN_BODY_H

#include "cpu/rows_body.h"

/* Layout of a thread's scratch, in floats: group[16][D] then scores[ATTN_QUERIES][ATTN_CHUNK] then q[ATTN_QUERIES][D]. */
struct attn_scratch {
    float *group, *scores, *q;
};

static struct attn_scratch attn_split(void *scratch, size_t d_pad) {
    struct attn_scratch s;
    s.group = scratch;
    s.scores = s.group + ATTN_GROUP * d_pad;
    s.q = s.scores + (size_t)ATTN_QUERIES * ATTN_CHUNK;
    return s;
}

static void widen(const void *src, enum pl_dtype dtype, size_t at, float *dst, size_t d, size_t d_pad) {
    size_t i = 0;
    if (dtype == PL_F16) {
        const uint16_t *p = (const uint16_t *)src + at;
        for (; i + VW <= d; i += VW) vf_store(dst + i, vf_load_f16(p + i));
        for (; i < d; i++) dst[i] = pl_f16_to_f32(p[i]);
    } else if (dtype == PL_BF16) {
        const uint16_t *p = (const uint16_t *)src + at;
        for (; i + VW <= d; i += VW) vf_store(dst + i, vf_load_bf16(p + i));
        for (; i < d; i++) dst[i] = pl_bf16_to_f32(p[i]);
    } else {
        const float *p = (const float *)src + at;
        for (; i < d; i++) dst[i] = p[i];
    }
    for (; i < d_pad; i++) dst[i] = 0.0f;
}

/* Tokens [begin, end) of a group starting at t0, one KV head, into group[ATTN_GROUP][d_pad]; other slots are zeroed. */
static void load_group(const struct cpu_attn_tile *t, const void *side, size_t t0, size_t begin, size_t end, float *group,
                       size_t d_pad) {
    const struct pl_cpu_kv *kv = t->a->kv;
    for (size_t i = 0; i < ATTN_GROUP; i++) {
        size_t tok = t0 + i;
        if (tok < begin || tok >= end) {
            memset(group + i * d_pad, 0, d_pad * sizeof *group);
            continue;
        }
        size_t slot = (size_t)t->seq->pages[tok / kv->page_tokens] * kv->page_tokens + tok % kv->page_tokens;
        widen(side, kv->dtype, (slot * kv->kv_heads + t->kv_head) * kv->head_dim, group + i * d_pad, kv->head_dim, d_pad);
    }
}

/* q . k for the sixteen tokens of a group. */
static void dot_group(const float *q, const float *group, size_t d_pad, float *out) {
    for (size_t t = 0; t < ATTN_GROUP; t += 4) {
        const float *k = group + t * d_pad;
        vf a = vf_set1(0), b = a, c = a, e = a;
        for (size_t i = 0; i < d_pad; i += VW) {
            vf qv = vf_load(q + i);
            a = vf_fma(qv, vf_load(k + i), a);
            b = vf_fma(qv, vf_load(k + d_pad + i), b);
            c = vf_fma(qv, vf_load(k + 2 * d_pad + i), c);
            e = vf_fma(qv, vf_load(k + 3 * d_pad + i), e);
        }
        out[t] = vf_hsum(a);
        out[t + 1] = vf_hsum(b);
        out[t + 2] = vf_hsum(c);
        out[t + 3] = vf_hsum(e);
    }
}

/* Visible tokens of a query: [*lo, *hi). */
static void visible(const struct cpu_attn_tile *t, size_t query, size_t *lo, size_t *hi) {
    size_t group = t->a->heads / t->a->kv->kv_heads, pos = t->seq->past + (t->first + query) / group;
    *hi = pos + 1;
    *lo = t->a->window != 0 && *hi > t->a->window ? *hi - t->a->window : 0;
}

static const float *query_row(const struct cpu_attn_tile *t, size_t query) {
    size_t group = t->a->heads / t->a->kv->kv_heads, q = t->first + query;
    size_t row = t->seq->first_row + q / group, head = t->kv_head * group + q % group;
    return t->a->q + row * t->a->q_stride + head * t->a->kv->head_dim;
}

static void load_queries(const struct cpu_attn_tile *t, float *dst, size_t d_pad) {
    size_t d = t->a->kv->head_dim;
    for (size_t i = 0; i < t->count; i++) {
        memcpy(dst + i * d_pad, query_row(t, i), d * sizeof *dst);
        memset(dst + i * d_pad + d, 0, (d_pad - d) * sizeof *dst);
        row_scale(dst + i * d_pad, t->a->scale, d);
    }
}

/* scores -> exp(score - max) in place over the visible part; returns the state. */
static struct cpu_attn_state softmax_chunk(const struct cpu_attn_tile *t, size_t query, size_t t0, float *s) {
    size_t lo, hi;
    visible(t, query, &lo, &hi);
    size_t b = lo > t0 ? PL_MIN(lo - t0, (size_t)ATTN_CHUNK) : 0, e = hi > t0 ? PL_MIN(hi - t0, (size_t)ATTN_CHUNK) : 0;
    if (b >= e) return (struct cpu_attn_state){-INFINITY, 0.0f};
    if (t->a->softcap > 0) row_softcap(s + b, e - b, t->a->softcap);
    for (size_t i = 0; i < b; i++) s[i] = -INFINITY;
    for (size_t i = e; i < ATTN_CHUNK; i++) s[i] = -INFINITY;
    vf m = vf_set1(-INFINITY), l = vf_set1(0.0f);
    for (size_t i = 0; i < ATTN_CHUNK; i += VW) m = vf_max(m, vf_load(s + i));
    float top = vf_hmax(m);
    m = vf_set1(top);
    for (size_t i = 0; i < ATTN_CHUNK; i += VW) {
        vf p = vf_exp(vf_sub(vf_load(s + i), m));
        vf_store(s + i, p);
        l = vf_add(l, p);
    }
    return (struct cpu_attn_state){top, vf_hsum(l)};
}

/* o += sum over tokens [b, e) of the group of p[t] * v[t] */
static void weigh_group(const float *p, const float *group, size_t b, size_t e, size_t d_pad, float *o) {
    size_t i = 0;
    for (; i + 4 * VW <= d_pad; i += 4 * VW) {
        vf o0 = vf_load(o + i), o1 = vf_load(o + i + VW), o2 = vf_load(o + i + 2 * VW), o3 = vf_load(o + i + 3 * VW);
        for (size_t t = b; t < e; t++) {
            const float *v = group + t * d_pad + i;
            vf pv = vf_set1(p[t]);
            o0 = vf_fma(pv, vf_load(v), o0);
            o1 = vf_fma(pv, vf_load(v + VW), o1);
            o2 = vf_fma(pv, vf_load(v + 2 * VW), o2);
            o3 = vf_fma(pv, vf_load(v + 3 * VW), o3);
        }
        vf_store(o + i, o0);
        vf_store(o + i + VW, o1);
        vf_store(o + i + 2 * VW, o2);
        vf_store(o + i + 3 * VW, o3);
    }
    for (; i < d_pad; i += VW) {
        vf o0 = vf_load(o + i);
        for (size_t t = b; t < e; t++) o0 = vf_fma(vf_set1(p[t]), vf_load(group + t * d_pad + i), o0);
        vf_store(o + i, o0);
    }
}

static void attn_scores(const struct cpu_attn_tile *t, struct attn_scratch s, size_t t0, size_t lo, size_t hi,
                        size_t d_pad) {
    for (size_t g = 0; g < ATTN_CHUNK; g += ATTN_GROUP) {
        if (t0 + g + ATTN_GROUP <= lo || t0 + g >= hi) continue;
        load_group(t, t->a->kv->k, t0 + g, lo, hi, s.group, d_pad);
        for (size_t q = 0; q < t->count; q++) {
            size_t qlo, qhi;
            visible(t, q, &qlo, &qhi);
            if (t0 + g + ATTN_GROUP <= qlo || t0 + g >= qhi) continue;
            dot_group(s.q + q * d_pad, s.group, d_pad, s.scores + q * ATTN_CHUNK + g);
        }
    }
}

static void attn_values(const struct cpu_attn_tile *t, struct attn_scratch s, size_t t0, size_t lo, size_t hi, size_t d_pad,
                        float *o, size_t o_stride) {
    for (size_t g = 0; g < ATTN_CHUNK; g += ATTN_GROUP) {
        size_t g0 = t0 + g;
        if (g0 + ATTN_GROUP <= lo || g0 >= hi) continue;
        load_group(t, t->a->kv->v, g0, lo, hi, s.group, d_pad);
        for (size_t q = 0; q < t->count; q++) {
            size_t qlo, qhi;
            visible(t, q, &qlo, &qhi);
            size_t b = qlo > g0 ? qlo - g0 : 0, e = qhi > g0 ? PL_MIN(qhi - g0, (size_t)ATTN_GROUP) : 0;
            if (b < e) weigh_group(s.scores + q * ATTN_CHUNK + g, s.group, b, e, d_pad, o + q * o_stride);
        }
    }
}

static void attn_chunk(const struct cpu_attn_tile *t, size_t chunk, struct cpu_attn_state *states, float *o, size_t o_stride,
                       void *scratch) {
    size_t d_pad = cpu_head_pad(t->a->kv->head_dim), t0 = chunk * ATTN_CHUNK, lo, hi, unused;
    struct attn_scratch s = attn_split(scratch, d_pad);
    visible(t, 0, &lo, &unused);
    visible(t, t->count - 1, &unused, &hi);
    load_queries(t, s.q, d_pad);
    attn_scores(t, s, t0, lo, hi, d_pad);
    for (size_t q = 0; q < t->count; q++) {
        states[q] = softmax_chunk(t, q, t0, s.scores + q * ATTN_CHUNK);
        memset(o + q * o_stride, 0, d_pad * sizeof *o);
    }
    attn_values(t, s, t0, lo, hi, d_pad, o, o_stride);
}

static void attn_merge(struct cpu_attn_state *s, float *o, const struct cpu_attn_state *s2, const float *o2, size_t n) {
    if (s2->m == -INFINITY) return;
    if (s->m == -INFINITY) {
        *s = *s2;
        memcpy(o, o2, n * sizeof *o);
        return;
    }
    float m = s->m > s2->m ? s->m : s2->m;
    vf a = vf_exp(vf_set1(s->m - m)), b = vf_exp(vf_set1(s2->m - m));
    s->l = s->l * vf_first(a) + s2->l * vf_first(b);
    s->m = m;
    for (size_t i = 0; i < n; i += VW) vf_store(o + i, vf_add(vf_mul(vf_load(o + i), a), vf_mul(vf_load(o2 + i), b)));
}

static void attn_finish(const struct cpu_attn_state *s, const float *o, float *out, size_t n) {
    float inv = s->l > 0 ? 1.0f / s->l : 0.0f;
    for (size_t i = 0; i < n; i++) out[i] = o[i] * inv;
}

#define ROW_KERNELS                                                                                \
    .norm = norm_rows, .add = row_add, .scale = row_scale, .glu = row_glu, .softcap = row_softcap, \
    .rope_append = rope_append_row, .attn_chunk = attn_chunk, .attn_merge = attn_merge, .attn_finish = attn_finish

#endif
