/* avx2_q8 - the product of half a tile (8 output rows) with one group of activation rows, specialised by constants.
 *
 * Same tiles and same order of operations as avx512_q8.h. Products of bytes are added in 16 bits as long as the
 * largest code allows (`pairs`), then widened. Eight-bit codes are taken as signed, their sign moved to the
 * activation, so that no 16-bit sum saturates.
 *
 * The sums of a block's halves in activations (tile.h) are kept here as two of 16 bits, as products of bytes come: minus the
 * sum of inputs 4j and 4j+1 in the lower ones, of 4j+2 and 4j+3 in the upper ones. With AVX-VNNI they are what tile.h says.
 */
#ifndef PL_CPU_AVX2_Q8_H
#define PL_CPU_AVX2_Q8_H

#include <immintrin.h>
#include <string.h>

#include "cpu/internal.h"
#include "cpu/prefetch.h"

#define Q8_INLINE static inline __attribute__((always_inline))

struct q8_instance {
    enum cpu_storage storage;
    enum cpu_scale scale;
    bool has_min;
    unsigned offset_log2;
    const uint8_t *book; /* NULL: codes are values */
    int pairs;           /* products added in 16 bits: 8, 4, 2; 1: signed codes, value = code - 128 */
};

Q8_INLINE __m256i load32(const unsigned char *p) { return _mm256_loadu_si256((const __m256i *)p); }
Q8_INLINE __m256i shift_to(__m256i v, int from, int to) {
    return from > to ? _mm256_srli_epi16(v, from - to) : _mm256_slli_epi16(v, to - from);
}
Q8_INLINE __m256i masked(__m256i v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8((char)mask)); }

/* Vector j of a block's codes, for the half at p. */
Q8_INLINE __m256i unpack(const struct q8_instance k, const unsigned char *p, const int j) {
    __m256i v;
    if (k.storage == STORE_U8) return load32(p + 64 * j);
    if (k.storage == STORE_U2 || k.storage == STORE_U3)
        v = masked(_mm256_srli_epi16(load32(p + 64 * (j / 4)), 2 * (j % 4)), 3);
    else
        v = masked(j < 4 ? load32(p + 64 * j) : _mm256_srli_epi16(load32(p + 64 * (j - 4)), 4), 15);
    if (k.storage == STORE_U5) v = _mm256_or_si256(v, masked(shift_to(load32(p + 256), j, 4), 16));
    if (k.storage == STORE_U3) v = _mm256_or_si256(v, masked(shift_to(load32(p + 128), j, 2), 4));
    if (k.storage == STORE_U6) v = _mm256_or_si256(v, masked(shift_to(load32(p + 256 + 64 * (j / 4)), 2 * (j % 4), 4), 48));
    return v;
}

Q8_INLINE __m256 load_f16(const unsigned char *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
Q8_INLINE __m256 load_bf16(const unsigned char *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
Q8_INLINE __m256 load_i8(const unsigned char *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
Q8_INLINE __m256 load_e8m0(const unsigned char *p) {
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

/* Super scales. */
Q8_INLINE __m256 load_d(const struct q8_instance k, const unsigned char *p) {
    const bool eighths = k.scale == SCALE_K32E || k.scale == SCALE_K16E;
    return eighths ? _mm256_mul_ps(load_f16(p), _mm256_set1_ps(0.125f)) : load_f16(p);
}

struct q8_scales {
    __m256 s[2], m[2];
};
/* h8: 8 for the upper half of the tile, else 0. */
Q8_INLINE struct q8_scales load_scales(const struct q8_instance k, const struct pl_cpu_weight *w, const unsigned char *tile,
                                       size_t b, size_t h8) {
    struct q8_scales r;
    const struct cpu_tile_layout *l = &w->layout;
    const unsigned char *unit = tile + l->units_at, *super = tile + l->supers_at + b / 8 * l->super_bytes + 2 * h8;
    r.s[0] = r.s[1] = r.m[0] = r.m[1] = _mm256_setzero_ps();
    if (k.scale == SCALE_F16) {
        unit += (k.storage == STORE_U2 ? b / 8 * 32 : b * (k.has_min ? 64 : 32)) + 2 * h8;
        r.s[0] = load_f16(unit);
        if (k.has_min) r.m[0] = load_f16(unit + 32);
    } else if (k.scale == SCALE_E8M0) {
        r.s[0] = load_e8m0(unit + 16 * b + h8);
    } else if (k.scale == SCALE_K32 || k.scale == SCALE_K32E) {
        unit += b * (k.has_min ? 32 : 16) + h8;
        r.s[0] = _mm256_mul_ps(load_d(k, super), load_i8(unit));
        if (k.has_min) r.m[0] = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(load_f16(super + 32), load_i8(unit + 16)));
    } else if (k.scale == SCALE_K16 || k.scale == SCALE_K16E) {
        __m256 d = load_d(k, super);
        r.s[0] = _mm256_mul_ps(d, load_i8(unit + 32 * b + h8));
        r.s[1] = _mm256_mul_ps(d, load_i8(unit + 32 * b + 16 + h8));
    } else if (k.scale == SCALE_K16N) {
        __m256 d = load_f16(super), dmin = load_f16(super + 32);
        for (int h = 0; h < 2; h++) {
            __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(unit + 32 * b + 16 * h + h8)));
            r.s[h] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(15))));
            r.m[h] = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(_mm256_srli_epi32(v, 4))));
        }
    } else {
        unit += b / l->unit_blocks * l->unit_bytes;
        if (w->t.scale_dtype == PL_F16) {
            r.s[0] = load_f16(unit + 2 * h8);
            r.m[0] = load_f16(unit + 32 + 2 * h8);
        } else if (w->t.scale_dtype == PL_BF16) {
            r.s[0] = load_bf16(unit + 2 * h8);
            r.m[0] = load_bf16(unit + 32 + 2 * h8);
        } else {
            r.s[0] = _mm256_loadu_ps((const void *)(unit + 4 * h8));
            r.m[0] = _mm256_loadu_ps((const void *)(unit + 64 + 4 * h8));
        }
    }
    return r;
}

Q8_INLINE __m256i act4(const int8_t *q) {
    int32_t v;
    __builtin_memcpy(&v, q, 4);
    return _mm256_set1_epi32(v);
}

/* A sum that is made here and now: gcc 12 would rather have all products first and add them up as a tree, for which there
 * are not registers enough. */
Q8_INLINE __m256i as_written(__m256i v) {
    __asm__("" : "+x"(v));
    return v;
}

#if defined(__AVXVNNI__)
enum { BYTES_BY_WORDS = 1 }; /* unsigned by signed bytes go straight into 32-bit sums */
#else
enum { BYTES_BY_WORDS = 0 };
#endif
/* -sum(q) of row m, of a half of the block or (h < 0) of all of it; rows: of the group. */
Q8_INLINE int32_t minus_sum(const int32_t *nsum, const int rows, const int h, const int m) {
    if (h < 0) return nsum[m];
    const int32_t lanes = nsum[(1 + h) * rows + m];
    return BYTES_BY_WORDS ? lanes : (int16_t)lanes + (lanes >> 16);
}

/* Sums of 16 bits wrap, so only the last one has to fit: codes less half their range, of 5 bits over a block (16 * 16 * 127)
 * or of 6 over half of it (8 * 32 * 127), do when that half's part is in the sum from the beginning. Where it is no offset
 * of the format it is given back in 32 bits, which pays for many rows only. */
Q8_INLINE bool many_by_lanes(const struct q8_instance k) { return !BYTES_BY_WORDS && (k.pairs == 2 || k.pairs == 4); }
Q8_INLINE bool by_lanes(const struct q8_instance k) {
    return many_by_lanes(k) && k.offset_log2 != NO_OFFSET && (k.pairs == 4 || cpu_scale_halves(k.scale));
}
Q8_INLINE int lanes_log2(const struct q8_instance k) { return k.pairs == 4 ? 4 : 5; }
Q8_INLINE __m256i lanes_start(const struct q8_instance k, const int32_t *nsum, const int rows, const int h, const int m) {
    __m256i v = _mm256_set1_epi32(nsum[(h > 0 ? 2 : 1) * rows + m]);
    if (h < 0) v = _mm256_add_epi16(v, _mm256_set1_epi32(nsum[2 * rows + m]));
    return _mm256_slli_epi16(v, lanes_log2(k));
}

/* What the 32-bit sum of a row starts from: the offset's part, less the one that the 16-bit sums have. nsum = -sum(q). */
Q8_INLINE __m256i start(const struct q8_instance k, const bool lanes, int32_t nsum) {
    if (lanes) return k.offset_log2 == NO_OFFSET ? _mm256_set1_epi32(-nsum * (1 << lanes_log2(k))) : _mm256_setzero_si256();
    if (k.pairs == 1 && !BYTES_BY_WORDS) /* codes are taken minus 128 already: formats without an offset get it back */
        return k.offset_log2 == NO_OFFSET ? _mm256_set1_epi32(-128 * nsum) : _mm256_setzero_si256();
    return k.offset_log2 == NO_OFFSET ? _mm256_setzero_si256()
                                      : _mm256_slli_epi32(_mm256_set1_epi32(nsum), k.offset_log2 & 31);
}

/* d[m][i] += codes of vectors [from, to), half i of the outputs from p on, . activations, for n rows. part: what the 16-bit
 * sums start from, by lanes. Narrow codes share the bytes of vectors j and j + 4, which are taken one after the other. */
Q8_INLINE void q8_dots(const struct q8_instance k, const int halves, const unsigned char *p, __m256i book, const int8_t *q,
                       const int from, const int to, const int n, __m256i (*part)[2], __m256i (*d)[2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int pairs = by_lanes(k) ? 8 : k.pairs;
    (void)pairs, (void)ones, (void)part;
#pragma GCC unroll 8
    for (int t = from; t < to; t++) {
        const int j = to - from == 8 ? t / 2 + t % 2 * 4 : t;
        __m256i v[2], mag[2];
#pragma GCC unroll 2
        for (int i = 0; i < halves; i++) {
            v[i] = unpack(k, p + 32 * i, j);
            if (k.book != NULL) v[i] = _mm256_shuffle_epi8(book, v[i]);
            if (k.pairs == 1 && !BYTES_BY_WORDS) v[i] = _mm256_xor_si256(v[i], _mm256_set1_epi8((char)0x80));
            mag[i] = k.pairs == 1 ? _mm256_abs_epi8(v[i]) : v[i];
        }
#pragma GCC unroll 4
        for (int m = 0; m < n; m++) {
            const __m256i a = act4(q + 32 * m + 4 * j);
#pragma GCC unroll 2
            for (int i = 0; i < halves; i++) {
#if defined(__AVXVNNI__)
                (void)mag;
                d[m][i] = _mm256_dpbusd_avx_epi32(d[m][i], v[i], a);
#else
                const __m256i x = _mm256_maddubs_epi16(mag[i], k.pairs == 1 ? _mm256_sign_epi8(a, v[i]) : a);
                part[m][i] = (t - from) % pairs == 0 && !by_lanes(k) ? x : as_written(_mm256_add_epi16(part[m][i], x));
                if ((t - from) % pairs == pairs - 1 || t == to - 1)
                    d[m][i] = _mm256_add_epi32(d[m][i], _mm256_madd_epi16(part[m][i], ones));
#endif
            }
        }
    }
}

Q8_INLINE void q8_store(const struct pl_cpu_weight *w, size_t row, __m256 acc, const float *bias, bool accumulate,
                        float *y) {
    size_t left = w->out > row ? w->out - row : 0;
    __m256i k =
        _mm256_cmpgt_epi32(_mm256_set1_epi32((int)PL_MIN(left, (size_t)8)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    if (bias != NULL) acc = _mm256_add_ps(acc, _mm256_maskload_ps(bias, k));
    if (accumulate) acc = _mm256_add_ps(_mm256_maskload_ps(y, k), acc);
    _mm256_maskstore_ps(y, k, acc);
}

/* Sums of one block (or one half of its inputs, h >= 0) of n rows into acc, for `halves` halves of the outputs. */
Q8_INLINE void q8_block(const struct q8_instance k, const int halves, const unsigned char *p, __m256i book,
                        const struct q8_scales *s, const unsigned char *a, const int h, const int n, __m256 (*acc)[4]) {
    const float *scale = (const float *)(const void *)(a + 32 * n), *ssum = scale + n;
    const int32_t *nsum = (const int32_t *)(const void *)(ssum + n);
    __m256i d[4][2], part[4][2];
#pragma GCC unroll 4
    for (int m = 0; m < n; m++) {
        d[m][0] = d[m][1] = start(k, by_lanes(k), minus_sum(nsum, n, h, m));
        if (by_lanes(k)) part[m][0] = part[m][1] = lanes_start(k, nsum, n, h, m);
    }
    q8_dots(k, halves, p, book, (const int8_t *)a, h > 0 ? 4 : 0, h == 0 ? 4 : 8, n, part, d);
    const int z = h > 0;
#pragma GCC unroll 2
    for (int i = 0; i < halves; i++)
#pragma GCC unroll 4
        for (int m = 0; m < n; m++) {
            acc[i][m] =
                _mm256_fmadd_ps(_mm256_mul_ps(s[i].s[z], _mm256_set1_ps(scale[m])), _mm256_cvtepi32_ps(d[m][i]), acc[i][m]);
            if (k.has_min)
                acc[i][m] = _mm256_fmadd_ps(
                    s[i].m[z], _mm256_set1_ps(h < 0 ? ssum[m] : scale[m] * (float)-minus_sum(nsum, n, h, m)), acc[i][m]);
        }
}

/* n (1, 2, 4) activation rows against `halves` halves of a tile from h8 on. Both at once read memory evenly: half by half,
 * the second one would be waited for with nothing asked of memory. */
Q8_INLINE void q8_run(const struct q8_instance k, const int n, const int halves, const struct pl_cpu_weight *w,
                      size_t tile_index, size_t h8, const struct cpu_act_group *g, float *y, size_t y_stride,
                      const float *bias, bool accumulate) {
    const unsigned char *tile = w->tiles + tile_index * w->layout.bytes, *a = g->data;
    __m256i book = _mm256_setzero_si256();
    if (k.book != NULL) book = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)k.book));
    __m256 acc[2][4];
#pragma GCC unroll 8
    for (int m = 0; m < 4 * halves; m++) acc[m / 4][m % 4] = _mm256_setzero_ps();
    for (size_t b = 0; b < w->layout.blocks; b++, a += (size_t)n * ACT_ROW_BYTES) {
        if (h8 == 0) cpu_prefetch_block(k.storage, k.scale, &w->layout, tile, b);
        struct q8_scales s[2];
#pragma GCC unroll 2
        for (int i = 0; i < halves; i++) s[i] = load_scales(k, w, tile, b, h8 + 8 * (size_t)i);
        const unsigned char *p = tile + b * w->layout.plane_bytes + 4 * h8;
        if (cpu_scale_halves(k.scale)) {
            q8_block(k, halves, p, book, s, a, 0, n, acc);
            q8_block(k, halves, p, book, s, a, 1, n, acc);
        } else {
            q8_block(k, halves, p, book, s, a, -1, n, acc);
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < halves; i++) {
        const size_t at = h8 + 8 * (size_t)i, row = tile_index * TILE_ROWS + at;
#pragma GCC unroll 4
        for (int m = 0; m < n; m++)
            q8_store(w, row, acc[i][m], bias != NULL ? bias + at : NULL, accumulate, y + (size_t)m * y_stride + at);
    }
}

#include "cpu/avx2_groups.h"

/* Both halves together, but of four rows only where products are slow: elsewhere their sums do not all stay in registers. */
Q8_INLINE void q8_rows(const struct q8_instance k, const int n, const struct pl_cpu_weight *w, size_t tile,
                       const struct cpu_act_group *g, float *y, size_t y_stride, const float *bias, bool accumulate) {
    const int halves = n < 4 || (k.pairs == 1 && !BYTES_BY_WORDS) ? 2 : 1;
#pragma GCC unroll 2
    for (size_t h8 = 0; h8 < TILE_ROWS; h8 += 8 * (size_t)halves)
        if (tile * TILE_ROWS + h8 < w->out) q8_run(k, n, halves, w, tile, h8, g, y, y_stride, bias, accumulate);
}

/* Defines `name`, the kernels of one format: a tile by one group of any size, by many. */
#define Q8_KERNEL(name, ...)                                                                                       \
    static void name##_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y,   \
                            size_t y_stride, const float *bias, bool accumulate) {                                 \
        const struct q8_instance k = {__VA_ARGS__};                                                                \
        switch (g->rows) {                                                                                         \
        case 4: q8_rows(k, 4, w, tile, g, y, y_stride, bias, accumulate); break;                                   \
        case 2: q8_rows(k, 2, w, tile, g, y, y_stride, bias, accumulate); break;                                   \
        default: q8_rows(k, 1, w, tile, g, y, y_stride, bias, accumulate); break;                                  \
        }                                                                                                          \
    }                                                                                                              \
    static void name##_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, \
                              float *y, size_t y_stride, const float *bias, bool accumulate) {                     \
        const struct q8_instance k = {__VA_ARGS__};                                                                \
        groups_run(k, w, tile, g, n, y, y_stride, bias, accumulate);                                               \
    }                                                                                                              \
    static const struct q8_kernel name = {name##_tile, name##_groups};

#include "cpu/q8_formats.h"

/* Groups of a tile: neighbours with all their rows together, the others one by one. */
static inline void all_groups(const struct q8_kernel *kernel, const struct pl_cpu_weight *w, size_t tile,
                              const struct cpu_act_group *g, size_t n, float *y, size_t y_stride, const float *bias,
                              bool accumulate) {
    for (size_t i = 0, run; i < n; i += run) {
        for (run = 0; run < CHUNK_GROUPS && i + run < n && g[i + run].rows == GROUP_ROWS;) run++;
        if (run > 1) { /* at least two share the widening */
            kernel->groups(w, tile, g + i, run, y, y_stride, bias, accumulate);
            continue;
        }
        run = 1;
        kernel->tile(w, tile, &g[i], y + g[i].first * y_stride, y_stride, bias, accumulate);
    }
}

#endif
