/* gemv - products of few rows (ROWS, at most 8) on NVIDIA GPUs: weights stream once, 16 bytes a load where the format
 * allows it, up to three matrices of one format and one input in one launch. Contract: kernels/linear.k.c.
 *
 * A warp owns PER_WARP outputs. Floats: x is read as f32 through the cache. Quantised formats: every group first makes
 * its own copy of x in 8 bits per block of 32 (scale max|x|/127, as the vector tables of the CPU do), then multiplies
 * integers four at a time; minimums meet the sums of the 8-bit values.
 * Requires: in % 8 == 0 for floats, whole blocks otherwise; rows of 16-byte multiples for floats and Q4_K.
 * Numerics: fixed order, bitwise repeatable; the same for any ROWS and any row (where the compiler may choose what becomes a
 * fused multiply-add it could choose otherwise for another ROWS, so it is written out). */
#include "dialect.h"
#include "args/args.h"

#define WARPS   (GROUP / 32)
#define OUTPUTS (WARPS * PER_WARP)

struct quad {
    u32 x, y, z, w;
};
FN struct quad load16(const void *p) {
    struct quad q;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(p));
    return q;
}
FN f32 half_lo(u32 v) {
    f32 f;
    u16 h = (u16)v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
FN f32 half_hi(u32 v) { return half_lo(v >> 16); }
FN f32 warp_sum(f32 v) {
    for (u32 m = 16; m > 0; m >>= 1) v += lane_xor(v, m);
    return v;
}
FN f32 warp_max(f32 v) {
    for (u32 m = 16; m > 0; m >>= 1) v = FMAX(v, lane_xor(v, m));
    return v;
}
FN i32 dot4(u32 a, u32 b, i32 c) { return __dp4a((int)a, (int)b, c); }

/* --- which output --- */

struct job {
    const u8 *w;
    const f32 *bias;
    f32 *y;
    u32 first, out;
};
#define GEMV_PARAMS                                                                                                           \
    const u8 *__restrict__ d0, const u8 *__restrict__ d1, const u8 *__restrict__ d2, const f32 *b0, const f32 *b1,            \
        const f32 *b2, f32 *y0, f32 *y1, f32 *y2, const f32 *__restrict__ x, u32 *witness, const struct pl_args_gemv a
FN struct job job_of(const u8 *d0, const u8 *d1, const u8 *d2, const f32 *b0, const f32 *b1, const f32 *b2, f32 *y0, f32 *y1,
                     f32 *y2, const struct pl_args_gemv *a) {
    u32 block = GROUP_X, n0 = (a->out0 + OUTPUTS - 1) / OUTPUTS, n1 = (a->out1 + OUTPUTS - 1) / OUTPUTS;
    struct job j;
    if (block < n0) {
        j.w = d0, j.bias = b0, j.y = y0, j.out = a->out0;
    } else if (block < n0 + n1) {
        block -= n0;
        j.w = d1, j.bias = b1, j.y = y1, j.out = a->out1;
    } else {
        block -= n0 + n1;
        j.w = d2, j.bias = b2, j.y = y2, j.out = a->out2;
    }
    j.first = block * OUTPUTS + LOCAL_X / 32u * PER_WARP;
    return j;
}
FN void store(const struct job *j, u32 o, u32 r, f32 s, u32 flags) {
    s = warp_sum(s);
    if (LOCAL_X % 32u != 0u || o >= j->out) return;
    u64 i = (u64)r * j->out + o;
    if (j->bias != nullptr) s += j->bias[o];
    if ((flags & PL_LINEAR_ADD) != 0u) s += j->y[i];
    j->y[i] = s;
}

#if defined(WTYPE_BF16) || defined(WTYPE_F16) || defined(WTYPE_F32)
/* ELEMS of 16 bytes as f32. */
#ifdef WTYPE_F32
#define ELEMS 4u
#else
#define ELEMS 8u
#endif
FN void widen(const struct quad *q, f32 *v) {
    u32 u[4] = {q->x, q->y, q->z, q->w};
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
#if defined(WTYPE_F32)
        v[i] = bits_f32(u[i]);
#elif defined(WTYPE_BF16)
        v[2u * i] = bits_f32(u[i] << 16);
        v[2u * i + 1u] = bits_f32(u[i] & 0xFFFF0000u);
#else
        v[2u * i] = half_lo(u[i]);
        v[2u * i + 1u] = half_hi(u[i]);
#endif
    }
}
FN void madd(const struct quad *w, const f32 *x, u32 k, u32 in, f32 (*sum)[ROWS]) {
    f32 v[PER_WARP][ELEMS];
#pragma unroll
    for (u32 p = 0; p < PER_WARP; p++) widen(&w[p], v[p]);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        f32 e[ELEMS];
        const float4 *from = (const float4 *)(x + (u64)r * in + k);
#pragma unroll
        for (u32 i = 0; i < ELEMS / 4u; i++) {
            float4 t = from[i];
            e[4u * i] = t.x, e[4u * i + 1u] = t.y, e[4u * i + 2u] = t.z, e[4u * i + 3u] = t.w;
        }
#pragma unroll
        for (u32 p = 0; p < PER_WARP; p++) {
#pragma unroll
            for (u32 i = 0; i < ELEMS; i++) sum[p][r] = FMA(v[p][i], e[i], sum[p][r]);
        }
    }
}
#define STEPS 4u
KERNEL(gemv)(GEMV_PARAMS) {
    count_launch(witness);
    struct job j = job_of(d0, d1, d2, b0, b1, b2, y0, y1, y2, &a);
    u32 lane = LOCAL_X % 32u;
    const u8 *w[PER_WARP];
    f32 sum[PER_WARP][ROWS];
#pragma unroll
    for (u32 p = 0; p < PER_WARP; p++) {
        w[p] = j.w + (u64)PL_MIN(j.first + p, j.out - 1u) * a.row_bytes;
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) sum[p][r] = 0.0f;
    }
    u32 k = lane * ELEMS;
    for (; k + (STEPS - 1u) * 32u * ELEMS + ELEMS <= a.in; k += STEPS * 32u * ELEMS) {
        struct quad q[STEPS][PER_WARP];
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
#pragma unroll
            for (u32 p = 0; p < PER_WARP; p++) q[s][p] = load16(w[p] + (u64)(k + s * 32u * ELEMS) * (16u / ELEMS));
        }
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) madd(q[s], x, k + s * 32u * ELEMS, a.in, sum);
    }
    for (; k < a.in; k += 32u * ELEMS) {
        struct quad q[PER_WARP];
#pragma unroll
        for (u32 p = 0; p < PER_WARP; p++) q[p] = load16(w[p] + (u64)k * (16u / ELEMS));
        madd(q, x, k, a.in, sum);
    }
#pragma unroll
    for (u32 p = 0; p < PER_WARP; p++) {
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) store(&j, j.first + p, r, sum[p][r], a.flags);
    }
}

#else
/* --- x in 8 bits: bytes, then per 32 a scale, then per 16 the scaled sum --- */

extern __shared__ __align__(16) u8 shared[];
#define XQ(r)    (shared + (u64)(r) * a.in)
#define XD(r)    ((f32 *)(shared + (u64)ROWS * a.in) + (u64)(r) * (a.in / 32u))
#define XS(r)    ((f32 *)(shared + (u64)ROWS * a.in) + (u64)ROWS * (a.in / 32u) + (u64)(r) * (a.in / 16u))

/* Eight neighbouring elements a thread: four threads a block of 32, two a half. */
FN void quantise(const f32 *x, const struct pl_args_gemv &a) {
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        for (u32 base = 0; base < a.in; base += 8u * GROUP) { /* whole warps stay together: shuffles inside */
            u32 k = base + 8u * LOCAL_X;
            f32 e[8], top = 0.0f, total = 0.0f;
            u32 packed[2] = {0u, 0u};
            bool live = k < a.in;
#pragma unroll
            for (u32 i = 0; i < 2u; i++) {
                float4 t = live ? ((const float4 *)(x + (u64)r * a.in + k))[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                e[4u * i] = t.x, e[4u * i + 1u] = t.y, e[4u * i + 2u] = t.z, e[4u * i + 3u] = t.w;
            }
#pragma unroll
            for (u32 i = 0; i < 8u; i++) top = FMAX(top, FABS(e[i]));
            top = FMAX(top, lane_xor(top, 1));
            top = FMAX(top, lane_xor(top, 2));
            f32 d = top / 127.0f, inverse = top > 0.0f ? 127.0f / top : 0.0f;
#pragma unroll
            for (u32 i = 0; i < 8u; i++) {
                i32 q = __float2int_rn(e[i] * inverse);
                total += (f32)q;
                packed[i / 4u] |= ((u32)q & 255u) << (8u * (i % 4u));
            }
            total += lane_xor(total, 1);
            if (!live) continue;
            *(uint2 *)(XQ(r) + k) = make_uint2(packed[0], packed[1]);
            if (k % 32u == 0u) XD(r)[k / 32u] = d;
            if (k % 16u == 0u) XS(r)[k / 16u] = d * total;
        }
    }
    BARRIER();
}

#ifdef WTYPE_Q4_K
/* Eight lanes share a block of 256: each has 16 bytes, half of two sub-blocks. */
#define STEPS 2u
FN void madd(const struct quad &h, const struct quad &q, u32 block, u32 c, const struct pl_args_gemv &a, f32 *sum) {
    u32 b = c >> 1, half = c & 1u, t = 2u * (b & 1u);
    u32 sc0, sc1, m0, m1;
    if (b < 2u) {
        sc0 = (h.y >> (8u * t)) & 63u, sc1 = (h.y >> (8u * t + 8u)) & 63u;
        m0 = (h.z >> (8u * t)) & 63u, m1 = (h.z >> (8u * t + 8u)) & 63u;
    } else {
        sc0 = ((h.w >> (8u * t)) & 15u) | (((h.y >> (8u * t + 6u)) & 3u) << 4);
        sc1 = ((h.w >> (8u * t + 8u)) & 15u) | (((h.y >> (8u * t + 14u)) & 3u) << 4);
        m0 = ((h.w >> (8u * t + 4u)) & 15u) | (((h.z >> (8u * t + 6u)) & 3u) << 4);
        m1 = ((h.w >> (8u * t + 12u)) & 15u) | (((h.z >> (8u * t + 14u)) & 3u) << 4);
    }
    f32 d = half_lo(h.x), dmin = half_hi(h.x);
    f32 ds0 = d * (f32)sc0, ds1 = d * (f32)sc1, dm0 = dmin * (f32)m0, dm1 = dmin * (f32)m1;
    u32 at = 8u * block + 2u * b; /* of the sub-blocks of 32 */
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        const uint4 x0 = *(const uint4 *)(XQ(r) + 32u * at + 16u * half), x1 = *(const uint4 *)(XQ(r) + 32u * at + 32u + 16u * half);
        i32 s0 = 0, s1 = 0;
        s0 = dot4(q.x & 0x0F0F0F0Fu, x0.x, s0), s1 = dot4((q.x >> 4) & 0x0F0F0F0Fu, x1.x, s1);
        s0 = dot4(q.y & 0x0F0F0F0Fu, x0.y, s0), s1 = dot4((q.y >> 4) & 0x0F0F0F0Fu, x1.y, s1);
        s0 = dot4(q.z & 0x0F0F0F0Fu, x0.z, s0), s1 = dot4((q.z >> 4) & 0x0F0F0F0Fu, x1.z, s1);
        s0 = dot4(q.w & 0x0F0F0F0Fu, x0.w, s0), s1 = dot4((q.w >> 4) & 0x0F0F0F0Fu, x1.w, s1);
        const f32 *xd = XD(r) + at, *xs = XS(r) + 2u * at + half;
        f32 v = FMA(ds1 * xd[1], (f32)s1, ds0 * xd[0] * (f32)s0);
        sum[r] += FMA(-dm1, xs[2], FMA(-dm0, xs[0], v));
    }
}
KERNEL(gemv)(GEMV_PARAMS) {
    count_launch(witness);
    struct job j = job_of(d0, d1, d2, b0, b1, b2, y0, y1, y2, &a);
    u32 lane = LOCAL_X % 32u, c = lane & 7u, blocks = a.in / 256u;
    const u8 *w[PER_WARP];
    f32 sum[PER_WARP][ROWS];
    struct quad h[STEPS][PER_WARP], q[STEPS][PER_WARP];
#pragma unroll
    for (u32 p = 0; p < PER_WARP; p++) {
        w[p] = j.w + (u64)PL_MIN(j.first + p, j.out - 1u) * a.row_bytes;
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) sum[p][r] = 0.0f;
    }
    bool fetched = false;
    for (u32 base = 0; base < blocks; base += 4u * STEPS) { /* the same for every thread: a barrier is inside */
        u32 mine = base + (lane >> 3);
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
            u32 block = PL_MIN(mine + 4u * s, blocks - 1u);
#pragma unroll
            for (u32 p = 0; p < PER_WARP; p++) {
                h[s][p] = load16(w[p] + (u64)block * 144u);
                q[s][p] = load16(w[p] + (u64)block * 144u + 16u + 16u * c);
            }
        }
        if (!fetched) quantise(x, a); /* the first weights are on their way meanwhile */
        fetched = true;
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
            u32 block = mine + 4u * s;
            if (block >= blocks) continue;
#pragma unroll
            for (u32 p = 0; p < PER_WARP; p++) madd(h[s][p], q[s][p], block, c, a, sum[p]);
        }
    }
#pragma unroll
    for (u32 p = 0; p < PER_WARP; p++) {
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) store(&j, j.first + p, r, sum[p][r], a.flags);
    }
}

#else
/* --- blocks of 32 whose size is no multiple of 16: two bytes a load, a lane a block --- */

struct unit {
    u32 q[8];    /* 32 unsigned or signed bytes in element order */
    f32 d0, d1;  /* scales of the halves */
    f32 m;       /* added once per element */
};
FN u32 pair(const u16 *p, u32 i) { return (u32)p[2u * i] | ((u32)p[2u * i + 1u] << 16); }
FN u32 spread(u32 bits) { return ((bits & 1u) | ((bits & 2u) << 7) | ((bits & 4u) << 14) | ((bits & 8u) << 21)) << 4; }
FN void load_unit(const u8 *row, u32 k, struct unit *u) {
#if defined(WTYPE_Q8_0)
    const u16 *p = (const u16 *)(row + 34u * (u64)k);
    u->d0 = u->d1 = half_lo(p[0]);
    u->m = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) u->q[i] = pair(p + 1, i);
#elif defined(WTYPE_Q6_K)
    const u8 *b = row + 210u * (u64)(k >> 3);
    u32 s = k & 7u, c = s >> 2, n = s & 3u;
    const u16 *lo = (const u16 *)(b + 64u * c + 32u * (n & 1u)), *hi = (const u16 *)(b + 128u + 32u * c);
    f32 d = half_lo(*(const u16 *)(b + 208));
    u32 sc = *(const u16 *)(b + 192u + 2u * s);
    u->d0 = d * (f32)(i8)(sc & 255u), u->d1 = d * (f32)(i8)(sc >> 8);
    u->m = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) {
        u32 v = ((pair(lo, i) >> (4u * (n >> 1))) & 0x0F0F0F0Fu) | (((pair(hi, i) >> (2u * n)) & 0x03030303u) << 4);
        u->q[i] = __vsubss4(v, 0x20202020u);
    }
#else
#if defined(WTYPE_Q4_0)
    const u16 *p = (const u16 *)(row + 18u * (u64)k), *q = p + 1;
    u->d0 = u->d1 = half_lo(p[0]);
    u->m = -8.0f * u->d0;
#elif defined(WTYPE_Q4_1)
    const u16 *p = (const u16 *)(row + 20u * (u64)k), *q = p + 2;
    u->d0 = u->d1 = half_lo(p[0]);
    u->m = half_lo(p[1]);
#elif defined(WTYPE_Q5_0)
    const u16 *p = (const u16 *)(row + 22u * (u64)k), *q = p + 3;
    u->d0 = u->d1 = half_lo(p[0]);
    u->m = -16.0f * u->d0;
    u32 high = pair(p + 1, 0);
#endif
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        u32 v = pair(q, i);
        u->q[i] = v & 0x0F0F0F0Fu;
        u->q[i + 4u] = (v >> 4) & 0x0F0F0F0Fu;
#ifdef WTYPE_Q5_0
        u->q[i] |= spread(high >> (4u * i));
        u->q[i + 4u] |= spread(high >> (16u + 4u * i));
#endif
    }
#endif
}
KERNEL(gemv)(GEMV_PARAMS) {
    count_launch(witness);
    struct job j = job_of(d0, d1, d2, b0, b1, b2, y0, y1, y2, &a);
    f32 sum[PER_WARP][ROWS];
#pragma unroll
    for (u32 p = 0; p < PER_WARP; p++) {
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) sum[p][r] = 0.0f;
    }
    quantise(x, a);
    for (u32 k = LOCAL_X % 32u; k < a.in / 32u; k += 32u) {
        struct unit u[PER_WARP];
#pragma unroll
        for (u32 p = 0; p < PER_WARP; p++) load_unit(j.w + (u64)PL_MIN(j.first + p, j.out - 1u) * a.row_bytes, k, &u[p]);
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            const uint4 xa = *(const uint4 *)(XQ(r) + 32u * k), xb = *(const uint4 *)(XQ(r) + 32u * k + 16u);
            f32 d = XD(r)[k], total = XS(r)[2u * k] + XS(r)[2u * k + 1u];
#pragma unroll
            for (u32 p = 0; p < PER_WARP; p++) {
                i32 s0 = dot4(u[p].q[0], xa.x, dot4(u[p].q[1], xa.y, dot4(u[p].q[2], xa.z, dot4(u[p].q[3], xa.w, 0))));
                i32 s1 = dot4(u[p].q[4], xb.x, dot4(u[p].q[5], xb.y, dot4(u[p].q[6], xb.z, dot4(u[p].q[7], xb.w, 0))));
                sum[p][r] += FMA(d, FMA(u[p].d1, (f32)s1, u[p].d0 * (f32)s0), u[p].m * total);
            }
        }
    }
#pragma unroll
    for (u32 p = 0; p < PER_WARP; p++) {
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) store(&j, j.first + p, r, sum[p][r], a.flags);
    }
}
#endif
#endif
