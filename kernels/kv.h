/* kv - where a token's keys and values stand in the pages [P,S,G,D], and their storage type. */
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
#else
#error "KV_F32, KV_F16 or KV_BF16 is needed"
#endif

/* Elements from the pool's start, in 64 bits: pools are larger than 2 GiB. */
FN u64 kv_offset(GLOBAL const u32 *table, u32 position, u32 g, u32 kv_heads) {
    u64 token = (u64)table[position / PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS;
    return (token * kv_heads + g) * HEAD_DIM;
}

#endif
