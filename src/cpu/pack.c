/* Packing: each format's codes and scales, put into tile order once at load time. */
#include "cpu/tile.h"

#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"

const uint8_t cpu_iq4_codes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
const uint8_t cpu_mxfp4_codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

/* --- codes: 32 unsigned codes of block `block` of a row --- */
static void nibbles(const unsigned char *qs, uint8_t *code) {
    for (int j = 0; j < 16; j++) {
        code[j] = qs[j] & 15;
        code[j + 16] = qs[j] >> 4;
    }
}
static void fifth_bits(const unsigned char *p, uint8_t *code) {
    uint32_t high;
    memcpy(&high, p, 4);
    for (int j = 0; j < 32; j++) code[j] = (uint8_t)(code[j] | (high >> j & 1u) << 4);
}
static void codes_q4_0(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    nibbles(row + b * 18 + 2, code);
}
static void codes_q4_1(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    nibbles(row + b * 20 + 4, code);
}
static void codes_q5_0(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    nibbles(row + b * 22 + 6, code);
    fifth_bits(row + b * 22 + 2, code);
}
static void codes_q5_1(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    nibbles(row + b * 24 + 8, code);
    fifth_bits(row + b * 24 + 4, code);
}
static void codes_q8_0(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    for (int j = 0; j < 32; j++) code[j] = row[b * 34 + 2 + j] ^ 0x80;
}
static void codes_mxfp4(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    nibbles(row + b * 17 + 1, code);
}
static void codes_iq4_xs(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    nibbles(row + b / 8 * 136 + 8 + b % 8 * 16, code);
}
static void codes_q4_k(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    const unsigned char *qs = row + b / 8 * 144 + 16 + b % 8 / 2 * 32;
    unsigned shift = b % 2 * 4;
    for (int j = 0; j < 32; j++) code[j] = qs[j] >> shift & 15;
}
static void codes_q5_k(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    const unsigned char *s = row + b / 8 * 176, *qs = s + 48 + b % 8 / 2 * 32, *high = s + 16;
    unsigned shift = b % 2 * 4, bit = b % 8;
    for (int j = 0; j < 32; j++) code[j] = (uint8_t)((qs[j] >> shift & 15) | (high[j] >> bit & 1) << 4);
}
static void codes_q6_k(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    const unsigned char *s = row + b / 8 * 210;
    size_t half = b % 8 / 4, quarter = b % 4;
    const unsigned char *low = s + half * 64 + quarter % 2 * 32, *high = s + 128 + half * 32;
    unsigned ls = (unsigned)(quarter / 2 * 4), hs = (unsigned)(quarter * 2);
    for (int j = 0; j < 32; j++) code[j] = (uint8_t)((low[j] >> ls & 15) | (high[j] >> hs & 3) << 4);
}
static void codes_q2_k(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    const unsigned char *qs = row + b / 8 * 84 + 16 + b % 8 / 4 * 32;
    unsigned shift = b % 4 * 2;
    for (int j = 0; j < 32; j++) code[j] = qs[j] >> shift & 3;
}
static void codes_q3_k(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    const unsigned char *s = row + b / 8 * 110, *qs = s + 32 + b % 8 / 4 * 32;
    unsigned shift = b % 4 * 2, bit = b % 8;
    for (int j = 0; j < 32; j++) code[j] = (uint8_t)((qs[j] >> shift & 3) | (s[j] >> bit & 1) << 2);
}
static void codes_tq2_0(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    const unsigned char *qs = row + b / 8 * 66 + b % 8 / 4 * 32;
    unsigned shift = b % 4 * 2;
    for (int j = 0; j < 32; j++) code[j] = qs[j] >> shift & 3;
}
static uint8_t trit(unsigned char byte, size_t n) {
    static const uint8_t pow3[5] = {1, 3, 9, 27, 81};
    return (uint8_t)((uint8_t)(byte * pow3[n]) * 3 >> 8);
}
/* 5 x 32 elements in 32 bytes, 5 x 16 in 16, 4 x 4 in 4. */
static void codes_tq1_0(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    (void)bits;
    const unsigned char *s = row + b / 8 * 54;
    for (size_t j = 0; j < 32; j++) {
        size_t i = b % 8 * 32 + j;
        if (i < 160)
            code[j] = trit(s[i % 32], i / 32);
        else if (i < 240)
            code[j] = trit(s[32 + i % 16], (i - 160) / 16);
        else
            code[j] = trit(s[48 + i % 4], (i - 240) / 4);
    }
}
/* Eight codes fill `bits` bytes. */
static inline __attribute__((always_inline)) void mlx_eights(const unsigned char *p, const unsigned bits, uint8_t *code) {
    for (int k = 0; k < 4; k++, p += bits) {
        uint64_t stream = 0;
        memcpy(&stream, p, bits);
#pragma GCC unroll 8
        for (unsigned j = 0; j < 8; j++) code[8 * k + (int)j] = (uint8_t)(stream >> (j * bits) & ((1u << bits) - 1));
    }
}
static void codes_mlx(const unsigned char *row, size_t b, uint32_t bits, uint8_t *code) {
    const unsigned char *p = row + b * 4 * bits;
    switch (bits) {
    case 2: mlx_eights(p, 2, code); break;
    case 3: mlx_eights(p, 3, code); break;
    case 4: mlx_eights(p, 4, code); break;
    case 6: mlx_eights(p, 6, code); break;
    default: memcpy(code, p, ACT_BLOCK); break;
    }
}

static const struct cpu_tile_format formats[] = {
    {PL_Q4_0, 0, STORE_U4, SCALE_F16, false, 3, codes_q4_0},
    {PL_Q4_1, 0, STORE_U4, SCALE_F16, true, NO_OFFSET, codes_q4_1},
    {PL_Q5_0, 0, STORE_U5, SCALE_F16, false, 4, codes_q5_0},
    {PL_Q5_1, 0, STORE_U5, SCALE_F16, true, NO_OFFSET, codes_q5_1},
    {PL_Q8_0, 0, STORE_U8, SCALE_F16, false, 7, codes_q8_0},
    {PL_Q2_K, 0, STORE_U2, SCALE_K16N, true, NO_OFFSET, codes_q2_k},
    {PL_Q3_K, 0, STORE_U3, SCALE_K16, false, 2, codes_q3_k},
    {PL_Q4_K, 0, STORE_U4, SCALE_K32, true, NO_OFFSET, codes_q4_k},
    {PL_Q5_K, 0, STORE_U5, SCALE_K32, true, NO_OFFSET, codes_q5_k},
    {PL_Q6_K, 0, STORE_U6, SCALE_K16, false, 5, codes_q6_k},
    {PL_IQ4_NL, 0, STORE_U4, SCALE_F16, false, 7, codes_q4_0},
    {PL_IQ4_XS, 0, STORE_U4, SCALE_K32, false, 7, codes_iq4_xs},
    {PL_MXFP4, 0, STORE_U4, SCALE_E8M0, false, 4, codes_mxfp4},
    {PL_TQ1_0, 0, STORE_U2, SCALE_F16, false, 0, codes_tq1_0},
    {PL_TQ2_0, 0, STORE_U2, SCALE_F16, false, 0, codes_tq2_0},
    {PL_MLX, 2, STORE_U2, SCALE_MLX, true, NO_OFFSET, codes_mlx},
    {PL_MLX, 3, STORE_U3, SCALE_MLX, true, NO_OFFSET, codes_mlx},
    {PL_MLX, 4, STORE_U4, SCALE_MLX, true, NO_OFFSET, codes_mlx},
    {PL_MLX, 6, STORE_U6, SCALE_MLX, true, NO_OFFSET, codes_mlx},
    {PL_MLX, 8, STORE_U8, SCALE_MLX, true, NO_OFFSET, codes_mlx},
};

const struct cpu_tile_format *cpu_tile_format(const struct pl_tensor *t) {
    for (size_t i = 0; i < PL_COUNT_OF(formats); i++) {
        if (formats[i].dtype != t->dtype) continue;
        if (t->dtype != PL_MLX) return &formats[i];
        bool scales = t->scale_dtype == PL_F16 || t->scale_dtype == PL_BF16 || t->scale_dtype == PL_F32;
        if (formats[i].bits == t->bits && scales && t->group % ACT_BLOCK == 0 && t->group > 0) return &formats[i];
    }
    return NULL;
}

static bool is_ternary(enum pl_dtype t) { return t == PL_TQ1_0 || t == PL_TQ2_0; }

struct cpu_tile_layout cpu_tile_layout(const struct cpu_tile_format *f, const struct pl_tensor *t) {
    static const size_t plane[] = {
        [STORE_U4] = 256, [STORE_U5] = 320, [STORE_U6] = 384, [STORE_U8] = 512, [STORE_U2] = 128, [STORE_U3] = 192};
    struct cpu_tile_layout l = {.blocks = (size_t)pl_tensor_cols(t) / ACT_BLOCK, .plane_bytes = plane[f->storage]};
    size_t arrays = f->has_min ? 2 : 1;
    l.unit_blocks = f->scale == SCALE_MLX ? t->group / ACT_BLOCK : is_ternary(f->dtype) ? 8 : 1;
    switch (f->scale) {
    case SCALE_F16: l.unit_bytes = 2 * TILE_ROWS * arrays; break;
    case SCALE_E8M0: l.unit_bytes = TILE_ROWS; break;
    case SCALE_K32: l.unit_bytes = TILE_ROWS * arrays; break;
    case SCALE_K16:
    case SCALE_K16N: l.unit_bytes = 2 * TILE_ROWS; break;
    case SCALE_MLX: l.unit_bytes = 2 * TILE_ROWS * pl_dtype_info(t->scale_dtype)->block_bytes; break;
    }
    if (f->scale == SCALE_K32 || f->scale == SCALE_K16 || f->scale == SCALE_K16N) l.super_bytes = 2 * TILE_ROWS * arrays;
    l.units_at = l.blocks * l.plane_bytes;
    l.supers_at = l.units_at + (l.blocks / l.unit_blocks * l.unit_bytes + 63) / 64 * 64;
    l.bytes = l.supers_at + ((l.super_bytes != 0 ? l.blocks / 8 * l.super_bytes : 0) + 63) / 64 * 64;
    return l;
}

/* --- planes --- */
static void put_lane(unsigned char *plane, size_t vectors, size_t r, const uint8_t *bytes) {
    for (size_t v = 0; v < vectors; v++) memcpy(plane + 64 * v + 4 * r, bytes + 4 * v, 4);
}
static void put_u4(const uint8_t *c, size_t r, unsigned char *dst) {
    uint8_t b[16];
    for (int k = 0; k < 16; k++) b[k] = (uint8_t)((c[k] & 15) | c[k + 16] << 4);
    put_lane(dst, 4, r, b);
}
/* Four codes at a time, as bytes of a word. */
static uint32_t word(const uint8_t *c, int j) {
    uint32_t w;
    memcpy(&w, c + 4 * j, 4);
    return w;
}
/* Bits `shift`, shift+1 of the codes. */
static void put_u2(const uint8_t *c, int shift, size_t r, unsigned char *dst) {
    for (int h = 0; h < 2; h++) {
        uint32_t b = 0;
        for (int p = 0; p < 4; p++) b |= (word(c, 4 * h + p) >> shift & 0x03030303u) << (2 * p);
        memcpy(dst + 64 * h + 4 * r, &b, 4);
    }
}
static void put_bit(const uint8_t *c, int shift, size_t r, unsigned char *dst) {
    uint32_t b = 0;
    for (int j = 0; j < 8; j++) b |= (word(c, j) >> shift & 0x01010101u) << j;
    memcpy(dst + 4 * r, &b, 4);
}
static void put_planes(enum cpu_storage s, const uint8_t *c, size_t r, unsigned char *dst) {
    switch (s) {
    case STORE_U4: put_u4(c, r, dst); break;
    case STORE_U5: put_u4(c, r, dst), put_bit(c, 4, r, dst + 256); break;
    case STORE_U6: put_u4(c, r, dst), put_u2(c, 4, r, dst + 256); break;
    case STORE_U8: put_lane(dst, 8, r, c); break;
    case STORE_U2: put_u2(c, 0, r, dst); break;
    case STORE_U3: put_u2(c, 0, r, dst), put_bit(c, 2, r, dst + 128); break;
    }
}

/* --- scales: one row's into lane r --- */
static void put16(unsigned char *array, size_t r, const unsigned char *src) { memcpy(array + 2 * r, src, 2); }

static void scale_min_k4(const unsigned char *p, size_t j, uint8_t *scale, uint8_t *min) {
    *scale = j < 4 ? p[j] & 63 : (uint8_t)((p[j + 4] & 15) | p[j - 4] >> 6 << 4);
    *min = j < 4 ? p[j + 4] & 63 : (uint8_t)(p[j + 4] >> 4 | p[j] >> 6 << 4);
}

static void scales_k4(const unsigned char *row, size_t block_bytes, size_t r, size_t b, unsigned char *unit,
                      unsigned char *super) {
    const unsigned char *s = row + b / 8 * block_bytes;
    scale_min_k4(s + 4, b % 8, unit + r, unit + TILE_ROWS + r);
    put16(super, r, s);
    put16(super + 2 * TILE_ROWS, r, s + 2);
}
static void scales_q6_k(const unsigned char *row, size_t r, size_t b, unsigned char *unit, unsigned char *super) {
    const unsigned char *s = row + b / 8 * 210;
    unit[r] = s[192 + b % 8 * 2];
    unit[TILE_ROWS + r] = s[193 + b % 8 * 2];
    put16(super, r, s + 208);
}
static uint8_t scale_q3(const unsigned char *sc, size_t sub) {
    int low = (sub < 8 ? sc[sub] : sc[sub - 8] >> 4) & 15, high = sc[8 + sub % 4] >> (sub / 4 * 2) & 3;
    return (uint8_t)((low | high << 4) - 32);
}
static void scales_q3_k(const unsigned char *row, size_t r, size_t b, unsigned char *unit, unsigned char *super) {
    const unsigned char *s = row + b / 8 * 110;
    unit[r] = scale_q3(s + 96, b % 8 * 2);
    unit[TILE_ROWS + r] = scale_q3(s + 96, b % 8 * 2 + 1);
    put16(super, r, s + 108);
}
static void scales_q2_k(const unsigned char *row, size_t r, size_t b, unsigned char *unit, unsigned char *super) {
    const unsigned char *s = row + b / 8 * 84;
    unit[r] = s[b % 8 * 2];
    unit[TILE_ROWS + r] = s[b % 8 * 2 + 1];
    put16(super, r, s + 80);
    put16(super + 2 * TILE_ROWS, r, s + 82);
}
static void scales_iq4_xs(const unsigned char *row, size_t r, size_t b, unsigned char *unit, unsigned char *super) {
    const unsigned char *s = row + b / 8 * 136;
    size_t j = b % 8;
    int high = (s[2] | s[3] << 8) >> (2 * j) & 3;
    unit[r] = (uint8_t)(((s[4 + j / 2] >> (j % 2 * 4) & 15) | high << 4) - 32);
    put16(super, r, s);
}
static void scales_mlx(const struct pl_tensor *t, uint64_t row, size_t r, size_t b, unsigned char *unit) {
    size_t e = pl_dtype_info(t->scale_dtype)->block_bytes, g = b * ACT_BLOCK / t->group;
    uint64_t at = (row * (pl_tensor_cols(t) / t->group) + g) * e;
    memcpy(unit + e * r, (const unsigned char *)t->scales + at, e);
    memcpy(unit + e * (TILE_ROWS + r), (const unsigned char *)t->biases + at, e);
}

static void put_scales(const struct pl_tensor *t, uint64_t row_index, const unsigned char *row, size_t r, size_t b,
                       unsigned char *unit, unsigned char *super) {
    switch (t->dtype) {
    case PL_Q4_0:
    case PL_IQ4_NL: put16(unit, r, row + b * 18); break;
    case PL_Q4_1: put16(unit, r, row + b * 20), put16(unit + 2 * TILE_ROWS, r, row + b * 20 + 2); break;
    case PL_Q5_0: put16(unit, r, row + b * 22); break;
    case PL_Q5_1: put16(unit, r, row + b * 24), put16(unit + 2 * TILE_ROWS, r, row + b * 24 + 2); break;
    case PL_Q8_0: put16(unit, r, row + b * 34); break;
    case PL_MXFP4: unit[r] = row[b * 17]; break;
    case PL_TQ1_0: put16(unit, r, row + b / 8 * 54 + 52); break;
    case PL_TQ2_0: put16(unit, r, row + b / 8 * 66 + 64); break;
    case PL_Q2_K: scales_q2_k(row, r, b, unit, super); break;
    case PL_Q3_K: scales_q3_k(row, r, b, unit, super); break;
    case PL_Q4_K: scales_k4(row, 144, r, b, unit, super); break;
    case PL_Q5_K: scales_k4(row, 176, r, b, unit, super); break;
    case PL_Q6_K: scales_q6_k(row, r, b, unit, super); break;
    case PL_IQ4_XS: scales_iq4_xs(row, r, b, unit, super); break;
    default: scales_mlx(t, row_index, r, b, unit); break;
    }
}

static size_t row_bytes(const struct pl_tensor *t) {
    uint64_t bytes = pl_tensor_cols(t) * t->bits / 8;
    if (t->dtype != PL_MLX) PL_ASSERT(pl_dtype_row_bytes(t->dtype, pl_tensor_cols(t), &bytes));
    return (size_t)bytes;
}

void cpu_tile_pack(const struct cpu_tile_format *f, const struct cpu_tile_layout *l, const struct pl_tensor *t, size_t tile,
                   unsigned char *dst) {
    size_t each = row_bytes(t), first = tile * TILE_ROWS,
           rows = PL_MIN((size_t)TILE_ROWS, (size_t)pl_tensor_rows(t) - first);
    if (rows < TILE_ROWS) memset(dst, 0, l->bytes); /* absent rows: scales of zero */
    for (size_t b = 0; b < l->blocks; b++) {
        unsigned char *unit = dst + l->units_at + b / l->unit_blocks * l->unit_bytes;
        unsigned char *super = dst + l->supers_at + b / 8 * l->super_bytes;
        for (size_t r = 0; r < rows; r++) {
            const unsigned char *row = (const unsigned char *)t->data + (first + r) * each;
            uint8_t code[ACT_BLOCK];
            f->codes(row, b, f->bits, code);
            put_planes(f->storage, code, r, dst + b * l->plane_bytes);
            if (b % l->unit_blocks == 0) put_scales(t, first + r, row, r, b, unit, super);
        }
    }
}

void *cpu_huge_alloc(size_t bytes) {
    const size_t page = (size_t)2 << 20;
    void *p = pl_alloc_aligned(bytes, bytes >= page ? page : 64);
#ifdef MADV_HUGEPAGE
    if (p != NULL && bytes >= page) (void)madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}
