/* Fine products on AVX2: inputs of 16 bits, one scale per 32 of them, by any packed format. Codes are widened to words on
 * the way, so that a product of words is one of 32 bits at once: one pass where two terms of 8 bits take two.
 *
 * Inputs of a group, for each block: i16 q[rows][32], those of vector j (tile.h) as 4j, 4j+2, 4j+1, 4j+3; then the fields of
 * tile.h. A block's sum is at most 32 * 255 * 32767, and its offset half of that. */
#include "cpu/avx2_unpack.h"
#include "cpu/vec.h"

void avx2_fine_inputs(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst);
void avx2_fine_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate);

static inline int32_t sum_of(__m256i a, __m256i b) {
    __m256i s = _mm256_add_epi32(a, b);
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xB1)));
}

/* Sixteen inputs as words, those of every four in the order of vectors of words. */
static inline void put_inputs(__m256i a, __m256i b, int16_t *q) {
    __m256i v = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
    v = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(v, 0xD8), 0xD8);
    _mm256_storeu_si256((__m256i *)(void *)q, v);
}

/* A block of one row: its scale returned, the sums of its halves in sum. */
static inline float fine_block_inputs(const float *x, size_t n, int16_t *q, int32_t *sum) {
    __m256 v[4], top = _mm256_setzero_ps();
    __m256i i[4];
    for (size_t k = 0; k < 4; k++) {
        v[k] = n >= 8 * k + 8 ? _mm256_loadu_ps(x + 8 * k)
               : n > 8 * k    ? vf_loadn(x + 8 * k, n - 8 * k)
                              : _mm256_setzero_ps();
        top = _mm256_max_ps(top, vf_abs(v[k]));
    }
    const float max = vf_hmax(top);
    const __m256 inv = _mm256_set1_ps(max >= PL_CPU_ACT_TINY ? 32767.0f / max : 0.0f);
    for (size_t k = 0; k < 4; k++) i[k] = _mm256_cvtps_epi32(_mm256_mul_ps(v[k], inv));
    for (size_t h = 0; h < 2; h++) {
        sum[h] = sum_of(i[2 * h], i[2 * h + 1]);
        put_inputs(i[2 * h], i[2 * h + 1], q + 16 * h);
    }
    return max / 32767.0f;
}

void avx2_fine_inputs(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst) {
    for (size_t at = 0; at < in; at += ACT_BLOCK, dst += rows * FINE_ROW_BYTES) {
        float *scale = (float *)(void *)(dst + 2 * ACT_BLOCK * rows), *ssum = scale + rows;
        int32_t *nsum = (int32_t *)(void *)(ssum + rows), sum[2];
        for (size_t m = 0; m < rows; m++) {
            scale[m] = fine_block_inputs(x + m * stride + at, PL_MIN((size_t)ACT_BLOCK, in - at),
                                         (int16_t *)(void *)dst + ACT_BLOCK * m, sum);
            ssum[m] = scale[m] * (float)(sum[0] + sum[1]);
            nsum[m] = -(sum[0] + sum[1]);
            nsum[rows + m] = -sum[0];
            nsum[2 * rows + m] = -sum[1];
        }
    }
}

/* d[m][i] += codes of vectors [from, to), half i of the outputs from p on, . inputs, for n rows. */
Q8_INLINE void fine_dots(const struct q8_instance k, const unsigned char *p, __m256i book, const int16_t *q, const int from,
                         const int to, const int n, __m256i (*d)[2]) {
#pragma GCC unroll 8
    for (int t = from; t < to; t++) {
        const int j = to - from == 8 ? t / 2 + t % 2 * 4 : t; /* narrow codes of j and j + 4 share their bytes */
        __m256i v[2][2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            __m256i codes = unpack(k, p + 32 * i, j);
            if (k.book != NULL) codes = _mm256_shuffle_epi8(book, codes);
            v[0][i] = _mm256_and_si256(codes, _mm256_set1_epi16(255));
            v[1][i] = _mm256_srli_epi16(codes, 8);
        }
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
#pragma GCC unroll 4
            for (int m = 0; m < n; m++) {
                const __m256i a = act4((const int8_t *)(q + ACT_BLOCK * m + 4 * j + 2 * h));
#pragma GCC unroll 2
                for (int i = 0; i < 2; i++) d[m][i] = as_written(_mm256_add_epi32(d[m][i], _mm256_madd_epi16(v[h][i], a)));
            }
    }
}

/* Sums of one block (or one half of its inputs, h >= 0) of n rows into acc. */
Q8_INLINE void fine_block(const struct q8_instance k, const unsigned char *p, __m256i book, const struct q8_scales *s,
                          const unsigned char *a, const int h, const int n, __m256 (*acc)[4]) {
    const float *scale = (const float *)(const void *)(a + 2 * ACT_BLOCK * n), *ssum = scale + n;
    const int32_t *nsum = (const int32_t *)(const void *)(ssum + n) + (1 + h) * n;
    const int z = h > 0;
    __m256i d[4][2];
#pragma GCC unroll 4
    for (int m = 0; m < n; m++)
        d[m][0] = d[m][1] = k.offset_log2 == NO_OFFSET ? _mm256_setzero_si256()
                                                       : _mm256_slli_epi32(_mm256_set1_epi32(nsum[m]), k.offset_log2 & 31);
    fine_dots(k, p, book, (const int16_t *)(const void *)a, h > 0 ? 4 : 0, h == 0 ? 4 : 8, n, d);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
#pragma GCC unroll 4
        for (int m = 0; m < n; m++) {
            acc[i][m] =
                _mm256_fmadd_ps(_mm256_mul_ps(s[i].s[z], _mm256_set1_ps(scale[m])), _mm256_cvtepi32_ps(d[m][i]), acc[i][m]);
            if (k.has_min)
                acc[i][m] =
                    _mm256_fmadd_ps(s[i].m[z], _mm256_set1_ps(h < 0 ? ssum[m] : scale[m] * (float)-nsum[m]), acc[i][m]);
        }
}

/* n (1, 2, 4) rows against a tile. */
Q8_INLINE void fine_run(const struct q8_instance k, const int n, const struct pl_cpu_weight *w, size_t tile_index,
                        const struct cpu_act_group *g, float *y, size_t y_stride, const float *bias, bool accumulate) {
    const unsigned char *tile = w->tiles + tile_index * w->layout.bytes, *a = g->data;
    __m256i book = _mm256_setzero_si256();
    if (k.book != NULL) book = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)k.book));
    __m256 acc[2][4];
#pragma GCC unroll 8
    for (int m = 0; m < 8; m++) acc[m / 4][m % 4] = _mm256_setzero_ps();
    for (size_t b = 0; b < w->layout.blocks; b++, a += (size_t)n * FINE_ROW_BYTES) {
        cpu_prefetch_block(k.storage, k.scale, &w->layout, tile, b);
        struct q8_scales s[2] = {load_scales(k, w, tile, b, 0), load_scales(k, w, tile, b, 8)};
        if (n == 4) __asm__("" : "+m"(s), "+m"(acc)); /* while a block's products take all registers, these wait in memory */
        const unsigned char *p = tile + b * w->layout.plane_bytes;
        if (cpu_scale_halves(k.scale)) {
            fine_block(k, p, book, s, a, 0, n, acc);
            fine_block(k, p, book, s, a, 1, n, acc);
        } else {
            fine_block(k, p, book, s, a, -1, n, acc);
        }
    }
#pragma GCC unroll 2
    for (size_t i = 0; i < 2; i++) {
        const size_t row = tile_index * TILE_ROWS + 8 * i;
#pragma GCC unroll 4
        for (int m = 0; m < n; m++)
            q8_store(w, row, acc[i][m], bias != NULL ? bias + 8 * i : NULL, accumulate, y + (size_t)m * y_stride + 8 * i);
    }
}

/* Defines `name`, the kernel of one format for any group size. */
#define Q8_KERNEL(name, ...)                                                                                     \
    static void name##_fine(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, \
                            size_t y_stride, const float *bias, bool accumulate) {                               \
        const struct q8_instance k = {__VA_ARGS__};                                                              \
        switch (g->rows) {                                                                                       \
        case 4: fine_run(k, 4, w, tile, g, y, y_stride, bias, accumulate); break;                                \
        case 2: fine_run(k, 2, w, tile, g, y, y_stride, bias, accumulate); break;                                \
        default: fine_run(k, 1, w, tile, g, y, y_stride, bias, accumulate); break;                               \
        }                                                                                                        \
    }                                                                                                            \
    static const struct q8_kernel name = {name##_fine, NULL};

#include "cpu/q8_formats.h"

void avx2_fine_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate) {
    kernel_of(w->format)->tile(w, tile, g, y, y_stride, bias, accumulate);
}
