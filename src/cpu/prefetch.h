/* prefetch - asking for weights before they are used. The hardware's own prefetch stops at every 4 KiB of physical memory
 * and knows nothing of the next run of bytes. Addresses past the weights are harmless: a prefetch never faults. */
#ifndef PL_CPU_PREFETCH_H
#define PL_CPU_PREFETCH_H

#include "cpu/tile.h"

enum { BLOCKS_AHEAD = 16 };

static inline __attribute__((always_inline)) void cpu_prefetch(const unsigned char *p, const int bytes) {
#pragma GCC unroll 8
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

/* What a product reads BLOCKS_AHEAD blocks after block b: of this tile, or of the one behind it. */
static inline __attribute__((always_inline)) void cpu_prefetch_block(const enum cpu_storage storage,
                                                                     const enum cpu_scale scale,
                                                                     const struct cpu_tile_layout *l,
                                                                     const unsigned char *tile, size_t b) {
    static const int plane[] = {
        [STORE_U4] = 256, [STORE_U5] = 320, [STORE_U6] = 384, [STORE_U8] = 512, [STORE_U2] = 128, [STORE_U3] = 192};
    size_t at = b + BLOCKS_AHEAD, wraps = at >= l->blocks;
    at -= wraps ? l->blocks : 0;
    tile += wraps ? l->bytes : 0;
    cpu_prefetch(tile + at * l->plane_bytes, plane[storage]);
    if (scale == SCALE_MLX || (scale == SCALE_F16 && storage == STORE_U2)) return; /* a unit serves many blocks */
    cpu_prefetch(tile + l->units_at + at * l->unit_bytes, 64);
    if (scale != SCALE_F16 && scale != SCALE_E8M0 && at % 8 == 0)
        cpu_prefetch(tile + l->supers_at + at / 8 * l->super_bytes, 64);
}

#endif
