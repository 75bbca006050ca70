/* avx512_amx_wide - products of up to 512 rows with up to sixteen tiles of weights in bf16 (wide.h), in the words of
 * amx_tile.h. Four sums at a time, of 32 rows by 32 outputs: each operand that is loaded meets two others, and no sum waits
 * for the one before. */
#ifndef PL_CPU_AVX512_AMX_WIDE_H
#define PL_CPU_AVX512_AMX_WIDE_H

#include "cpu/amx_tile.h"
#include "cpu/avx512_q8.h"
#include "cpu/wide.h"

/* Sums 0 to 3, rows 4 and 5, weights 6 and 7. */
static const struct tile_config wide_config __attribute__((aligned(64))) = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

/* Blocks of 32 inputs: terms of weights (the same for rows of one term), terms of rows. Of two terms by two, the smallest
 * product is left out. */
struct wide_shape {
    size_t blocks, weight_terms, row_terms;
    size_t ahead; /* bytes to rows that are asked for ahead; 0: none */
};

/* A block of rows that comes later, from the last cache into the second. */
static inline void wide_prefetch(const unsigned char *block) {
    for (size_t line = 0; line < WIDE_BLOCK; line += 64) __builtin_prefetch(block + line, 0, 2);
}

/* Two groups of rows against two tiles. */
static void wide_four(const unsigned char *a0, const unsigned char *a1, const unsigned char *b0, const unsigned char *b1,
                      const struct wide_shape *n, bool first, float (*sums)[16][16]) {
    const size_t b_step = n->weight_terms * WIDE_BLOCK, a_step = n->row_terms * WIDE_BLOCK;
    if (first) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    } else {
        tile_load(0, sums[0], 64, 1024);
        tile_load(1, sums[1], 64, 1024);
        tile_load(2, sums[2], 64, 1024);
        tile_load(3, sums[3], 64, 1024);
    }
    for (size_t k = 0; k < n->blocks; k++, a0 += a_step, a1 += a_step, b0 += b_step, b1 += b_step) {
        for (size_t at = 0; n->ahead > 0 && at < a_step; at += WIDE_BLOCK) {
            wide_prefetch(a0 + n->ahead + at);
            wide_prefetch(a1 + n->ahead + at);
        }
        tile_load_stream(4, a0, 64);
        tile_load(6, b0, 64, 1024);
        tile_dpbf16ps(0, 4, 6);
        tile_load(7, b1, 64, 1024);
        tile_dpbf16ps(1, 4, 7);
        tile_load_stream(5, a1, 64);
        tile_dpbf16ps(2, 5, 6);
        tile_dpbf16ps(3, 5, 7);
        if (n->weight_terms > 1) {
            tile_load(6, b0 + WIDE_BLOCK, 64, 1024);
            tile_dpbf16ps(0, 4, 6);
            tile_load(7, b1 + WIDE_BLOCK, 64, 1024);
            tile_dpbf16ps(1, 4, 7);
            tile_dpbf16ps(2, 5, 6);
            tile_dpbf16ps(3, 5, 7);
            tile_load(6, b0, 64, 1024);
            tile_load(7, b1, 64, 1024);
        }
        if (n->row_terms > 1) {
            tile_load_stream(4, a0 + WIDE_BLOCK, 64);
            tile_dpbf16ps(0, 4, 6);
            tile_dpbf16ps(1, 4, 7);
            tile_load_stream(5, a1 + WIDE_BLOCK, 64);
            tile_dpbf16ps(2, 5, 6);
            tile_dpbf16ps(3, 5, 7);
        }
    }
    tile_store(0, sums[0]);
    tile_store(1, sums[1]);
    tile_store(2, sums[2]);
    tile_store(3, sums[3]);
}
/* One group of rows: the last, when their number is odd. */
static void wide_two(const unsigned char *a0, const unsigned char *b0, const unsigned char *b1, const struct wide_shape *n,
                     bool first, float (*sums)[16][16]) {
    const size_t b_step = n->weight_terms * WIDE_BLOCK, a_step = n->row_terms * WIDE_BLOCK;
    if (first) {
        tile_zero(0);
        tile_zero(1);
    } else {
        tile_load(0, sums[0], 64, 1024);
        tile_load(1, sums[1], 64, 1024);
    }
    for (size_t k = 0; k < n->blocks; k++, a0 += a_step, b0 += b_step, b1 += b_step) {
        tile_load_stream(4, a0, 64);
        tile_load(6, b0, 64, 1024);
        tile_dpbf16ps(0, 4, 6);
        tile_load(7, b1, 64, 1024);
        tile_dpbf16ps(1, 4, 7);
        if (n->weight_terms > 1) {
            tile_load(6, b0 + WIDE_BLOCK, 64, 1024);
            tile_dpbf16ps(0, 4, 6);
            tile_load(7, b1 + WIDE_BLOCK, 64, 1024);
            tile_dpbf16ps(1, 4, 7);
            tile_load(6, b0, 64, 1024);
            tile_load(7, b1, 64, 1024);
        }
        if (n->row_terms > 1) {
            tile_load_stream(4, a0 + WIDE_BLOCK, 64);
            tile_dpbf16ps(0, 4, 6);
            tile_dpbf16ps(1, 4, 7);
        }
    }
    tile_store(0, sums[0]);
    tile_store(1, sums[1]);
}

/* Sums of rows [0, rows) by tiles [tile, tile + width) to where they belong. */
static void wide_put(const struct pl_cpu_weight *w, size_t tile, size_t width, size_t rows, const struct wide_scratch *s,
                     float *y, size_t y_stride, const float *bias, bool accumulate) {
    for (size_t r = 0; r < rows; r++)
        for (size_t t = 0; t < width; t++) {
            const float *sum = s->sums[t / 2][r / 32][r / 16 % 2 * 2 + t % 2][r % 16];
            const size_t at = (tile + t) * TILE_ROWS;
            q8_store(w, tile + t, _mm512_load_ps(sum), bias != NULL ? bias + at : NULL, accumulate, y + r * y_stride + at);
        }
}

void AMX_NAME(wide_tiles)(const struct pl_cpu_weight *w, size_t tile, size_t width, const struct wide_rows *rows, float *y,
                          size_t y_stride, const float *bias, bool accumulate, struct wide_scratch *s) {
    const size_t weight_terms = w->kind == KIND_FLOAT && w->t.dtype == PL_F16 ? 2 : 1, chunk = wide_chunk(rows->blocks),
                 most = (chunk + weight_terms - 1) / weight_terms, groups = (rows->rows + 15) / 16;
    tile_configure(&wide_config);
    for (size_t b = 0, count; b < rows->blocks; b += count) {
        const size_t left = PL_MIN(chunk - b % chunk, rows->blocks - b); /* of this chunk */
        count = PL_MIN(most, left);
        for (size_t t = 0; t < width; t++) avx512_wide_weights(w, tile + t, b, count, s->weights[t][0]);
        for (size_t t = 0; t < width; t += 2) {
            /* An odd last tile is multiplied twice: the second time for nothing. */
            const unsigned char *b0 = s->weights[t][0], *b1 = s->weights[PL_MIN(t + 1, width - 1)][0];
            struct wide_shape n = {count, weight_terms, rows->terms, 0};
            for (size_t g = 0; g < groups; g += 2) {
                const unsigned char *a0 = wide_block(rows, g, b), *a1 = g + 1 < groups ? wide_block(rows, g + 1, b) : NULL;
                n.ahead = t == 0 && g + 3 < groups ? (size_t)(2 * (a1 - a0)) : 0;
                if (a1 != NULL)
                    wide_four(a0, a1, b0, b1, &n, b == 0, s->sums[t / 2][g / 2]);
                else
                    wide_two(a0, b0, b1, &n, b == 0, s->sums[t / 2][g / 2]);
            }
        }
    }
    tile_release();
    wide_put(w, tile, width, rows->rows, s, y, y_stride, bias, accumulate);
}

#endif
