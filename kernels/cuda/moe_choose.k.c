/* moe_choose - plain softmax routers on NVIDIA GPUs (sm_80 and up): a warp a row, without barriers. Contract: moe_route and
 * moe_order of kernels/moe_route.k.c.
 *
 *   CHOOSE_ORDER  rows few enough for one group of threads: choice and order in one launch. grid: (1)
 *   otherwise     the choice alone. grid: (rows / warps)
 * EXPERTS % 32 == 0, EXPERTS <= GROUP with CHOOSE_ORDER, USED <= 32. Numerics and order as there. */
#include "dialect.h"
#include "args/args.h"
#include "cuda/moe_math.h"

#define WARPS (GROUP / 32u)

/* The row's choices: lane k has the k-th. */
FN u32 choose_row(const f32 *logits, f32 *weight, u32 flags, f32 scale) {
    u32 lane = LOCAL_X % 32u, key[LANE_KEYS], mine = 0u;
    f32 top = keys_of(logits, key), all = 0.0f, chosen = 0.0f;
    for (u32 k = 0; k < USED; k++) {
        u32 best, at = next_of(key, &best);
        f32 p = EXP(value_of(best) - top);
        chosen += p;
        if (lane == k) mine = at, *weight = p;
    }
    if ((flags & PL_ROUTE_RENORMALISE) == 0u) {
#pragma unroll
        for (u32 i = 0; i < LANE_KEYS; i++) all += EXP(__ldcg(logits + lane + 32u * i) - top);
#pragma unroll
        for (u32 m = 16u; m > 0u; m >>= 1) all += lane_xor(all, m);
        chosen = all;
    }
    *weight = *weight / chosen * scale;
    return mine;
}

#ifndef CHOOSE_ORDER
KERNEL(moe_choose)(const f32 *logits, u32 *ids, f32 *weights, u32 *witness, const struct pl_args_route a) {
    u32 lane = LOCAL_X % 32u, row = GROUP_X * WARPS + LOCAL_X / 32u;
    f32 weight = 0.0f;
    count_launch(witness);
    if (row >= a.rows) return; /* the same for the warp */
    u32 expert = choose_row(logits + (u64)row * EXPERTS, &weight, a.flags, a.scale);
    if (lane >= USED) return;
    ids[(u64)row * USED + lane] = expert;
    weights[(u64)row * USED + lane] = weight;
}
#else
/* grid: (1) */
KERNEL(moe_choose)(const f32 *logits, u32 *ids, f32 *weights, u32 *order, u32 *witness, const struct pl_args_route a, const u32 stride) {
    __shared__ u32 chosen[ROWS_MAX * USED], count[EXPERTS], sums[2][EXPERTS / 32u];
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, slots = a.rows * USED;
    count_launch(witness);
    if (LOCAL_X < EXPERTS) count[LOCAL_X] = 0u;
    for (u32 row = warp; row < a.rows; row += WARPS) {
        f32 weight = 0.0f;
        u32 expert = choose_row(logits + (u64)row * EXPERTS, &weight, a.flags, a.scale);
        if (lane < USED) {
            chosen[row * USED + lane] = expert;
            ids[row * USED + lane] = expert;
            weights[row * USED + lane] = weight;
        }
    }
    BARRIER();
    for (u32 i = LOCAL_X; i < slots; i += GROUP) LOCAL_INC(&count[chosen[i]]);
    BARRIER();
    /* Where each expert's places and tiles begin: sums over the experts before it. */
    u32 n = LOCAL_X < EXPERTS ? count[LOCAL_X] : 0u, tiles = (n + TILE - 1u) / TILE, start = n, tile = tiles;
#pragma unroll
    for (u32 m = 1u; m < 32u; m <<= 1) {
        u32 p = __shfl_up_sync(0xFFFFFFFFu, start, m), q = __shfl_up_sync(0xFFFFFFFFu, tile, m);
        if (lane >= m) start += p, tile += q;
    }
    if (LOCAL_X < EXPERTS && lane == 31u) sums[0][warp] = start, sums[1][warp] = tile;
    BARRIER();
    if (LOCAL_X < EXPERTS) {
        for (u32 w = 0; w < warp; w++) start += sums[0][w], tile += sums[1][w];
        if (LOCAL_X == EXPERTS - 1u) order[PL_ORDER_TILES] = tile;
        start -= n, tile -= tiles;
        count[LOCAL_X] = start;
        order[PL_ORDER_COUNT(stride) + LOCAL_X] = n;
        for (u32 p = 0; p < n; p += TILE, tile++)
            *(uint4 *)(order + PL_ORDER_TILE(stride) + (u64)tile * PL_TILE_WORDS) = make_uint4(LOCAL_X, start + p, PL_MIN(n - p, (u32)TILE), 0u);
    }
    BARRIER();
    for (u32 i = LOCAL_X; i < slots; i += GROUP) {
        u32 p = LOCAL_INC(&count[chosen[i]]);
        order[PL_ORDER_SLOT(stride) + p] = i;
        order[PL_ORDER_PLACE(stride) + i] = p;
    }
}
#endif
