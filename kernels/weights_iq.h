/* weights_iq - dequant32 of the types whose magnitudes are named by entries of a code book (iq_grids.h): WTYPE_FILE of
 * weights.h. Block layouts: src/tensor/README.md. */
#ifndef PL_WEIGHTS_IQ_H
#define PL_WEIGHTS_IQ_H

#include "iq_grids.h"

FN u32 u32_at(GLOBAL const u8 *p) { return (u32)p[0] | ((u32)p[1] << 8) | ((u32)p[2] << 16) | ((u32)p[3] << 24); }

#if defined(WTYPE_IQ2_XXS) || defined(WTYPE_IQ2_XS) || defined(WTYPE_IQ3_XXS)
/* Signs of eight elements from the lowest seven bits: an even number of them is negative. */
FN u32 eight_signs(u32 seven) {
    u32 s = seven & 127u, odd = s ^ (s >> 4);
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return s | ((odd & 1u) << 7);
}
#endif

#ifdef WTYPE_IQ1_M
/* The number that an f16's bits mean; no infinity, no NaN: loading refuses them. */
FN f32 f16_of(u32 h) {
    u32 e = (h >> 10) & 31u, m = h & 1023u;
    f32 v = e == 0u ? (f32)m * bits_f32(0x33800000u) : bits_f32(((e + 112u) << 23) | (m << 13));
    return (h & 0x8000u) != 0u ? -v : v;
}
#endif
#if defined(WTYPE_IQ1_S) || defined(WTYPE_IQ1_M)
/* Eight elements q - 1 + 1/8, or less 1/8. */
FN void eight(u32 entry, u32 negative, f32 scale, f32 *out) {
    f32 shift = negative != 0u ? -1.125f : -0.875f;
    for (u32 i = 0; i < 8u; i++) out[i] = scale * ((f32)((entry >> (2u * i)) & 3u) + shift);
}
#elif defined(WTYPE_IQ3_XXS) || defined(WTYPE_IQ3_S)
/* Eight elements of two entries. */
FN void eight(u32 first, u32 second, u32 signs, f32 scale, f32 *out) {
    u32 q = first | (second << 12);
    for (u32 i = 0; i < 8u; i++) {
        u32 n = (q >> (3u * i)) & 7u;
#ifdef WTYPE_IQ3_S
        f32 v = scale * (f32)(2u * n + 1u);
#else
        f32 v = scale * (f32)(8u * n + (n == 7u ? 6u : 4u));
#endif
        out[i] = ((signs >> i) & 1u) != 0u ? -v : v;
    }
}
#else
/* Eight elements: 8, 25 or 43. */
FN void eight(u32 entry, u32 signs, f32 scale, f32 *out) {
    for (u32 i = 0; i < 8u; i++) {
        u32 n = (entry >> (2u * i)) & 3u;
        f32 v = scale * (f32)(8u + 17u * n + (n >> 1));
        out[i] = ((signs >> i) & 1u) != 0u ? -v : v;
    }
}
#endif

FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    u32 s = k & 7u;
#if defined(WTYPE_IQ1_S)
    GLOBAL const u8 *b = r + 50u * (u64)(k >> 3);
    u32 rest = (u32)b[34u + 2u * s] | ((u32)b[35u + 2u * s] << 8);
    f32 d = f16_load((GLOBAL const u16 *)b) * (f32)(2u * ((rest >> 12) & 7u) + 1u);
    for (u32 j = 0; j < 4u; j++)
        eight(iq1_grid[b[2u + 4u * s + j] | (((rest >> (3u * j)) & 7u) << 8)], rest >> 15, d, out + 8u * j);
#elif defined(WTYPE_IQ1_M)
    GLOBAL const u8 *b = r + 56u * (u64)(k >> 3);
    GLOBAL const u16 *words = (GLOBAL const u16 *)(b + 48);
    u32 bits = (u32)(words[0] >> 12) | ((u32)(words[1] >> 12) << 4) | ((u32)(words[2] >> 12) << 8) |
               ((u32)(words[3] >> 12) << 12);
    f32 d = f16_of(bits);
    u32 scales = (u32)words[s >> 1] >> (6u * (s & 1u));
    for (u32 j = 0; j < 4u; j++) {
        u32 rest = ((u32)b[32u + 2u * s + (j >> 1)] >> (4u * (j & 1u))) & 15u;
        eight(iq1_grid[b[4u * s + j] | ((rest & 7u) << 8)], rest >> 3, d * (f32)(2u * ((scales >> (3u * (j >> 1))) & 7u) + 1u),
              out + 8u * j);
    }
#elif defined(WTYPE_IQ2_XXS)
    GLOBAL const u8 *b = r + 66u * (u64)(k >> 3);
    GLOBAL const u8 *p = b + 2u + 8u * s;
    u32 rest = u32_at(p + 4);
    f32 d = f16_load((GLOBAL const u16 *)b) * (f32)(2u * (rest >> 28) + 1u) * 0.125f;
    for (u32 j = 0; j < 4u; j++) eight(iq2_xxs_grid[p[j]], eight_signs(rest >> (7u * j)), d, out + 8u * j);
#elif defined(WTYPE_IQ2_XS)
    GLOBAL const u8 *b = r + 74u * (u64)(k >> 3);
    GLOBAL const u8 *p = b + 2u + 8u * s;
    f32 d = f16_load((GLOBAL const u16 *)b) * 0.125f;
    u32 scales = b[66u + s];
    for (u32 j = 0; j < 4u; j++)
        eight(iq2_xs_grid[p[2u * j] | ((p[2u * j + 1u] & 1u) << 8)], eight_signs((u32)p[2u * j + 1u] >> 1),
              d * (f32)(2u * ((scales >> (4u * (j >> 1))) & 15u) + 1u), out + 8u * j);
#elif defined(WTYPE_IQ2_S)
    GLOBAL const u8 *b = r + 82u * (u64)(k >> 3);
    f32 d = f16_load((GLOBAL const u16 *)b) * 0.125f;
    u32 scales = b[74u + s], high = b[66u + s];
    for (u32 j = 0; j < 4u; j++)
        eight(iq2_s_grid[b[2u + 4u * s + j] | (((high >> (2u * j)) & 3u) << 8)], b[34u + 4u * s + j],
              d * (f32)(2u * ((scales >> (4u * (j >> 1))) & 15u) + 1u), out + 8u * j);
#elif defined(WTYPE_IQ3_XXS)
    GLOBAL const u8 *b = r + 98u * (u64)(k >> 3);
    GLOBAL const u8 *p = b + 2u + 8u * s;
    u32 rest = u32_at(b + 66u + 4u * s);
    f32 d = f16_load((GLOBAL const u16 *)b) * (f32)(2u * (rest >> 28) + 1u) * 0.25f;
    for (u32 j = 0; j < 4u; j++)
        eight(iq3_xxs_grid[p[2u * j]], iq3_xxs_grid[p[2u * j + 1u]], eight_signs(rest >> (7u * j)), d, out + 8u * j);
#else
    GLOBAL const u8 *b = r + 110u * (u64)(k >> 3);
    GLOBAL const u8 *p = b + 2u + 8u * s;
    u32 high = b[66u + s];
    f32 d = f16_load((GLOBAL const u16 *)b) * (f32)(2u * (((u32)b[106u + (s >> 1)] >> (4u * (s & 1u))) & 15u) + 1u);
    for (u32 j = 0; j < 4u; j++)
        eight(iq3_s_grid[p[2u * j] | (((high >> (2u * j)) & 1u) << 8)],
              iq3_s_grid[p[2u * j + 1u] | (((high >> (2u * j + 1u)) & 1u) << 8)], b[74u + 4u * s + j], d, out + 8u * j);
#endif
}

#endif
