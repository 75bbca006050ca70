/* vec - the one vector vocabulary of the row kernels: 16, 8, 4 or 1 floats, by the flags a file is compiled with.
 *
 * rows_body.h and attn_body.h are written once in these words and compiled for each table (scalar_, avx2_, avx512_, neon_).
 * Everything is static inline; fused multiply-add only where vf_fma says so. */
#ifndef PL_CPU_VEC_H
#define PL_CPU_VEC_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tensor/convert.h"

#if defined(__AVX512F__)
#include <immintrin.h>
enum { VW = 16 };
typedef __m512 vf;
static inline vf vf_set1(float a) { return _mm512_set1_ps(a); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
static inline __mmask16 vf_tail(size_t n) { return (__mmask16)((1u << n) - 1u); }
static inline vf vf_loadn(const float *p, size_t n) { return _mm512_maskz_loadu_ps(vf_tail(n), p); }
static inline void vf_storen(float *p, vf v, size_t n) { _mm512_mask_storeu_ps(p, vf_tail(n), v); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_abs(vf a) { return _mm512_abs_ps(a); }
static inline float vf_first(vf a) { return _mm512_cvtss_f32(a); }
/* a < b ? x : y */
static inline vf vf_select_lt(vf a, vf b, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
static inline float vf_hsum(vf a) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
/* Four of them at once; the same additions. */
static inline void vf_hsum4(vf a, vf b, vf c, vf d, float *out) {
    __m512 p = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    __m512 r = _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x88), _mm512_shuffle_f32x4(p, q, 0xDD));
    r = _mm512_add_ps(r, _mm512_permute_ps(r, 0x4E));
    r = _mm512_add_ps(r, _mm512_movehdup_ps(r));
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, r)));
}
static inline float vf_hmax(vf a) { return _mm512_reduce_max_ps(a); }
static inline vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vf vf_load_bf16(const uint16_t *p) {
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
/* VW places of 4 bits, the first in the low ones, looked up among sixteen numbers (the last eight are the first, negative).
 */
static inline vf vf_levels(const uint8_t *p, const float *levels) {
    int32_t w[2];
    memcpy(w, p, sizeof w);
    __m512i all = _mm512_inserti64x4(_mm512_set1_epi32(w[0]), _mm256_set1_epi32(w[1]), 1);
    __m512i by = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(all, by), _mm512_loadu_ps(levels)); /* reads the low four bits */
}
static inline void vf_store_f16(uint16_t *p, vf v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
/* 2^n * p for integral n; underflows to 0, overflows to infinity. */
static inline vf vf_ldexp(vf p, vf n) { return _mm512_scalef_ps(p, n); }

#elif defined(__AVX2__)
#include <immintrin.h>
enum { VW = 8 };
typedef __m256 vf;
static inline vf vf_set1(float a) { return _mm256_set1_ps(a); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
static inline __m256i vf_tail(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf vf_loadn(const float *p, size_t n) { return _mm256_maskload_ps(p, vf_tail(n)); }
static inline void vf_storen(float *p, vf v, size_t n) { _mm256_maskstore_ps(p, vf_tail(n), v); }
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline float vf_first(vf a) { return _mm256_cvtss_f32(a); }
static inline vf vf_select_lt(vf a, vf b, vf x, vf y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
static inline float vf_hsum(vf a) {
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static inline void vf_hsum4(vf a, vf b, vf c, vf d, float *out) {
    out[0] = vf_hsum(a), out[1] = vf_hsum(b), out[2] = vf_hsum(c), out[3] = vf_hsum(d);
}
static inline float vf_hmax(vf a) {
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
static inline vf vf_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vf vf_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline vf vf_levels(const uint8_t *p, const float *levels) { /* as with AVX-512 */
    int32_t w;
    memcpy(&w, p, sizeof w);
    __m256i places = _mm256_srlv_epi32(_mm256_set1_epi32(w), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    vf mag = _mm256_permutevar8x32_ps(_mm256_loadu_ps(levels), places); /* reads the low three bits */
    return _mm256_xor_ps(mag, _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(places, 28)), _mm256_set1_ps(-0.0f)));
}
static inline void vf_store_f16(uint16_t *p, vf v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline vf vf_ldexp(vf p, vf n) {
    /* two factors, so that n from -252 to 254 works and tiny results round instead of wrapping */
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1), rest = _mm256_sub_epi32(i, half);
    __m256i bias = _mm256_set1_epi32(127);
    vf a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    vf b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(p, a), b);
}

#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
enum { VW = 4 };
typedef float32x4_t vf;
static inline vf vf_set1(float a) { return vdupq_n_f32(a); }
static inline vf vf_load(const float *p) { return vld1q_f32(p); }
static inline void vf_store(float *p, vf v) { vst1q_f32(p, v); }
static inline vf vf_loadn(const float *p, size_t n) {
    float f[4] = {0};
    for (size_t i = 0; i < n && i < 4; i++) f[i] = p[i];
    return vld1q_f32(f);
}
static inline void vf_storen(float *p, vf v, size_t n) {
    float f[4];
    vst1q_f32(f, v);
    for (size_t i = 0; i < n && i < 4; i++) p[i] = f[i];
}
static inline vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf vf_max(vf a, vf b) { return vmaxq_f32(a, b); }
static inline vf vf_min(vf a, vf b) { return vminq_f32(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf vf_round(vf a) { return vrndnq_f32(a); }
static inline vf vf_abs(vf a) { return vabsq_f32(a); }
static inline float vf_first(vf a) { return vgetq_lane_f32(a, 0); }
static inline vf vf_select_lt(vf a, vf b, vf x, vf y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
static inline float vf_hsum(vf a) {
    float32x2_t h = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(vpadd_f32(h, h), 0);
}
static inline void vf_hsum4(vf a, vf b, vf c, vf d, float *out) {
    out[0] = vf_hsum(a), out[1] = vf_hsum(b), out[2] = vf_hsum(c), out[3] = vf_hsum(d);
}
static inline float vf_hmax(vf a) { return vmaxvq_f32(a); }
static inline vf vf_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline vf vf_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline void vf_store_f16(uint16_t *p, vf v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
static inline vf vf_ldexp(vf p, vf n) { /* two factors, as on AVX2 */
    int32x4_t i = vcvtnq_s32_f32(n), half = vshrq_n_s32(i, 1), rest = vsubq_s32(i, half), bias = vdupq_n_s32(127);
    vf a = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
    vf b = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
    return vmulq_f32(vmulq_f32(p, a), b);
}

#else
enum { VW = 1 };
typedef float vf;
static inline vf vf_set1(float a) { return a; }
static inline vf vf_load(const float *p) { return *p; }
static inline void vf_store(float *p, vf v) { *p = v; }
static inline vf vf_loadn(const float *p, size_t n) { return n != 0 ? *p : 0.0f; }
static inline void vf_storen(float *p, vf v, size_t n) {
    if (n != 0) *p = v;
}
static inline vf vf_add(vf a, vf b) { return a + b; }
static inline vf vf_sub(vf a, vf b) { return a - b; }
static inline vf vf_mul(vf a, vf b) { return a * b; }
static inline vf vf_div(vf a, vf b) { return a / b; }
static inline vf vf_max(vf a, vf b) { return a > b ? a : b; }
static inline vf vf_min(vf a, vf b) { return a < b ? a : b; }
static inline vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf vf_round(vf a) { return rintf(a); }
static inline vf vf_abs(vf a) { return fabsf(a); }
static inline float vf_first(vf a) { return a; }
static inline vf vf_select_lt(vf a, vf b, vf x, vf y) { return a < b ? x : y; }
static inline float vf_hsum(vf a) { return a; }
static inline void vf_hsum4(vf a, vf b, vf c, vf d, float *out) { out[0] = a, out[1] = b, out[2] = c, out[3] = d; }
static inline float vf_hmax(vf a) { return a; }
static inline vf vf_load_f16(const uint16_t *p) { return pl_f16_to_f32(*p); }
static inline vf vf_load_bf16(const uint16_t *p) { return pl_bf16_to_f32(*p); }
static inline void vf_store_f16(uint16_t *p, vf v) { *p = pl_f32_to_f16(v); }
static inline vf vf_ldexp(vf p, vf n) { return ldexpf(p, (int)n); }
#endif

/* e^x: relative error below 2e-7 where the result is normal; exactly 0 below -104 (so for -infinity), large but
 * finite or infinite above 88.7. NaN is not preserved on every table and no caller passes one on purpose. */
static inline vf vf_exp(vf x) {
    x = vf_min(vf_max(x, vf_set1(-104.0f)), vf_set1(88.8f));
    vf n = vf_round(vf_mul(x, vf_set1(1.44269504f)));
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(vf_mul(r, r), p, vf_add(r, vf_set1(1.0f)));
    return vf_ldexp(p, n);
}
/* 1 / (1 + e^-x) */
static inline vf vf_sigmoid(vf x) {
    vf one = vf_set1(1.0f);
    return vf_div(one, vf_add(one, vf_exp(vf_sub(vf_set1(0.0f), x))));
}
/* tanh: a polynomial near 0, exponentials further out. */
static inline vf vf_tanh(vf x) {
    vf z = vf_mul(x, x), p = vf_set1(-5.70498872745e-3f);
    p = vf_fma(p, z, vf_set1(2.06390887954e-2f));
    p = vf_fma(p, z, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, z, vf_set1(-3.33332819422e-1f));
    vf near = vf_fma(vf_mul(p, z), x, x);
    vf far = vf_sub(vf_mul(vf_set1(2.0f), vf_sigmoid(vf_add(x, x))), vf_set1(1.0f));
    return vf_select_lt(vf_abs(x), vf_set1(0.625f), near, far);
}

#endif
