/* avx512_amx_float - the product of one tile of float weights with groups of activation rows, by terms (avx512_terms.h), in
 * the words of amx_tile.h. Weights are the left operand, so bf16 ones are read where the file has them.
 *
 * Products of terms go to three sums by their size, so that no sum waits for the one before and small products meet small
 * sums; the three are added at the end, the smallest first. An element's operations do not depend on its neighbours, nor on
 * how many there are: the number of rows of a call changes no bit. */
#ifndef PL_CPU_AVX512_AMX_FLOAT_H
#define PL_CPU_AVX512_AMX_FLOAT_H

#include <string.h>

#include "cpu/amx_tile.h"
#include "cpu/avx512_q8.h"
#include "cpu/avx512_terms.h"

/* Groups of n rows: sums 0 to 2, weights 3 to 5, activations 6 and 7. */
#define TERM_CONFIG(n) \
    { .palette = 1, .row_bytes = {4 * n, 4 * n, 4 * n, 64, 64, 64, 4 * n, 4 * n}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}, }
static const struct tile_config term_configs[16] __attribute__((aligned(64))) = {
    TERM_CONFIG(1),  TERM_CONFIG(2),  TERM_CONFIG(3),  TERM_CONFIG(4),  TERM_CONFIG(5),  TERM_CONFIG(6),
    TERM_CONFIG(7),  TERM_CONFIG(8),  TERM_CONFIG(9),  TERM_CONFIG(10), TERM_CONFIG(11), TERM_CONFIG(12),
    TERM_CONFIG(13), TERM_CONFIG(14), TERM_CONFIG(15), TERM_CONFIG(16)};

/* A chunk of a tile of weights: term k of block b at data + b * block + k * term, rows `stride` apart. */
struct term_chunk {
    const unsigned char *data;
    size_t terms, block, stride;
};

static struct term_chunk terms_of(const struct pl_cpu_weight *w, size_t tile, size_t first, size_t count,
                                  unsigned char *scratch) {
    const bool whole = (tile + 1) * TILE_ROWS <= w->out && (first + count) * TERM_BLOCK <= w->in;
    if (w->t.dtype == PL_BF16 && whole) {
        const unsigned char *at = (const unsigned char *)w->t.data + (tile * TILE_ROWS * w->in + first * TERM_BLOCK) * 2;
        for (size_t r = 0; r < TILE_ROWS; r++) cpu_prefetch(at + r * w->in * 2 + 2048, (int)TERM_CHUNK * 64);
        return (struct term_chunk){at, 1, 64, 2 * w->in};
    }
    size_t terms = avx512_weight_terms(w, tile, first, count, scratch);
    return (struct term_chunk){scratch, terms, terms * 1024, 64};
}

/* sums += the chunk's weights by a group's activations, n rows, starting at `x`. */
static void term_products(const struct term_chunk *c, size_t count, const unsigned char *x, size_t n, bool first,
                          float (*sums)[TILE_ROWS][TILE_ROWS]) {
    const size_t term = 64 * n; /* bytes of an activation tile */
    if (first) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
    } else {
        tile_load(0, sums[0], 64, 1024);
        tile_load(1, sums[1], 64, 1024);
        tile_load(2, sums[2], 64, 1024);
    }
    for (size_t b = 0; b < count; b++, x += TERMS * term) {
        const unsigned char *w = c->data + b * c->block;
        tile_load_view(3, w, c->stride);
        tile_load_view(6, x, 4 * n);
        tile_dpbf16ps(0, 3, 6);
        tile_load_view(7, x + term, 4 * n);
        tile_dpbf16ps(1, 3, 7);
        if (c->terms > 1) {
            tile_load_view(4, w + 1024, 64);
            tile_dpbf16ps(1, 4, 6);
            tile_dpbf16ps(2, 4, 7);
        }
        if (c->terms > 2) {
            tile_load_view(5, w + 2048, 64);
            tile_dpbf16ps(2, 5, 6);
        }
        tile_load_view(6, x + 2 * term, 4 * n);
        tile_dpbf16ps(2, 3, 6);
    }
    tile_store(0, sums[0]);
    tile_store(1, sums[1]);
    tile_store(2, sums[2]);
}

/* Sums are [output][activation row]; y wants rows. */
static void put_group(const struct pl_cpu_weight *w, size_t tile, float (*sums)[TILE_ROWS][TILE_ROWS], size_t rows, float *y,
                      size_t y_stride, const float *bias, bool accumulate) {
    _Alignas(64) uint32_t m[TILE_ROWS][TILE_ROWS];
    for (size_t o = 0; o < TILE_ROWS; o++) {
        __m512 small = _mm512_add_ps(_mm512_load_ps(sums[1][o]), _mm512_load_ps(sums[2][o]));
        _mm512_store_ps((void *)m[o], _mm512_add_ps(_mm512_load_ps(sums[0][o]), small));
    }
    avx512_turn(m);
    for (size_t r = 0; r < rows; r++)
        q8_store(w, tile, _mm512_load_ps((const void *)m[r]), bias, accumulate, y + r * y_stride);
}

/* n groups of the same number of rows. */
static void float_run(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                      size_t y_stride, const float *bias, bool accumulate) {
    _Alignas(64) unsigned char scratch[TERM_CHUNK * TERMS * 1024];
    _Alignas(64) float sums[TERM_RUN][TERMS][TILE_ROWS][TILE_ROWS];
    const size_t rows = g[0].rows, blocks = (w->in + TERM_BLOCK - 1) / TERM_BLOCK;
    memset(sums, 0, n * sizeof sums[0]);
    tile_configure(&term_configs[rows - 1]);
    for (size_t b = 0, count; b < blocks; b += count) {
        count = PL_MIN((size_t)TERM_CHUNK, blocks - b);
        if ((b + count) * TERM_BLOCK > w->in && count > 1) count--; /* an odd end by itself: the rest stays a view */
        struct term_chunk c = terms_of(w, tile, b, count, scratch);
        for (size_t i = 0; i < n; i++) term_products(&c, count, g[i].data + b * TERMS * 64 * rows, rows, b == 0, sums[i]);
    }
    tile_release();
    for (size_t i = 0; i < n; i++) put_group(w, tile, sums[i], rows, y + g[i].first * y_stride, y_stride, bias, accumulate);
}

void AMX_NAME(float_groups)(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                            size_t y_stride, const float *bias, bool accumulate) {
    for (size_t i = 0, run; i < n; i += run) {
        for (run = 1; run < TERM_RUN && i + run < n && g[i + run].rows == g[i].rows;) run++;
        float_run(w, tile, g + i, run, y, y_stride, bias, accumulate);
    }
}

#endif
