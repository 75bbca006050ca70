/* moe_tall - grouped products of many rows with the chosen experts, whose rearranged weights (strips.h) are unpacked to bf16 in
 * the registers that the matrix units of sm_90a take them from: nothing unpacked is written. Contract: kernels/moe.k.c, in order,
 * tiles of 128 rows of one expert; rounding: moe_dense.k.c.
 *
 *   MOE_PAIR   h[place] = act(gate x) * up x; x by row. An item: 128 outputs of a tile
 *   otherwise  made[place] = down h[place], bf16. An item: 256 outputs of a tile
 *   grid: any; groups take items in turn, the outputs of a tile first
 *
 * x and h are bf16 with the inputs of each 256 in the order in which strips meet them (moe_order.h; pack.k.c leaves them so). Two
 * teams of four warps; a warp unpacks two strips, of gate and of up, or of down, and its team multiplies them by the rows of the
 * tile (wgmma), which lie in shared memory, 64 inputs a stage, STAGES stages. A stage is brought LEAD ahead: its place was last
 * read two stages before, which both teams have left when they meet. Weights of the next 256 inputs are fetched as the words of
 * these are used up. Rows and weights of the next item are on their way before this one's results leave: what is needed for that
 * comes by copies too, the tile three items ahead and its slots two, and LEAD stages at least lie between a copy and its use. Tiles
 * of up to 64 rows take products of 64. Order of sums fixed: bitwise repeatable.
 * in % 256 == 0, in >= 512, out % 16 == 0, with MOE_PAIR out % 256 == 0. */
#include "dialect.h"
#include "args/args.h"
#include "cuda/moe_math.h"
#include "cuda/moe_order.h"

#define TILE_ROWS   128u
#define STAGE_K     64u
#define STAGE_BYTES (TILE_ROWS * STAGE_K * 2u)
#define STAGES      8u
#define LEAD        6u
#define BRING_WAIT  "5" /* LEAD - 1 */
#define EIGHTS (TILE_ROWS / 8u)
extern __shared__ __align__(1024) u8 shared[];

FN void copy16(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
#ifdef MOE_PAIR
FN void copy4(u32 to, const void *from) { asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory"); }
#endif
FN u32 two_bf16(f32 lo, f32 hi) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}
/* Row r, 16 bytes number c of it: spread as the matrix units expect it (128-byte swizzle). */
FN u32 spread(u32 r, u32 c) { return 128u * r + ((c ^ (r & 7u)) << 4); }
/* Eight rows lie 1024 bytes apart, rows of 128 bytes, swizzled. */
FN u64 described(u32 at) { return (u64)((at & 0x3FFFFu) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

/* d += 64 outputs times 128 or 64 rows over 16 inputs: weights from registers, rows from shared memory. */
#define OUT4(d, i) "+f"((d)[i][0]), "+f"((d)[i][1]), "+f"((d)[i][2]), "+f"((d)[i][3])
FN void wide128(f32 (*d)[4], const u32 *a, u64 rows) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3),
                   OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7),
                   OUT4(d, 8), OUT4(d, 9), OUT4(d, 10), OUT4(d, 11),
                   OUT4(d, 12), OUT4(d, 13), OUT4(d, 14), OUT4(d, 15)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));
}
FN void wide64(f32 (*d)[4], const u32 *a, u64 rows) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3),
                   OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));
}

/* What a value of a strip is multiplied by and what is taken away, for two outputs a thread: Q4_K for each half of its 64 inputs;
 * Q6_K for each 16 of them, less 32 times as much. */
#ifdef WTYPE_Q6_K
#define SCALES 4u
#else
#define SCALES 2u
#endif
struct scales {
    f32 by[2][SCALES], less[2][SCALES];
};
/* A value of 0 to 63 in a byte of q, by number, plus 128. */
FN f32 value_at(u32 q, u32 which) { return bits_f32(__byte_perm(q, 0x43000000u, 0x7044u + 0x0100u * which)); }
FN void scales_of(struct scales *f, uint2 bytes, uint2 d) {
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        u32 b = r == 0u ? bytes.x : bytes.y;
#ifdef WTYPE_Q6_K
        f32 of = r == 0u ? h2_low(d.x) : h2_high(d.x);
#pragma unroll
        for (u32 i = 0; i < SCALES; i++) {
            f->by[r][i] = of * (f32)(i8)(b >> (8u * i));
            f->less[r][i] = 160.0f * f->by[r][i];
        }
#else
        u32 dm = r == 0u ? d.x : d.y;
#pragma unroll
        for (u32 i = 0; i < SCALES; i++) {
            f->by[r][i] = h2_low(dm) * (f32)((b >> (8u * i)) & 255u);
            f->less[r][i] = FMA(128.0f, f->by[r][i], h2_high(dm) * (f32)((b >> (16u + 8u * i)) & 255u));
        }
#endif
    }
}
/* Word w of a strip as the matrix units take it: the low half of its inputs, and the high half. */
FN void to_bf16(const struct strip *s, const struct scales *f, u32 w, u32 *a, u32 *b) {
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        u32 v = word_of(s->q, 8u * r + w), low = v & 0x0F0F0F0Fu, high = (v >> 4) & 0x0F0F0F0Fu;
#ifdef WTYPE_Q6_K
        /* upper two bits: byte 0, 1 of low, then of high, at 0, 2, 4, 6 of this word's half; bytes 2, 3 16 bits further */
        u32 u = word_of(s->high, 4u * r + (w >> 1)) >> (8u * (w & 1u));
        low |= ((u << 4) & 0x00300030u) | ((u << 10) & 0x30003000u);
        high |= (u & 0x00300030u) | ((u << 6) & 0x30003000u);
        u32 first = w >> 2, second = 2u + (w >> 2);
#else
        u32 first = 0u, second = 1u;
#endif
        f32 by0 = f->by[r][first], less0 = -f->less[r][first], by1 = f->by[r][second], less1 = -f->less[r][second];
        a[r] = two_bf16(FMA(by0, value_at(low, 0u), less0), FMA(by0, value_at(low, 2u), less0));
        a[2u + r] = two_bf16(FMA(by0, value_at(low, 1u), less0), FMA(by0, value_at(low, 3u), less0));
        b[r] = two_bf16(FMA(by1, value_at(high, 0u), less1), FMA(by1, value_at(high, 2u), less1));
        b[2u + r] = two_bf16(FMA(by1, value_at(high, 1u), less1), FMA(by1, value_at(high, 3u), less1));
    }
}
FN uint2 d_of(const u8 *strip, u32 lane) {
#ifdef WTYPE_Q6_K
    return make_uint2(*(const u32 *)(strip + STRIP_D + 4u * (lane >> 2)), 0u);
#else
    return stream8(strip + STRIP_D + 8u * (lane >> 2));
#endif
}
/* Half of a strip: words 0 to 3, or 4 to 7. */
FN void fetch_half(struct strip *s, const u8 *strip, u32 half, u32 lane) {
    s->q[half] = stream16(strip + 512u * half + 16u * lane);
    s->q[2u + half] = stream16(strip + 1024u + 512u * half + 16u * lane);
#ifdef WTYPE_Q6_K
    if (half == 1u) return;
    s->high[0] = stream16(strip + STRIP_HIGH + 16u * lane);
    s->high[1] = stream16(strip + STRIP_HIGH + 512u + 16u * lane);
#endif
}

#ifdef MOE_PAIR
#define ITEM_OUTS 128u
#define PITCH     (128u + 8u) /* of a row of results in shared memory */
#else
#define ITEM_OUTS 256u
#define PITCH     (256u + 8u)
#endif
/* Shared memory: stages, results, then what is known of four items. */
#define RESULTS_AT (STAGES * STAGE_BYTES)
#define ITEMS_AT   (RESULTS_AT + TILE_ROWS * PITCH * 2u)
struct known {
    uint4 tile; /* expert, first, rows */
    u32 slot[TILE_ROWS];
};
FN struct known *known_of(u32 n) { return (struct known *)(shared + ITEMS_AT) + n % 4u; }
struct work {
    const u32 *list;
    const u8 *w0, *w1;
    const u16 *x;
    u32 in, out, used, stride, columns, items, grid;
};
FN u32 item_of(const struct work *j, u32 n) { return GROUP_X + n * j->grid; }
FN const u32 *tile_at(const struct work *j, u32 item) {
    return j->list + PL_ORDER_TILE(j->stride) + (u64)(item / j->columns) * PL_TILE_WORDS;
}
/* Asks for the tile of this group's item n + 3, and for the slots of item n + 2, whose tile is there. */
FN void learn(const struct work *j, u32 n) {
    struct known *far = known_of(n + 3u), *near = known_of(n + 2u);
    if (LOCAL_X == 0u && item_of(j, n + 3u) < j->items) copy16(shared_at(&far->tile), tile_at(j, item_of(j, n + 3u)));
#ifdef MOE_PAIR
    if (LOCAL_X < TILE_ROWS && item_of(j, n + 2u) < j->items && LOCAL_X < near->tile.z)
        copy4(shared_at(near->slot + LOCAL_X), j->list + PL_ORDER_SLOT(0) + near->tile.y + LOCAL_X);
#else
    (void)near;
#endif
}
/* Where a thread stands in bringing rows: the next stage to bring, which of how many of its item. */
struct rows {
    u32 at[4]; /* in 16 bytes */
    u32 count, stage, k, n;
};
FN void begin_rows(struct rows *r, const struct work *j, u32 n) {
    const struct known *of = known_of(n);
    r->n = n;
    r->k = 0u;
    r->count = item_of(j, n) < j->items ? of->tile.z : 0u;
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        u32 at = LOCAL_X / 8u + 32u * i;
#ifdef MOE_PAIR
        u32 row = at < r->count ? of->slot[at] / j->used : 0u;
#else
        u32 row = at < r->count ? of->tile.y + at : 0u;
#endif
        r->at[i] = row * (j->in / 8u) + (LOCAL_X & 7u);
    }
}
FN void bring(struct rows *r, const struct work *j) {
    u32 at = LOCAL_X / 8u, to = shared_at(shared) + r->stage % STAGES * STAGE_BYTES;
#pragma unroll
    for (u32 i = 0; i < 4u; i++)
        if (at + 32u * i < r->count) copy16(to + spread(at + 32u * i, LOCAL_X & 7u), j->x + 8u * (u64)(r->at[i] + 8u * r->k));
    asm volatile("cp.async.commit_group;" ::: "memory");
    r->stage++;
    if (++r->k == j->in / STAGE_K) begin_rows(r, j, r->n + 1u);
}
/* First output of this warp's strips: of gate and up, so that a group's strips fill whole runs of h in its order; or of down's two. */
FN u32 own_of(u32 column, u32 warp) {
#ifdef MOE_PAIR
    return column / 2u * 256u + 64u * (warp >> 1) + 32u * (column & 1u) + 16u * (warp & 1u);
#else
    return 256u * column + 128u * (warp >> 2) + 16u * (warp & 3u);
#endif
}
struct strips {
    const u8 *at[2]; /* the next to fetch */
    struct strip s[2];
    uint2 bytes[2], d[2];
};
FN void find_strips(struct strips *p, const struct work *j, u32 n) {
    u32 item = item_of(j, n), own = own_of(item % j->columns, LOCAL_X / 32u), blocks = j->in / 256u, count = j->out / 16u;
    if (item >= j->items) { /* the last strip again: fetched, not used */
        p->at[0] -= STRIP_BYTES;
        p->at[1] -= STRIP_BYTES;
        return;
    }
    u64 first = (u64)known_of(n)->tile.x * count;
#pragma unroll
    for (u32 m = 0; m < 2u; m++) {
#ifdef MOE_PAIR
        p->at[m] = (m == 0u ? j->w0 : j->w1) + (first + own / 16u) * blocks * STRIP_BYTES;
#else
        p->at[m] = j->w0 + (first + PL_MIN(own / 16u + 4u * m, count - 1u)) * blocks * STRIP_BYTES;
#endif
    }
}
FN void fetch_scales(struct strips *p, u32 lane) {
#pragma unroll
    for (u32 m = 0; m < 2u; m++) {
        p->bytes[m] = stream8(p->at[m] + STRIP_SCALE + 8u * lane);
        p->d[m] = d_of(p->at[m], lane);
    }
}
FN void wide(f32 (*d)[4], const u32 *a, u64 rows, const bool few) {
    if (few) wide64(d, a, rows);
    else wide128(d, a, rows);
}
/* One item: sums of its outputs by its rows. stage: the first of its stages. */
FN void walk(const struct work *j, struct strips *p, struct rows *r, u32 n, u32 stage, f32 (*acc)[EIGHTS][4], const bool few) {
    u32 lane = LOCAL_X % 32u, blocks = j->in / 256u;
    for (u32 block = 0; block < blocks; block++) {
        struct scales f[2];
#pragma unroll
        for (u32 m = 0; m < 2u; m++) {
            scales_of(&f[m], p->bytes[m], p->d[m]);
            p->at[m] += STRIP_BYTES;
        }
        if (block + 1u == blocks) find_strips(p, j, n + 1u);
        fetch_scales(p, lane);
#pragma unroll
        for (u32 w = 0; w < 8u; w++) {
            if (w % 2u == 0u) {
                asm volatile("cp.async.wait_group " BRING_WAIT ";\n fence.proxy.async.shared::cta;" ::: "memory");
                BARRIER();
                if (w == 0u && block == 0u) learn(j, n);
                bring(r, j);
            }
            u64 rows = described(shared_at(shared) + (stage + 4u * block + w / 2u) % STAGES * STAGE_BYTES) + 4u * (w % 2u);
#pragma unroll
            for (u32 m = 0; m < 2u; m++) {
                u32 a[4], b[4];
                to_bf16(&p->s[m], &f[m], w, a, b);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                wide(acc[m], a, rows, few);
                wide(acc[m], b, rows + 2u, few);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            }
#ifdef WTYPE_Q6_K
            if (w == 7u)
                for (u32 m = 0; m < 2u; m++) fetch_half(&p->s[m], p->at[m], 0u, lane), fetch_half(&p->s[m], p->at[m], 1u, lane);
#else
            if (w % 4u == 3u)
                for (u32 m = 0; m < 2u; m++) fetch_half(&p->s[m], p->at[m], w / 4u, lane);
#endif
        }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
/* The item's results into shared memory, and from there to their places, 16 bytes a thread. */
FN void leave(const struct work *j, uint4 tile, u32 column, f32 (*acc)[EIGHTS][4], u16 *y, const bool few) {
    u16 *held = (u16 *)(shared + RESULTS_AT);
    u32 lane = LOCAL_X % 32u, g = lane >> 2, t = lane & 3u, own = own_of(column, LOCAL_X / 32u);
#pragma unroll
    for (u32 n = 0; n < EIGHTS; n++) {
        if (few && n >= 8u) continue;
#pragma unroll
        for (u32 i = 0; i < 4u; i++) {
            u16 *to = held + (8u * n + 2u * t + (i & 1u)) * PITCH;
#ifdef MOE_PAIR
            u32 at = in_order(own + g + 4u * (i & 2u)); /* runs of 16 of every 32 */
            to[at / 32u * 16u + at % 16u] = (u16)two_bf16(gated(acc[0][n][i], acc[1][n][i]), 0.0f);
#else
            u32 at = own % 256u + g + 4u * (i & 2u);
            to[at] = (u16)two_bf16(acc[0][n][i], 0.0f);
            to[at + 64u] = (u16)two_bf16(acc[1][n][i], 0.0f);
#endif
        }
    }
    BARRIER();
    for (u32 i = LOCAL_X; i < ITEM_OUTS / 8u * tile.z; i += GROUP) {
        u32 r = i / (ITEM_OUTS / 8u), e = i % (ITEM_OUTS / 8u);
#ifdef MOE_PAIR
        u32 o = column / 2u * 256u + e / 2u * 32u + 16u * (column & 1u) + 8u * (e & 1u);
#else
        u32 o = 256u * column + 8u * e;
#endif
        if (o < j->out) *(uint4 *)(y + (u64)(tile.y + r) * j->out + o) = *(const uint4 *)(held + r * PITCH + 8u * e);
    }
}

KERNEL(moe_tall)(const u16 *__restrict__ x, const u8 *__restrict__ w0, const u8 *__restrict__ w1, const u32 *list, u16 *y,
                 u32 *witness, const struct pl_args_moe a) {
    u32 lane = LOCAL_X % 32u, stage = 0u;
    count_launch(witness);
    struct work j = {list, w0, w1, x, a.in, a.out, a.used, a.stride, (a.out + ITEM_OUTS - 1u) / ITEM_OUTS, 0u, a.grid};
    j.items = list[PL_ORDER_TILES] * j.columns;
    if (item_of(&j, 0u) >= j.items) return;
    /* Of the first items nothing is known yet. */
    if (LOCAL_X < 3u && item_of(&j, LOCAL_X) < j.items) known_of(LOCAL_X)->tile = *(const uint4 *)tile_at(&j, item_of(&j, LOCAL_X));
    BARRIER();
    for (u32 i = LOCAL_X; i < 2u * TILE_ROWS; i += GROUP) {
        struct known *of = known_of(i / TILE_ROWS);
        u32 r = i % TILE_ROWS;
        if (item_of(&j, i / TILE_ROWS) < j.items && r < of->tile.z) of->slot[r] = list[PL_ORDER_SLOT(0) + of->tile.y + r];
    }
    BARRIER();
    struct strips p;
    struct rows r;
    find_strips(&p, &j, 0u);
    fetch_scales(&p, lane);
#pragma unroll
    for (u32 m = 0; m < 2u; m++) fetch_half(&p.s[m], p.at[m], 0u, lane), fetch_half(&p.s[m], p.at[m], 1u, lane);
    r.stage = 0u;
    begin_rows(&r, &j, 0u);
    for (u32 k = 0; k < LEAD; k++) bring(&r, &j);
    for (u32 n = 0; item_of(&j, n) < j.items; n++, stage += a.in / STAGE_K) {
        uint4 tile = known_of(n)->tile;
        f32 acc[2][EIGHTS][4];
#pragma unroll
        for (u32 i = 0; i < 8u * EIGHTS; i++) acc[i / (4u * EIGHTS)][i / 4u % EIGHTS][i % 4u] = 0.0f;
        if (tile.z <= 64u) {
            walk(&j, &p, &r, n, stage, acc, true);
            leave(&j, tile, item_of(&j, n) % j.columns, acc, y, true);
        } else {
            walk(&j, &p, &r, n, stage, acc, false);
            leave(&j, tile, item_of(&j, n) % j.columns, acc, y, false);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}
