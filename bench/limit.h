/* limit - what a core's arithmetic allows a product of many rows: GOP/s of a loop that has the instructions of one block of
 * the kernel that ran (products, sums, conversion, scale and min, loads of codes and inputs), and nothing else. All of it
 * stays in registers and a few lines of L1, no code is widened, nothing waits for an earlier block. Measured where it is
 * asked for, on one thread. Tile products (AMX) are not run: 1,024 operations a cycle, by the vendor's tables, times the
 * clock. */
#ifndef PL_BENCH_LIMIT_H
#define PL_BENCH_LIMIT_H

#include <string.h>

#include "bench/bandwidth.h"
#include "cpu/internal.h"

#if defined(__x86_64__)
#define TWICE(s) s s
#define FOUR(s)  TWICE(s) TWICE(s)
#define EIGHT(s) FOUR(s) FOUR(s)

/* AVX2 and AVX-VNNI: four rows by sixteen outputs. ymm0..7 sums, 8 and 9 codes, 12 an input, 10, 11 and 15 constants. */
#define CODES        "vmovdqa (%1),%%ymm8\n vmovdqa 32(%1),%%ymm9\n"
#define ROWS(each)   each("0", "1", "64") each("2", "3", "96") each("4", "5", "128") each("6", "7", "160")
#define INPUT(at)    "vpbroadcastd " at "(%1),%%ymm12\n"
#define ADD(kind, a) "vpadd" kind " %%ymm13,%%ymm" a ",%%ymm" a "\n"
#define BYTES(a, b, at) \
    INPUT(at) "vpmaddubsw %%ymm12,%%ymm8,%%ymm13\n" ADD("w", a) "vpmaddubsw %%ymm12,%%ymm9,%%ymm13\n" ADD("w", b)
#define WORDS(a, b, at) \
    INPUT(at) "vpmaddwd %%ymm12,%%ymm8,%%ymm13\n" ADD("d", a) "vpmaddwd %%ymm12,%%ymm9,%%ymm13\n" ADD("d", b)
#define DOTS(a, b, at) INPUT(at) "%{vex%} vpdpbusd %%ymm12,%%ymm8,%%ymm" a "\n %{vex%} vpdpbusd %%ymm12,%%ymm9,%%ymm" b "\n"
#define EACH_SUM(f)    f("0") f("1") f("2") f("3") f("4") f("5") f("6") f("7")
#define WIDEN(a)       "vpmaddwd %%ymm15,%%ymm" a ",%%ymm" a "\n"
#define WIDEN_ADD(a)   "vpmaddwd %%ymm15,%%ymm" a ",%%ymm13\n vpaddd %%ymm13,%%ymm" a ",%%ymm" a "\n"
#define SCALED(a) \
    "vcvtdq2ps %%ymm" a ",%%ymm13\n vmulps %%ymm10,%%ymm11,%%ymm14\n vfmadd213ps 256+32*" a "(%1),%%ymm14,%%ymm13\n"
#define KEPT(a)     "vmovaps %%ymm13,256+32*" a "(%1)\n"
#define PLAIN(a)    SCALED(a) KEPT(a)
#define WITH_MIN(a) SCALED(a) "vfmadd231ps %%ymm10,%%ymm11,%%ymm13\n" KEPT(a)
#define BYTE_STEP   CODES ROWS(BYTES)
#define WORD_STEP   CODES ROWS(WORDS)
#define DOT_STEP    CODES ROWS(DOTS)

/* AVX-512: eight rows by sixteen outputs, inputs broadcast by the product itself. */
#define DOT512(a)      "vpdpbusd (%1)%{1to16%},%%zmm8,%%zmm" a "\n"
#define DOT512_STEP    "vmovdqa64 (%1),%%zmm8\n" EACH_SUM(DOT512)
#define PLAIN512(a)    "vcvtdq2ps %%zmm" a ",%%zmm13\n vmulps %%zmm10,%%zmm11,%%zmm14\n vfmadd231ps %%zmm13,%%zmm14,%%zmm9\n"
#define WITH_MIN512(a) PLAIN512(a) "vfmadd231ps %%zmm10,%%zmm11,%%zmm9\n"

/* Floats: three rows by four outputs, AVX-512 six by four (of registers past 15 the names would need the flag: fewer sums,
 * which still hide what a sum waits for). */
#define FMA(v, w, a) "vfmadd231ps %%" v "15,%%" v w ",%%" v a "\n"
#define LINE(v, at)  "vmovups " at "(%1),%%" v "15\n"
#define FLOATS                                                                                                         \
    "vmovups (%1),%%ymm12\n vmovups 32(%1),%%ymm13\n vmovups 64(%1),%%ymm14\n" LINE("ymm", "96") FMA("ymm", "12", "0") \
        FMA("ymm", "13", "1") FMA("ymm", "14", "2") LINE("ymm", "128") FMA("ymm", "12", "3") FMA("ymm", "13", "4")     \
            FMA("ymm", "14", "5") LINE("ymm", "160") FMA("ymm", "12", "6") FMA("ymm", "13", "7") FMA("ymm", "14", "8") \
                LINE("ymm", "192") FMA("ymm", "12", "9") FMA("ymm", "13", "10") FMA("ymm", "14", "11")
#define FLOATS512                                                                                                          \
    "vmovups (%1),%%zmm12\n vmovups 64(%1),%%zmm13\n" LINE("zmm", "128") FMA("zmm", "12", "0") FMA("zmm", "13", "1")       \
        FMA("zmm", "12", "2") FMA("zmm", "13", "3") FMA("zmm", "12", "4") FMA("zmm", "13", "5") LINE("zmm", "192")         \
            FMA("zmm", "12", "6") FMA("zmm", "13", "7") FMA("zmm", "12", "8") FMA("zmm", "13", "9") FMA("zmm", "12", "10") \
                FMA("zmm", "13", "11")

#define LOOP(name, body)                                                                                                   \
    static inline void name(long n, float *at) {                                                                           \
        __asm__ volatile("vzeroall\n .p2align 5\n1:\n" body "dec %0\n jnz 1b\n vzeroupper\n"                               \
                         : "+r"(n)                                                                                         \
                         : "r"(at)                                                                                         \
                         : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                           "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                          \
    }
#define BYTE_END(end) EACH_SUM(WIDEN) EACH_SUM(end)
LOOP(mix_bytes, EIGHT(BYTE_STEP) BYTE_END(PLAIN))
LOOP(mix_bytes_min, EIGHT(BYTE_STEP) BYTE_END(WITH_MIN))
LOOP(mix_bytes_halves, TWICE(FOUR(BYTE_STEP) BYTE_END(PLAIN)))
LOOP(mix_bytes_halves_min, TWICE(FOUR(BYTE_STEP) BYTE_END(WITH_MIN)))
LOOP(mix_bytes_twice_min, TWICE(FOUR(BYTE_STEP) EACH_SUM(WIDEN_ADD)) EACH_SUM(WITH_MIN))
LOOP(mix_words, TWICE(EIGHT(WORD_STEP)) EACH_SUM(PLAIN))
LOOP(mix_words_min, TWICE(EIGHT(WORD_STEP)) EACH_SUM(WITH_MIN))
LOOP(mix_floats, EIGHT(FLOATS))
LOOP(mix_dots, EIGHT(DOT_STEP) EACH_SUM(PLAIN))
LOOP(mix_dots_min, EIGHT(DOT_STEP) EACH_SUM(WITH_MIN))
LOOP(mix_dots_halves, TWICE(FOUR(DOT_STEP) EACH_SUM(PLAIN)))
LOOP(mix_dots_halves_min, TWICE(FOUR(DOT_STEP) EACH_SUM(WITH_MIN)))
LOOP(mix_dots512, EIGHT(DOT512_STEP) EACH_SUM(PLAIN512))
LOOP(mix_dots512_min, EIGHT(DOT512_STEP) EACH_SUM(WITH_MIN512))
LOOP(mix_dots512_halves, TWICE(FOUR(DOT512_STEP) EACH_SUM(PLAIN512)))
LOOP(mix_dots512_halves_min, TWICE(FOUR(DOT512_STEP) EACH_SUM(WITH_MIN512)))
LOOP(mix_floats512, EIGHT(FLOATS512))
LOOP(mix_clock, "") /* a cycle a turn */

/* GOP/s of a loop whose turn does so many operations. */
static inline double limit_of(void (*loop)(long n, float *at), double operations) {
    _Alignas(64) static float lines[128];
    enum { TURNS = 2000 };
    double best = 1e9;
    for (int i = 0; i < 40; i++) {
        double t = bench_now();
        loop(TURNS, lines);
        t = bench_now() - t;
        if (t < best) best = t;
    }
    return operations * TURNS / best * 1e-9;
}

static inline double limit_avx2(const struct pl_cpu_weight *w) {
    enum { BLOCK = 2 * 4 * 16 * 32 };
    if (w->kind == KIND_FLOAT) return limit_of(mix_floats, 8 * 2 * 12 * 8);
    const bool min = w->format->has_min, halves = cpu_scale_halves(w->format->scale);
    const bool words = w->format->storage == STORE_U8 || w->format->offset_log2 == 7; /* codes pass 127 */
    if (words) return limit_of(min ? mix_words_min : mix_words, BLOCK);
    if (halves) return limit_of(min ? mix_bytes_halves_min : mix_bytes_halves, BLOCK);
    if (w->format->storage == STORE_U6) return limit_of(mix_bytes_twice_min, BLOCK);
    return limit_of(min ? mix_bytes_min : mix_bytes, BLOCK);
}

static inline double limit_dots(const struct pl_cpu_weight *w, bool wide) {
    enum { BLOCK = 2 * 4 * 16 * 32 };
    const bool min = w->format->has_min, halves = cpu_scale_halves(w->format->scale);
    if (wide && halves) return limit_of(min ? mix_dots512_halves_min : mix_dots512_halves, 2 * BLOCK);
    if (wide) return limit_of(min ? mix_dots512_min : mix_dots512, 2 * BLOCK);
    if (halves) return limit_of(min ? mix_dots_halves_min : mix_dots_halves, BLOCK);
    return limit_of(min ? mix_dots_min : mix_dots, BLOCK);
}

static inline bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* One thread's, for the kernel of this name; 0: not known. */
static inline double product_limit(const char *kernel, const struct pl_cpu_weight *w) {
    if (begins(kernel, "avx2/")) return limit_avx2(w);
    if (begins(kernel, "avx-vnni/")) return limit_dots(w, false);
    if (begins(kernel, "avx512-vnni/")) return limit_dots(w, true);
    if (begins(kernel, "avx512/")) return limit_of(mix_floats512, 8 * 2 * 12 * 16);
    /* blocks of 32 fill half a tile's depth, bf16 all of it; floats in terms: several products each, not told here */
    if (begins(kernel, "avx512-amx/") && (strstr(kernel, "xq8") != NULL || strstr(kernel, "/wide") != NULL))
        return limit_of(mix_clock, 1024);
    return 0;
}
#else
static inline double product_limit(const char *kernel, const struct pl_cpu_weight *w) {
    (void)kernel, (void)w;
    return 0;
}
#endif

#endif
