/* tile - the packed form of quantised weights and of 8-bit activations, shared by the vector tables.
 *
 * Weights: a tile is 16 output rows. Along the inputs it goes by blocks of 32; in a block, element (row r, input 4j+i)
 * is byte 4r+i of vector j (64 bytes, j = 0..7): one broadcast of four activations meets sixteen rows, and the sums of
 * rows never cross lanes. Codes are unsigned; value = scale * (code - offset) + min, or a code book's entry for code.
 * Narrow codes are kept as bit planes over that order, so a tile is as small as the file's own form or nearly so.
 * A tile is three runs: planes of all blocks, then scale units, then super scales (k-quants).
 *
 * Activations: groups of up to group_max rows. For each block: int8 q[rows][32], then f32 scale[rows], f32
 * ssum[rows] = scale * sum(q), i32 nsum[rows] = -sum(q), i32 nsum of the first and of the second half [rows] each. */
#ifndef PL_CPU_TILE_H
#define PL_CPU_TILE_H

#include "tensor/tensor.h"

enum { ACT_BLOCK = 32, ACT_ROW_BYTES = 32 + 5 * 4, TILE_ROWS = 16, GROUP_MAX = 16 };
enum { FINE_ROW_BYTES = ACT_ROW_BYTES + 32 }; /* the same with q of 16 bits */

/* Planes of a block. p = 0..3, h = 0..1, lane byte n = 4r+i:
 *  U4  256 bytes: byte 64p+n = code[4p+i] | code[16+4p+i] << 4
 *  U5  U4, then 64 bytes: bit j of byte n = bit 4 of code[4j+i]
 *  U6  U4, then 128 bytes: bits 2p, 2p+1 of byte 64h+n = code[16h+4p+i] >> 4
 *  U8  512 bytes: byte 64j+n = code[4j+i]
 *  U2  128 bytes: bits 2p, 2p+1 of byte 64h+n = code[16h+4p+i]
 *  U3  U2, then 64 bytes: bit j of byte n = bit 2 of code[4j+i] */
enum cpu_storage { STORE_U4, STORE_U5, STORE_U6, STORE_U8, STORE_U2, STORE_U3 };

/* Scales. Lane r of every array is row r of the tile.
 *  F16    a unit: f16 scale[16], and f16 min[16] where the format has one
 *  E8M0   a unit: u8 exponent[16], as in MX formats, halved
 *  K32    a unit: i8 scale[16], and i8 min[16]; super, for 8 blocks: f16 d[16], and f16 dmin[16]
 *  K16    a unit: i8 scale[2][16], one for each half of the block; super as K32 without dmin
 *  K32E, K16E  as K32 and K16 without minima, with d in eighths
 *  K16N   a unit: u8 scale | min << 4 [2][16]; super: f16 d[16], f16 dmin[16]
 *  MLX    a unit: scale[16], bias[16] in the tensor's scale type; a unit serves group / 32 blocks */
enum cpu_scale { SCALE_F16, SCALE_E8M0, SCALE_K32, SCALE_K16, SCALE_K16N, SCALE_MLX, SCALE_K32E, SCALE_K16E };

/* The halves of a block have scales of their own. */
static inline __attribute__((always_inline)) bool cpu_scale_halves(enum cpu_scale s) {
    return s == SCALE_K16 || s == SCALE_K16N || s == SCALE_K16E;
}

struct cpu_tile_layout {
    size_t blocks, plane_bytes, unit_blocks, unit_bytes, super_bytes;
    size_t units_at, supers_at, bytes;
};

struct cpu_tile_format {
    enum pl_dtype dtype;
    uint32_t bits; /* PL_MLX */
    enum cpu_storage storage;
    enum cpu_scale scale;
    bool has_min;
    uint8_t offset_log2; /* code - (1 << offset_log2); 0xFF: no offset */
    void (*pack)(const struct cpu_tile_layout *l, const struct pl_tensor *t, size_t tile, unsigned char *dst);
};
enum { NO_OFFSET = 0xFF };

const struct cpu_tile_format *cpu_tile_format(const struct pl_tensor *t); /* NULL: this tensor has no tile form */
struct cpu_tile_layout cpu_tile_layout(const struct cpu_tile_format *f, const struct pl_tensor *t);
void cpu_tile_pack(const struct cpu_tile_format *f, const struct cpu_tile_layout *l, const struct pl_tensor *t, size_t tile,
                   unsigned char *dst);

/* Code book of iq4_nl and iq4_xs + 128, and of mxfp4 (doubled) + 16. Of the types with grids a code is which magnitude, with
 * the sign above it: iq1 in eighths + 16, iq2 + 128, iq3_xxs halved + 32, iq3_s + 16. */
extern const uint8_t cpu_iq4_codes[16], cpu_mxfp4_codes[16], cpu_iq1_codes[16], cpu_iq2_codes[16], cpu_iq3_xxs_codes[16],
    cpu_iq3_s_codes[16];

/* 2 MiB aligned, huge pages asked for; pl_free releases it. */
void *cpu_huge_alloc(size_t bytes);

#endif
