/* avx512_chunk - a chunk of a tile's blocks with its codes widened to bytes and its scales to f32, once for several groups
 * of activation rows. Multiplied by vectors (avx512_groups.c), or by tile instructions (avx512_amx_body.h).
 *
 * The packed form of tile.h is the tile instructions' own already: vector j of a block is row j of a tile of weights (four
 * inputs of sixteen outputs), and the 8-bit activations of a group are a tile of inputs. So a block of 32 inputs is one
 * product of 16 x 32 by 32 x 16, and its 32-bit sums meet the block's scales in vectors. Operations and their order are
 * those of avx512_q8.h for every element: the results are the same bits.
 * A block whose halves have scales of their own is two steps, each with the other half's codes zero. */
#ifndef PL_CPU_AVX512_CHUNK_H
#define PL_CPU_AVX512_CHUNK_H

#include "cpu/internal.h"

enum { CHUNK_BLOCKS = 8, CHUNK_STEPS = 2 * CHUNK_BLOCKS, CHUNK_GROUPS = 8 };

struct q8_chunk {
    _Alignas(64) unsigned char codes[CHUNK_STEPS][512];
    float scale[CHUNK_STEPS][TILE_ROWS], min[CHUNK_STEPS][TILE_ROWS];
};
/* Blocks [first, first + count) of a tile. Codes stay unsigned, or are less their offset and signed. */
typedef void (*chunk_unpack_fn)(const struct pl_cpu_weight *w, const unsigned char *tile, size_t first, size_t count,
                                bool less_offset, struct q8_chunk *c);
chunk_unpack_fn avx512_chunk_unpack(const struct cpu_tile_format *f);

/* A chunk's `blocks` blocks against one group of 16 or 8 rows: accs += products. Offset: of codes that stayed unsigned. */
typedef void (*chunk_fn)(unsigned offset_log2, const struct q8_chunk *c, size_t blocks, const unsigned char *inputs,
                         float (*accs)[TILE_ROWS]);
/* [rows are 8][format has a minimum][halves have scales of their own] */
typedef const chunk_fn chunk_fns[2][2][2];
/* One tile against n groups, each of 16 or 8 rows, with chunks as `fns` want their codes. */
void avx512_chunks_run(chunk_fns fns, bool less_offset, const struct pl_cpu_weight *w, size_t tile,
                       const struct cpu_act_group *g, size_t n, float *y, size_t y_stride, const float *bias,
                       bool accumulate);

/* table.h, q8_groups */
void avx512_q8_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate);
void avx512_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                   size_t y_stride, const float *bias, bool accumulate);
void avx512_amx_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                       size_t y_stride, const float *bias, bool accumulate);
void avx512_amx_emulated_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n,
                                float *y, size_t y_stride, const float *bias, bool accumulate);

#endif
