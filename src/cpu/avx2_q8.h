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

#include "cpu/avx2_unpack.h"

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
