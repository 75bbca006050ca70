/* kv - where a token's keys and values stand in the pages [P,S,G,D], and their storage type.
 *
 * KV_VECTOR: from one token and head to the next, in KV_TYPE. In 8 bits (KV_I8, KV_F8: src/tensor/kv8.h) a vector is its codes and
 * then the f32 that scales them; kv_load gives codes, and kv_scaled multiplies what was made of a vector by its scale. */
#ifndef PL_KV_H
#define PL_KV_H

#include "dialect.h"

#if defined(KV_F32)
#define KV_TYPE f32
FN f32 kv_load(GLOBAL const f32 *p) { return *p; }
FN void kv_store(GLOBAL f32 *p, f32 v) { *p = v; }
#elif defined(KV_F16)
#define KV_TYPE u16
FN f32 kv_load(GLOBAL const u16 *p) { return f16_load(p); }
FN void kv_store(GLOBAL u16 *p, f32 v) { f16_store(p, v); }
#elif defined(KV_BF16)
#define KV_TYPE u16
FN f32 kv_load(GLOBAL const u16 *p) { return bf16_load(p); }
FN void kv_store(GLOBAL u16 *p, f32 v) { bf16_store(p, v); }
#elif defined(KV_I8)
#define KV_TYPE u8
#define KV_MOST 127.0f
FN f32 kv_load(GLOBAL const u8 *p) { return (f32)(i8)*p; }
FN void kv_store(GLOBAL u8 *p, f32 v) { *p = (u8)((u32)(i32)RINT(v) & 255u); }
#elif defined(KV_F8)
#define KV_TYPE u8
#define KV_MOST 448.0f
FN f32 kv_load(GLOBAL const u8 *p) {
    u32 c = *p, mag = c & 127u;
    f32 v = mag < 8u ? (f32)mag * 0.001953125f : bits_f32((mag << 20) + (120u << 23));
    return (c & 128u) != 0u ? -v : v;
}
FN void kv_store(GLOBAL u8 *p, f32 v) { /* |v| <= 448 */
    u32 u = f32_bits(v), mag = u & 0x7FFFFFFFu;
    u32 c = mag < 0x3C800000u ? (u32)RINT(bits_f32(mag) * 512.0f) : ((mag + 0x7FFFFu + (mag >> 20 & 1u)) >> 20) - (120u << 3);
    *p = (u8)(c | (u >> 24 & 128u));
}
#else
#error "KV_F32, KV_F16, KV_BF16, KV_I8 or KV_F8 is needed"
#endif

#ifdef KV_MOST
#define KV_VECTOR (HEAD_DIM + 4)
FN f32 kv_scaled(GLOBAL const u8 *vector, f32 v) { return v * *(GLOBAL const f32 *)(vector + HEAD_DIM); }
#else
#define KV_VECTOR HEAD_DIM
FN f32 kv_scaled(GLOBAL const KV_TYPE *vector, f32 v) {
    (void)vector;
    return v;
}
#endif

/* KV_TYPEs from the pool's start, in 64 bits: pools are larger than 2 GiB. */
FN u64 kv_offset(GLOBAL const u32 *table, u32 position, u32 g, u32 kv_heads) {
    u64 token = (u64)table[position / PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS;
    return (token * kv_heads + g) * KV_VECTOR;
}

#endif
