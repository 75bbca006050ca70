/* moe - the products of chosen experts with rearranged weights (strips.h) on tensor cores of NVIDIA GPUs (sm_80 and up).
 * Contract: kernels/moe.k.c. A tile is up to eight rows of one expert; every strip is read and unpacked once for it.
 *
 *   up    h[place] = act(gate x) * up x; inputs made ready by prepare.k.c, by row. grid: (out / 16, tiles)
 *   mix   y[row] += sum over the row's experts of weight * down h[slot]; no order. grid: (out / 16, rows)
 *   down  made[place] = down h[place]. grid: (out / (16 WARPS), tiles)
 *
 * The matrices [out, in] of all experts stand one after the other, out % 16 == 0, in % 256 == 0, offsets are of 64 bits.
 * Rounded are the inputs alone, to 11 bits of the largest of their 256. Order of sums fixed by GROUP: bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"
#include "cuda/moe_math.h"

#define WARPS (GROUP / 32u)
#ifdef BULK /* sm_90: all strips of a group are asked for at once, through shared memory (units, then a barrier a unit) */
extern __shared__ __align__(128) u8 shared[];
#endif

struct tile {
    u32 expert, first, rows;
};
FN bool tile_of(struct tile *t, const u32 *list, u32 i, u32 stride) {
#ifdef MOE_DIRECT
    (void)stride;
    t->expert = list[i];
    t->first = i;
    t->rows = 1u;
    return true;
#else
    if (i >= list[PL_ORDER_TILES]) return false;
    uint4 v = *(const uint4 *)(list + PL_ORDER_TILE(stride) + (u64)i * PL_TILE_WORDS);
    t->expert = v.x;
    t->first = v.y;
    t->rows = v.z;
    return true;
#endif
}
FN u32 slot_at(const u32 *list, u32 place) {
#ifdef MOE_DIRECT
    (void)list;
    return place;
#else
    return list[PL_ORDER_SLOT(0) + place];
#endif
}

#ifdef ROUTED
/* The row's slot-th expert, by every warp for itself; one group of threads for each slot leaves it and its weight for later. */
FN u32 choose(const f32 *logits, u32 slot, bool leave, u32 *ids, f32 *weights, u32 flags, f32 scale) {
    u32 lane = LOCAL_X % 32u, key[ROUTED / 32u], expert = 0u;
    f32 top = NEG_INF, all = 0.0f, chosen = 0.0f, mine = 0.0f;
#pragma unroll
    for (u32 i = 0; i < ROUTED / 32u; i++) {
        f32 v = logits[lane + 32u * i];
        key[i] = key_of(v);
        top = FMAX(top, v);
    }
#pragma unroll
    for (u32 m = 16u; m > 0u; m >>= 1) top = FMAX(top, lane_xor(top, m));
    for (u32 k = 0; k < USED; k++) {
        u32 best = 0u, at = 0xFFFFFFFFu;
#pragma unroll
        for (u32 i = 0; i < ROUTED / 32u; i++) best = max(best, key[i]);
        best = __reduce_max_sync(0xFFFFFFFFu, best);
#pragma unroll
        for (u32 i = ROUTED / 32u; i-- > 0u;) at = key[i] == best ? lane + 32u * i : at;
        at = __reduce_min_sync(0xFFFFFFFFu, at);
#pragma unroll
        for (u32 i = 0; i < ROUTED / 32u; i++) key[i] = lane + 32u * i == at ? 0u : key[i];
        f32 p = EXP(value_of(best) - top);
        chosen += p;
        if (k == slot) expert = at, mine = p;
        if (!leave && k == slot) return expert;
    }
#pragma unroll
    for (u32 i = 0; i < ROUTED / 32u; i++) all += EXP(logits[lane + 32u * i] - top);
#pragma unroll
    for (u32 m = 16u; m > 0u; m >>= 1) all += lane_xor(all, m);
    if (LOCAL_X == 0u) {
        ids[slot] = expert;
        weights[slot] = mine / ((flags & PL_ROUTE_RENORMALISE) != 0u ? chosen : all) * scale;
    }
    return expert;
}
#define UP_LIST const f32 *logits, u32 *ids, f32 *weights
#define UP_TAIL , const f32 scale
#else
#define UP_LIST const u32 *list
#define UP_TAIL
#endif

#if defined(MOE_UP)
KERNEL(moe_up)(const u8 *__restrict__ gate, const u8 *__restrict__ up, const u8 *__restrict__ x, UP_LIST, f32 *h, u32 *witness,
               const struct pl_args_moe a UP_TAIL) {
    __shared__ f32 held[WARPS][2][4][32];
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, g = lane >> 2, t = lane & 3u, blocks = a.in / 256u;
    count_launch(witness);
    struct tile tile;
#ifdef ROUTED
    const u32 *list = ids;
    tile.expert = choose(logits, GROUP_Y, GROUP_X == 0u, ids, weights, a.flags, scale);
    tile.first = GROUP_Y;
    tile.rows = 1u;
#else
    if (!tile_of(&tile, list, GROUP_Y, a.stride)) return;
#endif
    u64 strip = ((u64)tile.expert * (a.out / 16u) + GROUP_X) * blocks;
#ifdef BULK
    u64 *full = (u64 *)(shared + 2u * blocks * STRIP_BYTES);
    if (lane == 0u) {
        for (u32 b = warp; b < blocks; b += WARPS) barrier_init(full + b, 1u);
        barriers_ready();
        for (u32 b = warp; b < blocks; b += WARPS) {
            u8 *to = shared + 2u * b * STRIP_BYTES;
            barrier_expect(full + b, 2u * STRIP_BYTES);
            copy_bulk(to, gate + (strip + b) * STRIP_BYTES, STRIP_BYTES, full + b);
            copy_bulk(to + STRIP_BYTES, up + (strip + b) * STRIP_BYTES, STRIP_BYTES, full + b);
        }
    }
    __syncwarp();
#endif
    u32 row[3]; /* of column g, 2 t and 2 t + 1 */
    bool live[3];
#pragma unroll
    for (u32 i = 0; i < 3u; i++) {
        u32 col = i == 0u ? g : 2u * t + i - 1u;
        live[i] = col < tile.rows;
        row[i] = live[i] ? slot_at(list, tile.first + col) / a.used : 0u;
    }
    f32 acc[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
    for (u32 b = warp; b < blocks; b += WARPS) {
        struct strip s[2];
        struct inputs in;
#ifndef BULK
        fetch(&s[0], gate + (strip + b) * STRIP_BYTES, lane);
        fetch(&s[1], up + (strip + b) * STRIP_BYTES, lane);
#endif
        const u8 *block = x + (u64)b * a.pieces * PIECE_BYTES, *mine = block + (u64)(row[0] >> 3) * PIECE_BYTES;
        u32 at = 4u * (row[0] & 7u) + t;
        in.words = mine + 16u * at;
        in.step = 512u;
        in.live = live[0];
        in.sums = live[0] ? *(const u32 *)(mine + PIECE_SUMS + 4u * at) : 0u;
        in.top0 = live[1] ? *(const f32 *)(block + (u64)(row[1] >> 3) * PIECE_BYTES + PIECE_SCALE + 4u * (row[1] & 7u)) : 0.0f;
        in.top1 = live[2] ? *(const f32 *)(block + (u64)(row[2] >> 3) * PIECE_BYTES + PIECE_SCALE + 4u * (row[2] & 7u)) : 0.0f;
#ifdef BULK
        barrier_wait(full + b, 0u);
        take(&s[0], shared + 2u * b * STRIP_BYTES);
#endif
        multiply(&s[0], &in, acc[0]);
#ifdef BULK
        take(&s[1], shared + (2u * b + 1u) * STRIP_BYTES);
#endif
        multiply(&s[1], &in, acc[1]);
    }
#pragma unroll
    for (u32 i = 0; i < 8u; i++) held[warp][i >> 2][i & 3u][lane] = acc[i >> 2][i & 3u];
    BARRIER();
    for (u32 i = LOCAL_X; i < 128u; i += GROUP) { /* consecutive threads: consecutive outputs of one row */
        u32 o = i & 15u, col = i >> 4, e = 2u * (o >> 3) + (col & 1u), from = 4u * (o & 7u) + (col >> 1);
        if (col >= tile.rows) continue;
        f32 sum_g = 0.0f, sum_u = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) sum_g += held[w][0][e][from], sum_u += held[w][1][e][from];
        h[(u64)(tile.first + col) * a.out + 16u * GROUP_X + o] = gated(sum_g, sum_u);
    }
}
#elif defined(MOE_MIX)
KERNEL(moe_mix)(const u8 *__restrict__ data, const f32 *h, const u32 *ids, const f32 *weights, f32 *y, u32 *witness,
                const struct pl_args_moe a) {
    __shared__ __align__(16) u8 words[WARPS][512];
    __shared__ u32 sums[WARPS][4];
    __shared__ f32 held[WARPS][16];
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, g = lane >> 2, t = lane & 3u, blocks = a.in / 256u, units = a.used * blocks;
    count_launch(witness);
    f32 acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 u = warp; u < units; u += WARPS) { /* unit: an expert, a block of its inputs */
        u32 slot = GROUP_Y * a.used + u / blocks, b = u % blocks;
        struct strip s;
        struct inputs in;
        fetch(&s, data + (((u64)ids[slot] * (a.out / 16u) + GROUP_X) * blocks + b) * STRIP_BYTES, lane);
        f32 top = ready(h + (u64)slot * a.in + 256u * b, words[warp], 4u, sums[warp]);
        __syncwarp();
        in.words = words[warp] + 16u * t;
        in.step = 64u;
        in.live = g == 0u;
        in.sums = in.live ? sums[warp][t] : 0u;
        in.top0 = top * weights[slot];
        in.top1 = 0.0f;
        multiply(&s, &in, acc);
        __syncwarp();
    }
    if (t == 0u) held[warp][g] = acc[0], held[warp][g + 8u] = acc[2];
    BARRIER();
    if (LOCAL_X >= 16u) return;
    u64 at = (u64)GROUP_Y * a.out + 16u * GROUP_X + LOCAL_X;
    f32 sum = 0.0f;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) sum += held[w][LOCAL_X];
    y[at] += sum;
}
#else
/* SPAN blocks of inputs in shared memory at a time. */
KERNEL(moe_down)(const u8 *__restrict__ data, const f32 *h, const u32 *list, f32 *made, u32 *witness, const struct pl_args_moe a) {
    __shared__ __align__(16) u8 pieces[SPAN][PIECE_BYTES];
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, g = lane >> 2, t = lane & 3u, blocks = a.in / 256u;
    count_launch(witness);
    struct tile tile;
    if (!tile_of(&tile, list, GROUP_Y, a.stride)) return;
    u32 m = PL_MIN(GROUP_X * WARPS + warp, a.out / 16u - 1u); /* past the end: the last again, not stored */
    const u8 *strip = data + ((u64)tile.expert * (a.out / 16u) + m) * blocks * STRIP_BYTES;
    bool live[3] = {g < tile.rows, 2u * t < tile.rows, 2u * t + 1u < tile.rows};
    f32 acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#ifdef BULK
    u64 *full = (u64 *)(shared + WARPS * blocks * STRIP_BYTES) + warp;
    const u8 *own = shared + warp * blocks * STRIP_BYTES;
    if (lane == 0u) {
        barrier_init(full, 1u);
        barriers_ready();
        barrier_expect(full, blocks * STRIP_BYTES);
        copy_bulk((u8 *)own, strip, blocks * STRIP_BYTES, full);
    }
    __syncwarp();
#endif
    for (u32 b0 = 0; b0 < blocks; b0 += SPAN) {
        u32 n = PL_MIN(SPAN, blocks - b0);
        struct strip s[2];
#ifndef BULK
        fetch(&s[0], strip + (u64)b0 * STRIP_BYTES, lane);
        if (n > 1u) fetch(&s[1], strip + (u64)(b0 + 1u) * STRIP_BYTES, lane);
#endif
        BARRIER(); /* all have left the pieces of the span before */
        for (u32 u = warp; u < n * tile.rows; u += WARPS) {
            u32 r = u % tile.rows, b = u / tile.rows;
            f32 top = ready(h + (u64)(tile.first + r) * a.in + 256u * (b0 + b), pieces[b] + 64u * r, 32u, (u32 *)(pieces[b] + PIECE_SUMS) + 4u * r);
            if (lane == 0u) *(f32 *)(pieces[b] + PIECE_SCALE + 4u * r) = top;
        }
        BARRIER();
#ifdef BULK
        if (b0 == 0u) barrier_wait(full, 0u);
#endif
#pragma unroll
        for (u32 b = 0; b < SPAN; b++) {
            if (b >= n) continue; /* the same for all threads */
            struct inputs in;
#ifdef BULK
            take(&s[b & 1u], own + (b0 + b) * STRIP_BYTES);
#endif
            in.words = pieces[b] + 16u * lane;
            in.step = 512u;
            in.live = live[0];
            in.sums = live[0] ? *(const u32 *)(pieces[b] + PIECE_SUMS + 4u * lane) : 0u;
            in.top0 = live[1] ? *(const f32 *)(pieces[b] + PIECE_SCALE + 8u * t) : 0.0f;
            in.top1 = live[2] ? *(const f32 *)(pieces[b] + PIECE_SCALE + 8u * t + 4u) : 0.0f;
            multiply(&s[b & 1u], &in, acc);
#ifndef BULK
            if (b + 2u < n) fetch(&s[b & 1u], strip + (u64)(b0 + b + 2u) * STRIP_BYTES, lane);
#endif
        }
    }
    if (GROUP_X * WARPS + warp >= a.out / 16u) return;
    f32 *to = made + (u64)(tile.first + 2u * t) * a.out + 16u * m + g;
    if (live[1]) to[0] = acc[0], to[8] = acc[2];
    if (live[2]) to[a.out] = acc[1], to[a.out + 8u] = acc[3];
}
#endif
