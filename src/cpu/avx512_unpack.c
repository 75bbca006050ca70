/* Codes of every packed format as bytes, with the scales of their blocks. */
#include "cpu/avx512_chunk.h"
#include "cpu/avx512_q8.h"

Q8_INLINE void store_step(struct q8_chunk *c, size_t step, const __m512i *v, const struct q8_scales *s, const int half) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        bool other = half >= 0 && j / 4 != half;
        _mm512_store_si512((void *)(c->codes[step] + 64 * j), other ? _mm512_setzero_si512() : v[j]);
    }
    _mm512_store_ps(c->scale[step], s->s[half > 0]);
    _mm512_store_ps(c->min[step], s->m[half > 0]);
}

Q8_INLINE void unpack_chunk(const struct q8_instance k, const struct pl_cpu_weight *w, const unsigned char *tile,
                            size_t first, size_t count, bool less_offset, struct q8_chunk *c) {
    const bool halves = cpu_scale_halves(k.scale);
    __m512i book = _mm512_setzero_si512(), offset = book;
    if (k.book != NULL) book = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)k.book));
    if (k.offset_log2 != NO_OFFSET && less_offset) offset = _mm512_set1_epi8((char)(1u << k.offset_log2));
    for (size_t i = 0; i < count; i++) {
        __m512i v[8];
        unpack(k.storage, tile + (first + i) * w->layout.plane_bytes, v);
        cpu_prefetch_block(k.storage, k.scale, &w->layout, tile, first + i);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            if (k.book != NULL) v[j] = _mm512_shuffle_epi8(book, v[j]);
            if (k.offset_log2 != NO_OFFSET) v[j] = _mm512_sub_epi8(v[j], offset);
        }
        struct q8_scales s = load_scales(k, w, tile, first + i);
        if (halves) {
            store_step(c, 2 * i, v, &s, 0);
            store_step(c, 2 * i + 1, v, &s, 1);
        } else {
            store_step(c, i, v, &s, -1);
        }
    }
}

/* The constants of avx512_q8_*.c's instances. */
#define CHUNK_FORMATS(X)                                          \
    X(q4_0, STORE_U4, SCALE_F16, false, 3, NULL)                  \
    X(q4_1, STORE_U4, SCALE_F16, true, NO_OFFSET, NULL)           \
    X(q4_k, STORE_U4, SCALE_K32, true, NO_OFFSET, NULL)           \
    X(iq4_nl, STORE_U4, SCALE_F16, false, 7, cpu_iq4_codes)       \
    X(iq4_xs, STORE_U4, SCALE_K32, false, 7, cpu_iq4_codes)       \
    X(mxfp4, STORE_U4, SCALE_E8M0, false, 4, cpu_mxfp4_codes)     \
    X(iq1_s, STORE_U3, SCALE_K32E, false, 4, cpu_iq1_codes)       \
    X(iq1_m, STORE_U3, SCALE_K16E, false, 4, cpu_iq1_codes)       \
    X(iq2_32, STORE_U3, SCALE_K32E, false, 7, cpu_iq2_codes)      \
    X(iq2_16, STORE_U3, SCALE_K16E, false, 7, cpu_iq2_codes)      \
    X(iq3_xxs, STORE_U4, SCALE_K32E, false, 5, cpu_iq3_xxs_codes) \
    X(iq3_s, STORE_U4, SCALE_K32, false, 4, cpu_iq3_s_codes)      \
    X(q5_0, STORE_U5, SCALE_F16, false, 4, NULL)                  \
    X(q5_1, STORE_U5, SCALE_F16, true, NO_OFFSET, NULL)           \
    X(q5_k, STORE_U5, SCALE_K32, true, NO_OFFSET, NULL)           \
    X(q6_k, STORE_U6, SCALE_K16, false, 5, NULL)                  \
    X(q8_0, STORE_U8, SCALE_F16, false, 7, NULL)                  \
    X(q2_k, STORE_U2, SCALE_K16N, true, NO_OFFSET, NULL)          \
    X(q3_k, STORE_U3, SCALE_K16, false, 2, NULL)                  \
    X(tq, STORE_U2, SCALE_F16, false, 0, NULL)                    \
    X(mlx2, STORE_U2, SCALE_MLX, true, NO_OFFSET, NULL)           \
    X(mlx3, STORE_U3, SCALE_MLX, true, NO_OFFSET, NULL)           \
    X(mlx4, STORE_U4, SCALE_MLX, true, NO_OFFSET, NULL)           \
    X(mlx5, STORE_U5, SCALE_MLX, true, NO_OFFSET, NULL)           \
    X(mlx6, STORE_U6, SCALE_MLX, true, NO_OFFSET, NULL)           \
    X(mlx8, STORE_U8, SCALE_MLX, true, NO_OFFSET, NULL)
#define CHUNK_UNPACK(name, ...)                                                                                     \
    static void unpack_##name(const struct pl_cpu_weight *w, const unsigned char *tile, size_t first, size_t count, \
                              bool less_offset, struct q8_chunk *c) {                                               \
        const struct q8_instance k = {__VA_ARGS__};                                                                 \
        unpack_chunk(k, w, tile, first, count, less_offset, c);                                                     \
    }
CHUNK_FORMATS(CHUNK_UNPACK)

chunk_unpack_fn avx512_chunk_unpack(const struct cpu_tile_format *f) {
    switch (f->dtype) {
    case PL_Q4_0: return unpack_q4_0;
    case PL_Q4_1: return unpack_q4_1;
    case PL_Q5_0: return unpack_q5_0;
    case PL_Q5_1: return unpack_q5_1;
    case PL_Q8_0: return unpack_q8_0;
    case PL_Q2_K: return unpack_q2_k;
    case PL_Q3_K: return unpack_q3_k;
    case PL_Q4_K: return unpack_q4_k;
    case PL_Q5_K: return unpack_q5_k;
    case PL_Q6_K: return unpack_q6_k;
    case PL_IQ4_NL: return unpack_iq4_nl;
    case PL_IQ4_XS: return unpack_iq4_xs;
    case PL_MXFP4: return unpack_mxfp4;
    case PL_IQ1_S: return unpack_iq1_s;
    case PL_IQ1_M: return unpack_iq1_m;
    case PL_IQ2_XXS: return unpack_iq2_32;
    case PL_IQ2_XS:
    case PL_IQ2_S: return unpack_iq2_16;
    case PL_IQ3_XXS: return unpack_iq3_xxs;
    case PL_IQ3_S: return unpack_iq3_s;
    case PL_TERNARY:
    case PL_TQ1_0:
    case PL_TQ2_0: return unpack_tq;
    default: break;
    }
    return f->bits == 2   ? unpack_mlx2
           : f->bits == 3 ? unpack_mlx3
           : f->bits == 4 ? unpack_mlx4
           : f->bits == 5 ? unpack_mlx5
           : f->bits == 6 ? unpack_mlx6
                          : unpack_mlx8;
}
