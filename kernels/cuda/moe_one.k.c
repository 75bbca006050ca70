/* moe_one - one row's experts with rearranged weights (strips.h) on NVIDIA GPUs of sm_90 and up, in two launches that choose for
 * themselves: every strip is asked for, by the copy engine, as soon as it is known whose it is.
 * Contract: kernels/moe_route.k.c (a plain softmax, EXPERTS of them, USED chosen) and kernels/moe.k.c.
 *
 *   up    h[slot] = act(gate x) * up x; x made ready by prepare.k.c or moe_router.k.c. grid: (out / 16, USED)
 *   mix   y += sum over the slots of weight * down h[slot]. grid: (out / 16)
 *
 * mix follows up directly. It chooses, and asks for its weights, before it waits for up: logits are of a launch before up,
 * which lets the next one start only once that is done (count_launch_late).
 * in % 256 == 0, out % 16 == 0, EXPERTS % 32 == 0, USED <= 32; all strips of a group of threads fit into shared memory.
 * Rounded are the inputs alone, to 11 bits of the largest of their 256. Order of sums fixed by GROUP: bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"
#define BULK
#include "cuda/moe_math.h"

#define WARPS (GROUP / 32u)
extern __shared__ __align__(128) u8 shared[];

/* acc += 16 outputs times 256 inputs of the one row; lanes whose column is 0 hold outputs lane / 4 and 8 more. */
FN void add(const u8 *strip, const u8 *words, const u32 *sums, f32 top, f32 *acc) {
    u32 lane = LOCAL_X % 32u, t = lane & 3u;
    struct strip s;
    struct inputs in;
    take(&s, strip);
    in.words = words + 16u * t;
    in.step = 64u;
    in.live = lane < 4u;
    in.sums = in.live ? sums[t] : 0u;
    in.top0 = top;
    in.top1 = 0.0f;
    multiply(&s, &in, acc);
}

#ifdef MOE_UP
/* Shared memory: strips [block][gate, up], inputs [block][512 bytes, 4 sums, top and 3 words], a barrier a block. */
#define INPUT_BYTES 544u
KERNEL(moe_one)(const u8 *__restrict__ gate, const u8 *__restrict__ up, const u8 *x, const f32 *logits, f32 *h, u32 *witness,
                const struct pl_args_moe a) {
    __shared__ f32 held[WARPS][2][16];
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, blocks = a.in / 256u, slot = GROUP_Y, key[LANE_KEYS], best, expert = 0u;
    u8 *in = shared + blocks * 2u * STRIP_BYTES;
    u64 *full = (u64 *)(in + blocks * INPUT_BYTES);
    if (lane == 0u) {
        for (u32 b = warp; b < blocks; b += WARPS) barrier_init(full + b, 1u);
        barriers_ready();
    }
    __syncwarp();
    count_launch_late(witness);
    (void)keys_of(logits, key);
    for (u32 k = 0; k <= slot; k++) expert = next_of(key, &best);
    if (lane == 0u) {
        u64 strip = ((u64)expert * (a.out / 16u) + GROUP_X) * blocks;
        for (u32 b = warp; b < blocks; b += WARPS) {
            u8 *to = shared + 2u * b * STRIP_BYTES;
            barrier_expect(full + b, 2u * STRIP_BYTES);
            copy_bulk(to, gate + (strip + b) * STRIP_BYTES, STRIP_BYTES, full + b);
            copy_bulk(to + STRIP_BYTES, up + (strip + b) * STRIP_BYTES, STRIP_BYTES, full + b);
        }
    }
    for (u32 b = warp; b < blocks; b += WARPS) { /* this warp's inputs, in a closer order */
        const u8 *piece = x + (u64)b * PIECE_BYTES;
        *(uint4 *)(in + b * INPUT_BYTES + 16u * lane) = *(const uint4 *)(piece + 512u * (lane >> 2) + 16u * (lane & 3u));
        if (lane < 4u) *(u32 *)(in + b * INPUT_BYTES + 512u + 4u * lane) = *(const u32 *)(piece + PIECE_SUMS + 4u * lane);
        if (lane == 4u) *(u32 *)(in + b * INPUT_BYTES + 528u) = *(const u32 *)(piece + PIECE_SCALE);
    }
    __syncwarp();
    f32 acc[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
    for (u32 b = warp; b < blocks; b += WARPS) {
        const u8 *strip = shared + 2u * b * STRIP_BYTES, *mine = in + b * INPUT_BYTES;
        f32 top = *(const f32 *)(mine + 528u);
        barrier_wait(full + b, 0u);
        add(strip, mine, (const u32 *)(mine + 512u), top, acc[0]);
        add(strip + STRIP_BYTES, mine, (const u32 *)(mine + 512u), top, acc[1]);
    }
    if ((lane & 3u) == 0u) {
#pragma unroll
        for (u32 i = 0; i < 2u; i++) held[warp][i][lane >> 2] = acc[i][0], held[warp][i][8u + (lane >> 2)] = acc[i][2];
    }
    BARRIER();
    if (LOCAL_X >= 16u) return;
    f32 sum_g = 0.0f, sum_u = 0.0f;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) sum_g += held[w][0][LOCAL_X], sum_u += held[w][1][LOCAL_X];
    h[(u64)slot * a.out + 16u * GROUP_X + LOCAL_X] = gated(sum_g, sum_u);
}
#else
/* Shared memory: strips [unit], a unit being a slot and a block of its inputs; a barrier a unit. */
KERNEL(moe_one)(const u8 *__restrict__ data, const f32 *h, const f32 *logits, f32 *y, u32 *witness, const struct pl_args_moe a,
                const f32 scale) {
    __shared__ __align__(16) u8 words[WARPS][512];
    __shared__ u32 sums[WARPS][4];
    __shared__ f32 held[WARPS][16];
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, blocks = a.in / 256u, units = USED * blocks, key[LANE_KEYS], mine = 0u;
    u64 *full = (u64 *)(shared + units * STRIP_BYTES);
    if (lane == 0u) {
        for (u32 u = warp; u < units; u += WARPS) barrier_init(full + u, 1u);
        barriers_ready();
    }
    __syncwarp();
    f32 top = keys_of(logits, key), weight = 0.0f, all = 0.0f, chosen = 0.0f;
    for (u32 k = 0; k < USED; k++) { /* lane k: the k-th choice */
        u32 best, at = next_of(key, &best);
        f32 p = EXP(value_of(best) - top);
        chosen += p;
        if (lane == k) mine = at, weight = p;
    }
    for (u32 u = warp; u < units; u += WARPS) {
        u32 expert = __shfl_sync(0xFFFFFFFFu, mine, (int)(u / blocks));
        if (lane != 0u) continue;
        barrier_expect(full + u, STRIP_BYTES);
        copy_bulk(shared + u * STRIP_BYTES, data + (((u64)expert * (a.out / 16u) + GROUP_X) * blocks + u % blocks) * STRIP_BYTES, STRIP_BYTES, full + u);
    }
    if ((a.flags & PL_ROUTE_RENORMALISE) == 0u) {
#pragma unroll
        for (u32 i = 0; i < LANE_KEYS; i++) all += EXP(__ldcg(logits + lane + 32u * i) - top);
#pragma unroll
        for (u32 m = 16u; m > 0u; m >>= 1) all += lane_xor(all, m);
        chosen = all;
    }
    weight = weight / chosen * scale;
    count_launch(witness);
    f32 old = LOCAL_X < 16u ? y[16u * GROUP_X + LOCAL_X] : 0.0f, acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 u = warp; u < units; u += 2u * WARPS) { /* two at a time: their inputs are on their way together */
        f32 v[2][8];
#pragma unroll
        for (u32 i = 0; i < 2u; i++)
            if (u + i * WARPS < units) load8(h + (u64)(u + i * WARPS) * 256u + 8u * lane, v[i]); /* slots lie one after the other */
#pragma unroll
        for (u32 i = 0; i < 2u; i++) {
            u32 w = u + i * WARPS;
            if (w >= units) continue; /* the same for the warp */
            f32 largest = ready_of(v[i], words[warp], 4u, sums[warp]);
            largest *= __shfl_sync(0xFFFFFFFFu, weight, (int)(w / blocks));
            __syncwarp();
            barrier_wait(full + w, 0u);
            add(shared + w * STRIP_BYTES, words[warp], sums[warp], largest, acc);
            __syncwarp();
        }
    }
    if ((lane & 3u) == 0u) held[warp][lane >> 2] = acc[0], held[warp][8u + (lane >> 2)] = acc[2];
    BARRIER();
    if (LOCAL_X >= 16u) return;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) old += held[w][LOCAL_X];
    y[16u * GROUP_X + LOCAL_X] = old;
}
#endif
