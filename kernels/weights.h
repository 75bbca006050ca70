/* weights - every weight type, 32 consecutive elements of a row at a time.
 *
 * dequant32(w, row, k, n, out): elements [32k, 32k+n) of a row as f32; n is 32 but at the end of rows of plain floats,
 * where the rest of out is zero. WTYPE_<NAME> says which type; struct weight is where its arrays stand. Each type has its own
 * definition, and only one is compiled. */
#ifndef PL_WEIGHTS_H
#define PL_WEIGHTS_H

#include "dialect.h"

#ifdef WTYPE_MLX
/* BITS, MLX_GROUP, and the scales' type SCALE_F16, SCALE_BF16 or SCALE_F32. */
#ifdef SCALE_F32
#define SCALE_LOAD(p, i) (((GLOBAL const f32 *)(p))[i])
#elif defined(SCALE_F16)
#define SCALE_LOAD(p, i) f16_load((GLOBAL const u16 *)(p) + (i))
#else
#define SCALE_LOAD(p, i) bf16_load((GLOBAL const u16 *)(p) + (i))
#endif
#endif

struct weight {
    GLOBAL const u8 *data, *scales, *biases;
    u64 row_bytes;
    u32 cols;
};

FN GLOBAL const u8 *block_row(const struct weight *w, u64 row, u32 n) {
    (void)n; /* rows of blocks have no rest */
    return w->data + row * w->row_bytes;
}

#if defined(WTYPE_Q4_K) || defined(WTYPE_Q5_K)
FN void scale_min(GLOBAL const u8 *s, u32 b, u32 *scale, u32 *min) {
    if (b < 4u) {
        *scale = s[b] & 63u;
        *min = s[b + 4u] & 63u;
    } else {
        *scale = (s[b + 4u] & 15u) | ((u32)(s[b - 4u] >> 6) << 4);
        *min = (u32)(s[b + 4u] >> 4) | ((u32)(s[b] >> 6) << 4);
    }
}
#endif
#if defined(WTYPE_IQ4_NL) || defined(WTYPE_IQ4_XS)
TABLE f32 iq4_values[16] = {-127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f, -22.0f, -10.0f,
                            1.0f,    13.0f,   25.0f,  38.0f,  53.0f,  69.0f,  89.0f,  113.0f};
#endif
#if defined(WTYPE_MXFP4)
TABLE f32 mxfp4_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                              -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
#endif

#if defined(WTYPE_F32) || defined(WTYPE_F16) || defined(WTYPE_BF16)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
#ifdef WTYPE_F32
    GLOBAL const f32 *p = (GLOBAL const f32 *)(w->data + row * w->row_bytes) + 32u * (u64)k;
#define PLAIN(i) p[i]
#else
    GLOBAL const u16 *p = (GLOBAL const u16 *)(w->data + row * w->row_bytes) + 32u * (u64)k;
#ifdef WTYPE_F16
#define PLAIN(i) f16_load(p + (i))
#else
#define PLAIN(i) bf16_load(p + (i))
#endif
#endif
    if (n == 32u) {
        for (u32 i = 0; i < 32u; i++) out[i] = PLAIN(i);
    } else {
        for (u32 i = 0; i < 32u; i++) out[i] = i < n ? PLAIN(i) : 0.0f;
    }
}
#elif defined(WTYPE_MLX)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    (void)n;
    /* 32 elements of BITS bits are BITS whole words. */
    GLOBAL const u32 *p = (GLOBAL const u32 *)(w->data + row * w->row_bytes) + (u64)k * BITS;
    u64 g = row * (w->cols / MLX_GROUP) + k * 32u / MLX_GROUP;
    f32 scale = SCALE_LOAD(w->scales, g), bias = SCALE_LOAD(w->biases, g);
    for (u32 i = 0; i < 32u; i++) {
        u32 bit = i * BITS, word = bit >> 5, shift = bit & 31u;
        u32 q = p[word] >> shift;
        if (shift + BITS > 32u) q |= p[word + 1u] << (32u - shift);
        out[i] = scale * (f32)(q & ((1u << BITS) - 1u)) + bias;
    }
}
#elif defined(WTYPE_Q4_0)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 18u * (u64)k;
    f32 d = f16_load((GLOBAL const u16 *)b);
    for (u32 i = 0; i < 16u; i++) {
        out[i] = (f32)((i32)(b[2u + i] & 15u) - 8) * d;
        out[i + 16u] = (f32)((i32)(b[2u + i] >> 4) - 8) * d;
    }
}
#elif defined(WTYPE_Q4_1)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 20u * (u64)k;
    f32 d = f16_load((GLOBAL const u16 *)b), m = f16_load((GLOBAL const u16 *)b + 1);
    for (u32 i = 0; i < 16u; i++) {
        out[i] = (f32)(b[4u + i] & 15u) * d + m;
        out[i + 16u] = (f32)(b[4u + i] >> 4) * d + m;
    }
}
#elif defined(WTYPE_Q5_0) || defined(WTYPE_Q5_1)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
#ifdef WTYPE_Q5_0
    GLOBAL const u8 *b = r + 22u * (u64)k;
    f32 d = f16_load((GLOBAL const u16 *)b), m = -16.0f * d;
    GLOBAL const u8 *h = b + 2, *q = b + 6;
#else
    GLOBAL const u8 *b = r + 24u * (u64)k;
    f32 d = f16_load((GLOBAL const u16 *)b), m = f16_load((GLOBAL const u16 *)b + 1);
    GLOBAL const u8 *h = b + 4, *q = b + 8;
#endif
    u32 high = (u32)h[0] | ((u32)h[1] << 8) | ((u32)h[2] << 16) | ((u32)h[3] << 24);
    for (u32 i = 0; i < 16u; i++) {
        u32 lo = (q[i] & 15u) | (((high >> i) & 1u) << 4), hi = (u32)(q[i] >> 4) | (((high >> (i + 16u)) & 1u) << 4);
        out[i] = (f32)lo * d + m;
        out[i + 16u] = (f32)hi * d + m;
    }
}
#elif defined(WTYPE_Q8_0)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 34u * (u64)k;
    f32 d = f16_load((GLOBAL const u16 *)b);
    GLOBAL const i8 *q = (GLOBAL const i8 *)(b + 2);
    for (u32 i = 0; i < 32u; i++) out[i] = (f32)q[i] * d;
}
#elif defined(WTYPE_Q2_K)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 84u * (u64)(k >> 3);
    u32 s = k & 7u, c = s >> 2, j = s & 3u;
    f32 d = f16_load((GLOBAL const u16 *)(b + 80)), dmin = f16_load((GLOBAL const u16 *)(b + 82));
    for (u32 i = 0; i < 32u; i++) {
        u32 sc = b[2u * s + (i >> 4)], q = (b[16u + 32u * c + i] >> (2u * j)) & 3u;
        out[i] = d * (f32)(sc & 15u) * (f32)q - dmin * (f32)(sc >> 4);
    }
}
#elif defined(WTYPE_Q3_K)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 110u * (u64)(k >> 3);
    u32 s = k & 7u, c = s >> 2, j = s & 3u;
    f32 d = f16_load((GLOBAL const u16 *)(b + 108));
    for (u32 i = 0; i < 32u; i++) {
        u32 n16 = 2u * s + (i >> 4);
        u32 lo = n16 < 8u ? b[96u + n16] & 15u : (u32)(b[96u + n16 - 8u] >> 4);
        u32 sc = lo | (((u32)(b[104u + (n16 & 3u)] >> (2u * (n16 >> 2))) & 3u) << 4);
        i32 q = (i32)((b[32u + 32u * c + i] >> (2u * j)) & 3u) - (((b[i] >> s) & 1u) != 0u ? 0 : 4);
        out[i] = d * (f32)((i32)sc - 32) * (f32)q;
    }
}
#elif defined(WTYPE_Q4_K)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 144u * (u64)(k >> 3);
    u32 s = k & 7u, sc, mn, shift = 4u * (s & 1u);
    scale_min(b + 4, s, &sc, &mn);
    f32 d = f16_load((GLOBAL const u16 *)b) * (f32)sc, m = f16_load((GLOBAL const u16 *)b + 1) * (f32)mn;
    GLOBAL const u8 *q = b + 16u + 32u * (s >> 1);
    for (u32 i = 0; i < 32u; i++) out[i] = d * (f32)((q[i] >> shift) & 15u) - m;
}
#elif defined(WTYPE_Q5_K)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 176u * (u64)(k >> 3);
    u32 s = k & 7u, sc, mn, shift = 4u * (s & 1u);
    scale_min(b + 4, s, &sc, &mn);
    f32 d = f16_load((GLOBAL const u16 *)b) * (f32)sc, m = f16_load((GLOBAL const u16 *)b + 1) * (f32)mn;
    GLOBAL const u8 *h = b + 16, *q = b + 48u + 32u * (s >> 1);
    for (u32 i = 0; i < 32u; i++) {
        u32 v = ((q[i] >> shift) & 15u) | (((u32)(h[i] >> s) & 1u) << 4);
        out[i] = d * (f32)v - m;
    }
}
#elif defined(WTYPE_Q6_K)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 210u * (u64)(k >> 3);
    u32 s = k & 7u, c = s >> 2, j = s & 3u;
    f32 d = f16_load((GLOBAL const u16 *)(b + 208));
    GLOBAL const u8 *lo = b + 64u * c + 32u * (j & 1u), *hi = b + 128u + 32u * c;
    GLOBAL const i8 *sc = (GLOBAL const i8 *)(b + 192) + 2u * s;
    for (u32 i = 0; i < 32u; i++) {
        u32 q = ((u32)(lo[i] >> (4u * (j >> 1))) & 15u) | (((u32)(hi[i] >> (2u * j)) & 3u) << 4);
        out[i] = d * (f32)sc[i >> 4] * (f32)((i32)q - 32);
    }
}
#elif defined(WTYPE_IQ4_NL)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 18u * (u64)k;
    f32 d = f16_load((GLOBAL const u16 *)b);
    for (u32 i = 0; i < 16u; i++) {
        out[i] = d * iq4_values[b[2u + i] & 15u];
        out[i + 16u] = d * iq4_values[b[2u + i] >> 4];
    }
}
#elif defined(WTYPE_IQ4_XS)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 136u * (u64)(k >> 3);
    u32 s = k & 7u, high = (u32)b[2] | ((u32)b[3] << 8);
    u32 sc = ((u32)(b[4u + (s >> 1)] >> (4u * (s & 1u))) & 15u) | (((high >> (2u * s)) & 3u) << 4);
    f32 d = f16_load((GLOBAL const u16 *)b) * (f32)((i32)sc - 32);
    for (u32 i = 0; i < 16u; i++) {
        u32 q = b[8u + 16u * s + i];
        out[i] = d * iq4_values[q & 15u];
        out[i + 16u] = d * iq4_values[q >> 4];
    }
}
#elif defined(WTYPE_MXFP4)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 17u * (u64)k;
    u32 e = b[0]; /* 2^(e-127); the two smallest are subnormal */
    f32 d = bits_f32(e == 0u ? 0x00400000u : e << 23);
    for (u32 i = 0; i < 16u; i++) {
        out[i] = d * mxfp4_values[b[1u + i] & 15u];
        out[i + 16u] = d * mxfp4_values[b[1u + i] >> 4];
    }
}
#elif defined(WTYPE_TQ1_0)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 54u * (u64)(k >> 3);
    f32 d = f16_load((GLOBAL const u16 *)(b + 52));
    for (u32 i = 0; i < 32u; i++) {
        u32 e = 32u * (k & 7u) + i, byte, digit;
        if (e < 160u) {
            byte = b[e & 31u];
            digit = e >> 5;
        } else if (e < 240u) {
            byte = b[32u + ((e - 160u) & 15u)];
            digit = (e - 160u) >> 4;
        } else {
            byte = b[48u + ((e - 240u) & 3u)];
            digit = (e - 240u) >> 2;
        }
        u32 power = digit == 0u ? 1u : digit == 1u ? 3u : digit == 2u ? 9u : digit == 3u ? 27u : 81u;
        u32 q = (byte * power) & 255u;
        out[i] = d * (f32)((i32)((q * 3u) >> 8) - 1);
    }
}
#elif defined(WTYPE_TQ2_0)
FN void dequant32(const struct weight *w, u64 row, u32 k, u32 n, f32 *out) {
    GLOBAL const u8 *r = block_row(w, row, n);
    GLOBAL const u8 *b = r + 66u * (u64)(k >> 3);
    f32 d = f16_load((GLOBAL const u16 *)(b + 64));
    u32 s = k & 7u;
    for (u32 i = 0; i < 32u; i++) {
        out[i] = d * (f32)((i32)((b[32u * (s >> 2) + i] >> (2u * (s & 3u))) & 3u) - 1);
    }
}
#elif defined(WTYPE_FILE) /* of types with long tables: a file that no other type's kernels carry */
#include WTYPE_FILE
#else
#error "WTYPE_<NAME> of a weight type is needed"
#endif

#endif
