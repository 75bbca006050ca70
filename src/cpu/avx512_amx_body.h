/* avx512_amx_body - the product of one tile of weights with groups of activation rows, in the words of amx_tile.h:
 * compiled once with the instructions and once with their emulation. AMX_NAME names what it defines. */
#ifndef PL_CPU_AVX512_AMX_BODY_H
#define PL_CPU_AVX512_AMX_BODY_H

#include "cpu/amx_tile.h"
#include "cpu/avx512_chunk.h"
#include "cpu/avx512_q8.h"

/* Sums of 16 rows: 0 and 1 in turn, their inputs 2; of 8 rows: 4 and 5, inputs 6. Codes: 3 and 7 in turn. */
static const struct tile_config config_q8 __attribute__((aligned(64))) = {
    .palette = 1,
    .row_bytes = {64, 64, 32, 64, 64, 64, 32, 64},
    .rows = {16, 16, 16, 8, 8, 8, 8, 8},
};

/* The step's sums into `to`. */
#define AMX_STEP(c, a, b, dp, rows, inputs, codes, to)    \
    do {                                                  \
        tile_zero(c);                                     \
        tile_load(a, inputs, ACT_BLOCK, rows *ACT_BLOCK); \
        tile_load(b, codes, 64, 512);                     \
        dp(c, a, b);                                      \
        tile_store(c, to);                                \
    } while (0)

/* acc[m] += the sums d of step t with the scales of weights and of the block of activations at `inputs`. */
Q8_INLINE void amx_scale(const int rows, const bool has_min, const bool halves, const struct q8_chunk *c, size_t t,
                         const unsigned char *inputs, int32_t (*d)[TILE_ROWS], __m512 *acc) {
    const struct q8_acts a = acts_at(inputs, rows);
    const __m512 scale = _mm512_load_ps(c->scale[t]), min = _mm512_load_ps(c->min[t]);
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) {
        __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(a.scale[m]));
        acc[m] = _mm512_fmadd_ps(both, _mm512_cvtepi32_ps(_mm512_load_si512((const void *)d[m])), acc[m]);
        if (has_min) {
            float sum = halves ? a.scale[m] * (float)-a.half[t % 2][m] : a.ssum[m];
            acc[m] = _mm512_fmadd_ps(min, _mm512_set1_ps(sum), acc[m]);
        }
    }
}

/* One chunk against one group: the next step's product is under way while this one's sums are scaled. */
#define AMX_CHUNK(name, rows, c0, c1, a, dp, has_min, halves)                                                       \
    static void name(unsigned offset_log2, const struct q8_chunk *c, size_t blocks, const unsigned char *inputs,    \
                     float(*accs)[TILE_ROWS]) {                                                                     \
        _Alignas(64) int32_t even[TILE_ROWS][TILE_ROWS], odd[TILE_ROWS][TILE_ROWS];                                 \
        const size_t steps = blocks << (halves), each = (size_t)(rows)*ACT_ROW_BYTES;                               \
        (void)offset_log2;                                                                                          \
        __m512 acc[rows];                                                                                           \
        _Pragma("GCC unroll 16") for (int m = 0; m < (rows); m++) acc[m] = _mm512_load_ps(accs[m]);                 \
        AMX_STEP(c0, a, 3, dp, rows, inputs, c->codes[0], even);                                                    \
        for (size_t t = 0; t < steps; t += 2) {                                                                     \
            const unsigned char *now = inputs + ((halves) ? t / 2 : t) * each, *next = (halves) ? now : now + each; \
            if (t + 1 < steps) AMX_STEP(c1, a, 7, dp, rows, next, c->codes[t + 1], odd);                            \
            amx_scale(rows, has_min, halves, c, t, now, even, acc);                                                 \
            if (t + 2 < steps) AMX_STEP(c0, a, 3, dp, rows, next + each, c->codes[t + 2], even);                    \
            if (t + 1 < steps) amx_scale(rows, has_min, halves, c, t + 1, next, odd, acc);                          \
        }                                                                                                           \
        _Pragma("GCC unroll 16") for (int m = 0; m < (rows); m++) _mm512_store_ps(accs[m], acc[m]);                 \
    }
AMX_CHUNK(chunk_16_signed, 16, 0, 1, 2, tile_dpbssd, false, false)
AMX_CHUNK(chunk_16_signed_halves, 16, 0, 1, 2, tile_dpbssd, false, true)
AMX_CHUNK(chunk_16_min, 16, 0, 1, 2, tile_dpbsud, true, false)
AMX_CHUNK(chunk_16_min_halves, 16, 0, 1, 2, tile_dpbsud, true, true)
AMX_CHUNK(chunk_8_signed, 8, 4, 5, 6, tile_dpbssd, false, false)
AMX_CHUNK(chunk_8_signed_halves, 8, 4, 5, 6, tile_dpbssd, false, true)
AMX_CHUNK(chunk_8_min, 8, 4, 5, 6, tile_dpbsud, true, false)
AMX_CHUNK(chunk_8_min_halves, 8, 4, 5, 6, tile_dpbsud, true, true)

static chunk_fns tiles = {
    {{chunk_16_signed, chunk_16_signed_halves}, {chunk_16_min, chunk_16_min_halves}},
    {{chunk_8_signed, chunk_8_signed_halves}, {chunk_8_min, chunk_8_min_halves}},
};

void AMX_NAME(groups)(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                      size_t y_stride, const float *bias, bool accumulate) {
    size_t rows = 0;
    for (size_t i = 0; i < n; i++) rows += g[i].rows;
    if (rows < CPU_AMX_ROWS_MIN) {
        avx512_groups(w, tile, g, n, y, y_stride, bias, accumulate);
        return;
    }
    for (size_t i = 0, run; i < n; i += run) {
        for (run = 0; run < CHUNK_GROUPS && i + run < n && g[i + run].rows >= CPU_AMX_GROUP_MIN;) run++;
        if (run > 0) {
            tile_configure(&config_q8);
            avx512_chunks_run(tiles, true, w, tile, g + i, run, y, y_stride, bias, accumulate);
            tile_release();
            continue;
        }
        run = 1;
        avx512_q8_tile(w, tile, &g[i], y + g[i].first * y_stride, y_stride, bias, accumulate);
    }
}

#endif
