/* strip_math - one strip of packed weights (strips.h) fetched by a warp and unpacked into f16 as the matrix units want it. */
#ifndef PL_STRIP_MATH_H
#define PL_STRIP_MATH_H

#include "cuda/strips.h"

struct strip {
    uint4 q[4];
#ifdef WTYPE_Q6_K
    uint4 high[2];
    u32 d;
#else
    uint2 d;
#endif
    uint2 scale;
};
FN void fetch(struct strip *s, const u8 *at, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < 4u; i++) s->q[i] = stream16(at + 512u * i + 16u * lane);
#ifdef WTYPE_Q6_K
    s->high[0] = stream16(at + STRIP_HIGH + 16u * lane);
    s->high[1] = stream16(at + STRIP_HIGH + 512u + 16u * lane);
    s->d = *(const u32 *)(at + STRIP_D + 4u * (lane >> 2));
#else
    s->d = stream8(at + STRIP_D + 8u * (lane >> 2));
#endif
    s->scale = stream8(at + STRIP_SCALE + 8u * lane);
}

#ifdef WTYPE_Q6_K
/* A signed byte as two equal f16. */
FN u32 scale_of(u32 bytes, u32 which) { return h2_add(__byte_perm(bytes ^ 0x80808080u, 0x64646464u, 0x4040u + 0x0101u * which), 0xE480E480u); }
FN u32 q6(u32 nibbles, u32 high, u32 by) { /* 1024 + q; by: bit of the upper two */
    u32 h = by > 4u ? high >> (by - 4u) : high << (4u - by);
    return and_or(h, 0x00300030u, and_or(nibbles, 0x000F000Fu, 0x64006400u));
}
FN u32 q6_high(u32 nibbles, u32 high, u32 by) { /* 1024 + 16 q */
    u32 h = by > 8u ? high >> (by - 8u) : high << (8u - by);
    return and_or(h, 0x03000300u, and_or(nibbles, 0x00F000F0u, 0x64006400u));
}
#endif

/* The factors of a strip as the matrix units want them: two outputs a thread, word w of either half. */
struct factors {
#ifdef WTYPE_Q6_K
    u32 scale[2][4];
#else
    u32 low[2], low_off[2], high[2], high_off[2], min[2];
#endif
};
FN void factors_of(const struct strip *s, struct factors *f) {
#ifdef WTYPE_Q6_K
#pragma unroll
    for (u32 i = 0; i < 4u; i++) f->scale[0][i] = scale_of(s->scale.x, i), f->scale[1][i] = scale_of(s->scale.y, i);
#else
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        u32 bytes = r == 0u ? s->scale.x : s->scale.y;
        f->low[r] = h2_add(__byte_perm(bytes, 0x64646464u, 0x4040u), 0xE400E400u); /* - 1024 */
        u32 second = h2_add(__byte_perm(bytes, 0x64646464u, 0x4141u), 0xE400E400u);
        f->min[r] = h2_add(__byte_perm(bytes, 0x64646464u, 0x4342u), 0xE400E400u);
        f->low_off[r] = h2_mul(f->low[r], 0xE400E400u); /* * -1024 */
        f->high[r] = h2_mul(second, 0x2C002C00u);       /* / 16 */
        f->high_off[r] = h2_mul(second, 0xD400D400u);   /* * -64 */
    }
#endif
}
FN u32 word_of(const uint4 *q, u32 i) {
    const uint4 *at = q + (i >> 2);
    return (i & 3u) == 0u ? at->x : (i & 3u) == 1u ? at->y : (i & 3u) == 2u ? at->z : at->w;
}
FN void unpack(const struct strip *s, const struct factors *f, u32 w, u32 *a, u32 *b) {
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        u32 v = word_of(s->q, 8u * r + w), v8 = v >> 8;
#ifdef WTYPE_Q6_K
        u32 u = word_of(s->high, 4u * r + (w >> 1)), c = 8u * (w & 1u), s0 = f->scale[r][w >> 2], s1 = f->scale[r][2u + (w >> 2)];
        a[r] = h2_mul(h2_add(q6(v, u, c), 0xE420E420u), s0); /* - 1056 */
        a[2u + r] = h2_mul(h2_add(q6(v8, u, c + 2u), 0xE420E420u), s0);
        b[r] = h2_mul(h2_fma(q6_high(v, u, c + 4u), 0x2C002C00u, 0xD600D600u), s1); /* / 16 - 96 */
        b[2u + r] = h2_mul(h2_fma(q6_high(v8, u, c + 6u), 0x2C002C00u, 0xD600D600u), s1);
#else
        a[r] = h2_fma(and_or(v, 0x000F000Fu, 0x64006400u), f->low[r], f->low_off[r]);
        a[2u + r] = h2_fma(and_or(v8, 0x000F000Fu, 0x64006400u), f->low[r], f->low_off[r]);
        b[r] = h2_fma(and_or(v, 0x00F000F0u, 0x64006400u), f->high[r], f->high_off[r]);
        b[2u + r] = h2_fma(and_or(v8, 0x00F000F0u, 0x64006400u), f->high[r], f->high_off[r]);
#endif
    }
}

#endif
