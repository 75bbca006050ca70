/* mma - products of 1 to 64 rows with packed weights on tensor cores of NVIDIA GPUs (sm_80 and up): every weight is read and
 * unpacked once for all rows. Up to three matrices of one format and one input in one launch. Contract:
 * kernels/linear.k.c; how weights and inputs lie: strips.h.
 *
 * Weights meet the rows as small integers (scale times value, exact in f16; rounded to 11 bits above 2048 in Q6_K) and are
 * multiplied by the block's d and the row's magnitude in f32 after every 256 inputs. Rounded are the inputs alone, to 11
 * bits of the largest of their 256.
 * WM x WK warps a group: WM times EACH strips of outputs, WK neighbouring blocks of inputs. A unit is those strips times WK blocks; a
 * group takes `span` units in a row, outputs first by inputs. Where a group has not all inputs of its outputs it leaves
 * its sums in `partial`, and the last of those that share them adds them up in order: bitwise repeatable.
 * With WIDE (sm_90a, BULK, WM a multiple of 4, WK and EACH 1) four warps multiply together (wgmma): weights from registers, the inputs
 * of all rows from shared memory, read once for 64 outputs. The inputs lie in another order then (prepare.k.c, strips.h).
 * With FIXED (EACH 1, WK SEGMENTS or 1) a row's bits do not depend on ROWS_8, on the row's place, or on other rows: the inputs are
 * cut into SEGMENTS runs of blocks whose length follows from `in` alone; within a segment blocks are added in order by one
 * chain of the same instructions (a column of a product sees no other column), then the segments in order. WK SEGMENTS: a warp each,
 * whose sums meet in shared memory. WK 1: a warp walks through all of them; groups of threads share outputs by whole segments
 * only, and leave each segment's sum apart. What no instruction order fixes, contraction, is written out (FMA).
 * Requires: in % 256 == 0, out % 16 == 0; ROWS_8 pieces of eight rows; DEPTH strips on their way per warp: in registers, or
 * with BULK (sm_90 and up) in shared memory; X_STAGES > 0 (BULK, WK of any size): inputs come through shared memory too. */
#include "dialect.h"
#include "args/args.h"
#include "cuda/strips.h"

#define WARPS (WM * WK)
#define STRIPS (WM * EACH)             /* of a group */
#define SUMS  (EACH * ROWS_8 * 128u) /* of a warp */
#define SEGMENTS 8u                    /* as PL_MMA_SEGMENTS in src/ops/cuda_mma.h */
/* Block of inputs of a warp in a chunk, and how far it is to its next. */
#if defined(FIXED) && WK > 1
#define BLOCK_OF(chunk, k_warp, chunks) ((k_warp) * (chunks) + (chunk))
#define NEXT_BLOCK                      1u
#else
#define BLOCK_OF(chunk, k_warp, chunks) ((chunk) * WK + (k_warp))
#define NEXT_BLOCK                      WK
#endif
#if defined(FIXED) && WK == 1
#define BY_SEGMENTS
#endif
#if defined(FIXED) && ((WK > 1 && (WK != 8 || defined(BULK))) || (WK == 1 && !defined(BULK)))
#error "WK is SEGMENTS with weights in registers, or 1 with weights in shared memory"
#endif

/* Shared memory: strips [WARPS][DEPTH][EACH], inputs [X_STAGES][WK][ROWS_8], then, when WK > 1, sums of the warps [SLOTS][WARPS]
 * [SUMS], then barriers. Sums of HOLD groups of outputs and more wait there before they are added up: warps meet rarely. */
#ifdef BULK
#define STAGE_BYTES (EACH * STRIP_BYTES)
#define RING_BYTES (WARPS * DEPTH * STAGE_BYTES)
#define X_BYTES    (WK * ROWS_8 * PIECE_BYTES)
#define SLOTS      HOLD
#else
#define SLOTS      (HOLD + DEPTH - 1u)
#define RING_BYTES 0u
#define X_BYTES    0u
#define X_STAGES   0
#endif
#define SUMS_AT     (RING_BYTES + X_STAGES * X_BYTES)
#define BARRIERS_AT (SUMS_AT + (WK > 1 ? SLOTS * WARPS * SUMS * 4u : 0u))
extern __shared__ __align__(128) u8 shared[];

#ifndef WTYPE_BF16
#include "cuda/strip_math.h"
#ifdef BULK
FN void take(struct strip *s, const u8 *at, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < 4u; i++) s->q[i] = *(const uint4 *)(at + 512u * i + 16u * lane);
#ifdef WTYPE_Q6_K
    s->high[0] = *(const uint4 *)(at + STRIP_HIGH + 16u * lane);
    s->high[1] = *(const uint4 *)(at + STRIP_HIGH + 512u + 16u * lane);
    s->d = *(const u32 *)(at + STRIP_D + 4u * (lane >> 2));
#else
    s->d = *(const uint2 *)(at + STRIP_D + 8u * (lane >> 2));
#endif
    s->scale = *(const uint2 *)(at + STRIP_SCALE + 8u * lane);
}
#endif
#endif
/* Where a warp stands: group of outputs, block of inputs. */
struct place {
    const u8 *w, *strip; /* of its matrix; of the next block, clamped into the matrix */
    const f32 *bias;
    f32 *y;
    u32 group, chunk, out, m; /* m: the first strip of the group in its matrix */
    u64 step;                 /* bytes from a warp's strip to its next; 0 behind the matrix's end */
};
struct matrices {
    const u8 *w[3];
    const f32 *bias[3];
    f32 *y[3];
};
FN u32 groups_of(u32 out) { return (out / 16u + STRIPS - 1u) / STRIPS; }
FN void at_group(struct place *p, const struct matrices *all, u32 group, u32 chunk, const struct pl_args_mma *a) {
    u32 warp = LOCAL_X / 32u, blocks = a->in / 256u, chunks = (blocks + WK - 1u) / WK;
    u32 block = BLOCK_OF(chunk, warp % WK, chunks);
    u32 n0 = groups_of(a->out0), n1 = groups_of(a->out1);
    (void)chunks;
    p->group = group;
    p->chunk = chunk;
    if (group < n0) {
        p->w = all->w[0], p->bias = all->bias[0], p->y = all->y[0], p->out = a->out0;
    } else if (group < n0 + n1) {
        group -= n0;
        p->w = all->w[1], p->bias = all->bias[1], p->y = all->y[1], p->out = a->out1;
    } else {
        group -= n0 + n1;
        p->w = all->w[2], p->bias = all->bias[2], p->y = all->y[2], p->out = a->out2;
    }
    p->m = group * STRIPS;
    u32 m = PL_MIN(p->m + warp / WK * EACH, p->out / 16u - 1u);
#ifdef WTYPE_BF16
    p->strip = p->w + (u64)m * 32u * a->in + 512u * block;
    (void)blocks;
#else
    p->step = m + 1u < p->out / 16u ? (u64)blocks * STRIP_BYTES : 0u;
    p->strip = p->w + ((u64)m * blocks + block) * STRIP_BYTES;
#endif
}
FN void advance(struct place *p, const struct matrices *all, u32 chunks, u32 groups, const struct pl_args_mma *a) {
    p->chunk++;
#ifdef WTYPE_BF16
    p->strip += 512u * NEXT_BLOCK;
#else
    p->strip += (u64)NEXT_BLOCK * STRIP_BYTES;
#endif
    if (p->chunk == chunks && p->group + 1u < groups) at_group(p, all, p->group + 1u, 0u, a);
}

/* Words whose inputs are fetched at once, and sums that do not wait for each other. */
#define AHEAD  (ROWS_8 == 1 ? 8u : ROWS_8 == 2 ? 4u : 1u)
#ifdef FIXED
#define CHAINS 2u
#else
#define CHAINS (ROWS_8 <= 2 ? 2u : 1u)
#endif

/* Where a thread's inputs stand in the pieces. Columns of the product that belong to no row are computed from the last
 * row's inputs and thrown away: that is cheaper than to ask. */
FN void inputs_of(u32 *at, const struct pl_args_mma *a) {
    u32 lane = LOCAL_X % 32u, g = lane >> 2;
#pragma unroll
    for (u32 n = 0; n < ROWS_8; n++) {
        u32 row = PL_MIN(8u * n + g, a->rows - 1u);
        at[n] = row / 8u * PIECE_BYTES + 16u * (4u * (row % 8u) + (lane & 3u));
    }
}

#ifdef WIDE
/* How the matrix units find inputs in shared memory: pieces of 8 rows x 16 bytes, `lead` bytes to the next 8 inputs, a piece
 * of PIECE_BYTES to the next 8 rows. */
FN u64 inputs_at(const u8 *p, u32 lead) {
    return (u64)((shared_at(p) & 0x3FFFFu) >> 4) | (u64)(lead >> 4) << 16 | (u64)(PIECE_BYTES >> 4) << 32;
}
FN void wide_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void wide_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
#define WIDE_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned " #n ";" ::: "memory")
#ifdef WTYPE_BF16
#define WIDE_TYPE "bf16"
#else
#define WIDE_TYPE "f16"
#endif
/* d (+)= a times 16 inputs of all rows. */
#define OUT4(d, i)  "+f"((d)[i][0]), "+f"((d)[i][1]), "+f"((d)[i][2]), "+f"((d)[i][3])
FN void wide(f32 (*d)[4], const u32 *a, u64 inputs, u32 go_on) {
#if ROWS_8 == 8
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." WIDE_TYPE "." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3), OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(go_on));
#elif ROWS_8 == 4
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." WIDE_TYPE "." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                 "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(go_on));
#elif ROWS_8 == 2
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32." WIDE_TYPE "." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7"
                 "}, {%8,%9,%10,%11}, %12, p, 1, 1, 0;\n}"
                 : OUT4(d, 0), OUT4(d, 1)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(go_on));
#else
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32." WIDE_TYPE "." WIDE_TYPE " {"
                 "%0,%1,%2,%3"
                 "}, {%4,%5,%6,%7}, %8, p, 1, 1, 0;\n}"
                 : OUT4(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(go_on));
#endif
}
#ifdef WTYPE_BF16
/* acc += a strip times the 256 inputs of piece x, both in shared memory. */
FN void multiply(const u8 *strip, const u8 *x, f32 (*acc)[ROWS_8][4]) {
    u32 lane = LOCAL_X % 32u;
    const u8 *at = strip + (lane >> 2) * STRIP_ROW + 16u * (lane & 3u);
#pragma unroll
    for (u32 j = 0; j < 8u; j++) {
        uint4 p = *(const uint4 *)(at + 64u * j), q = *(const uint4 *)(at + 8u * STRIP_ROW + 64u * j);
        u32 a[4] = {p.x, q.x, p.y, q.y}, b[4] = {p.z, q.z, p.w, q.w};
        wide_begin();
        wide(acc[0], a, inputs_at(x + 512u * j, 128u), 1u);
        wide(acc[0], b, inputs_at(x + 512u * j + 256u, 128u), 1u);
        wide_commit();
        if (j % 2u == 1u) WIDE_WAIT(2);
    }
    WIDE_WAIT(0);
}
#else
/* acc += a strip times the 256 inputs of piece x, in shared memory. */
FN void multiply(const struct strip *s, const u8 *x, const u32 *at, f32 (*acc)[ROWS_8][4]) {
    u32 t = LOCAL_X & 3u;
    f32 part[ROWS_8][4];
    struct factors f;
    (void)at;
    factors_of(s, &f);
#ifdef WTYPE_Q6_K
    f32 d0 = h2_low(s->d), d1 = h2_high(s->d);
#else
    f32 d0 = h2_low(s->d.x), d1 = h2_low(s->d.y), m0 = h2_high(s->d.x), m1 = h2_high(s->d.y);
#endif
#pragma unroll
    for (u32 n = 0; n < ROWS_8; n++) part[n][0] = part[n][1] = part[n][2] = part[n][3] = 0.0f;
#pragma unroll
    for (u32 w = 0; w < 8u; w++) {
        u32 a[4], b[4];
        unpack(s, &f, w, a, b);
        wide_begin();
        wide(part, a, inputs_at(x + 512u * w, 128u), w);
        wide(part, b, inputs_at(x + 512u * w + 256u, 128u), 1u);
        wide_commit();
        if (w % 2u == 1u) WIDE_WAIT(2);
    }
    WIDE_WAIT(0);
#pragma unroll
    for (u32 n = 0; n < ROWS_8; n++) {
        float2 top = *(const float2 *)(x + n * PIECE_BYTES + PIECE_SCALE + 8u * t);
        f32 *p = part[n];
        acc[0][n][0] = FMA(top.x, d0 * p[0], acc[0][n][0]);
        acc[0][n][1] = FMA(top.y, d0 * p[1], acc[0][n][1]);
        acc[0][n][2] = FMA(top.x, d1 * p[2], acc[0][n][2]);
        acc[0][n][3] = FMA(top.y, d1 * p[3], acc[0][n][3]);
    }
#ifndef WTYPE_Q6_K
    u32 min[4] = {f.min[0], f.min[1], 0u, 0u};
    wide_begin();
    wide(part, min, inputs_at(x + PIECE_SUMS, 0u), 0u); /* the second eight are the first again, times nothing */
    wide_commit();
    WIDE_WAIT(0);
#pragma unroll
    for (u32 n = 0; n < ROWS_8; n++) {
        float2 top = *(const float2 *)(x + n * PIECE_BYTES + PIECE_SCALE + 8u * t);
        f32 *p = part[n];
        acc[0][n][0] = FMA(-top.x, m0 * p[0], acc[0][n][0]);
        acc[0][n][1] = FMA(-top.y, m0 * p[1], acc[0][n][1]);
        acc[0][n][2] = FMA(-top.x, m1 * p[2], acc[0][n][2]);
        acc[0][n][3] = FMA(-top.y, m1 * p[3], acc[0][n][3]);
    }
#endif
}
#endif
#else
/* acc += EACH strips times the 256 inputs of piece x. */
FN void multiply(const struct strip *s, const u8 *x, const u32 *at, f32 (*acc)[ROWS_8][4]) {
    u32 lane = LOCAL_X % 32u, t = lane & 3u;
    f32 part[CHAINS][EACH][ROWS_8][4];
    struct factors f[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        factors_of(&s[i], &f[i]);
#pragma unroll
        for (u32 n = 0; n < CHAINS * ROWS_8; n++) {
            f32 *p = part[n / ROWS_8][i][n % ROWS_8];
            p[0] = p[1] = p[2] = p[3] = 0.0f;
        }
    }
#pragma unroll
    for (u32 w0 = 0; w0 < 8u; w0 += AHEAD) {
        uint4 e[AHEAD][ROWS_8];
#pragma unroll
        for (u32 w = 0; w < AHEAD; w++) {
#pragma unroll
            for (u32 n = 0; n < ROWS_8; n++) {
                e[w][n] = *(const uint4 *)(x + at[n] + 512u * (w0 + w));
            }
        }
#pragma unroll
        for (u32 w = 0; w < AHEAD; w++) {
            u32 a[EACH][4], b[EACH][4];
#pragma unroll
            for (u32 i = 0; i < EACH; i++) unpack(&s[i], &f[i], w0 + w, a[i], b[i]);
#pragma unroll
            for (u32 n = 0; n < ROWS_8; n++) {
#pragma unroll
                for (u32 i = 0; i < EACH; i++) {
                    mma16(part[0][i][n], a[i], e[w][n].x, e[w][n].y);
                    mma16(part[CHAINS - 1u][i][n], b[i], e[w][n].z, e[w][n].w);
                }
            }
        }
    }
    if (CHAINS > 1u) {
#pragma unroll
        for (u32 i = 0; i < EACH * ROWS_8 * 4u; i++) {
            part[0][i / (ROWS_8 * 4u)][i / 4u % ROWS_8][i % 4u] += part[CHAINS - 1u][i / (ROWS_8 * 4u)][i / 4u % ROWS_8][i % 4u];
        }
    }
#pragma unroll
    for (u32 n = 0; n < ROWS_8; n++) {
        u32 piece = at[n] / PIECE_BYTES * PIECE_BYTES;
        float2 top = *(const float2 *)(x + piece + PIECE_SCALE + 8u * t);
        u32 e = *(const u32 *)(x + piece + PIECE_SUMS + (at[n] - piece) / 4u);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
#ifdef WTYPE_Q6_K
            f32 d0 = h2_low(s[i].d), d1 = h2_high(s[i].d), *p = part[0][i][n];
            f32 v[4] = {d0 * p[0], d0 * p[1], d1 * p[2], d1 * p[3]};
            (void)e;
#else
            f32 d0 = h2_low(s[i].d.x), d1 = h2_low(s[i].d.y), m0 = h2_high(s[i].d.x), m1 = h2_high(s[i].d.y), *p = part[0][i][n];
            f32 sums[4];
            mma8(sums, f[i].min, e);
            f32 v[4] = {FMA(d0, p[0], -(m0 * sums[0])), FMA(d0, p[1], -(m0 * sums[1])), FMA(d1, p[2], -(m1 * sums[2])),
                        FMA(d1, p[3], -(m1 * sums[3]))};
#endif
            acc[i][n][0] = FMA(top.x, v[0], acc[i][n][0]);
            acc[i][n][1] = FMA(top.y, v[1], acc[i][n][1]);
            acc[i][n][2] = FMA(top.x, v[2], acc[i][n][2]);
            acc[i][n][3] = FMA(top.y, v[3], acc[i][n][3]);
        }
    }
}

#endif

/* Sum i of a group (strip, piece of rows, element, lane) is complete. */
FN void finish(const struct place *p, u32 i, f32 v, const struct pl_args_mma *a) {
    u32 lane = i % 32u, e = i / 32u % 4u, n = i / 128u % ROWS_8, strip = i / (ROWS_8 * 128u);
    u32 o = (p->m + strip) * 16u + (lane >> 2) + 8u * (e >> 1), row = 8u * n + 2u * (lane & 3u) + (e & 1u);
    if (row >= a->rows || o >= p->out) return;
    u64 at = (u64)(a->row0 + row) * p->out + o;
    if (p->bias != nullptr) v += p->bias[o];
    if ((a->flags & PL_LINEAR_ADD) != 0u) v += p->y[at];
    p->y[at] = v;
}
/* A warp's own sums are complete: v[e] is sum warp * SUMS + 32 e + lane. What is added to is fetched before anything is stored. */
#define OWN (EACH * ROWS_8 * 4u)
FN void finish_own(const struct place *p, f32 *v, const struct pl_args_mma *a) {
    u32 lane = LOCAL_X % 32u, o0 = (p->m + LOCAL_X / 32u / WK * EACH) * 16u + (lane >> 2), row0 = 2u * (lane & 3u);
    f32 *y = p->y + (u64)(a->row0 + row0) * p->out + o0;
#define OWN_ROW(e)  (8u * ((e) / 4u % ROWS_8) + ((e) & 1u))
#define OWN_OUT(e)  (16u * ((e) / (4u * ROWS_8)) + 8u * ((e) >> 1 & 1u))
#define OWN_LIVE(e) (row0 + OWN_ROW(e) < a->rows && o0 + OWN_OUT(e) < p->out)
    if (p->bias != nullptr) {
#pragma unroll
        for (u32 e = 0; e < OWN; e++) v[e] += OWN_LIVE(e) ? p->bias[o0 + OWN_OUT(e)] : 0.0f;
    }
    if ((a->flags & PL_LINEAR_ADD) != 0u) {
        f32 old[OWN];
#pragma unroll
        for (u32 e = 0; e < OWN; e++) old[e] = OWN_LIVE(e) ? y[(u64)OWN_ROW(e) * p->out + OWN_OUT(e)] : 0.0f;
#pragma unroll
        for (u32 e = 0; e < OWN; e++) v[e] += old[e];
    }
#pragma unroll
    for (u32 e = 0; e < OWN; e++) {
        if (OWN_LIVE(e)) y[(u64)OWN_ROW(e) * p->out + OWN_OUT(e)] = v[e];
    }
}
/* Parts of a group of outputs' inputs that groups of threads share out, and where what one of them has of a part is left. */
#ifdef BY_SEGMENTS
FN u32 segment_of(const struct pl_args_mma *a) { return (a->in / 256u + SEGMENTS - 1u) / SEGMENTS; } /* in blocks */
FN u32 parts_of(u32 chunks, const struct pl_args_mma *a) { return (chunks + segment_of(a) - 1u) / segment_of(a); }
/* The first block of outputs' part `unit`, counted over all outputs. */
FN u32 block_at(u32 unit, u32 chunks, const struct pl_args_mma *a) {
    u32 parts = parts_of(chunks, a);
    return unit / parts * chunks + unit % parts * segment_of(a);
}
FN f32 *partial_of(f32 *partial, u32 group_x, bool second, u32 part) {
    return partial + (((u64)group_x * 2u + (second ? 1u : 0u)) * SEGMENTS + part) * (WM * SUMS);
}
#else
FN u32 parts_of(u32 chunks, const struct pl_args_mma *a) {
    (void)a;
    return chunks;
}
FN f32 *partial_of(f32 *partial, u32 group_x, bool second) { return partial + ((u64)group_x * 2u + (second ? 1u : 0u)) * (WM * SUMS); }
#endif
/* The last of the groups that share these outputs adds up what all of them left. */
FN void join(const struct place *p, f32 *partial, u32 *arrived, u32 chunks, const struct pl_args_mma *a) {
    __shared__ u32 before;
    u32 parts = parts_of(chunks, a), first = p->group * parts / a->span, last = ((p->group + 1u) * parts - 1u) / a->span;
    __threadfence();
    BARRIER();
    if (LOCAL_X == 0u) before = atomicAdd(arrived + p->group, 1u);
    BARRIER();
    if (before != last - first) return;
    __threadfence();
#if WK > 1
    for (u32 i = LOCAL_X; i < WM * SUMS; i += GROUP) {
        f32 v = 0.0f;
        for (u32 c = first; c <= last; c++) v += __ldcg(partial_of(partial, c, p->group * chunks > c * a->span) + i);
        finish(p, i, v, a);
    }
#else
    f32 v[OWN];
#pragma unroll
    for (u32 e = 0; e < OWN; e++) v[e] = 0.0f;
#ifdef BY_SEGMENTS
    for (u32 part = 0; part < parts; part++) {
        u32 c = (p->group * parts + part) / a->span;
        const f32 *from = partial_of(partial, c, p->group * parts > c * a->span, part) + LOCAL_X / 32u * SUMS + LOCAL_X % 32u;
#else
    for (u32 c = first; c <= last; c++) {
        const f32 *from = partial_of(partial, c, p->group * chunks > c * a->span) + LOCAL_X / 32u * SUMS + LOCAL_X % 32u;
#endif
#pragma unroll
        for (u32 e = 0; e < OWN; e++) v[e] += __ldcg(from + 32u * e);
    }
    finish_own(p, v, a);
#endif
    if (LOCAL_X == 0u) arrived[p->group] = 0u;
}
/* Whether this group of threads has all inputs of a group of outputs. */
FN bool is_whole(u32 group, u32 chunks, const struct pl_args_mma *a) {
    u32 parts = parts_of(chunks, a), start = group * parts, mine = GROUP_X * a->span;
    return start >= mine && start + parts <= mine + a->span;
}
#if WK > 1
/* Puts a warp's sums into slot `held`. */
FN void hold(u32 held, f32 (*acc)[ROWS_8][4]) {
    f32 *to = (f32 *)(shared + SUMS_AT) + (held * WARPS + LOCAL_X / 32u) * SUMS + LOCAL_X % 32u;
#pragma unroll
    for (u32 i = 0; i < EACH * ROWS_8 * 4u; i++) {
        f32 *from = &acc[i / (ROWS_8 * 4u)][i / 4u % ROWS_8][i % 4u];
        to[i * 32u] = *from;
        *from = 0.0f;
    }
}
/* Adds up the slots of groups [first, first + held). */
FN void flush(u32 first, u32 held, const struct matrices *all, f32 *partial, u32 *arrived, u32 chunks,
                                   const struct pl_args_mma *a) {
    BARRIER();
    for (u32 i = LOCAL_X; i < held * (WM * SUMS); i += GROUP) {
        u32 slot = i / (WM * SUMS), rest = i % (WM * SUMS), group = first + slot;
        const f32 *from = (f32 *)(shared + SUMS_AT) + (slot * WARPS + rest / SUMS * WK) * SUMS + rest % SUMS;
        f32 v = 0.0f;
#pragma unroll
        for (u32 k = 0; k < WK; k++) v += from[k * SUMS];
        if (is_whole(group, chunks, a)) {
            struct place p;
            at_group(&p, all, group, 0u, a);
            finish(&p, rest, v, a);
        } else {
            partial_of(partial, GROUP_X, group * chunks > GROUP_X * a->span)[rest] = v;
        }
    }
    for (u32 group = first; group < first + held; group++) {
        if (is_whole(group, chunks, a)) continue;
        struct place p;
        at_group(&p, all, group, 0u, a);
        join(&p, partial, arrived, chunks, a);
    }
    BARRIER();
}
#elif defined(BY_SEGMENTS)
/* A segment's sums are complete: to `total`, or, where the outputs are shared, apart. last: of this group's of these outputs. */
FN void flush(u32 group, u32 chunk, bool last, const struct matrices *all, f32 (*acc)[ROWS_8][4], f32 *total, f32 *partial,
              u32 *arrived, u32 chunks, const struct pl_args_mma *a) {
    bool whole = is_whole(group, chunks, a);
    f32 *v = &acc[0][0][0];
    if (whole) {
#pragma unroll
        for (u32 e = 0; e < OWN; e++) total[e] += v[e];
    } else {
        bool second = group * parts_of(chunks, a) > GROUP_X * a->span;
        f32 *left = partial_of(partial, GROUP_X, second, chunk / segment_of(a)) + LOCAL_X / 32u * SUMS + LOCAL_X % 32u;
#pragma unroll
        for (u32 e = 0; e < OWN; e++) left[32u * e] = v[e];
    }
#pragma unroll
    for (u32 e = 0; e < OWN; e++) v[e] = 0.0f;
    if (!last) return;
    struct place of;
    at_group(&of, all, group, 0u, a);
    if (!whole) {
        join(&of, partial, arrived, chunks, a);
        return;
    }
    finish_own(&of, total, a);
#pragma unroll
    for (u32 e = 0; e < OWN; e++) total[e] = 0.0f;
}
#else
FN void flush(u32 group, const struct matrices *all, f32 (*acc)[ROWS_8][4], f32 *partial, u32 *arrived, u32 chunks,
              const struct pl_args_mma *a) {
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u;
    bool whole = is_whole(group, chunks, a);
    struct place of, *p = &of;
    at_group(p, all, group, 0u, a);
    f32 *v = &acc[0][0][0];
    if (whole) {
        finish_own(p, v, a);
    } else {
        f32 *left = partial_of(partial, GROUP_X, p->group * chunks > GROUP_X * a->span) + warp * SUMS + lane;
#pragma unroll
        for (u32 e = 0; e < OWN; e++) left[32u * e] = v[e];
    }
#pragma unroll
    for (u32 e = 0; e < OWN; e++) v[e] = 0.0f;
    if (!whole) join(p, partial, arrived, chunks, a);
}
#endif

#ifdef WTYPE_BF16
/* All threads of a warp: a row each. */
FN void bring_rows(u8 *to, const struct place *p, u64 *full, u32 in) {
    u32 lane = LOCAL_X % 32u;
    if (lane == 0u) barrier_expect(full, 16u * 512u);
    if (lane < 16u) copy_bulk(to + lane * STRIP_ROW, p->strip + (u64)lane * 2u * in, 512u, full);
}
#elif defined(BULK)
FN void bring_strips(u8 *to, const struct place *p, u64 *full) {
    barrier_expect(full, STAGE_BYTES);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) copy_bulk(to + i * STRIP_BYTES, p->strip + i * p->step, STRIP_BYTES, full);
}
#endif
#if defined(BULK) && X_STAGES > 0
FN void bring_inputs(u64 *x_full, const u8 *x, u32 chunk, u32 blocks, u32 pieces, u32 stage, const struct pl_args_mma *a) {
    u32 first = chunk * WK, count = PL_MIN(WK, blocks - first);
    barrier_expect(x_full + stage, count * pieces * PIECE_BYTES);
    for (u32 k = 0; k < count; k++) {
        copy_bulk(shared + RING_BYTES + stage * X_BYTES + k * ROWS_8 * PIECE_BYTES,
                  x + ((u64)(first + k) * a->pieces + a->piece0) * PIECE_BYTES, pieces * PIECE_BYTES, x_full + stage);
    }
}
#endif
/* grid: (units / span) */
KERNEL(mma)(const u8 *__restrict__ w0, const u8 *__restrict__ w1, const u8 *__restrict__ w2, const f32 *__restrict__ b0,
            const f32 *__restrict__ b1, const f32 *__restrict__ b2, f32 *y0, f32 *y1, f32 *y2, const u8 *__restrict__ x, f32 *partial,
            u32 *arrived, u32 *witness, const struct pl_args_mma a) {
    const struct matrices all = {{w0, w1, w2}, {b0, b1, b2}, {y0, y1, y2}};
    u32 lane = LOCAL_X % 32u, k_warp = LOCAL_X / 32u % WK, blocks = a.in / 256u, chunks = (blocks + WK - 1u) / WK;
    u32 groups = groups_of(a.out0) + groups_of(a.out1) + groups_of(a.out2);
    u32 at[ROWS_8];
    inputs_of(at, &a);
#ifdef BY_SEGMENTS
    u32 parts = parts_of(chunks, &a), segment = segment_of(&a), unit = block_at(GROUP_X * a.span, chunks, &a);
    u32 end = block_at(PL_MIN((GROUP_X + 1u) * a.span, groups * parts), chunks, &a);
    f32 total[OWN];
#pragma unroll
    for (u32 e = 0; e < OWN; e++) total[e] = 0.0f;
#else
    u32 unit = GROUP_X * a.span, end = PL_MIN(unit + a.span, groups * chunks);
#endif
    u32 group = unit / chunks, chunk = unit % chunks; /* of `unit` */
    struct place next;
    f32 acc[EACH][ROWS_8][4];
#pragma unroll
    for (u32 i = 0; i < EACH * ROWS_8 * 4u; i++) acc[i / (ROWS_8 * 4u)][i / 4u % ROWS_8][i % 4u] = 0.0f;
    at_group(&next, &all, group, chunk, &a);
#if WK > 1
    u32 held = 0u, held_first = group;
#endif
#ifdef BULK
    u64 *full = (u64 *)(shared + BARRIERS_AT) + LOCAL_X / 32u * DEPTH; /* this warp's */
    u8 *ring = shared + LOCAL_X / 32u * DEPTH * STAGE_BYTES;
    u32 phases = 0u, first = unit;
    if (lane == 0u) {
        for (u32 s = 0; s < DEPTH; s++) barrier_init(full + s, 1u);
    }
#if X_STAGES > 0
    u64 *x_full = (u64 *)(shared + BARRIERS_AT) + WARPS * DEPTH, *x_free = x_full + X_STAGES;
    u32 pieces = PL_MIN(ROWS_8, a.pieces - a.piece0);
    if (LOCAL_X == 0u) {
        for (u32 s = 0; s < X_STAGES; s++) barrier_init(x_full + s, 1u), barrier_init(x_free + s, WARPS);
    }
#endif
    barriers_ready();
    BARRIER();
    for (u32 s = 0; s < DEPTH && unit + s < end; s++) { /* weights depend on no launch before this one */
#ifdef WTYPE_BF16
        bring_rows(ring + s * STAGE_BYTES, &next, full + s, a.in);
#else
        if (lane == 0u && BLOCK_OF(next.chunk, k_warp, chunks) < blocks) bring_strips(ring + s * STAGE_BYTES, &next, full + s);
#endif
        advance(&next, &all, chunks, groups, &a);
    }
    count_launch(witness);
#if X_STAGES > 0
    if (LOCAL_X == 0u) bring_inputs(x_full, x, chunk, blocks, pieces, 0u, &a);
#endif
    for (; unit < end; unit++) {
        u32 n = unit - first, s = n % DEPTH, block = BLOCK_OF(chunk, k_warp, chunks);
        bool live = block < blocks;
#ifndef WTYPE_BF16
        struct strip now[EACH];
#endif
#if X_STAGES > 0
        if (LOCAL_X == 0u && unit + 1u < end) { /* the next inputs, into the stage that all have left */
            if (n + 1u >= X_STAGES) barrier_wait(x_free + (n + 1u) % X_STAGES, ((n + 1u) / X_STAGES - 1u) & 1u);
            bring_inputs(x_full, x, chunk + 1u == chunks ? 0u : chunk + 1u, blocks, pieces, (n + 1u) % X_STAGES, &a);
        }
        const u8 *from = shared + RING_BYTES + (n % X_STAGES) * X_BYTES + k_warp * ROWS_8 * PIECE_BYTES;
#else
        const u8 *from = x + ((u64)block * a.pieces + a.piece0) * PIECE_BYTES;
#endif
        if (live) {
            barrier_wait(full + s, (phases >> s) & 1u);
            phases ^= 1u << s;
#ifndef WTYPE_BF16
#pragma unroll
            for (u32 i = 0; i < EACH; i++) take(&now[i], ring + s * STAGE_BYTES + i * STRIP_BYTES, lane);
#endif
        }
        WARP_SYNC();
#ifdef WTYPE_BF16
        barrier_wait(x_full + n % X_STAGES, (n / X_STAGES) & 1u);
        multiply(ring + s * STAGE_BYTES, from, acc);
        WARP_SYNC();
        if (unit + DEPTH < end) {
            bring_rows(ring + s * STAGE_BYTES, &next, full + s, a.in);
            advance(&next, &all, chunks, groups, &a);
        }
#else
        if (unit + DEPTH < end) {
            if (lane == 0u && BLOCK_OF(next.chunk, k_warp, chunks) < blocks) bring_strips(ring + s * STAGE_BYTES, &next, full + s);
            advance(&next, &all, chunks, groups, &a);
        }
#if X_STAGES > 0
        barrier_wait(x_full + n % X_STAGES, (n / X_STAGES) & 1u);
#endif
        if (live) multiply(now, from, at, acc);
#endif
#if X_STAGES > 0
        WARP_SYNC();
        if (lane == 0u) barrier_arrive(x_free + n % X_STAGES);
#endif
#ifdef BY_SEGMENTS
        if (chunk + 1u == chunks || (chunk + 1u) % segment == 0u)
            flush(group, chunk, chunk + 1u == chunks || unit + 1u == end, &all, acc, total, partial, arrived, chunks, &a);
#else
        if (chunk + 1u == chunks || unit + 1u == end) {
#if WK > 1
            hold(held++, acc);
            if (held == HOLD || unit + 1u == end) {
                flush(held_first, held, &all, partial, arrived, chunks, &a);
                held_first += held;
                held = 0u;
            }
#else
            flush(group, &all, acc, partial, arrived, chunks, &a);
#endif
        }
#endif
        if (++chunk == chunks) chunk = 0u, group++;
    }
#else
    struct strip ring[DEPTH];
#pragma unroll
    for (u32 s = 0; s < DEPTH; s++) { /* weights depend on no launch before this one */
        if (unit + s >= end) continue;
        if (BLOCK_OF(next.chunk, k_warp, chunks) < blocks) fetch(&ring[s], next.strip, lane);
        advance(&next, &all, chunks, groups, &a);
    }
    count_launch(witness);
    for (; unit < end; unit += DEPTH) {
#pragma unroll
        for (u32 s = 0; s < DEPTH; s++) {
            if (unit + s >= end) continue; /* the same for all threads */
            u32 block = BLOCK_OF(chunk, k_warp, chunks);
            if (block < blocks) multiply(&ring[s], x + ((u64)block * a.pieces + a.piece0) * PIECE_BYTES, at, acc);
            if (unit + s + DEPTH < end) {
                if (BLOCK_OF(next.chunk, k_warp, chunks) < blocks) fetch(&ring[s], next.strip, lane);
                advance(&next, &all, chunks, groups, &a);
            }
            if (chunk + 1u == chunks || unit + s + 1u == end) {
#if WK > 1
                hold(held++, acc);
#else
                flush(group, &all, acc, partial, arrived, chunks, &a);
#endif
            }
            if (++chunk == chunks) chunk = 0u, group++;
        }
#if WK > 1
        if (held >= HOLD || unit + DEPTH >= end) {
            flush(held_first, held, &all, partial, arrived, chunks, &a);
            held_first += held;
            held = 0u;
        }
#endif
    }
#endif
}
