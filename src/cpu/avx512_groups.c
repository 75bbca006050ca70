/* Products of several groups of activation rows in vectors, on codes that were widened once for all of them. */
#include <string.h>

#include "cpu/avx512_chunk.h"
#include "cpu/avx512_q8.h"

/* One step against one block of `rows` activation rows. start_at: what each row's sum starts from. */
Q8_INLINE void step_run(const int rows, const bool has_min, const bool halves, const struct q8_chunk *c, size_t t,
                        const int half, const unsigned char *inputs, const int32_t *start_at, __m512 *acc) {
    const struct q8_acts a = acts_at(inputs, rows);
    const int from = half > 0 ? 4 : 0, to = halves ? from + 4 : 8;
    const __m512 scale = _mm512_load_ps(c->scale[t]);
    __m512i w[8];
#pragma GCC unroll 8
    for (int j = from; j < to; j++) w[j] = _mm512_load_si512((const void *)(c->codes[t] + 64 * j));
#pragma GCC unroll 4
    for (int m0 = 0; m0 < rows; m0 += 4) {
        __m512i d[4];
#pragma GCC unroll 4
        for (int m = 0; m < 4; m++) d[m] = has_min ? _mm512_setzero_si512() : _mm512_set1_epi32(start_at[m0 + m]);
        q8_dots(w, a.q + 32 * m0, from, to, 4, d);
#pragma GCC unroll 4
        for (int m = 0; m < 4; m++) {
            __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(a.scale[m0 + m]));
            acc[m0 + m] = _mm512_fmadd_ps(both, _mm512_cvtepi32_ps(d[m]), acc[m0 + m]);
            if (has_min) {
                float sum = halves ? a.scale[m0 + m] * (float)-a.half[half][m0 + m] : a.ssum[m0 + m];
                acc[m0 + m] = _mm512_fmadd_ps(_mm512_load_ps(c->min[t]), _mm512_set1_ps(sum), acc[m0 + m]);
            }
        }
    }
}

/* The offset's part of all rows at once: -sum(q) << offset. */
Q8_INLINE void start_all(const int rows, const int32_t *nsum, unsigned offset_log2, int32_t *to) {
    const __m128i by = _mm_cvtsi32_si128((int)offset_log2);
    if (rows == 16)
        _mm512_store_si512((void *)to, _mm512_sll_epi32(_mm512_loadu_si512((const void *)nsum), by));
    else
        _mm256_store_si256((__m256i *)(void *)to,
                           _mm256_sll_epi32(_mm256_loadu_si256((const __m256i *)(const void *)nsum), by));
}

Q8_INLINE void chunk_run(const int rows, const bool has_min, const bool halves, unsigned offset_log2,
                         const struct q8_chunk *c, size_t blocks, const unsigned char *inputs, float (*accs)[TILE_ROWS]) {
    _Alignas(64) int32_t start_at[CHUNK_STEPS][16];
    const size_t each = (size_t)rows * ACT_ROW_BYTES;
    for (size_t b = 0; b < blocks && !has_min; b++) {
        const struct q8_acts a = acts_at(inputs + b * each, rows);
        start_all(rows, halves ? a.half[0] : a.nsum, offset_log2, start_at[halves ? 2 * b : b]);
        if (halves) start_all(rows, a.half[1], offset_log2, start_at[2 * b + 1]);
    }
    __m512 acc[16];
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) acc[m] = _mm512_load_ps(accs[m]);
    for (size_t b = 0; b < blocks; b++) {
        const unsigned char *in = inputs + b * each;
        if (halves) {
            step_run(rows, has_min, true, c, 2 * b, 0, in, start_at[2 * b], acc);
            step_run(rows, has_min, true, c, 2 * b + 1, 1, in, start_at[2 * b + 1], acc);
        } else {
            step_run(rows, has_min, false, c, b, 0, in, start_at[b], acc);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) _mm512_store_ps(accs[m], acc[m]);
}

#define GROUPS_CHUNK(name, rows, has_min, halves)                                                                \
    static void name(unsigned offset_log2, const struct q8_chunk *c, size_t blocks, const unsigned char *inputs, \
                     float(*accs)[TILE_ROWS]) {                                                                  \
        chunk_run(rows, has_min, halves, offset_log2, c, blocks, inputs, accs);                                  \
    }
GROUPS_CHUNK(chunk_16_offset, 16, false, false)
GROUPS_CHUNK(chunk_16_offset_halves, 16, false, true)
GROUPS_CHUNK(chunk_16_min, 16, true, false)
GROUPS_CHUNK(chunk_16_min_halves, 16, true, true)
GROUPS_CHUNK(chunk_8_offset, 8, false, false)
GROUPS_CHUNK(chunk_8_offset_halves, 8, false, true)
GROUPS_CHUNK(chunk_8_min, 8, true, false)
GROUPS_CHUNK(chunk_8_min_halves, 8, true, true)

static chunk_fns vectors = {
    {{chunk_16_offset, chunk_16_offset_halves}, {chunk_16_min, chunk_16_min_halves}},
    {{chunk_8_offset, chunk_8_offset_halves}, {chunk_8_min, chunk_8_min_halves}},
};

void avx512_chunks_run(chunk_fns fns, bool less_offset, const struct pl_cpu_weight *w, size_t tile_index,
                       const struct cpu_act_group *g, size_t n, float *y, size_t y_stride, const float *bias,
                       bool accumulate) {
    struct q8_chunk chunk;
    _Alignas(64) float accs[CHUNK_GROUPS][TILE_ROWS][TILE_ROWS];
    memset(accs, 0, n * sizeof accs[0]);
    const unsigned char *tile = w->tiles + tile_index * w->layout.bytes;
    const bool halves = cpu_scale_halves(w->format->scale);
    chunk_unpack_fn unpack_blocks = avx512_chunk_unpack(w->format);
    for (size_t b = 0, count; b < w->layout.blocks; b += count) {
        count = PL_MIN((size_t)CHUNK_BLOCKS, w->layout.blocks - b);
        unpack_blocks(w, tile, b, count, less_offset, &chunk);
        for (size_t i = 0; i < n; i++)
            fns[g[i].rows == 8][w->format->has_min][halves](w->format->offset_log2, &chunk, count,
                                                            g[i].data + b * g[i].rows * ACT_ROW_BYTES, accs[i]);
    }
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < g[i].rows; r++)
            q8_store(w, tile_index, _mm512_load_ps(accs[i][r]), bias, accumulate, y + (g[i].first + r) * y_stride);
}

/* Formats that are widened by an instruction or two are as fast without it (measured: docs/perf/cpu.md). */
static bool pays(const struct cpu_tile_format *f) {
    switch (f->dtype) {
    case PL_Q4_0:
    case PL_Q4_1:
    case PL_Q4_K:
    case PL_Q8_0:
    case PL_TERNARY:
    case PL_TQ1_0:
    case PL_TQ2_0: return false;
    default: return true;
    }
}

void avx512_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                   size_t y_stride, const float *bias, bool accumulate) {
    const size_t most = pays(w->format) ? CHUNK_GROUPS : 0;
    for (size_t i = 0, run; i < n; i += run) {
        for (run = 0; run < most && i + run < n && g[i + run].rows >= 8;) run++;
        if (run > 1) { /* at least two groups share the widening */
            avx512_chunks_run(vectors, false, w, tile, g + i, run, y, y_stride, bias, accumulate);
            continue;
        }
        run = 1;
        avx512_q8_tile(w, tile, &g[i], y + g[i].first * y_stride, y_stride, bias, accumulate);
    }
}
