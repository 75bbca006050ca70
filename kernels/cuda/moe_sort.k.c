/* moe_sort - the slots in order of their experts by many groups of threads, on NVIDIA GPUs. Contract: moe_order of
 * kernels/moe_route.k.c. Every group counts all slots, those of the groups before it apart, and then places its own OWN of them.
 * EXPERTS <= GROUP. */
#include "dialect.h"
#include "args/args.h"

#define OWN (2u * GROUP)

/* grid: (slots / OWN) */
KERNEL(moe_sort)(const u32 *ids, u32 *order, u32 *witness, const u32 slots, const u32 stride) {
    __shared__ u32 count[2][EXPERTS], sums[2][32]; /* of the groups before, of this one and those behind it */
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, own = GROUP_X * OWN, e = LOCAL_X;
    count_launch(witness);
    if (e < EXPERTS) count[0][e] = count[1][e] = 0u;
    BARRIER();
    for (u32 i = 4u * LOCAL_X; i < slots; i += 16u * GROUP) {
        uint4 v[4];
#pragma unroll
        for (u32 k = 0; k < 4u; k++)
            if (i + 4u * k * GROUP + 3u < slots) v[k] = *(const uint4 *)(ids + i + 4u * k * GROUP);
#pragma unroll
        for (u32 k = 0; k < 4u; k++) {
            u32 at = i + 4u * k * GROUP, *of = count[at >= own];
            if (at + 3u < slots) {
                LOCAL_INC(&of[v[k].x]);
                LOCAL_INC(&of[v[k].y]);
                LOCAL_INC(&of[v[k].z]);
                LOCAL_INC(&of[v[k].w]);
            } else {
                for (u32 s = at; s < slots; s++) LOCAL_INC(&of[ids[s]]);
            }
        }
    }
    BARRIER();
    /* Where each expert's places and tiles begin: sums over the experts before it. */
    u32 before = e < EXPERTS ? count[0][e] : 0u, n = e < EXPERTS ? before + count[1][e] : 0u;
    u32 tiles = (n + TILE - 1u) / TILE, start = n, tile = tiles;
#pragma unroll
    for (u32 m = 1u; m < 32u; m <<= 1) {
        u32 p = __shfl_up_sync(0xFFFFFFFFu, start, m), q = __shfl_up_sync(0xFFFFFFFFu, tile, m);
        if (lane >= m) start += p, tile += q;
    }
    if (lane == 31u) sums[0][warp] = start, sums[1][warp] = tile;
    BARRIER();
    if (e < EXPERTS) {
        for (u32 w = 0; w < warp; w++) start += sums[0][w], tile += sums[1][w];
        if (GROUP_X == 0u && e == EXPERTS - 1u) order[PL_ORDER_TILES] = tile;
        start -= n, tile -= tiles;
        count[0][e] = start + before;
        if (GROUP_X == 0u) {
            order[PL_ORDER_COUNT(stride) + e] = n;
            for (u32 p = 0; p < n; p += TILE, tile++)
                *(uint4 *)(order + PL_ORDER_TILE(stride) + (u64)tile * PL_TILE_WORDS) = make_uint4(e, start + p, PL_MIN(n - p, (u32)TILE), 0u);
        }
    }
    BARRIER();
    for (u32 i = own + LOCAL_X; i < PL_MIN(own + OWN, slots); i += GROUP) {
        u32 p = LOCAL_INC(&count[0][ids[i]]);
        order[PL_ORDER_SLOT(stride) + p] = i;
        order[PL_ORDER_PLACE(stride) + i] = p;
    }
}
