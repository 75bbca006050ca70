/* stream - products of one row on NVIDIA GPUs of sm_90 and up, at the speed of the memory: the weights come through a ring in
 * shared memory, brought by the copy engine and asked for before the launch before this one is done. Up to three matrices of
 * one format and one input in one launch. Contract: kernels/linear.k.c. With HAS_NORM the input is normed first (norm.k.c;
 * group 0 leaves the result in h), with HAS_GLU y0 becomes act(w0 x) * (w1 x) (elementwise.k.c).
 *
 * Eight warps multiply, one thread of a ninth brings the weights; where units are shorter, a lane each row. A unit is RG outputs x
 * CHUNK inputs, 2048 but for plain weights whose rows are cut into equal parts, so that none wastes its place in the ring; a warp takes 256 of
 * them; a group of threads takes neighbouring outputs, whole ones: sums meet in shared memory only, in a fixed order.
 * Strips (strips.h): u8 x s8 on the matrix units. The input becomes integers of 15 bits per 32 (top / 16256), high * 128 +
 * low, and each of the 8 columns of a product belongs to one sub-block: a factor has zeros for all others, so that the sums
 * of a sub-block end in the thread that holds its scale. Integers are exact; rounded is the input alone.
 * Other quantised weights, as the file has them: the same integers, four at a time.
 * Plain weights: f32 sums of products with the f32 input.
 * Requires: strips (in % 256 == 0), or in % 8 == 0 and rows of 16-byte multiples. GROUP 288. */
#include "dialect.h"
#include "args/args.h"
#ifdef CHUNK
#define SHORT_UNITS 1
#else
#define CHUNK       2048u
#define SHORT_UNITS 0
#endif
#include "cuda/stream_math.h"

/* Shared memory: ring [depth][UNIT_BYTES], inputs [chunks][X_BYTES], sums [HOLD][WARPS][RG], barriers. */

/* --- which outputs --- */

struct matrices {
    const u8 *w[3];
    const f32 *bias[3];
    f32 *y[3];
};
struct place {
    u32 which, m; /* matrix, group of outputs in it */
};
FN struct place place_of(u32 r, const struct pl_args_stream *a) {
    struct place p;
#ifdef HAS_GLU
    p.which = r & 1u, p.m = r >> 1;
#else
    u32 n0 = groups_of(a->out0), n1 = groups_of(a->out1);
    p.which = r < n0 ? 0u : r < n0 + n1 ? 1u : 2u;
    p.m = r < n0 ? r : r < n0 + n1 ? r - n0 : r - n0 - n1;
#endif
    return p;
}
FN u32 out_of(const struct place *p, const struct pl_args_stream *a) { return p->which == 0u ? a->out0 : p->which == 1u ? a->out1 : a->out2; }
FN const u8 *matrix_of(const struct place *p, const struct matrices *all) {
    return p->which == 0u ? all->w[0] : p->which == 1u ? all->w[1] : all->w[2];
}

/* --- weights on their way --- */

FN void bring(u8 *to, u64 *full, const struct place *p, u32 chunk, const struct matrices *all, const struct pl_args_stream *a) {
    const u8 *w = matrix_of(p, all);
#if defined(WTYPE_BF16) || defined(WTYPE_F16)
    u32 bytes = PL_MIN(a->in - CHUNK * chunk, CHUNK) * 2u, out = out_of(p, a), lane = LOCAL_X % 32u;
    if (SHORT_UNITS == 0 || lane == 0u) barrier_expect(full, RG * bytes);
    if (SHORT_UNITS != 0) __syncwarp();
    for (u32 i = SHORT_UNITS != 0 ? lane : 0u; i < RG; i += SHORT_UNITS != 0 ? 32u : 1u) {
        u64 row = PL_MIN(p->m * RG + i, out - 1u);
        copy_bulk(to + 2u * CHUNK * i, w + row * a->row_bytes + 2u * CHUNK * chunk, bytes, full);
    }
#elif defined(BLOCK_BYTES)
    u32 bytes = PL_MIN(a->in / 32u - 64u * chunk, 64u) * BLOCK_BYTES, out = out_of(p, a);
    barrier_expect(full, RG * bytes);
    for (u32 i = 0; i < RG; i++) {
        u64 row = PL_MIN(p->m * RG + i, out - 1u);
        copy_bulk(to + ROW_BYTES * i, w + row * a->row_bytes + 64u * BLOCK_BYTES * chunk, bytes, full);
    }
#else
    u32 blocks = a->in / 256u, bytes = PL_MIN(blocks - 8u * chunk, 8u) * STRIP_BYTES;
    barrier_expect(full, bytes);
    copy_bulk(to, w + ((u64)p->m * blocks + 8u * chunk) * STRIP_BYTES, bytes, full);
#endif
}
FN void bring_all(u64 *full, u64 *freed, u32 first, u32 end, u32 chunks, const struct matrices *all, const struct pl_args_stream *a) {
    u32 s = 0u, round = 0u;
    for (u32 r = first; r < end; r += TOGETHER) { /* in the order in which they are multiplied */
        struct place p[2] = {place_of(r, a), place_of(r + 1u, a)};
        for (u32 chunk = 0; chunk < chunks; chunk++) {
            for (u32 j = 0; j < TOGETHER && r + j < end; j++) {
                if (round > 0u) barrier_wait(freed + s, (round - 1u) & 1u);
                bring(shared + s * UNIT_BYTES, full + s, &p[j], chunk, all, a);
                if (++s == a->depth) s = 0u, round++;
            }
        }
    }
}

/* --- the input --- */

#define ROUNDS 4u /* of 8 inputs a thread, fetched at once */
FN void fetch(const f32 *x, u32 first, u32 in, f32 (*v)[8]) {
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++) {
        u32 k = 8u * (MEMBERS * (first + i) + LOCAL_X);
        if (k < in) {
            load8(x + k, v[i]);
        } else {
#pragma unroll
            for (u32 e = 0; e < 8u; e++) v[i][e] = 0.0f;
        }
    }
}
/* norm: the weights of the first ROUNDS / 2 rounds, fetched before. */
FN void inputs(u8 *to, const f32 *x, const f32 *norm, f32 (*early)[8], f32 *h, f32 *scratch, const struct pl_args_stream *a) {
    u32 rounds = (a->in + 8u * MEMBERS - 1u) / (8u * MEMBERS);
    f32 v[ROUNDS][8];
    fetch(x, 0u, a->in, v);
#ifdef HAS_NORM
    f32 sum = 0.0f;
    for (u32 first = 0;; first += ROUNDS) {
#pragma unroll
        for (u32 i = 0; i < 8u * ROUNDS; i++) sum = FMA(v[i / 8u][i % 8u], v[i / 8u][i % 8u], sum);
        if (first + ROUNDS >= rounds) break;
        fetch(x, first + ROUNDS, a->in, v);
    }
    for (u32 m = 16u; m > 0u; m >>= 1) sum += lane_xor(sum, m);
    if (LOCAL_X % 32u == 0u) scratch[LOCAL_X / 32u] = sum;
    members_meet();
    sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) sum += scratch[i];
    f32 inverse = 1.0f / SQRT(sum / (f32)a->in + a->value);
    if (rounds > ROUNDS) fetch(x, 0u, a->in, v);
#else
    (void)norm;
    (void)early;
    (void)h;
    (void)scratch;
#endif
    for (u32 first = 0;; first += ROUNDS) {
#pragma unroll
        for (u32 i = 0; i < ROUNDS; i++) {
            u32 k = 8u * (MEMBERS * (first + i) + LOCAL_X);
            if (first + i >= rounds) continue; /* the same for all threads: shuffles inside */
#ifdef HAS_NORM
            if (k < a->in) {
                f32 w[8];
                if (first == 0u && i < ROUNDS / 2u) {
#pragma unroll
                    for (u32 e = 0; e < 8u; e++) w[e] = early[i % (ROUNDS / 2u)][e];
                } else {
                    load8(norm + k, w);
                }
#pragma unroll
                for (u32 e = 0; e < 8u; e++) v[i][e] = v[i][e] * inverse * (a->offset + w[e]);
                if (GROUP_X == 0u) {
                    *(float4 *)(h + k) = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
                    *(float4 *)(h + k + 4u) = make_float4(v[i][4], v[i][5], v[i][6], v[i][7]);
                }
            }
#endif
            if (SHORT_UNITS == 0 || k < a->in) put(to, k, v[i]); /* there is no room for more */
        }
        if (first + ROUNDS >= rounds) break;
        fetch(x, first + ROUNDS, a->in, v);
    }
}

#ifndef HAS_GLU
/* What a thread's output of the first groups is added to, fetched early. */
FN f32 *own_output(u32 first, u32 i, const struct matrices *all, const struct pl_args_stream *a) {
    struct place p = place_of(first + i / RG, a);
    u32 o = p.m * RG + i % RG;
    f32 *y = p.which == 0u ? all->y[0] : p.which == 1u ? all->y[1] : all->y[2];
    return o < out_of(&p, a) ? y + o : nullptr;
}
#endif
/* Groups of outputs [first, first + held). */
FN void finish(const f32 *sums, u32 first, u32 held, const struct matrices *all, bool early, f32 old, const struct pl_args_stream *a) {
#ifdef HAS_GLU
    (void)early;
    (void)old;
    for (u32 i = LOCAL_X; i < held / 2u * RG; i += MEMBERS) {
        u32 slot = i / RG * 2u, o = (first + slot) / 2u * RG + i % RG;
        if (o >= a->out0) continue;
        f32 gate = total(sums, slot, i % RG), up = total(sums, slot + 1u, i % RG);
        if (all->bias[0] != nullptr) gate += all->bias[0][o];
        if (all->bias[1] != nullptr) up += all->bias[1][o];
        all->y[0][o] = activate(gate) * up;
    }
#else
    for (u32 i = LOCAL_X; i < held * RG; i += MEMBERS) {
        struct place p = place_of(first + i / RG, a);
        u32 o = p.m * RG + i % RG;
        if (o >= out_of(&p, a)) continue;
        const f32 *bias = p.which == 0u ? all->bias[0] : p.which == 1u ? all->bias[1] : all->bias[2];
        f32 *y = p.which == 0u ? all->y[0] : p.which == 1u ? all->y[1] : all->y[2], v = total(sums, i / RG, i % RG);
        if (bias != nullptr) v += bias[o];
        if ((a->flags & PL_LINEAR_ADD) != 0u) v += early ? old : y[o]; /* at most MEMBERS outputs are held */
        y[o] = v;
    }
#endif
}

/* grid: (groups of threads); y may be written by the group that reads it only. */
KERNEL(stream)(const u8 *__restrict__ w0, const u8 *__restrict__ w1, const u8 *__restrict__ w2, const f32 *__restrict__ b0,
               const f32 *__restrict__ b1, const f32 *__restrict__ b2, f32 *y0, f32 *y1, f32 *y2, const f32 *x,
               const f32 *__restrict__ norm, f32 *h, u32 *witness, const struct pl_args_stream a) {
    const struct matrices all = {{w0, w1, w2}, {b0, b1, b2}, {y0, y1, y2}};
    u32 chunks = (a.in + CHUNK - 1u) / CHUNK, warp = LOCAL_X / 32u, lane = LOCAL_X % 32u;
#ifdef HAS_GLU
    u32 pairs = groups_of(a.out0), first = (u32)((u64)GROUP_X * pairs / a.grid) * 2u, end = (u32)((GROUP_X + 1ull) * pairs / a.grid) * 2u;
#else
    u32 groups = groups_of(a.out0) + groups_of(a.out1) + groups_of(a.out2);
    u32 first = (u32)((u64)GROUP_X * groups / a.grid), end = (u32)((GROUP_X + 1ull) * groups / a.grid);
#endif
    u8 *in = shared + a.depth * UNIT_BYTES;
    f32 *sums = (f32 *)(in + chunks * X_BYTES);
    u64 *full = (u64 *)((u8 *)sums + SUMS_BYTES), *freed = full + a.depth;
    if (LOCAL_X == MEMBERS) {
        for (u32 s = 0; s < a.depth; s++) barrier_init(full + s, 1u), barrier_init(freed + s, LEAVERS);
        barriers_ready();
    }
    BARRIER();
    if (warp == WARPS) { /* weights depend on no launch before this one */
        if (SHORT_UNITS != 0 || lane == 0u) bring_all(full, freed, first, end, chunks, &all, &a);
        return;
    }
#ifdef HAS_NORM
    f32 early[ROUNDS / 2u][8];
#pragma unroll
    for (u32 i = 0; i < ROUNDS / 2u; i++) { /* weights as well */
        u32 k = 8u * (MEMBERS * i + LOCAL_X);
        if (k < a.in) load8(norm + k, early[i]);
    }
#else
    f32(*early)[8] = nullptr;
#endif
    count_launch(witness);
    f32 old = 0.0f;
#ifndef HAS_GLU
    if ((a.flags & PL_LINEAR_ADD) != 0u && LOCAL_X < PL_MIN(HOLD, end - first) * RG) {
        const f32 *y = own_output(first, LOCAL_X, &all, &a);
        if (y != nullptr) old = *y;
    }
#endif
    inputs(in, x, norm, early, h, sums, &a);
    members_meet();
    u32 s = 0u, phase = 0u, held = 0u;
#if !defined(WTYPE_BF16) && !defined(WTYPE_F16) && !defined(BLOCK_BYTES)
    u32 blocks = a.in / 256u;
#endif
    for (u32 r = first; r < end; r += TOGETHER) { /* two groups of outputs share what is fetched of the input */
        u32 n = PL_MIN(TOGETHER, end - r);
        f32 acc[2][ACC];
#pragma unroll
        for (u32 i = 0; i < 2u * ACC; i++) acc[i / ACC][i % ACC] = 0.0f;
        for (u32 chunk = 0; chunk < chunks; chunk++) {
            const u8 *unit[2];
            u64 *left[2];
#pragma unroll
            for (u32 j = 0; j < 2u; j++) {
                unit[j] = shared + s * UNIT_BYTES;
                left[j] = freed + s;
                if (j >= n) continue;
                barrier_wait(full + s, phase);
                if (++s == a.depth) s = 0u, phase ^= 1u;
            }
#if defined(WTYPE_BF16) || defined(WTYPE_F16)
            bool live = (SHORT_UNITS == 0 || 256u * warp < CHUNK) && CHUNK * chunk + 256u * warp + 8u * lane < a.in;
#define INPUTS in + chunk * X_BYTES
#elif defined(BLOCK_BYTES)
            bool live = 64u * chunk + 8u * warp + lane % 8u < a.in / 32u;
#define INPUTS in + (8u * chunk + warp) * X_BLOCK
#else
            bool live = 8u * chunk + warp < blocks;
#define INPUTS in + (8u * chunk + warp) * X_BLOCK
#endif
            if (TOGETHER > 1u && live && n == 2u) {
                multiply(unit, 2u, INPUTS, acc);
            } else if (live) {
                multiply(unit, 1u, INPUTS, acc);
            }
            have_read(left[0]);
            if (n == 2u) have_read(left[1]);
        }
#pragma unroll
        for (u32 j = 0; j < 2u; j++) {
            if (j < n) leave(sums + ((held + j) * WARPS + warp) * RG, acc[j]);
        }
        held += n;
        if (held == HOLD || r + n == end) {
            members_meet();
            finish(sums, r + n - held, held, &all, r + n - held == first, old, &a);
            held = 0u;
            if (r + n < end) members_meet();
        }
    }
}
