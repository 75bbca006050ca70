/* avx512 - the instructions of the AVX-512 tables in SIMDe's words, for tests on CPUs that lack them.
 *
 * Put before the first line of src/cpu/avx512_*.c and avx2_vnni.c by the build (-include), which compiles them with the
 * flags of AVX2. SIMDe 0.7 gives most intrinsics by two halves of 256 bits; what it lacks, or rounds differently from the
 * manual, stands below, by the manual's pseudo-code. Each name is a macro over the compiler's own. Only test programs are
 * linked with what comes of it: the rule that makes build/<variant>/emulated/ is the only one that includes this file. */
#ifndef PL_TESTS_CPU_EMULATED_AVX512_H
#define PL_TESTS_CPU_EMULATED_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wextra"
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#pragma GCC diagnostic pop

/* After the compiler's and SIMDe's headers, which ask whether the instructions are there. */
#define PL_AVX512_EMULATED 1
#undef __AVX512F__
#define __AVX512F__ 1
#define __AVXVNNI__ 1

/* By this a program tells that it contains them: test_emulated.py looks for it. */
static const char emu_mark[] __attribute__((used)) = "plumb: vectors of 512 bits made of AVX2";

#define EMU static inline __attribute__((always_inline, unused))

/* A vector of 512 bits as what it is made of. */
union emu {
    __m512 v;
    __m512i i;
    __m256 half[2];
    __m256i ihalf[2];
    float f32[16];
    int32_t i32[16];
    uint32_t u32[16];
    uint16_t u16[32];
    int8_t i8[64];
    uint8_t u8[64];
};
EMU __m512 emu_join(__m256 lo, __m256 hi) { return (union emu){.half = {lo, hi}}.v; }
EMU __m512i emu_joini(__m256i lo, __m256i hi) { return (union emu){.ihalf = {lo, hi}}.i; }
EMU __m256 emu_half(__m512 v, int h) { return (union emu){.v = v}.half[h]; }
EMU __m256i emu_halfi(__m512i v, int h) { return (union emu){.i = v}.ihalf[h]; }

/* --- what SIMDe 0.7 lacks --- */
EMU __m512 emu_cvtepi32_ps(__m512i a) {
    return emu_join(_mm256_cvtepi32_ps(emu_halfi(a, 0)), _mm256_cvtepi32_ps(emu_halfi(a, 1)));
}
EMU __m512i emu_cvtps_epi32(__m512 a) {
    return emu_joini(_mm256_cvtps_epi32(emu_half(a, 0)), _mm256_cvtps_epi32(emu_half(a, 1)));
}
EMU __m512i emu_cvtepu16_epi32(__m256i a) {
    return emu_joini(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
                     _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1)));
}
EMU __m512i emu_cvtepu8_epi32(__m128i a) {
    return emu_joini(_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(a, a)));
}
EMU __m512i emu_cvtepi8_epi32(__m128i a) {
    return emu_joini(_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(a, a)));
}
EMU __m512 emu_cvtph_ps(__m256i a) {
    return emu_join(_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
}
EMU __m128i emu_cvtepi32_epi8(__m512i a) { /* the low byte of each, whatever is above it */
    union emu u = {.i = a};
    int8_t out[16];
    for (int k = 0; k < 16; k++) out[k] = u.i8[4 * k];
    __m128i r;
    memcpy(&r, out, sizeof r);
    return r;
}
EMU float emu_reduce_max_ps(__m512 a) { /* the order only matters to NaN: each step keeps the second operand then */
    __m256 h = _mm256_max_ps(emu_half(a, 0), emu_half(a, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
EMU int32_t emu_reduce_add_epi32(__m512i a) {
    union emu u = {.i = a};
    uint32_t sum = 0;
    for (int k = 0; k < 16; k++) sum += u.u32[k];
    return (int32_t)sum;
}
/* Lanes that a mask leaves out are neither read nor written. */
EMU __m512 emu_maskz_loadu_ps(__mmask16 k, const void *p) {
    union emu u = {.i32 = {0}};
    for (int n = 0; n < 16; n++)
        if (k >> n & 1) memcpy(&u.f32[n], (const char *)p + 4 * n, 4);
    return u.v;
}
EMU void emu_mask_storeu(void *p, __mmask16 k, union emu u) {
    for (int n = 0; n < 16; n++)
        if (k >> n & 1) memcpy((char *)p + 4 * n, &u.u32[n], 4);
}
EMU __m256i emu_maskz_loadu_epi16(__mmask16 k, const void *p) {
    uint16_t u[16] = {0};
    for (int n = 0; n < 16; n++)
        if (k >> n & 1) memcpy(&u[n], (const char *)p + 2 * n, 2);
    __m256i r;
    memcpy(&r, u, sizeof r);
    return r;
}
EMU __mmask16 emu_cmplt_epi32(__m512i a, __m512i b) {
    union emu x = {.i = a}, y = {.i = b};
    unsigned k = 0;
    for (int n = 0; n < 16; n++) k |= (unsigned)(x.i32[n] < y.i32[n]) << n;
    return (__mmask16)k;
}
/* Four bytes of a, unsigned, by four of b, signed, and what was there: nothing saturates. The negative control's does, as
 * the instruction of AVX2 would. */
EMU __m256i emu_dpbusd(__m256i sum, __m256i a, __m256i b) {
#if defined(PL_WRONG_INSTRUCTION)
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
#endif
    const __m256i even = _mm256_set1_epi16(0xFF);
    __m256i lo = _mm256_madd_epi16(_mm256_and_si256(a, even), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    __m256i hi = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(lo, hi));
}
EMU __m512i emu_dpbusd_512(__m512i sum, __m512i a, __m512i b) {
    return emu_joini(emu_dpbusd(emu_halfi(sum, 0), emu_halfi(a, 0), emu_halfi(b, 0)),
                     emu_dpbusd(emu_halfi(sum, 1), emu_halfi(a, 1), emu_halfi(b, 1)));
}
/* The upper halves of b's numbers, then of a's, to nearest, ties to even; below the normal range they are zeros. */
EMU uint16_t emu_bf16(uint32_t bits) {
    const uint32_t size = bits & 0x7FFFFFFFu;
    if (size < 0x00800000u) return (uint16_t)(bits >> 16 & 0x8000u);
    if (size > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}
EMU __m512i emu_cvtne2ps_pbh(__m512 a, __m512 b) {
    union emu x = {.v = a}, y = {.v = b}, r;
    for (int n = 0; n < 16; n++) r.u16[n] = emu_bf16(y.u32[n]), r.u16[16 + n] = emu_bf16(x.u32[n]);
    return r.i;
}

/* --- what it rounds differently, or makes of many pieces --- */
/* a * 2^floor(b), rounded once. */
EMU __m512 emu_scalef_ps(__m512 a, __m512 b) {
    union emu x = {.v = a}, y = {.v = b};
    for (int n = 0; n < 16; n++) {
        const float by = floorf(fminf(fmaxf(y.f32[n], -1000.0f), 1000.0f));
        const uint64_t bits = (uint64_t)(1023 + (int)by) << 52;
        double power;
        memcpy(&power, &bits, sizeof power);
        x.f32[n] = (float)((double)x.f32[n] * power);
    }
    return x.v;
}

#define EMU_OF_HALVES(f, a, ...)  emu_join(f(emu_half(a, 0), __VA_ARGS__), f(emu_half(a, 1), __VA_ARGS__))
#define EMU_OF_IHALVES(f, a, ...) emu_joini(f(emu_halfi(a, 0), __VA_ARGS__), f(emu_halfi(a, 1), __VA_ARGS__))

/* Macros already: SIMDe's, or a compiler's. Its shifts want constants before anything is inlined. */
#undef _mm512_cmplt_epi32_mask
#undef _mm512_cvtps_ph
#undef _mm512_dpbusd_epi32
#undef _mm512_extractf32x8_ps
#undef _mm512_permute_ps
#undef _mm512_roundscale_ps
#undef _mm512_scalef_ps
#undef _mm512_shuffle_f32x4
#undef _mm512_slli_epi16
#undef _mm512_srli_epi16
#define _mm512_cvtepi32_ps(a)             emu_cvtepi32_ps(a)
#define _mm512_cvtps_epi32(a)             emu_cvtps_epi32(a)
#define _mm512_cvtepu16_epi32(a)          emu_cvtepu16_epi32(a)
#define _mm512_cvtepu8_epi32(a)           emu_cvtepu8_epi32(a)
#define _mm512_cvtepi8_epi32(a)           emu_cvtepi8_epi32(a)
#define _mm512_cvtph_ps(a)                emu_cvtph_ps(a)
#define _mm512_cvtps_ph(a, how)           _mm256_setr_m128i(_mm256_cvtps_ph(emu_half(a, 0), how), _mm256_cvtps_ph(emu_half(a, 1), how))
#define _mm512_cvtepi32_epi8(a)           emu_cvtepi32_epi8(a)
#define _mm512_cvtss_f32(a)               _mm256_cvtss_f32(emu_half(a, 0))
#define _mm512_extractf32x8_ps(a, h)      emu_half(a, h)
#define _mm512_reduce_max_ps(a)           emu_reduce_max_ps(a)
#define _mm512_reduce_add_epi32(a)        emu_reduce_add_epi32(a)
#define _mm512_maskz_loadu_ps(k, p)       emu_maskz_loadu_ps(k, p)
#define _mm512_mask_storeu_ps(p, k, a)    emu_mask_storeu(p, k, (union emu){.v = (a)})
#define _mm512_mask_storeu_epi32(p, k, a) emu_mask_storeu(p, k, (union emu){.i = (a)})
#define _mm256_maskz_loadu_epi16(k, p)    emu_maskz_loadu_epi16(k, p)
#define _mm512_cmplt_epi32_mask(a, b)     emu_cmplt_epi32(a, b)
#define _mm512_shuffle_f32x4(a, b, by) \
    _mm512_castsi512_ps(_mm512_shuffle_i32x4(_mm512_castps_si512(a), _mm512_castps_si512(b), by))
#define _mm512_slli_epi16(a, by)           EMU_OF_IHALVES(_mm256_slli_epi16, a, (int)(by))
#define _mm512_srli_epi16(a, by)           EMU_OF_IHALVES(_mm256_srli_epi16, a, (int)(by))
#define _mm512_movehdup_ps(a)              emu_join(_mm256_movehdup_ps(emu_half(a, 0)), _mm256_movehdup_ps(emu_half(a, 1)))
#define _mm512_permute_ps(a, by)           EMU_OF_HALVES(_mm256_permute_ps, a, by)
#define _mm512_roundscale_ps(a, how)       EMU_OF_HALVES(_mm256_round_ps, a, how)
#define _mm512_scalef_ps(a, b)             emu_scalef_ps(a, b)
#define _mm512_dpbusd_epi32(sum, a, b)     emu_dpbusd_512(sum, a, b)
#define _mm256_dpbusd_avx_epi32(sum, a, b) emu_dpbusd(sum, a, b)
#define _mm512_cvtne2ps_pbh(a, b)          emu_cvtne2ps_pbh(a, b)

#endif
