/* stream - products of one row on NVIDIA GPUs of sm_90 and up, at the speed of the memory: the weights come through a ring in
 * shared memory, brought by the copy engine and asked for before the launch before this one is done. Up to three matrices of
 * one format and one input in one launch. Contract: kernels/linear.k.c. With HAS_NORM the input is normed first (norm.k.c;
 * group 0 leaves the result in h), with HAS_GLU y0 becomes act(w0 x) * (w1 x) (elementwise.k.c).
 *
 * Eight warps multiply, one thread of a ninth brings the weights. A unit is RG outputs x 2048 inputs, a warp takes 256 of
 * them; a group of threads takes neighbouring outputs, whole ones: sums meet in shared memory only, in a fixed order.
 * Strips (strips.h): u8 x s8 on the matrix units. The input becomes integers of 15 bits per 32 (top / 16256), high * 128 +
 * low, and each of the 8 columns of a product belongs to one sub-block: a factor has zeros for all others, so that the sums
 * of a sub-block end in the thread that holds its scale. Integers are exact; rounded is the input alone.
 * Other quantised weights, as the file has them: the same integers, four at a time.
 * Plain weights: f32 sums of products with the f32 input.
 * Requires: strips (in % 256 == 0), or in % 8 == 0 and rows of 16-byte multiples. GROUP 288. */
#include "dialect.h"
#include "args/args.h"
#define BULK
#include "cuda/strips.h"

#define WARPS   8u
#define MEMBERS 256u /* threads that multiply */
#define HOLD    16u  /* groups of outputs whose sums wait to be added up */
#if defined(WTYPE_Q8_0)
#define BLOCK_BYTES 34u
#elif defined(WTYPE_Q4_0)
#define BLOCK_BYTES 18u
#elif defined(WTYPE_Q4_1)
#define BLOCK_BYTES 20u
#elif defined(WTYPE_Q5_0)
#define BLOCK_BYTES 22u
#endif
#if defined(WTYPE_BF16) || defined(WTYPE_F16)
#define RG         4u
#define UNIT_BYTES 16384u
#define X_BYTES    8192u /* of 2048 inputs: f32, of each 256 the first four of every thread, then the others */
#else
#ifdef BLOCK_BYTES
#define RG         8u
#define ROW_BYTES  (64u * BLOCK_BYTES + 48u) /* in shared memory: banks apart */
#define UNIT_BYTES (RG * ROW_BYTES)
#else
#define RG         16u
#define UNIT_BYTES (8u * STRIP_BYTES)
#endif
#define X_BLOCK    576u /* of 256 inputs: high, low, then per 64 the scale of either sub-block and their scaled sums */
#define X_BYTES    (8u * X_BLOCK)
#endif
/* Shared memory: ring [depth][UNIT_BYTES], inputs [chunks][X_BYTES], a block of zeros, sums [HOLD][WARPS][RG], barriers. */
extern __shared__ __align__(128) u8 shared[];
#define ZERO_BYTES 576u
#define SUMS_BYTES (HOLD * WARPS * RG * 4u)

FN void members_meet(void) { asm volatile("bar.sync 1, 256;" ::: "memory"); }

/* --- which outputs --- */

struct matrices {
    const u8 *w[3];
    const f32 *bias[3];
    f32 *y[3];
};
struct place {
    u32 which, m; /* matrix, group of outputs in it */
};
FN u32 groups_of(u32 out) { return (out + RG - 1u) / RG; }
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
    u32 bytes = PL_MIN(a->in - 2048u * chunk, 2048u) * 2u, out = out_of(p, a);
    barrier_expect(full, RG * bytes);
    for (u32 i = 0; i < RG; i++) {
        u64 row = PL_MIN(p->m * RG + i, out - 1u);
        copy_bulk(to + 4096u * i, w + row * a->row_bytes + 4096u * chunk, bytes, full);
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
    for (u32 r = first; r < end; r += 2u) { /* in the order in which they are multiplied */
        struct place p[2] = {place_of(r, a), place_of(r + 1u, a)};
        for (u32 chunk = 0; chunk < chunks; chunk++) {
            for (u32 j = 0; j < 2u && r + j < end; j++) {
                if (round > 0u) barrier_wait(freed + s, (round - 1u) & 1u);
                bring(shared + s * UNIT_BYTES, full + s, &p[j], chunk, all, a);
                if (++s == a->depth) s = 0u, round++;
            }
        }
    }
}

/* --- the input --- */

FN void load8(const f32 *p, f32 *v) {
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
/* Inputs [k, k + 8) of this thread; four neighbouring threads hold 32. */
FN void put(u8 *to, u32 k, const f32 *v) {
#if defined(WTYPE_BF16) || defined(WTYPE_F16)
    f32 *at = (f32 *)to + k / 256u * 256u + 4u * (k % 256u / 8u);
    *(float4 *)at = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(at + 128) = make_float4(v[4], v[5], v[6], v[7]);
#else
    u8 *block = to + k / 256u * X_BLOCK;
    u32 e = k % 256u, sub = e / 32u, high[2] = {0u, 0u}, low[2] = {0u, 0u};
    f32 top = 0.0f, broken = 0.0f;
    i32 total = 0;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) top = FMAX(top, FABS(v[i])), broken = FMA(v[i], 0.0f, broken); /* NaN stays, inf becomes one */
    top = FMAX(top, lane_xor(top, 1));
    top = FMAX(top, lane_xor(top, 2));
    if (top < 1.0e-34f) top = 0.0f; /* its inverse would not be a number */
    f32 inverse = top > 0.0f ? 16256.0f / top : 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) {
        i32 q = __float2int_rn(v[i] * inverse), h = (q + 64) >> 7;
        total += q;
        high[i / 4u] |= ((u32)h & 255u) << (8u * (i % 4u));
        low[i / 4u] |= ((u32)(q - h * 128) & 255u) << (8u * (i % 4u));
    }
    total += lane_xor(total, 1);
    total += lane_xor(total, 2);
    broken += lane_xor(broken, 1);
    broken += lane_xor(broken, 2);
    *(uint2 *)(block + e) = make_uint2(high[0], high[1]);
    *(uint2 *)(block + 256u + e) = make_uint2(low[0], low[1]);
    if (e % 32u == 0u) {
        f32 d = top / 16256.0f + broken, *scales = (f32 *)(block + 512u + 16u * (sub >> 1));
#ifdef WTYPE_Q6_K
        scales[sub & 1u] = d * 0.25f;
#elif defined(BLOCK_BYTES)
        scales[sub & 1u] = d;
        scales[2u + (sub & 1u)] = d * (f32)total;
#else
        scales[sub & 1u] = (sub & 1u) != 0u ? d * 0.0625f : d;
        scales[2u + (sub & 1u)] = d * (f32)total;
#endif
    }
#endif
}
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
            put(to, k, v[i]);
        }
        if (first + ROUNDS >= rounds) break;
        fetch(x, first + ROUNDS, a->in, v);
    }
}

/* --- products --- */

#if defined(WTYPE_BF16) || defined(WTYPE_F16)
FN void widen(u32 u, f32 *lo, f32 *hi) {
#ifdef WTYPE_BF16
    *lo = bits_f32(u << 16);
    *hi = bits_f32(u & 0xFFFF0000u);
#else
    *lo = h2_low(u);
    *hi = h2_high(u);
#endif
}
/* acc[j][i] += of output i of group j, of n groups; units in shared memory, inputs of this warp's 256. */
FN void multiply(const u8 *const *unit, u32 n, const u8 *x, f32 (*acc)[RG]) {
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u;
    uint4 w[2][RG];
    f32 e[8];
#pragma unroll
    for (u32 i = 0; i < n * RG; i++) w[i / RG][i % RG] = *(const uint4 *)(unit[i / RG] + 4096u * (i % RG) + 512u * warp + 16u * lane);
    float4 e0 = *(const float4 *)(x + 1024u * warp + 16u * lane), e1 = *(const float4 *)(x + 1024u * warp + 512u + 16u * lane);
    e[0] = e0.x, e[1] = e0.y, e[2] = e0.z, e[3] = e0.w, e[4] = e1.x, e[5] = e1.y, e[6] = e1.z, e[7] = e1.w;
#pragma unroll
    for (u32 i = 0; i < n * RG; i++) {
        const uint4 *q = &w[i / RG][i % RG];
        u32 u[4] = {q->x, q->y, q->z, q->w};
        f32 *sum = &acc[i / RG][i % RG];
#pragma unroll
        for (u32 j = 0; j < 4u; j++) {
            f32 lo, hi;
            widen(u[j], &lo, &hi);
            *sum = FMA(lo, e[2u * j], *sum);
            *sum = FMA(hi, e[2u * j + 1u], *sum);
        }
    }
}
#define ACC RG
/* Of each output the sum over the warp; thread 8 i holds output i. */
FN void leave(f32 *sums, f32 *acc) {
    u32 lane = LOCAL_X % 32u;
    bool upper = (lane & 16u) != 0u, odd = (lane & 8u) != 0u;
    f32 give0 = upper ? acc[0] : acc[2], give1 = upper ? acc[1] : acc[3];
    f32 v0 = (upper ? acc[2] : acc[0]) + lane_xor(give0, 16), v1 = (upper ? acc[3] : acc[1]) + lane_xor(give1, 16);
    f32 v = (odd ? v1 : v0) + lane_xor(odd ? v0 : v1, 8);
    v += lane_xor(v, 4);
    v += lane_xor(v, 2);
    v += lane_xor(v, 1);
    if (lane % 8u == 0u) sums[lane / 8u] = v;
}
#elif defined(BLOCK_BYTES)
/* A block of 32 as the file has it: bytes in element order, scale, what is added once per element. */
struct block {
    u32 q[8];
    f32 d, m;
};
FN u32 two_bytes(const u16 *p, u32 i) { return (u32)p[2u * i] | ((u32)p[2u * i + 1u] << 16); }
FN void open_block(const u8 *at, struct block *b) {
    const u16 *p = (const u16 *)at;
    b->d = h2_low(p[0]);
#ifdef WTYPE_Q8_0
    b->m = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) b->q[i] = two_bytes(p + 1, i);
#else
#if defined(WTYPE_Q4_0)
    const u16 *q = p + 1;
    b->m = -8.0f * b->d;
#elif defined(WTYPE_Q4_1)
    const u16 *q = p + 2;
    b->m = h2_low(p[1]);
#else
    const u16 *q = p + 3;
    u32 high = two_bytes(p + 1, 0u);
    b->m = -16.0f * b->d;
#endif
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        u32 v = two_bytes(q, i);
        b->q[i] = v & 0x0F0F0F0Fu;
        b->q[i + 4u] = (v >> 4) & 0x0F0F0F0Fu;
#ifdef WTYPE_Q5_0
#define SPREAD(bits) (((bits) & 1u) << 4 | ((bits) & 2u) << 11 | ((bits) & 4u) << 18 | ((bits) & 8u) << 25)
        b->q[i] |= SPREAD(high >> (4u * i));
        b->q[i + 4u] |= SPREAD(high >> (16u + 4u * i));
#endif
    }
#endif
}
/* acc[j][i] += of output lane / 8 + 4 i of group j over block lane % 8 of this warp's eight; x: their inputs. */
FN void multiply(const u8 *const *unit, u32 n, const u8 *x, f32 (*acc)[2]) {
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, k = lane % 8u;
    uint4 high[2], low[2];
#pragma unroll
    for (u32 i = 0; i < 2u; i++) {
        high[i] = *(const uint4 *)(x + 32u * k + 16u * i);
        low[i] = *(const uint4 *)(x + 256u + 32u * k + 16u * i);
    }
    f32 scale = *(const f32 *)(x + 512u + 16u * (k >> 1) + 4u * (k & 1u)), total = *(const f32 *)(x + 520u + 16u * (k >> 1) + 4u * (k & 1u));
#pragma unroll
    for (u32 r = 0; r < 2u * n; r++) {
        struct block b;
        i32 h = 0, l = 0;
        open_block(unit[r / 2u] + (lane / 8u + 4u * (r % 2u)) * ROW_BYTES + (8u * warp + k) * BLOCK_BYTES, &b);
#pragma unroll
        for (u32 i = 0; i < 8u; i++) {
            const uint4 *p = &high[i / 4u], *q = &low[i / 4u];
            u32 e = i % 4u;
            h = __dp4a((int)b.q[i], (int)(e == 0u ? p->x : e == 1u ? p->y : e == 2u ? p->z : p->w), h);
            l = __dp4a((int)b.q[i], (int)(e == 0u ? q->x : e == 1u ? q->y : e == 2u ? q->z : q->w), l);
        }
        acc[r / 2u][r % 2u] += b.d * (scale * (f32)(h * 128 + l)) + b.m * total;
    }
}
#define ACC 2u
FN void leave(f32 *sums, f32 *acc) {
    u32 lane = LOCAL_X % 32u;
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        acc[r] += lane_xor(acc[r], 1);
        acc[r] += lane_xor(acc[r], 2);
        acc[r] += lane_xor(acc[r], 4);
        if ((lane & 7u) == 0u) sums[(lane >> 3) + 4u * r] = acc[r];
    }
}
#else
FN void mma_u8(i32 *c, const u32 *a, u32 b0, u32 b1) {
#ifdef WTYPE_Q6_K
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FN u32 word_of(const uint4 *q, u32 i) {
    const uint4 *at = q + (i >> 2);
    return (i & 3u) == 0u ? at->x : (i & 3u) == 1u ? at->y : (i & 3u) == 2u ? at->z : at->w;
}
FN u32 byte_of(u32 v, u32 i) { return (v >> (8u * i)) & 255u; }
#ifdef WTYPE_Q6_K
/* 4 (q - 32) of four inputs: `four` their lower bits << 2 with the sign turned, u the word of upper bits, at: their first. */
FN u32 six(u32 four, u32 u, u32 at) {
    u32 even = at > 6u ? u >> (at - 6u) : u << (6u - at), odd = at + 2u > 14u ? u >> (at + 2u - 14u) : u << (14u - at - 2u);
    return four ^ (even & 0x00C000C0u) ^ (odd & 0xC000C000u);
}
#endif
#ifdef WTYPE_Q6_K
#define SETS 2u /* of sums: the first and the second 16 inputs of a half */
#else
#define SETS 1u
#endif
/* acc[r] += of outputs g + 8 r of one strip, its sums known; s: scales and sums of this thread's 64 inputs. */
FN void weigh(const u8 *strip, i32 (*sum)[2][4], float4 s, f32 *acc) {
    u32 lane = LOCAL_X % 32u;
    uint2 scale = *(const uint2 *)(strip + STRIP_SCALE + 8u * lane);
#ifdef WTYPE_Q6_K
    u32 d = *(const u32 *)(strip + STRIP_D + 4u * (lane >> 2));
#else
    uint2 d = *(const uint2 *)(strip + STRIP_D + 8u * (lane >> 2));
#endif
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        u32 bytes = r == 0u ? scale.x : scale.y;
#ifdef WTYPE_Q6_K
        f32 v[4];
#pragma unroll
        for (u32 i = 0; i < 4u; i++) { /* sub-block: i & 1 first or second 16, i >> 1 half */
            i32 n = sum[i & 1u][0][2u * r + (i >> 1)] * 128 + sum[i & 1u][1][2u * r + (i >> 1)];
            v[i] = (f32)(i8)byte_of(bytes, i) * (f32)n;
        }
        acc[r] = FMA(r == 0u ? h2_low(d) : h2_high(d), s.x * (v[0] + v[1]) + s.y * (v[2] + v[3]), acc[r]);
#else
        i32 n0 = sum[0][0][2u * r] * 128 + sum[0][1][2u * r], n1 = sum[0][0][2u * r + 1u] * 128 + sum[0][1][2u * r + 1u];
        f32 e = (f32)byte_of(bytes, 0u) * (s.x * (f32)n0) + (f32)byte_of(bytes, 1u) * (s.y * (f32)n1);
        f32 m = (f32)byte_of(bytes, 2u) * s.z + (f32)byte_of(bytes, 3u) * s.w;
        u32 dm = r == 0u ? d.x : d.y;
        acc[r] += h2_low(dm) * e - h2_high(dm) * m;
#endif
    }
}
/* acc[j][r] += of outputs g + 8 r of strip j, of n strips over the same inputs; x: the block of inputs, low and high: where this
 * thread's factors of either half stand. */
FN void multiply(const u8 *const *unit, u32 n, const u8 *x, const u8 *low, const u8 *high, f32 (*acc)[2]) {
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u;
    const u8 *strip[2] = {unit[0] + warp * STRIP_BYTES, unit[1] + warp * STRIP_BYTES};
    uint4 q[2][4];
    i32 sum[2][SETS][2][4];
#ifdef WTYPE_Q6_K
    uint4 upper[2][2];
#endif
#pragma unroll
    for (u32 j = 0; j < n; j++) {
#pragma unroll
        for (u32 i = 0; i < 4u; i++) q[j][i] = *(const uint4 *)(strip[j] + 512u * i + 16u * lane);
#ifdef WTYPE_Q6_K
        upper[j][0] = *(const uint4 *)(strip[j] + STRIP_HIGH + 16u * lane);
        upper[j][1] = *(const uint4 *)(strip[j] + STRIP_HIGH + 512u + 16u * lane);
#endif
#pragma unroll
        for (u32 i = 0; i < 8u * SETS; i++) sum[j][i >> 3][i >> 2 & 1u][i & 3u] = 0;
    }
#pragma unroll
    for (u32 m = 0; m < 2u; m++) {
        uint4 b[2][2]; /* half, high or low part: the words of two products */
#pragma unroll
        for (u32 i = 0; i < 2u; i++) {
            b[0][i] = *(const uint4 *)(low + 256u * i + 16u * m);
            b[1][i] = *(const uint4 *)(high + 256u * i + 16u * m);
        }
#pragma unroll
        for (u32 h = 0; h < 2u; h++) {
            u32 p = 2u * m + h;
#pragma unroll
            for (u32 j = 0; j < n; j++) {
                u32 first[4], second[4];
#pragma unroll
                for (u32 i = 0; i < 4u; i++) { /* output g + 8 (i & 1), word 2 p + (i >> 1) */
                    u32 v = word_of(q[j], 8u * (i & 1u) + 2u * p + (i >> 1));
#ifdef WTYPE_Q6_K
                    u32 u = word_of(upper[j], 4u * (i & 1u) + p), at = 8u * (i >> 1);
                    first[i] = six(((v << 2) & 0x3C3C3C3Cu) ^ 0x80808080u, u, at);
                    second[i] = six(((v >> 2) & 0x3C3C3C3Cu) ^ 0x80808080u, u, at + 4u);
#else
                    first[i] = v & 0x0F0F0F0Fu;
                    second[i] = v & 0xF0F0F0F0u; /* 16 q */
#endif
                }
#pragma unroll
                for (u32 part = 0; part < 2u; part++) {
                    u32 set = SETS > 1u ? p >> 1 : 0u; /* the halves have columns of their own */
                    mma_u8(sum[j][set][part], first, word_of(&b[0][part], 2u * h), word_of(&b[0][part], 2u * h + 1u));
                    mma_u8(sum[j][set][part], second, word_of(&b[1][part], 2u * h), word_of(&b[1][part], 2u * h + 1u));
                }
            }
        }
    }
    float4 s = *(const float4 *)(x + 512u + 16u * (lane & 3u));
#pragma unroll
    for (u32 j = 0; j < n; j++) weigh(strip[j], sum[j], s, acc[j]);
}
#define ACC 2u
FN void leave(f32 *sums, f32 *acc) {
    u32 lane = LOCAL_X % 32u;
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        acc[r] += lane_xor(acc[r], 1);
        acc[r] += lane_xor(acc[r], 2);
        if ((lane & 3u) == 0u) sums[(lane >> 2) + 8u * r] = acc[r];
    }
}
#endif

/* --- results --- */

#ifdef HAS_GLU
#ifdef ACT_GELU_TANH
FN f32 activate(f32 x) { return 0.5f * x * (1.0f + TANH(0.7978845608028654f * x * (1.0f + 0.044715f * x * x))); }
#else
FN f32 activate(f32 x) { return __fdividef(x, 1.0f + __expf(-x)); }
#endif
#endif
FN f32 total(const f32 *sums, u32 slot, u32 o) {
    f32 v = 0.0f;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) v += sums[(slot * WARPS + w) * RG + o];
    return v;
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
    u32 chunks = (a.in + 2047u) / 2048u, warp = LOCAL_X / 32u, lane = LOCAL_X % 32u;
#ifdef HAS_GLU
    u32 pairs = groups_of(a.out0), first = (u32)((u64)GROUP_X * pairs / a.grid) * 2u, end = (u32)((GROUP_X + 1ull) * pairs / a.grid) * 2u;
#else
    u32 groups = groups_of(a.out0) + groups_of(a.out1) + groups_of(a.out2);
    u32 first = (u32)((u64)GROUP_X * groups / a.grid), end = (u32)((GROUP_X + 1ull) * groups / a.grid);
#endif
    u8 *in = shared + a.depth * UNIT_BYTES, *zeros = in + chunks * X_BYTES;
    f32 *sums = (f32 *)(zeros + ZERO_BYTES);
    u64 *full = (u64 *)((u8 *)sums + SUMS_BYTES), *freed = full + a.depth;
    if (LOCAL_X == MEMBERS) {
        for (u32 s = 0; s < a.depth; s++) barrier_init(full + s, 1u), barrier_init(freed + s, WARPS);
        barriers_ready();
    }
    for (u32 i = LOCAL_X; i < ZERO_BYTES / 4u; i += MEMBERS) ((u32 *)zeros)[i] = 0u;
    BARRIER();
    if (warp == WARPS) { /* weights depend on no launch before this one */
        if (lane == 0u) bring_all(full, freed, first, end, chunks, &all, &a);
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
    u32 g = lane >> 2, t = lane & 3u, blocks = a.in / 256u;
    bool is_low = g == 2u * t, is_high = g == 2u * t + 1u;
    const u8 *low = is_low ? in + warp * X_BLOCK + 32u * g : zeros, *high = is_high ? in + warp * X_BLOCK + 32u * g : zeros;
    u32 low_step = is_low ? X_BYTES : 0u, high_step = is_high ? X_BYTES : 0u;
#endif
    for (u32 r = first; r < end; r += 2u) { /* two groups of outputs share what is fetched of the input */
        u32 n = PL_MIN(2u, end - r);
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
            bool live = 2048u * chunk + 256u * warp + 8u * lane < a.in;
#define INPUTS in + chunk * X_BYTES
#elif defined(BLOCK_BYTES)
            bool live = 64u * chunk + 8u * warp + lane % 8u < a.in / 32u;
#define INPUTS in + (8u * chunk + warp) * X_BLOCK
#else
            bool live = 8u * chunk + warp < blocks;
#define INPUTS in + (8u * chunk + warp) * X_BLOCK, low + chunk * low_step, high + chunk * high_step
#endif
            if (live && n == 2u) {
                multiply(unit, 2u, INPUTS, acc);
            } else if (live) {
                multiply(unit, 1u, INPUTS, acc);
            }
            __syncwarp();
            if (lane == 0u) {
                barrier_arrive(left[0]);
                if (n == 2u) barrier_arrive(left[1]);
            }
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
