/* avx512_amx - products with tiles: what the unpacking of weights and the multiplying of chunks share.
 *
 * The packed form of tile.h is the tile instructions' own already: vector j of a block is row j of a tile of weights (four
 * inputs of sixteen outputs), and the 8-bit activations of a group are a tile of inputs. So a block of 32 inputs is one
 * product of 16 x 32 by 32 x 16, and its 32-bit sums meet the block's scales in vectors, in the order of avx512_q8.h: the
 * results are those of the AVX-512 kernels, bit for bit. Only the codes have to be widened to bytes, a chunk of blocks at
 * a time, for up to AMX_GROUPS groups of activations.
 * A block whose halves have scales of their own is two steps, each with the other half's codes zero. */
#ifndef PL_CPU_AVX512_AMX_H
#define PL_CPU_AVX512_AMX_H

#include "cpu/internal.h"

enum { AMX_BLOCKS = 8, AMX_STEPS = 2 * AMX_BLOCKS, AMX_GROUPS = 8 };

struct amx_chunk {
    _Alignas(64) unsigned char codes[AMX_STEPS][512]; /* less the offset, then signed; unsigned where there is none */
    float scale[AMX_STEPS][TILE_ROWS], min[AMX_STEPS][TILE_ROWS];
};
/* Blocks [first, first + count) of a tile. */
typedef void (*amx_unpack_fn)(const struct pl_cpu_weight *w, const unsigned char *tile, size_t first, size_t count,
                              struct amx_chunk *c);
amx_unpack_fn avx512_amx_unpack(const struct cpu_tile_format *f);

/* table.h, q8_groups */
void avx512_q8_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate);
void avx512_amx_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                       size_t y_stride, const float *bias, bool accumulate);
void avx512_amx_emulated_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n,
                                float *y, size_t y_stride, const float *bias, bool accumulate);

#endif
