/* The AVX-512 table: which kernel multiplies which format, and how activations are made 8-bit. */
#include "cpu/attn_body.h"
#include "cpu/avx512_chunk.h"
#include "cpu/avx512_q8.h"
#include "cpu/dot_body.h"

void avx512_float_tile(const struct pl_cpu_matmul *m, size_t i, size_t tile, size_t begin, size_t end, void *scratch);

static cpu_q8_fn kernel_of(const struct cpu_tile_format *f) {
    switch (f->dtype) {
    case PL_Q4_0: return avx512_q4_0;
    case PL_Q4_1: return avx512_q4_1;
    case PL_Q5_0: return avx512_q5_0;
    case PL_Q5_1: return avx512_q5_1;
    case PL_Q8_0: return avx512_q8_0;
    case PL_Q2_K: return avx512_q2_k;
    case PL_Q3_K: return avx512_q3_k;
    case PL_Q4_K: return avx512_q4_k;
    case PL_Q5_K: return avx512_q5_k;
    case PL_Q6_K: return avx512_q6_k;
    case PL_IQ4_NL: return avx512_iq4_nl;
    case PL_IQ4_XS: return avx512_iq4_xs;
    case PL_MXFP4: return avx512_mxfp4;
    case PL_IQ1_S: return avx512_iq1_s;
    case PL_IQ1_M: return avx512_iq1_m;
    case PL_IQ2_XXS: return avx512_iq2_32;
    case PL_IQ2_XS:
    case PL_IQ2_S: return avx512_iq2_16;
    case PL_IQ3_XXS: return avx512_iq3_xxs;
    case PL_IQ3_S: return avx512_iq3_s;
    case PL_TERNARY:
    case PL_TQ1_0:
    case PL_TQ2_0: return avx512_tq;
    default: break;
    }
    return f->bits == 2   ? avx512_mlx2
           : f->bits == 3 ? avx512_mlx3
           : f->bits == 4 ? avx512_mlx4
           : f->bits == 5 ? avx512_mlx5
           : f->bits == 6 ? avx512_mlx6
                          : avx512_mlx8;
}

/* A block of one row: 8-bit values at q, its scale returned, the sums of its halves in sum. */
static inline float quantize_block(const float *x, size_t n, int8_t *q, int32_t *sum) {
    __m512 a = n >= 16 ? _mm512_loadu_ps(x) : vf_loadn(x, n), b = n > 16 ? vf_loadn(x + 16, n - 16) : _mm512_setzero_ps();
    if (n >= 32) b = _mm512_loadu_ps(x + 16);
    float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    __m512 inv = _mm512_set1_ps(top >= PL_CPU_ACT_TINY ? 127.0f / top : 0.0f);
    __m512i ia = _mm512_cvtps_epi32(_mm512_mul_ps(a, inv)), ib = _mm512_cvtps_epi32(_mm512_mul_ps(b, inv));
    _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(ia));
    _mm_storeu_si128((__m128i *)(q + 16), _mm512_cvtepi32_epi8(ib));
    sum[0] = _mm512_reduce_add_epi32(ia);
    sum[1] = _mm512_reduce_add_epi32(ib);
    return top / 127.0f;
}

static void quantize(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst) {
    for (size_t at = 0; at < in; at += ACT_BLOCK, dst += rows * ACT_ROW_BYTES) {
        float *scale = (float *)(void *)(dst + 32 * rows), *ssum = scale + rows;
        int32_t *nsum = (int32_t *)(void *)(ssum + rows), *n0 = nsum + rows, *n1 = n0 + rows, sum[2];
        for (size_t m = 0; m < rows; m++) {
            scale[m] = quantize_block(x + m * stride + at, PL_MIN((size_t)ACT_BLOCK, in - at), (int8_t *)dst + 32 * m, sum);
            ssum[m] = scale[m] * (float)(sum[0] + sum[1]);
            nsum[m] = -(sum[0] + sum[1]);
            n0[m] = -sum[0];
            n1[m] = -sum[1];
        }
    }
}

void avx512_q8_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate) {
    kernel_of(w->format)(w, tile, g, y, y_stride, bias, accumulate);
}

const struct cpu_table cpu_table_avx512 = {.isa = PL_ISA_AVX512,
                                           .group_max = 16,
                                           .dot = dot,
                                           .float_tile = avx512_float_tile,
                                           .quantize = quantize,
                                           .q8_tile = avx512_q8_tile,
                                           .q8_groups = avx512_groups,
                                           ROW_KERNELS};
