/* kv - where a token's keys and values stand in the pages [P,S,G,D], and their storage type.
 *
 * KV_VECTOR: from one token and head to the next, in KV_TYPE. In 8 bits (KV_I8, KV_F8: src/tensor/kv8.h) a vector is its codes and
 * then the f32 that scales them; kv_load gives codes, and kv_scaled multiplies what was made of a vector by its scale. Values have
 * the like under names of their own (VALUE_VECTOR, value_load, value_scaled, value_offset), for KV_K8V4: keys as in KV_I8, values
 * in 4 bits and turned (src/tensor/kv4.h); what attention summed of them is turned back once, by values_turn_back. */
#ifndef PL_KV_H
#define PL_KV_H

#include "dialect.h"
#include "args/args.h"

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
#elif defined(KV_I8) || defined(KV_K8V4)
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
#error "KV_F32, KV_F16, KV_BF16, KV_I8, KV_F8 or KV_K8V4 is needed"
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

/* Vectors from the pool's start, in 64 bits: pools are larger than 2 GiB. PAGES_IN_ORDER: one sequence's tokens, as widen.k.c
 * leaves them. */
FN u64 kv_place(GLOBAL const u32 *table, u32 position, u32 g, u32 kv_heads) {
#ifdef PAGES_IN_ORDER
    (void)table;
    u64 token = position;
#else
    u64 token = (u64)table[position / PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS;
#endif
    return token * kv_heads + g;
}
/* Likewise, in KV_TYPEs. */
FN u64 kv_offset(GLOBAL const u32 *table, u32 position, u32 g, u32 kv_heads) {
    return kv_place(table, position, g, kv_heads) * KV_VECTOR;
}

#ifdef SPARSE_V
#ifdef PL_TARGET_OPENCL
#define COUNTER_MORE(p, n) atomic_add(p, n)
#else
#define COUNTER_MORE(p, n) atomicAdd(p, n)
#endif
FN void count_more(GLOBAL u32 *low, u32 n) {
    u32 before = COUNTER_MORE(low, n);
    if (before + n < before) COUNTER_ADD(low + 1);
}
/* By one thread of whoever reads them: rows of values, and how many of them were not read. */
FN void count_values(GLOBAL u32 *witness, u32 rows, u32 skipped) {
    count_more(witness + PL_COUNT_VALUES, rows);
    if (skipped > 0u) count_more(witness + PL_COUNT_SKIPPED, skipped);
}
#endif

#ifdef KV_K8V4
#define VALUE_VECTOR (HEAD_DIM / 2 + 4)
#define VALUE_BLOCK  ((u32)(HEAD_DIM) & (~(u32)(HEAD_DIM) + 1u)) /* the largest power of two that divides it */
TABLE f32 value_levels[8] = {0.12841796875f, 0.387939453125f, 0.65673828125f, 0.9423828125f,
                             1.255859375f,   1.6181640625f,   2.068359375f,   2.732421875f};
FN f32 value_level(u32 code) { return (code & 8u) != 0u ? -value_levels[code & 7u] : value_levels[code & 7u]; }
FN f32 value_load(GLOBAL const u8 *vector, u32 i) { return value_level(vector[i / 2u] >> (i % 2u * 4u) & 15u); }
FN f32 value_scaled(GLOBAL const u8 *vector, f32 v) { return v * *(GLOBAL const f32 *)(vector + HEAD_DIM / 2); }
FN u32 value_code(f32 v) {
    f32 mag = FABS(v);
    u32 place = 0u;
    for (u32 i = 0; i < 7u; i++) place += mag > 0.5f * (value_levels[i] + value_levels[i + 1u]) ? 1u : 0u;
    return place | (v < 0.0f ? 8u : 0u);
}
FN f32 value_sign(u32 i) {
    u32 h = (i + 1u) * 0x9E3779B1u;
    h = (h ^ h >> 15) * 0x85EBCA6Bu;
    return ((h ^ h >> 13) & 1u) != 0u ? -1.0f : 1.0f;
}
#ifdef GROUP
/* x [HEAD_DIM], by all threads of the group: blocks times their Walsh-Hadamard matrix. Barriers at both ends. */
FN void values_transform(LOCAL_PTR f32 *x) {
    BARRIER();
    for (u32 h = 1; h < VALUE_BLOCK; h <<= 1) {
        for (u32 i = LOCAL_X; i < HEAD_DIM / 2; i += GROUP) {
            u32 j = 2u * i - i % h;
            f32 a = x[j], b = x[j + h];
            x[j] = a + b;
            x[j + h] = a - b;
        }
        BARRIER();
    }
}
FN void values_turn_back(LOCAL_PTR f32 *x) {
    values_transform(x);
    for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) x[i] *= value_sign(i);
    BARRIER();
}
#endif
#else
#define VALUE_VECTOR KV_VECTOR
FN f32 value_load(GLOBAL const KV_TYPE *vector, u32 i) { return kv_load(vector + i); }
FN f32 value_scaled(GLOBAL const KV_TYPE *vector, f32 v) { return kv_scaled(vector, v); }
#endif
FN u64 value_offset(GLOBAL const u32 *table, u32 position, u32 g, u32 kv_heads) {
    return kv_place(table, position, g, kv_heads) * VALUE_VECTOR;
}

#endif
