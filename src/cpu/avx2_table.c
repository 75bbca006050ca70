/* The AVX2 table, and how activations are made 8-bit. */
#include "cpu/attn_body.h"
#include "cpu/dot_body.h"
#include "cpu/internal.h"

void avx2_float_tile(const struct pl_cpu_matmul *m, size_t i, size_t tile, size_t begin, size_t end, void *scratch);
void avx2_q8_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                  const float *bias, bool accumulate);
void avx2_q8_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                    size_t y_stride, const float *bias, bool accumulate);

void avx2_fine_inputs(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst);
void avx2_fine_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate);

/* Sums of half a block's inputs 4j and 4j+1, and of 4j+2 and 4j+3. */
static inline void half_sums(__m256i a, __m256i b, int32_t *sum) {
    __m256i s = _mm256_add_epi32(a, b);
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0xB1));
    sum[0] = _mm_cvtsi128_si32(q);
    sum[1] = _mm_extract_epi32(q, 2);
}
/* Minus both of them as avx2_q8.h has them in an activation's fields. */
static inline int32_t two_lanes(const int32_t *sum) { return (int32_t)((uint32_t)-sum[1] << 16 | (uint16_t)-sum[0]); }

void avx2_vnni_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate);
void avx2_vnni_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                      size_t y_stride, const float *bias, bool accumulate);

/* A block of one row: 8-bit values at q, its scale returned, the half_sums of its halves in sum. */
static inline float quantize_block(const float *x, size_t n, int8_t *q, int32_t *sum) {
    __m256 v[4], top = _mm256_setzero_ps();
    __m256i i[4];
    for (size_t k = 0; k < 4; k++) {
        v[k] = n >= 8 * k + 8 ? _mm256_loadu_ps(x + 8 * k)
               : n > 8 * k    ? vf_loadn(x + 8 * k, n - 8 * k)
                              : _mm256_setzero_ps();
        top = _mm256_max_ps(top, vf_abs(v[k]));
    }
    float max = vf_hmax(top);
    __m256 inv = _mm256_set1_ps(max >= PL_CPU_ACT_TINY ? 127.0f / max : 0.0f);
    for (size_t k = 0; k < 4; k++) i[k] = _mm256_cvtps_epi32(_mm256_mul_ps(v[k], inv));
    half_sums(i[0], i[1], sum);
    half_sums(i[2], i[3], sum + 2);
    __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(i[0], i[1]), _mm256_packs_epi32(i[2], i[3]));
    b = _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)q, b);
    return max / 127.0f;
}

/* lanes: the sums of halves as avx2_q8.h has them where products of bytes go into 16 bits. */
static inline void quantize_rows(const float *x, size_t stride, size_t rows, size_t in, bool lanes, unsigned char *dst) {
    for (size_t at = 0; at < in; at += ACT_BLOCK, dst += rows * ACT_ROW_BYTES) {
        float *scale = (float *)(void *)(dst + 32 * rows), *ssum = scale + rows;
        int32_t *nsum = (int32_t *)(void *)(ssum + rows), *n0 = nsum + rows, *n1 = n0 + rows, sum[4], all;
        for (size_t m = 0; m < rows; m++) {
            scale[m] = quantize_block(x + m * stride + at, PL_MIN((size_t)ACT_BLOCK, in - at), (int8_t *)dst + 32 * m, sum);
            all = sum[0] + sum[1] + sum[2] + sum[3];
            ssum[m] = scale[m] * (float)all;
            nsum[m] = -all;
            n0[m] = lanes ? two_lanes(sum) : -(sum[0] + sum[1]);
            n1[m] = lanes ? two_lanes(sum + 2) : -(sum[2] + sum[3]);
        }
    }
}

static void quantize(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst) {
    quantize_rows(x, stride, rows, in, true, dst);
}
static void quantize_vnni(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst) {
    quantize_rows(x, stride, rows, in, false, dst);
}

const struct cpu_table cpu_table_avx2 = {.isa = PL_ISA_AVX2,
                                         .group_max = 4,
                                         .dot = dot,
                                         .float_tile = avx2_float_tile,
                                         .quantize = quantize,
                                         .q8_tile = avx2_q8_tile,
                                         .q8_groups = avx2_q8_groups,
                                         .fine_inputs = avx2_fine_inputs,
                                         .fine_tile = avx2_fine_tile,
                                         ROW_KERNELS};
const struct cpu_table cpu_table_avx_vnni = {.isa = PL_ISA_AVX_VNNI,
                                             .group_max = 4,
                                             .dot = dot,
                                             .float_tile = avx2_float_tile,
                                             .quantize = quantize_vnni,
                                             .q8_tile = avx2_vnni_tile,
                                             .q8_groups = avx2_vnni_groups,
                                             ROW_KERNELS};
