/* attn_body - one chunk of paged attention for one tile of queries, in the words of vec.h.
 *
 * A chunk is ATTN_CHUNK tokens at an absolute multiple, whatever was asked for, and a query's state over a chunk is
 * computed by the same operations in the same order in decode and in prefill; chunks are merged in ascending order. So
 * neither the thread count, nor the split of the context, nor the number of rows of a step changes a bit.
 * K and V are widened to f32 sixteen tokens at a time and used for every query of the tile. */
#ifndef PL_CPU_ATTN_BODY_H
#define PL_CPU_ATTN_BODY_H

#include "cpu/rows_body.h"
#include "cpu/ssm_body.h"

/* A thread's scratch: group[16][D], turned[D][16], scores[ATTN_QUERIES][ATTN_CHUNK], q[ATTN_QUERIES][D]; and the span of
 * the chunk that each query sees, relative to the chunk's first token. Spans move up with the query. */
struct attn_scratch {
    float *group, *turned, *scores, *q;
    uint8_t begin[ATTN_QUERIES], end[ATTN_QUERIES];
};

static struct attn_scratch attn_split(void *scratch, size_t d_pad) {
    struct attn_scratch s;
    s.group = scratch;
    s.turned = s.group + ATTN_GROUP * d_pad;
    s.scores = s.turned + ATTN_GROUP * d_pad;
    s.q = s.scores + (size_t)ATTN_QUERIES * ATTN_CHUNK;
    return s;
}

/* A vector of `whole` values in 4 bits, as it is turned. */
static void widen_levels(const uint8_t *from, size_t whole, float *dst) {
#if defined(__AVX2__)
    float scale;
    memcpy(&scale, from + whole / 2, sizeof scale);
    vf by = vf_set1(scale);
    for (size_t i = 0; i < whole; i += VW) vf_store(dst + i, vf_mul(vf_levels(from + i / 2, pl_kv4_levels), by));
#else
    pl_kv4_get(from, whole, dst);
#endif
}

/* The first d of a vector of `whole`. */
static void widen(const void *from, enum pl_dtype dtype, size_t whole, float *dst, size_t d, size_t d_pad) {
    size_t i = 0;
    if (pl_is_kv8(dtype)) {
        pl_kv8_get(dtype, from, whole, d, dst);
        i = d;
    } else if (dtype == PL_F16) {
        const uint16_t *p = from;
        for (; i + VW <= d; i += VW) vf_store(dst + i, vf_load_f16(p + i));
        for (; i < d; i++) dst[i] = pl_f16_to_f32(p[i]);
    } else if (dtype == PL_BF16) {
        const uint16_t *p = from;
        for (; i + VW <= d; i += VW) vf_store(dst + i, vf_load_bf16(p + i));
        for (; i < d; i++) dst[i] = pl_bf16_to_f32(p[i]);
    } else {
        const float *p = from;
        for (; i < d; i++) dst[i] = p[i];
    }
    for (; i < d_pad; i++) dst[i] = 0.0f;
}

static size_t kv_slot(const struct cpu_attn_tile *t, size_t tok) {
    size_t page = t->a->kv->page_tokens;
    return (size_t)t->seq->pages[tok / page] * page + tok % page;
}

static const unsigned char *vector_at(const struct cpu_attn_tile *t, bool values, size_t tok, size_t *bytes) {
    const struct pl_cpu_kv *kv = t->a->kv;
    *bytes = (values ? pl_kv_value_bytes : pl_kv_key_bytes)(kv->dtype, kv->head_dim);
    return (const unsigned char *)(values ? kv->v : kv->k) + (kv_slot(t, tok) * kv->kv_heads + t->kv_head) * *bytes;
}

/* d numbers of one token, one KV head. */
static void load_token(const struct cpu_attn_tile *t, bool values, size_t tok, float *dst, size_t d, size_t d_pad) {
    const struct pl_cpu_kv *kv = t->a->kv;
    size_t bytes;
    const unsigned char *from = vector_at(t, values, tok, &bytes);
    if (values && kv->dtype == PL_K8V4)
        widen_levels(from, kv->head_dim, dst); /* d is head_dim is d_pad */
    else
        widen(from, kv->dtype, kv->head_dim, dst, d, d_pad);
}

/* d numbers of each of tokens [begin, end) of a group starting at t0, one KV head, into group[ATTN_GROUP][d_pad]; other
 * slots are zeroed. */
static void load_group(const struct cpu_attn_tile *t, bool values, size_t t0, size_t begin, size_t end, float *group,
                       size_t d, size_t d_pad) {
    for (size_t i = 0; i < ATTN_GROUP; i++) {
        size_t tok = t0 + i, bytes;
        if (tok < begin || tok >= end) {
            memset(group + i * d_pad, 0, d_pad * sizeof *group);
            continue;
        }
        if (tok + ATTN_GROUP < end) { /* the next group's tokens lie apart: no hardware foresees them */
            const unsigned char *next = vector_at(t, values, tok + ATTN_GROUP, &bytes);
            for (size_t b = 0; b < bytes; b += 64) __builtin_prefetch(next + b);
        }
        load_token(t, values, tok, group + i * d_pad, d, d_pad);
    }
}

/* group [16][d_pad] -> turned [d_pad][16]: a vector holds one element of sixteen tokens. */
#if defined(__AVX512F__)
/* Four 4-float pieces of rows r, r+4, r+8, r+12 fill a register: masked loads move the lanes, so that only the 4x4
 * turns inside a lane need the shuffle unit. */
static inline __m512 four_rows(const float *p, size_t stride) {
    __m512 v = _mm512_broadcast_f32x4(_mm_loadu_ps(p));
    v = _mm512_mask_broadcast_f32x4(v, 0x00F0, _mm_loadu_ps(p + 4 * stride));
    v = _mm512_mask_broadcast_f32x4(v, 0x0F00, _mm_loadu_ps(p + 8 * stride));
    return _mm512_mask_broadcast_f32x4(v, 0xF000, _mm_loadu_ps(p + 12 * stride));
}
static void turn_group(const float *group, size_t d_pad, float *turned) {
    for (size_t i = 0; i < d_pad; i += 4, turned += 64) {
        __m512 a = four_rows(group + i, d_pad), b = four_rows(group + d_pad + i, d_pad);
        __m512 c = four_rows(group + 2 * d_pad + i, d_pad), d = four_rows(group + 3 * d_pad + i, d_pad);
        __m512d ab0 = _mm512_castps_pd(_mm512_unpacklo_ps(a, b)), ab1 = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
        __m512d cd0 = _mm512_castps_pd(_mm512_unpacklo_ps(c, d)), cd1 = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
        _mm512_storeu_ps(turned, _mm512_castpd_ps(_mm512_unpacklo_pd(ab0, cd0)));
        _mm512_storeu_ps(turned + 16, _mm512_castpd_ps(_mm512_unpackhi_pd(ab0, cd0)));
        _mm512_storeu_ps(turned + 32, _mm512_castpd_ps(_mm512_unpacklo_pd(ab1, cd1)));
        _mm512_storeu_ps(turned + 48, _mm512_castpd_ps(_mm512_unpackhi_pd(ab1, cd1)));
    }
}
#elif defined(__AVX2__)
static inline __m256 two_rows(const float *p, size_t stride) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 4 * stride), 1);
}
static void turn_group(const float *group, size_t d_pad, float *turned) {
    for (size_t i = 0; i < d_pad; i += 4, turned += 64) {
        for (size_t h = 0; h < 2; h++) {
            const float *p = group + 8 * h * d_pad + i;
            __m256 a = two_rows(p, d_pad), b = two_rows(p + d_pad, d_pad);
            __m256 c = two_rows(p + 2 * d_pad, d_pad), d = two_rows(p + 3 * d_pad, d_pad);
            __m256d ab0 = _mm256_castps_pd(_mm256_unpacklo_ps(a, b)), ab1 = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
            __m256d cd0 = _mm256_castps_pd(_mm256_unpacklo_ps(c, d)), cd1 = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
            _mm256_storeu_ps(turned + 8 * h, _mm256_castpd_ps(_mm256_unpacklo_pd(ab0, cd0)));
            _mm256_storeu_ps(turned + 16 + 8 * h, _mm256_castpd_ps(_mm256_unpackhi_pd(ab0, cd0)));
            _mm256_storeu_ps(turned + 32 + 8 * h, _mm256_castpd_ps(_mm256_unpacklo_pd(ab1, cd1)));
            _mm256_storeu_ps(turned + 48 + 8 * h, _mm256_castpd_ps(_mm256_unpackhi_pd(ab1, cd1)));
        }
    }
}
#else
static void turn_group(const float *group, size_t d_pad, float *turned) {
    for (size_t i = 0; i < d_pad; i++)
        for (size_t t = 0; t < ATTN_GROUP; t++) turned[i * ATTN_GROUP + t] = group[t * d_pad + i];
}
#endif

/* Of values: queries and vectors of one turn. */
enum { WEIGH_QUERIES = VW > 1 ? 4 : 2, WEIGH_VECTORS = VW == 16 ? 4 : VW > 1 ? 2 : 4 };
enum { TOKEN_VECTORS = ATTN_GROUP / VW, DOT_QUERIES = VW == 16 ? 8 : VW > 1 ? 4 : 1 };

/* Scores of n queries (q rows d_pad apart) against the sixteen tokens of a group: one sum per token, over the elements
 * in order, whatever n. */
static inline __attribute__((always_inline)) void dot_queries(const float *q, const int n, const float *turned, size_t d_pad,
                                                              float *out) {
    vf acc[DOT_QUERIES * TOKEN_VECTORS];
    for (int k = 0; k < n * TOKEN_VECTORS; k++) acc[k] = vf_set1(0.0f);
    for (size_t i = 0; i < d_pad; i++) {
#pragma GCC unroll 16
        for (int v = 0; v < TOKEN_VECTORS; v++) {
            vf k = vf_load(turned + i * ATTN_GROUP + (size_t)v * VW);
#pragma GCC unroll 8
            for (int m = 0; m < n; m++)
                acc[m * TOKEN_VECTORS + v] = vf_fma(vf_set1(q[(size_t)m * d_pad + i]), k, acc[m * TOKEN_VECTORS + v]);
        }
    }
    for (int m = 0; m < n; m++)
        for (int v = 0; v < TOKEN_VECTORS; v++) vf_store(out + m * ATTN_CHUNK + v * VW, acc[m * TOKEN_VECTORS + v]);
}
static void dot_group(const float *q, size_t n, const float *turned, size_t d_pad, float *out) {
    for (; n >= DOT_QUERIES; n -= DOT_QUERIES, q += DOT_QUERIES * d_pad, out += DOT_QUERIES * ATTN_CHUNK)
        dot_queries(q, DOT_QUERIES, turned, d_pad, out);
    for (; n >= 4; n -= 4, q += 4 * d_pad, out += 4 * ATTN_CHUNK)
        dot_queries(q, DOT_QUERIES < 4 ? DOT_QUERIES : 4, turned, d_pad, out);
    if (VW == 8 && n == 3) { /* one by one each would wait for its own sums */
        dot_queries(q, 3, turned, d_pad, out);
    } else if (VW == 8 && n == 2) {
        dot_queries(q, 2, turned, d_pad, out);
    } else {
        for (; n > 0; n--, q += d_pad, out += ATTN_CHUNK) dot_queries(q, 1, turned, d_pad, out);
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

static void chunk_spans(const struct cpu_attn_tile *t, size_t t0, struct attn_scratch *s) {
    for (size_t q = 0; q < t->count; q++) {
        size_t lo, hi;
        visible(t, q, &lo, &hi);
        s->begin[q] = (uint8_t)(lo > t0 ? PL_MIN(lo - t0, (size_t)ATTN_CHUNK) : 0);
        s->end[q] = (uint8_t)(hi > t0 ? PL_MIN(hi - t0, (size_t)ATTN_CHUNK) : 0);
    }
}

/* Queries [*first, *last) of the tile that see a token of the group at g. */
static void group_queries(const struct attn_scratch *s, size_t count, size_t g, size_t *first, size_t *last) {
    size_t a = 0, b = count;
    while (a < b && s->end[a] <= g) a++;
    while (b > a && s->begin[b - 1] >= g + ATTN_GROUP) b--;
    *first = a;
    *last = b;
}

/* scores -> exp(score - max) in place over the visible part [b, e); returns the state. */
static struct cpu_attn_state softmax_chunk(const struct cpu_attn_tile *t, size_t b, size_t e, float *s) {
    if (b >= e) return (struct cpu_attn_state){-INFINITY, 0.0f};
    if (t->a->softcap > 0) row_softcap(s + b, e - b, t->a->softcap);
    const size_t first = b / VW * VW, last = (e + VW - 1) / VW * VW; /* vectors that hold a visible token */
    for (size_t i = first; i < b; i++) s[i] = -INFINITY;
    for (size_t i = e; i < last; i++) s[i] = -INFINITY;
    vf m = vf_set1(-INFINITY), l = vf_set1(0.0f);
    for (size_t i = first; i < last; i += VW) m = vf_max(m, vf_load(s + i));
    float top = vf_hmax(m);
    m = vf_set1(top);
    for (size_t i = first; i < last; i += VW) {
        vf p = vf_exp(vf_sub(vf_load(s + i), m));
        vf_store(s + i, p);
        l = vf_add(l, p);
    }
    return (struct cpu_attn_state){top, vf_hsum(l)};
}

/* o += sum over tokens [b, e) of the group of p[t] * v[t], for n queries that see the same of them (p ATTN_CHUNK apart,
 * o o_stride apart) and `vectors` vectors of v: each is read once for all queries. The order of an element's sum is the
 * tokens', whatever n. */
static inline __attribute__((always_inline)) void weigh_block(const int n, const int vectors, const float *p,
                                                              const float *group, size_t b, size_t e, size_t d_pad, float *o,
                                                              size_t o_stride) {
    vf acc[WEIGH_QUERIES * WEIGH_VECTORS];
#pragma GCC unroll 4
    for (int m = 0; m < n; m++)
#pragma GCC unroll 4
        for (int k = 0; k < vectors; k++) acc[m * vectors + k] = vf_load(o + (size_t)m * o_stride + (size_t)k * VW);
    for (size_t t = b; t < e; t++) {
        vf v[4];
#pragma GCC unroll 4
        for (int k = 0; k < vectors; k++) v[k] = vf_load(group + t * d_pad + (size_t)k * VW);
#pragma GCC unroll 4
        for (int m = 0; m < n; m++) {
            const vf pv = vf_set1(p[(size_t)m * ATTN_CHUNK + t]);
#pragma GCC unroll 4
            for (int k = 0; k < vectors; k++) acc[m * vectors + k] = vf_fma(pv, v[k], acc[m * vectors + k]);
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < n; m++)
#pragma GCC unroll 4
        for (int k = 0; k < vectors; k++) vf_store(o + (size_t)m * o_stride + (size_t)k * VW, acc[m * vectors + k]);
}
static inline __attribute__((always_inline)) void weigh_queries(const int n, const float *p, const float *group, size_t b,
                                                                size_t e, size_t d_pad, float *o, size_t o_stride) {
    const int wide = n == 1 ? 4 : WEIGH_VECTORS;
    size_t i = 0;
    for (; i + (size_t)wide * VW <= d_pad; i += (size_t)wide * VW)
        weigh_block(n, wide, p, group + i, b, e, d_pad, o + i, o_stride);
    for (; i < d_pad; i += VW) weigh_block(n, 1, p, group + i, b, e, d_pad, o + i, o_stride);
}

/* WEIGH_QUERIES when so many queries from q on see the same tokens of the group at g, else 1. */
static size_t same_span(const struct attn_scratch *s, size_t q, size_t last, size_t g) {
    if (q + WEIGH_QUERIES > last) return 1;
    const size_t z = q + WEIGH_QUERIES - 1; /* spans move up with the query: the ends tell of those between */
    const bool begins = PL_MAX((size_t)s->begin[q], g) == PL_MAX((size_t)s->begin[z], g);
    return begins && PL_MIN((size_t)s->end[q], g + ATTN_GROUP) == PL_MIN((size_t)s->end[z], g + ATTN_GROUP) ? WEIGH_QUERIES
                                                                                                            : 1;
}

#include "cpu/attn_half.h"

static void attn_scores(const struct cpu_attn_tile *t, const struct attn_scratch *s, size_t t0, size_t d_pad) {
    size_t lo = t0 + s->begin[0], hi = t0 + s->end[t->count - 1];
    for (size_t g = 0; g < ATTN_CHUNK; g += ATTN_GROUP) {
        size_t first, last;
        group_queries(s, t->count, g, &first, &last);
        if (first == last) continue;
        if (!half_turned(t, s, t0 + g, lo, hi, d_pad)) {
            load_group(t, false, t0 + g, lo, hi, s->group, t->a->kv->head_dim, d_pad);
            turn_group(s->group, d_pad, s->turned);
        }
        dot_group(s->q + first * d_pad, last - first, s->turned, d_pad, s->scores + first * ATTN_CHUNK + g);
    }
}

/* Sparse V. A query's weights below the bound become zeros, after they were summed; which do depends on the query alone. */
static void drop_weights(float least, float *p, size_t b, size_t e) {
    for (size_t i = b; i < e; i++) p[i] = p[i] < least ? 0.0f : p[i];
}

/* Of the group at g those tokens of [lo, hi) that a query weighs; their weights come to stand first, in the same order. */
static size_t keep_weighed(const struct attn_scratch *s, size_t first, size_t last, size_t g, size_t lo, size_t hi,
                           uint8_t kept[ATTN_GROUP]) {
    size_t n = 0;
    for (size_t i = PL_MAX(lo, g); i < PL_MIN(hi, g + ATTN_GROUP); i++) {
        bool weighed = false;
        for (size_t q = first; q < last && !weighed; q++)
            weighed = i >= s->begin[q] && i < s->end[q] && s->scores[q * ATTN_CHUNK + i] > 0;
        if (weighed) kept[n++] = (uint8_t)i;
    }
    for (size_t q = first; q < last; q++) {
        float *p = s->scores + q * ATTN_CHUNK;
        for (size_t j = 0; j < n; j++) p[g + j] = kept[j] >= s->begin[q] && kept[j] < s->end[q] ? p[kept[j]] : 0.0f;
    }
    return n;
}

static void sparse_values(const struct cpu_attn_tile *t, const struct attn_scratch *s, size_t t0, size_t d_pad, float *o,
                          size_t o_stride) {
    size_t lo = s->begin[0], hi = s->end[t->count - 1], rows = 0, read = 0;
    for (size_t g = 0; g < ATTN_CHUNK; g += ATTN_GROUP) {
        size_t first, last, q;
        uint8_t kept[ATTN_GROUP];
        group_queries(s, t->count, g, &first, &last);
        if (first == last) continue;
        size_t n = keep_weighed(s, first, last, g, lo, hi, kept);
        rows += PL_MIN(hi, g + ATTN_GROUP) - PL_MAX(lo, g);
        read += n;
        for (size_t j = 0; j < n; j++)
            load_token(t, true, t0 + kept[j], s->group + j * d_pad, cpu_value_dim(t->a->kv), d_pad);
        const float *p = s->scores + g;
        for (q = first; q + WEIGH_QUERIES <= last; q += WEIGH_QUERIES)
            weigh_queries(WEIGH_QUERIES, p + q * ATTN_CHUNK, s->group, 0, n, d_pad, o + q * o_stride, o_stride);
        for (; q < last; q++) weigh_queries(1, p + q * ATTN_CHUNK, s->group, 0, n, d_pad, o + q * o_stride, o_stride);
    }
    atomic_fetch_add_explicit(&t->a->sparse->rows, rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->a->sparse->skipped, rows - read, memory_order_relaxed);
}

static void attn_values(const struct cpu_attn_tile *t, const struct attn_scratch *s, size_t t0, size_t d_pad, float *o,
                        size_t o_stride) {
    size_t lo = t0 + s->begin[0], hi = t0 + s->end[t->count - 1];
    for (size_t g = 0; g < ATTN_CHUNK; g += ATTN_GROUP) {
        size_t first, last;
        group_queries(s, t->count, g, &first, &last);
        if (first == last || half_values(t, s, t0, g, first, last, o, o_stride)) continue;
        load_group(t, true, t0 + g, lo, hi, s->group, cpu_value_dim(t->a->kv), d_pad);
        for (size_t q = first, n; q < last; q += n) {
            size_t b = PL_MAX((size_t)s->begin[q], g) - g, e = PL_MIN((size_t)s->end[q], g + ATTN_GROUP) - g;
            n = same_span(s, q, last, g);
            const float *p = s->scores + q * ATTN_CHUNK + g;
            if (n == WEIGH_QUERIES)
                weigh_queries(WEIGH_QUERIES, p, s->group, b, e, d_pad, o + q * o_stride, o_stride);
            else
                weigh_queries(1, p, s->group, b, e, d_pad, o + q * o_stride, o_stride);
        }
    }
}

static void attn_chunk(const struct cpu_attn_tile *t, size_t chunk, struct cpu_attn_state *states, float *o, size_t o_stride,
                       void *scratch) {
    size_t d_pad = cpu_head_pad(t->a->kv->head_dim), t0 = chunk * ATTN_CHUNK;
    struct attn_scratch s = attn_split(scratch, d_pad);
    chunk_spans(t, t0, &s);
    load_queries(t, s.q, d_pad);
    attn_scores(t, &s, t0, d_pad);
    for (size_t q = 0; q < t->count; q++) {
        states[q] = softmax_chunk(t, s.begin[q], s.end[q], s.scores + q * ATTN_CHUNK);
        memset(o + q * o_stride, 0, d_pad * sizeof *o);
        if (t->a->sparse != NULL) drop_weights(t->a->sparse->least, s.scores + q * ATTN_CHUNK, s.begin[q], s.end[q]);
    }
    (t->a->sparse != NULL ? sparse_values : attn_values)(t, &s, t0, cpu_head_pad(cpu_value_dim(t->a->kv)), o, o_stride);
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

#define ROW_KERNELS                                                                                                 \
    .norm = norm_rows, .add = row_add, .scale = row_scale, .glu = row_glu, .softcap = row_softcap,                  \
    .rope_append = rope_append_row, .attn_chunk = attn_chunk, .attn_merge = attn_merge, .attn_finish = attn_finish, \
    .conv = conv_channels, .ssm = ssm_heads, .delta = delta_head, .gated_norm = gated_norm_row

#endif
