/* ternary - BitNet's products on NVIDIA GPUs of sm_80 and up: codes of two bits and inputs of 8 bits meet on the integer
 * matrix units. Contract: kernels/ternary.k.c, whose bits these are: sums are whole numbers. Up to three matrices of one
 * input in one launch; IN is their width.
 *
 * A tile is 16 outputs. SPLIT warps share its inputs, so that a multiprocessor asks for much at once; their sums meet in
 * shared memory. A step is 256 inputs: thread `lane` (g = lane / 4, t = lane % 4) takes inputs [64 t, 64 t + 64) of outputs g
 * and g + 8, 16 bytes each, and of row g of the input. One shift gives four neighbouring codes (kernels/ternary.k.c): which
 * inputs a product of 32 meets does not matter, as long as both sides agree.
 *
 * TERNARY_ONE, one row of f32: each group of threads makes it 8-bit itself, as ternary_quantize does, with HAS_NORM after
 * norm.k.c as 1024 threads would (group 0 leaves the norm in h); the first steps' weights are asked for before the launch
 * before this one is done. y is also added to `to` (HAS_ADD), or becomes act(y0) * y1 in `to` (HAS_GLU); y is written.
 * TERNARY_ROWS: rows made 8-bit before, 8 * ROWS_8 of them and EACH tiles a warp.
 * Requires: IN % 64 == 0; TERNARY_ONE: IN <= 8192. GROUP 256. */
#include "dialect.h"
#include "args/args.h"

#define WARPS  8u
#define CHUNKS (IN / 64u)
#define STEPS  ((IN + 255u) / 256u)
#define TILES  (WARPS / SPLIT)
#define HELD   PL_MIN(4u, (STEPS + SPLIT - 1u) / SPLIT) /* steps whose weights are asked for at once */

struct matrices {
    const u8 *w[3];
    f32 *y[3];
};
struct place {
    u32 which, m; /* matrix, tile in it */
};
FN u32 tiles_of(u32 out) { return (out + 15u) / 16u; }
FN struct place place_of(u32 r, const struct pl_args_ternaries *a) {
    struct place p;
#ifdef HAS_GLU
    p.which = r & 1u, p.m = r >> 1;
#else
    u32 n0 = tiles_of(a->out0), n1 = tiles_of(a->out1);
    p.which = r < n0 ? 0u : r < n0 + n1 ? 1u : 2u;
    p.m = r < n0 ? r : r < n0 + n1 ? r - n0 : r - n0 - n1;
#endif
    return p;
}
FN u32 out_of(const struct place *p, const struct pl_args_ternaries *a) {
    return p->which == 0u ? a->out0 : p->which == 1u ? a->out1 : a->out2;
}
FN f32 scale_of(const struct place *p, const struct pl_args_ternaries *a) {
    return p->which == 0u ? a->scale0 : p->which == 1u ? a->scale1 : a->scale2;
}
FN f32 *sums_to(const struct place *p, const struct matrices *all) {
    return p->which == 0u ? all->y[0] : p->which == 1u ? all->y[1] : all->y[2];
}

#ifndef PL_EMULATED
FN uint4 once16(const u8 *p) { /* read once: past the first cache */
    uint4 q;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(p));
    return q;
}
/* c += a b: 16 outputs x 32 inputs with 32 inputs x 8 rows */
FN void mma32(i32 *c, const u32 *a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif
/* Codes of a word pair that meet inputs 4h and 4h + 1 of four. */
FN void codes_of(u32 low, u32 high, u32 h, u32 *a) {
    a[0] = low >> (4u * h) & 0x03030303u;
    a[1] = high >> (4u * h) & 0x03030303u;
    a[2] = low >> (4u * h + 2u) & 0x03030303u;
    a[3] = high >> (4u * h + 2u) & 0x03030303u;
}
FN u32 word_of(const uint4 *v, u32 w) { return w == 0u ? v->x : w == 1u ? v->y : w == 2u ? v->z : v->w; }

/* A tile's weights of one step: outputs g and g + 8. Past the last output: the last again, past the last input: not read. */
FN void fetch(const u8 *w, u32 m, u32 out, u32 step, uint4 *v) {
    u32 lane = LOCAL_X % 32u, chunk = 4u * step + lane % 4u, o = m * 16u + lane / 4u;
    v[0] = v[1] = make_uint4(0u, 0u, 0u, 0u);
    if (chunk >= CHUNKS) return;
    v[0] = once16(w + (u64)PL_MIN(o, out - 1u) * (IN / 4u) + 16u * chunk);
    v[1] = once16(w + (u64)PL_MIN(o + 8u, out - 1u) * (IN / 4u) + 16u * chunk);
}
FN u32 step_of(u32 part) { return part * STEPS / SPLIT; }

#ifdef TERNARY_ONE
#define ROUNDS ((IN + 1023u) / 1024u) /* of four inputs a thread */

/* Over the group; scratch: a number a warp. */
FN f32 largest(f32 v, f32 *scratch) {
    for (u32 m = 16u; m > 0u; m >>= 1) v = FMAX(v, lane_xor(v, m));
    if (LOCAL_X % 32u == 0u) scratch[LOCAL_X / 32u] = v;
    BARRIER();
    for (u32 i = 0; i < WARPS; i++) v = FMAX(v, scratch[i]);
    return v;
}
#ifdef HAS_NORM
/* The sum of squares as 1024 threads add it up in norm.k.c: thread 4 L + e of those has what stands in v[][e] here. */
FN f32 sum_of_squares(f32 (*v)[4], f32 *scratch) {
    f32 s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++) {
#pragma unroll
        for (u32 e = 0; e < 4u; e++) s[e] = FMA(v[i][e], v[i][e], s[e]);
    }
    for (u32 m = 4u; m > 0u; m >>= 1) {
#pragma unroll
        for (u32 e = 0; e < 4u; e++) s[e] += lane_xor(s[e], m);
    }
    f32 sum = (s[0] + s[2]) + (s[1] + s[3]);
    if (LOCAL_X % 8u == 0u) scratch[LOCAL_X / 8u] = sum;
    BARRIER();
    sum = 0.0f;
    for (u32 i = 0; i < 32u; i++) sum += scratch[i];
    return sum;
}
#endif
#ifdef HAS_GLU
FN f32 activate(f32 x) {
#ifdef ACT_RELU2
    f32 r = FMAX(x, 0.0f);
    return r * r;
#else
    return x / (1.0f + EXP(-x));
#endif
}
#endif

/* grid: tiles / TILES */
KERNEL(ternary_one)(const u8 *__restrict__ w0, const u8 *__restrict__ w1, const u8 *__restrict__ w2, f32 *y0, f32 *y1, f32 *y2,
                    const f32 *x, const f32 *__restrict__ norm, f32 *h, f32 *to, u32 *witness,
                    const struct pl_args_ternaries a) {
    __shared__ __align__(16) u32 q[STEPS * 64u];
    __shared__ f32 tops[WARPS];
#ifdef HAS_NORM
    __shared__ f32 squares[32];
#endif
    __shared__ i32 totals[WARPS], sums[WARPS][16];
    const struct matrices all = {{w0, w1, w2}, {y0, y1, y2}};
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, tile = GROUP_X * TILES + warp / SPLIT;
    u32 first = step_of(warp % SPLIT), end = step_of(warp % SPLIT + 1u);
    bool live = tile < a.tiles;
    struct place p = place_of(PL_MIN(tile, a.tiles - 1u), &a);
    const u8 *w = p.which == 0u ? w0 : p.which == 1u ? w1 : w2;
    uint4 held[HELD][2];
#pragma unroll
    for (u32 i = 0; i < HELD; i++) { /* depend on no launch before this one */
        fetch(w, p.m, out_of(&p, &a), first + i < end ? first + i : STEPS, held[i]);
    }
#ifdef HAS_NORM
    float4 weight[ROUNDS];
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++) {
        u32 k = 1024u * i + 4u * LOCAL_X;
        weight[i] = k < IN ? *(const float4 *)(norm + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#endif
    count_launch(witness);
    f32 v[ROUNDS][4], top = 1e-5f;
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++) {
        u32 k = 1024u * i + 4u * LOCAL_X;
        float4 four = k < IN ? *(const float4 *)(x + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        v[i][0] = four.x, v[i][1] = four.y, v[i][2] = four.z, v[i][3] = four.w;
    }
#ifdef HAS_NORM
    f32 inverse = 1.0f / SQRT(sum_of_squares(v, squares) / (f32)IN + a.value);
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++) {
        u32 k = 1024u * i + 4u * LOCAL_X;
        v[i][0] = v[i][0] * inverse * (a.offset + weight[i].x), v[i][1] = v[i][1] * inverse * (a.offset + weight[i].y);
        v[i][2] = v[i][2] * inverse * (a.offset + weight[i].z), v[i][3] = v[i][3] * inverse * (a.offset + weight[i].w);
        if (GROUP_X == 0u && k < IN) *(float4 *)(h + k) = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
    }
#endif
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++) {
#pragma unroll
        for (u32 e = 0; e < 4u; e++) top = FMAX(top, FABS(v[i][e]));
    }
    top = largest(top, tops);
    f32 by = 127.0f / top;
    i32 total = 0;
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++) {
        u32 k = 1024u * i + 4u * LOCAL_X, packed = 0u;
#pragma unroll
        for (u32 e = 0; e < 4u; e++) {
            i32 n = (i32)RINT(v[i][e] * by);
            total += n;
            packed |= ((u32)n & 255u) << (8u * e);
        }
        if (k < STEPS * 256u) q[k / 4u] = packed; /* zeros behind the end */
    }
    for (u32 m = 16u; m > 0u; m >>= 1) total += __shfl_xor_sync(0xFFFFFFFFu, total, (int)m);
    if (lane == 0u) totals[warp] = total;
    BARRIER();
    i32 acc[4][4]; /* apart, so that products need not wait for each other */
#pragma unroll
    for (u32 i = 0; i < 16u; i++) acc[i / 4u][i % 4u] = 0;
    for (u32 from = first; from < end; from += HELD) {
#pragma unroll
        for (u32 i = 0; i < HELD; i++) {
            if (from + i >= end) continue; /* the same for all lanes */
            uint4 in[4];
#pragma unroll
            for (u32 c = 0; c < 4u; c++) /* row 0 is the input, the others are zeros */
                in[c] = lane < 4u ? *(const uint4 *)(q + 64u * (from + i) + 16u * lane + 4u * c) : make_uint4(0u, 0u, 0u, 0u);
#pragma unroll
            for (u32 c = 0; c < 4u; c++) {
                u32 low = word_of(&held[i][0], c), high = word_of(&held[i][1], c), codes[4];
                codes_of(low, high, 0u, codes);
                mma32(acc[c], codes, in[c].x, in[c].y);
                codes_of(low, high, 1u, codes);
                mma32(acc[c], codes, in[c].z, in[c].w);
            }
        }
        if (from + HELD < end) {
#pragma unroll
            for (u32 i = 0; i < HELD; i++) fetch(w, p.m, out_of(&p, &a), from + HELD + i < end ? from + HELD + i : STEPS, held[i]);
        }
    }
    if (lane % 4u == 0u) { /* row 0 */
        sums[warp][lane / 4u] = acc[0][0] + acc[1][0] + acc[2][0] + acc[3][0];
        sums[warp][lane / 4u + 8u] = acc[0][2] + acc[1][2] + acc[2][2] + acc[3][2];
    }
    BARRIER();
    /* every thread of a tile's first 16 ends one output */
    u32 slot = LOCAL_X / 16u, o = LOCAL_X % 16u;
    if (slot >= TILES) return;
    tile = GROUP_X * TILES + slot;
    p = place_of(PL_MIN(tile, a.tiles - 1u), &a);
    live = tile < a.tiles && p.m * 16u + o < out_of(&p, &a);
    total = 0;
    for (u32 i = 0; i < WARPS; i++) total -= totals[i]; /* codes are values plus one */
    for (u32 i = 0; i < SPLIT; i++) total += sums[slot * SPLIT + i][o];
    f32 y = MUL((f32)total, MUL(DIV(top, 127.0f), scale_of(&p, &a)));
    o += p.m * 16u;
    if (live) sums_to(&p, &all)[o] = y;
#ifdef HAS_ADD
    if (live) to[o] = ADD(to[o], y);
#elif defined(HAS_GLU)
    f32 up = __shfl_down_sync(0xFFFFFFFFu, y, 16); /* gate and up are neighbours: one warp ends both */
    if (live && p.which == 0u) to[o] = activate(y) * up;
#else
    (void)to;
#endif
#ifndef HAS_NORM
    (void)norm;
    (void)h;
#endif
}
#endif

#ifdef TERNARY_ROWS
#define ROWS (8u * ROWS_8)
/* grid: (tiles / (TILES * EACH), rows / ROWS). row: the scale and the sum of each row of q. */
KERNEL(ternary_rows)(const u8 *__restrict__ w0, const u8 *__restrict__ w1, const u8 *__restrict__ w2, f32 *y0, f32 *y1, f32 *y2,
                     const u8 *q, const u32 *row, u32 *witness, const struct pl_args_ternaries a) {
    __shared__ i32 sums[WARPS][EACH][16][ROWS + 1u];
    const struct matrices all = {{w0, w1, w2}, {y0, y1, y2}};
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, g = lane / 4u, t = lane % 4u, row0 = GROUP_Y * ROWS;
    u32 tile = (GROUP_X * TILES + warp / SPLIT) * EACH, first = step_of(warp % SPLIT), end = step_of(warp % SPLIT + 1u);
    struct place p[EACH];
    i32 acc[EACH][ROWS_8][4];
    const u8 *from[ROWS_8];
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
        p[e] = place_of(PL_MIN(tile + e, a.tiles - 1u), &a);
#pragma unroll
        for (u32 i = 0; i < 4u * ROWS_8; i++) acc[e][i / 4u][i % 4u] = 0;
    }
#pragma unroll
    for (u32 n = 0; n < ROWS_8; n++) from[n] = q + (u64)PL_MIN(row0 + 8u * n + g, a.rows - 1u) * IN + 64u * t;
    count_launch(witness);
#pragma unroll 2
    for (u32 step = first; step < end; step++) {
        uint4 v[EACH][2];
        bool inside = 4u * step + t < CHUNKS;
#pragma unroll
        for (u32 e = 0; e < EACH; e++) {
            const u8 *w = p[e].which == 0u ? w0 : p[e].which == 1u ? w1 : w2;
            fetch(w, p[e].m, out_of(&p[e], &a), step, v[e]);
        }
#pragma unroll
        for (u32 c = 0; c < 4u; c++) {
            uint4 in[ROWS_8];
#pragma unroll
            for (u32 n = 0; n < ROWS_8; n++)
                in[n] = inside ? *(const uint4 *)(from[n] + 256u * step + 16u * c) : make_uint4(0u, 0u, 0u, 0u);
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                u32 codes[2][4];
                codes_of(word_of(&v[e][0], c), word_of(&v[e][1], c), 0u, codes[0]);
                codes_of(word_of(&v[e][0], c), word_of(&v[e][1], c), 1u, codes[1]);
#pragma unroll
                for (u32 n = 0; n < ROWS_8; n++) {
                    mma32(acc[e][n], codes[0], in[n].x, in[n].y);
                    mma32(acc[e][n], codes[1], in[n].z, in[n].w);
                }
            }
        }
    }
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
#pragma unroll
        for (u32 n = 0; n < ROWS_8; n++) {
#pragma unroll
            for (u32 i = 0; i < 4u; i++) sums[warp][e][g + i / 2u * 8u][8u * n + 2u * t + i % 2u] = acc[e][n][i];
        }
    }
    BARRIER();
    for (u32 i = LOCAL_X; i < TILES * EACH * 16u * ROWS; i += GROUP) { /* neighbours: outputs of one row */
        u32 o = i % 16u, e = i / 16u % (TILES * EACH), r = i / (16u * TILES * EACH), slot = e / EACH;
        tile = GROUP_X * TILES * EACH + e;
        struct place at = place_of(PL_MIN(tile, a.tiles - 1u), &a);
        u32 out = out_of(&at, &a);
        if (tile >= a.tiles || at.m * 16u + o >= out || row0 + r >= a.rows) continue;
        i32 total = 0;
        for (u32 s = 0; s < SPLIT; s++) total += sums[slot * SPLIT + s][e % EACH][o][r];
        f32 y = (f32)total - bits_f32(row[2u * (row0 + r) + 1u]);
        sums_to(&at, &all)[(u64)(row0 + r) * out + at.m * 16u + o] = y * (bits_f32(row[2u * (row0 + r)]) * scale_of(&at, &a));
    }
}
#endif
