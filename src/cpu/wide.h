/* wide - products of many rows in bf16, where tiles multiply pairs of bf16 far faster than bytes with a scale for each
 * block.
 *
 * Quantised weights and their activations are rounded once to bf16; bf16 and f16 weights stay exact (f16 as two terms) and
 * meet activations in two terms, 16 bits of them. A sum runs over all inputs in f32 before it is looked at again. Other bits
 * than the product of few rows has, and for quantised weights usually nearer ones: 8 bits count of every activation, not of
 * the largest of 32. So it is for whoever does not ask for equal bits for any number of rows.
 *
 * Rows in groups of 16; for each block of 32 inputs of a group 16 x 32 values, once for each term, rows and inputs that are
 * not there zeros. Blocks lie chunk by chunk, in a chunk group by group: groups of the same inputs are neighbours, for a
 * stride of all inputs, often a power of two, would have them meet in the same sets of the caches. Weights in the order of
 * the right operand: pair (input 2k and 2k+1 of output o) at dword 16k + o. */
#ifndef PL_CPU_WIDE_H
#define PL_CPU_WIDE_H

#include "cpu/internal.h"

enum {
    WIDE_ROWS_MIN = 48,  /* measured: docs/perf/cpu.md */
    WIDE_ROWS = 512,     /* rows of one pass: a chunk of their inputs stays in the L2 cache */
    WIDE_TILES = 16,     /* tiles of weights whose products one thread makes at a time */
    WIDE_BLOCKS = 18,    /* of 32 inputs, the most of a chunk: two tiles of it stay in the L1 cache */
    WIDE_BLOCK = 16 * 64 /* bytes of a block, of either operand */
};
/* One thread's: weights of a chunk, sums. */
struct wide_scratch {
    _Alignas(64) unsigned char weights[WIDE_TILES][WIDE_BLOCKS][WIDE_BLOCK];
    _Alignas(64) float sums[WIDE_TILES / 2][WIDE_ROWS / 32][4][16][16];
};
struct wide_rows {
    size_t rows, blocks, terms; /* at most WIDE_ROWS; of 32 inputs; 1 or 2 of each */
    unsigned char *data;
};
/* Blocks of a chunk, the last may have fewer: chunks are as equal as they can be. */
static inline size_t wide_chunk(size_t blocks) {
    const size_t chunks = (blocks + WIDE_BLOCKS - 1) / WIDE_BLOCKS;
    return (blocks + chunks - 1) / chunks;
}
/* Where block b of a group begins. */
static inline unsigned char *wide_block(const struct wide_rows *r, size_t group, size_t b) {
    const size_t chunk = wide_chunk(r->blocks), first = b / chunk * chunk, here = PL_MIN(chunk, r->blocks - first);
    return r->data + (first * ((r->rows + 15) / 16) + group * here + b - first) * r->terms * WIDE_BLOCK;
}

/* Weights that have this product: packed ones, f16, bf16. A product's matrices are all packed or all not. */
bool cpu_wide_takes(const struct pl_cpu *c, const struct pl_cpu_weight *w, size_t rows);
static inline size_t cpu_wide_terms(const struct pl_cpu_weight *w) { return w->kind == KIND_FLOAT ? 2 : 1; }
void cpu_wide_matmul(struct pl_cpu *c, const struct pl_cpu_matmul *m);

/* table.h, wide_group */
void avx512_wide_group(const float *x, size_t stride, size_t in, const struct wide_rows *to, size_t group);
void avx512_wide_group_emulated(const float *x, size_t stride, size_t in, const struct wide_rows *to, size_t group);
/* A tile's blocks [first, first + count) as one block each, of f16 weights as two. */
void avx512_wide_weights(const struct pl_cpu_weight *w, size_t tile, size_t first, size_t count, unsigned char *dst);
/* table.h, wide_tiles */
void avx512_amx_wide_tiles(const struct pl_cpu_weight *w, size_t tile, size_t tiles, const struct wide_rows *rows, float *y,
                           size_t y_stride, const float *bias, bool accumulate, struct wide_scratch *s);
void avx512_amx_emulated_wide_tiles(const struct pl_cpu_weight *w, size_t tile, size_t tiles, const struct wide_rows *rows,
                                    float *y, size_t y_stride, const float *bias, bool accumulate, struct wide_scratch *s);

#endif
