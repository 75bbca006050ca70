/* tile - the packed form of quantised weights and of 8-bit activations, shared by the vector tables.
 *
 * Weights: a tile is 16 output rows. Along the inputs it goes by blocks of 32; in a block, element (row r, input 4j+i)
 * is byte 4r+i of vector j (64 bytes, j = 0..7): one broadcast of four activations meets sixteen rows, and the sums of
 * rows never cross lanes. Narrow types are kept narrow as bit planes over that order (pack.c), scales beside them.
 * Activations: groups of up to group_max rows. For each block: int8 q[rows][32], then f32 scale[rows], f32
 * ssum[rows] = scale * sum(q), i32 nsum[rows] = -sum(q), i32 nsum of the first and of the second half [rows] each. */
#ifndef PL_CPU_TILE_H
#define PL_CPU_TILE_H

#include "tensor/tensor.h"

enum { ACT_BLOCK = 32, ACT_ROW_BYTES = 32 + 5 * 4 };

struct cpu_tile_format;

const struct cpu_tile_format *cpu_tile_format(const struct pl_tensor *t); /* NULL: this tensor has no tile form */
size_t cpu_tile_bytes(const struct cpu_tile_format *f, size_t in);
void cpu_tile_pack(const struct cpu_tile_format *f, const struct pl_tensor *t, size_t tile, unsigned char *dst);

/* 2 MiB aligned, huge pages asked for; pl_free releases it. */
void *cpu_huge_alloc(size_t bytes);

#endif
