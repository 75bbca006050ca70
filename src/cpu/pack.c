/* Packing: each format's codes and scales, put into tile order once at load time. */
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "cpu/codes_iq.h"

const uint8_t cpu_iq4_codes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
const uint8_t cpu_iq1_codes[16] = {9, 17, 25, 16, 7, 15, 23, 16};
const uint8_t cpu_iq2_codes[16] = {136, 153, 171, 128, 120, 103, 85, 128};
const uint8_t cpu_iq3_xxs_codes[16] = {34, 38, 42, 46, 50, 54, 58, 63, 30, 26, 22, 18, 14, 10, 6, 1};
const uint8_t cpu_iq3_s_codes[16] = {17, 19, 21, 23, 25, 27, 29, 31, 15, 13, 11, 9, 7, 5, 3, 1};
const uint8_t cpu_mxfp4_codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

/* --- planes: four rows at a time --- */
/* t[j] = bytes 4j..4j+3 of the four rows, row after row. */
CODE_INLINE void turn(const v16 *rows, v16 *t) {
    v4w a = (v4w)rows[0], b = (v4w)rows[1], c = (v4w)rows[2], d = (v4w)rows[3];
    v4w ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    v4w ef = __builtin_shufflevector(a, b, 2, 6, 3, 7), gh = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    t[0] = (v16)__builtin_shufflevector((v2d)ab, (v2d)cd, 0, 2);
    t[1] = (v16)__builtin_shufflevector((v2d)ab, (v2d)cd, 1, 3);
    t[2] = (v16)__builtin_shufflevector((v2d)ef, (v2d)gh, 0, 2);
    t[3] = (v16)__builtin_shufflevector((v2d)ef, (v2d)gh, 1, 3);
}
CODE_INLINE void store16(unsigned char *p, v16 v) { memcpy(p, &v, 16); }

CODE_INLINE void put_u4(const v16 *t, unsigned char *dst) {
    for (int p = 0; p < 4; p++) store16(dst + 64 * p, (t[p] & splat(15)) | up(t[p + 4] & splat(15), 4));
}
/* Bits `shift`, shift+1 of the codes. */
CODE_INLINE void put_u2(const v16 *t, const unsigned shift, unsigned char *dst) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        v16 sum = splat(0);
#pragma GCC unroll 4
        for (int p = 0; p < 4; p++) sum |= up(field(t[4 * h + p], shift, 3), (unsigned)(2 * p));
        store16(dst + 64 * h, sum);
    }
}
CODE_INLINE void put_bit(const v16 *t, const unsigned shift, unsigned char *dst) {
    v16 sum = splat(0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) sum |= up(field(t[j], shift, 1), (unsigned)j);
    store16(dst, sum);
}
CODE_INLINE void put_planes(const enum cpu_storage s, const v16 *t, unsigned char *dst) {
    if (s == STORE_U8) {
        for (int j = 0; j < 8; j++) store16(dst + 64 * j, t[j]);
    } else if (s == STORE_U2 || s == STORE_U3) {
        put_u2(t, 0, dst);
        if (s == STORE_U3) put_bit(t, 2, dst + 128);
    } else {
        put_u4(t, dst);
        if (s == STORE_U5) put_bit(t, 4, dst + 256);
        if (s == STORE_U6) put_u2(t, 4, dst + 256);
    }
}

/* --- scales: one row's into lane r; of formats with super scales, eight units at a time --- */
CODE_INLINE void put_f16(unsigned char *array, size_t r, const unsigned char *src) { memcpy(array + 2 * r, src, 2); }

CODE_INLINE void scales_k4(const unsigned char *s, size_t r, unsigned char *unit, unsigned char *super) {
    uint32_t w[3];
    memcpy(w, s + 4, 12);
    const uint32_t low6 = 0x3F3F3F3Fu, low4 = 0x0F0F0F0Fu, low2 = 0x03030303u;
    const uint32_t scale[2] = {w[0] & low6, (w[2] & low4) | (w[0] >> 6 & low2) << 4};
    const uint32_t min[2] = {w[1] & low6, (w[2] >> 4 & low4) | (w[1] >> 6 & low2) << 4};
    for (size_t j = 0; j < 8; j++, unit += 2 * TILE_ROWS) {
        unit[r] = (uint8_t)(scale[j / 4] >> j % 4 * 8);
        unit[TILE_ROWS + r] = (uint8_t)(min[j / 4] >> j % 4 * 8);
    }
    put_f16(super, r, s);
    put_f16(super + 2 * TILE_ROWS, r, s + 2);
}
CODE_INLINE void scales_q6_k(const unsigned char *s, size_t r, unsigned char *unit, unsigned char *super) {
    for (size_t j = 0; j < 16; j++) unit[TILE_ROWS * j + r] = s[192 + j];
    put_f16(super, r, s + 208);
}
CODE_INLINE void scales_q3_k(const unsigned char *s, size_t r, unsigned char *unit, unsigned char *super) {
    const unsigned char *sc = s + 96;
    for (size_t j = 0; j < 16; j++) {
        int low = (j < 8 ? sc[j] : sc[j - 8] >> 4) & 15, high = sc[8 + j % 4] >> (j / 4 * 2) & 3;
        unit[TILE_ROWS * j + r] = (uint8_t)((low | high << 4) - 32);
    }
    put_f16(super, r, s + 108);
}
CODE_INLINE void scales_q2_k(const unsigned char *s, size_t r, unsigned char *unit, unsigned char *super) {
    for (size_t j = 0; j < 16; j++) unit[TILE_ROWS * j + r] = s[j];
    put_f16(super, r, s + 80);
    put_f16(super + 2 * TILE_ROWS, r, s + 82);
}
CODE_INLINE void scales_iq4_xs(const unsigned char *s, size_t r, unsigned char *unit, unsigned char *super) {
    for (size_t j = 0; j < 8; j++) {
        int high = (s[2] | s[3] << 8) >> (2 * j) & 3;
        unit[TILE_ROWS * j + r] = (uint8_t)(((s[4 + j / 2] >> (j % 2 * 4) & 15) | high << 4) - 32);
    }
    put_f16(super, r, s);
}
/* Scales of four bits, s, as (2s + 1) * times: n of them, two to a byte. */
CODE_INLINE void scales_nibbles(const unsigned char *s, size_t n, int times, size_t r, unsigned char *unit) {
    for (size_t j = 0; j < n; j++) unit[TILE_ROWS * j + r] = (uint8_t)((2 * (s[j / 2] >> (j % 2 * 4) & 15) + 1) * times);
}
/* Those above the signs of 32 elements. */
CODE_INLINE void scales_above_signs(const unsigned char *s, size_t stride, int times, size_t r, unsigned char *unit) {
    for (size_t j = 0; j < 8; j++) unit[TILE_ROWS * j + r] = (uint8_t)((2 * (s[stride * j + 3] >> 4) + 1) * times);
}
CODE_INLINE void scales_iq1_s(const unsigned char *s, size_t r, unsigned char *unit, unsigned char *super) {
    for (size_t j = 0; j < 8; j++) unit[TILE_ROWS * j + r] = (uint8_t)(2 * (s[35 + 2 * j] >> 4 & 7) + 1);
    put_f16(super, r, s);
}
CODE_INLINE void scales_iq1_m(const unsigned char *s, size_t r, unsigned char *unit, unsigned char *super) {
    for (size_t j = 0; j < 16; j++) unit[TILE_ROWS * j + r] = (uint8_t)(2 * pl_iq1_m_scale(s, j) + 1);
    memcpy(super + 2 * r, &(const uint16_t){pl_iq1_m_d(s)}, 2);
}
CODE_INLINE void scales_mlx(const struct pl_tensor *t, uint64_t row, size_t r, size_t b, unsigned char *unit) {
    const bool wide = t->scale_dtype == PL_F32;
    const uint64_t at = row * (pl_tensor_cols(t) / t->group) + b * ACT_BLOCK / t->group;
    const unsigned char *scales = t->scales, *biases = t->biases;
    if (wide) {
        memcpy(unit + 4 * r, scales + 4 * at, 4);
        memcpy(unit + 4 * (TILE_ROWS + r), biases + 4 * at, 4);
    } else {
        put_f16(unit, r, scales + 2 * at);
        put_f16(unit + 2 * TILE_ROWS, r, biases + 2 * at);
    }
}

CODE_INLINE void put_scales(const enum pl_dtype type, const struct pl_tensor *t, uint64_t row_index,
                            const unsigned char *row, size_t r, size_t b, unsigned char *unit, unsigned char *super) {
    switch (type) {
    case PL_Q4_0: put_f16(unit, r, row + b * 18); break;
    case PL_Q4_1: put_f16(unit, r, row + b * 20), put_f16(unit + 2 * TILE_ROWS, r, row + b * 20 + 2); break;
    case PL_Q5_0: put_f16(unit, r, row + b * 22); break;
    case PL_Q5_1: put_f16(unit, r, row + b * 24), put_f16(unit + 2 * TILE_ROWS, r, row + b * 24 + 2); break;
    case PL_Q8_0: put_f16(unit, r, row + b * 34); break;
    case PL_MXFP4: unit[r] = row[b * 17]; break;
    case PL_TQ1_0: put_f16(unit, r, row + b / 8 * 54 + 52); break;
    case PL_TQ2_0: put_f16(unit, r, row + b / 8 * 66 + 64); break;
    case PL_TERNARY: memcpy(unit + 2 * r, &(const uint16_t){0x3C00}, 2); break; /* 1: the matrix has the scale */
    case PL_Q2_K: scales_q2_k(row + b / 8 * 84, r, unit, super); break;
    case PL_Q3_K: scales_q3_k(row + b / 8 * 110, r, unit, super); break;
    case PL_Q4_K: scales_k4(row + b / 8 * 144, r, unit, super); break;
    case PL_Q5_K: scales_k4(row + b / 8 * 176, r, unit, super); break;
    case PL_Q6_K: scales_q6_k(row + b / 8 * 210, r, unit, super); break;
    case PL_IQ4_XS: scales_iq4_xs(row + b / 8 * 136, r, unit, super); break;
    case PL_IQ1_S: scales_iq1_s(row + b / 8 * 50, r, unit, super); break;
    case PL_IQ1_M: scales_iq1_m(row + b / 8 * 56, r, unit, super); break;
    case PL_IQ2_XXS:
        scales_above_signs(row + b / 8 * 66 + 6, 8, 1, r, unit);
        put_f16(super, r, row + b / 8 * 66);
        break;
    case PL_IQ2_XS: scales_nibbles(row + b / 8 * 74 + 66, 16, 1, r, unit), put_f16(super, r, row + b / 8 * 74); break;
    case PL_IQ2_S: scales_nibbles(row + b / 8 * 82 + 74, 16, 1, r, unit), put_f16(super, r, row + b / 8 * 82); break;
    case PL_IQ3_XXS: /* d / 4 = d / 8 * 2, and the magnitudes are halved */
        scales_above_signs(row + b / 8 * 98 + 66, 4, 4, r, unit);
        put_f16(super, r, row + b / 8 * 98);
        break;
    case PL_IQ3_S: scales_nibbles(row + b / 8 * 110 + 106, 8, 1, r, unit), put_f16(super, r, row + b / 8 * 110); break;
    default: scales_mlx(t, row_index, r, b, unit); break;
    }
}

/* --- tiles --- */
static size_t row_bytes(const struct pl_tensor *t) {
    uint64_t bytes = pl_tensor_cols(t) * t->bits / 8;
    if (t->dtype != PL_MLX) PL_ASSERT(pl_dtype_row_bytes(t->dtype, pl_tensor_cols(t), &bytes));
    return (size_t)bytes;
}

enum { FILE_BYTES_AHEAD = 1024 };

/* Sixteen streams of the file become one of tiles; inlined into an instance for each format. */
CODE_INLINE void pack_tile(const enum pl_dtype type, const enum cpu_storage storage,
                           struct codes (*codes)(const unsigned char *row, size_t block), const struct cpu_tile_layout *l,
                           const struct pl_tensor *t, size_t tile, unsigned char *dst) {
    const size_t each = row_bytes(t), first = tile * TILE_ROWS, have = (size_t)pl_tensor_rows(t) - first,
                 rows = have < TILE_ROWS ? have : TILE_ROWS;
    const unsigned char *row[TILE_ROWS]; /* absent rows: the last one's codes, scales of zero */
    for (size_t r = 0; r < TILE_ROWS; r++)
        row[r] = (const unsigned char *)t->data + (first + (r < rows ? r : rows - 1)) * each;
    if (rows < TILE_ROWS) memset(dst + l->units_at, 0, l->bytes - l->units_at);
    for (size_t b = 0; b < l->blocks; b++) {
        unsigned char *unit = dst + l->units_at + b / l->unit_blocks * l->unit_bytes;
        unsigned char *super = dst + l->supers_at + b / 8 * l->super_bytes, *planes = dst + b * l->plane_bytes;
        const size_t ahead = b * each / l->blocks + FILE_BYTES_AHEAD;
        for (size_t r = 0; r < TILE_ROWS; r += 4) {
            v16 lo[4], hi[4], turned[8];
#pragma GCC unroll 4
            for (size_t k = 0; k < 4; k++) {
                struct codes c = codes(row[r + k], b);
                __builtin_prefetch(row[r + k] + ahead);
                lo[k] = c.lo;
                hi[k] = c.hi;
            }
            turn(lo, turned);
            turn(hi, turned + 4);
            put_planes(storage, turned, planes + 4 * r);
        }
        if (b % (l->super_bytes != 0 ? 8 : l->unit_blocks) != 0) continue;
        for (size_t r = 0; r < rows; r++) put_scales(type, t, first + r, row[r], r, b, unit, super);
    }
}

#define PACK(name, type, storage)                                                                                          \
    static void pack_##name(const struct cpu_tile_layout *l, const struct pl_tensor *t, size_t tile, unsigned char *dst) { \
        pack_tile(type, storage, codes_##name, l, t, tile, dst);                                                           \
    }
PACK(q4_0, PL_Q4_0, STORE_U4)
PACK(q4_1, PL_Q4_1, STORE_U4)
PACK(q5_0, PL_Q5_0, STORE_U5)
PACK(q5_1, PL_Q5_1, STORE_U5)
PACK(q8_0, PL_Q8_0, STORE_U8)
PACK(q2_k, PL_Q2_K, STORE_U2)
PACK(q3_k, PL_Q3_K, STORE_U3)
PACK(q4_k, PL_Q4_K, STORE_U4)
PACK(q5_k, PL_Q5_K, STORE_U5)
PACK(q6_k, PL_Q6_K, STORE_U6)
PACK(iq4_xs, PL_IQ4_XS, STORE_U4)
PACK(mxfp4, PL_MXFP4, STORE_U4)
PACK(tq1_0, PL_TQ1_0, STORE_U2)
PACK(tq2_0, PL_TQ2_0, STORE_U2)
PACK(ternary, PL_TERNARY, STORE_U2)
PACK(iq1_s, PL_IQ1_S, STORE_U3)
PACK(iq1_m, PL_IQ1_M, STORE_U3)
PACK(iq2_xxs, PL_IQ2_XXS, STORE_U3)
PACK(iq2_xs, PL_IQ2_XS, STORE_U3)
PACK(iq2_s, PL_IQ2_S, STORE_U3)
PACK(iq3_xxs, PL_IQ3_XXS, STORE_U4)
PACK(iq3_s, PL_IQ3_S, STORE_U4)
PACK(mlx2, PL_MLX, STORE_U2)
PACK(mlx3, PL_MLX, STORE_U3)
PACK(mlx4, PL_MLX, STORE_U4)
PACK(mlx5, PL_MLX, STORE_U5)
PACK(mlx6, PL_MLX, STORE_U6)
PACK(mlx8, PL_MLX, STORE_U8)

static const struct cpu_tile_format formats[] = {
    {PL_Q4_0, 0, STORE_U4, SCALE_F16, false, 3, pack_q4_0},
    {PL_Q4_1, 0, STORE_U4, SCALE_F16, true, NO_OFFSET, pack_q4_1},
    {PL_Q5_0, 0, STORE_U5, SCALE_F16, false, 4, pack_q5_0},
    {PL_Q5_1, 0, STORE_U5, SCALE_F16, true, NO_OFFSET, pack_q5_1},
    {PL_Q8_0, 0, STORE_U8, SCALE_F16, false, 7, pack_q8_0},
    {PL_Q2_K, 0, STORE_U2, SCALE_K16N, true, NO_OFFSET, pack_q2_k},
    {PL_Q3_K, 0, STORE_U3, SCALE_K16, false, 2, pack_q3_k},
    {PL_Q4_K, 0, STORE_U4, SCALE_K32, true, NO_OFFSET, pack_q4_k},
    {PL_Q5_K, 0, STORE_U5, SCALE_K32, true, NO_OFFSET, pack_q5_k},
    {PL_Q6_K, 0, STORE_U6, SCALE_K16, false, 5, pack_q6_k},
    {PL_IQ4_NL, 0, STORE_U4, SCALE_F16, false, 7, pack_q4_0},
    {PL_IQ4_XS, 0, STORE_U4, SCALE_K32, false, 7, pack_iq4_xs},
    {PL_MXFP4, 0, STORE_U4, SCALE_E8M0, false, 4, pack_mxfp4},
    {PL_TQ1_0, 0, STORE_U2, SCALE_F16, false, 0, pack_tq1_0},
    {PL_TQ2_0, 0, STORE_U2, SCALE_F16, false, 0, pack_tq2_0},
    {PL_TERNARY, 0, STORE_U2, SCALE_F16, false, 0, pack_ternary},
    {PL_IQ1_S, 0, STORE_U3, SCALE_K32E, false, 4, pack_iq1_s},
    {PL_IQ1_M, 0, STORE_U3, SCALE_K16E, false, 4, pack_iq1_m},
    {PL_IQ2_XXS, 0, STORE_U3, SCALE_K32E, false, 7, pack_iq2_xxs},
    {PL_IQ2_XS, 0, STORE_U3, SCALE_K16E, false, 7, pack_iq2_xs},
    {PL_IQ2_S, 0, STORE_U3, SCALE_K16E, false, 7, pack_iq2_s},
    {PL_IQ3_XXS, 0, STORE_U4, SCALE_K32E, false, 5, pack_iq3_xxs},
    {PL_IQ3_S, 0, STORE_U4, SCALE_K32, false, 4, pack_iq3_s},
    {PL_MLX, 2, STORE_U2, SCALE_MLX, true, NO_OFFSET, pack_mlx2},
    {PL_MLX, 3, STORE_U3, SCALE_MLX, true, NO_OFFSET, pack_mlx3},
    {PL_MLX, 4, STORE_U4, SCALE_MLX, true, NO_OFFSET, pack_mlx4},
    {PL_MLX, 5, STORE_U5, SCALE_MLX, true, NO_OFFSET, pack_mlx5},
    {PL_MLX, 6, STORE_U6, SCALE_MLX, true, NO_OFFSET, pack_mlx6},
    {PL_MLX, 8, STORE_U8, SCALE_MLX, true, NO_OFFSET, pack_mlx8},
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

static bool is_ternary(enum pl_dtype t) { return t == PL_TQ1_0 || t == PL_TQ2_0 || t == PL_TERNARY; }

struct cpu_tile_layout cpu_tile_layout(const struct cpu_tile_format *f, const struct pl_tensor *t) {
    static const size_t plane[] = {
        [STORE_U4] = 256, [STORE_U5] = 320, [STORE_U6] = 384, [STORE_U8] = 512, [STORE_U2] = 128, [STORE_U3] = 192};
    struct cpu_tile_layout l = {.blocks = (size_t)pl_tensor_cols(t) / ACT_BLOCK, .plane_bytes = plane[f->storage]};
    size_t arrays = f->has_min ? 2 : 1;
    l.unit_blocks = f->scale == SCALE_MLX ? t->group / ACT_BLOCK : is_ternary(f->dtype) ? 8 : 1;
    switch (f->scale) {
    case SCALE_F16: l.unit_bytes = 2 * TILE_ROWS * arrays; break;
    case SCALE_E8M0: l.unit_bytes = TILE_ROWS; break;
    case SCALE_K32:
    case SCALE_K32E: l.unit_bytes = TILE_ROWS * arrays; break;
    case SCALE_K16:
    case SCALE_K16E:
    case SCALE_K16N: l.unit_bytes = 2 * TILE_ROWS; break;
    case SCALE_MLX: l.unit_bytes = 2 * TILE_ROWS * pl_dtype_info(t->scale_dtype)->block_bytes; break;
    }
    if (f->scale == SCALE_K32 || f->scale == SCALE_K32E || cpu_scale_halves(f->scale))
        l.super_bytes = 2 * TILE_ROWS * arrays;
    l.units_at = l.blocks * l.plane_bytes;
    l.supers_at = l.units_at + ((l.blocks + l.unit_blocks - 1) / l.unit_blocks * l.unit_bytes + 63) / 64 * 64;
    l.bytes = l.supers_at + ((l.super_bytes != 0 ? l.blocks / 8 * l.super_bytes : 0) + 63) / 64 * 64;
    return l;
}

void cpu_tile_pack(const struct cpu_tile_format *f, const struct cpu_tile_layout *l, const struct pl_tensor *t, size_t tile,
                   unsigned char *dst) {
    f->pack(l, t, tile, dst);
}

void *cpu_huge_alloc(size_t bytes) {
    const size_t page = (size_t)2 << 20;
    void *p = pl_alloc_aligned(bytes, bytes >= page ? page : 64);
#ifdef MADV_HUGEPAGE
    if (p != NULL && bytes >= page) (void)madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}
