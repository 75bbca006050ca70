/* avx2_groups - the product of a tile with many groups of four activation rows: codes of eight blocks are widened to bytes
 * once for up to sixteen groups, and each activation that is broadcast meets all sixteen outputs. Operations on an element
 * and their order are those of avx2_q8.h: the results are the same bits. Included by it. */
#ifndef PL_CPU_AVX2_GROUPS_H
#define PL_CPU_AVX2_GROUPS_H

enum { CHUNK_BLOCKS = 8, CHUNK_GROUPS = 16, GROUP_ROWS = 4 };

struct q8_chunk {
    _Alignas(32) unsigned char codes[CHUNK_BLOCKS * 1024]; /* blocks: vectors of tile.h, each code a byte or a word */
    float scale[CHUNK_BLOCKS][2][TILE_ROWS], min[CHUNK_BLOCKS][2][TILE_ROWS];
};

/* Codes whose products cannot be added in 16 bits are kept less 128, as words: products of words need no signs turned, and
 * a sum of two is one of 32 bits at once. */
Q8_INLINE bool is_words(const struct q8_instance k) { return k.pairs == 1 && !BYTES_BY_WORDS; }

Q8_INLINE size_t codes_at(const struct q8_instance k, size_t b) { return b * (is_words(k) ? 1024 : 512); }

/* Vector j of a block as words: inputs 4j and 4j+1 of eight outputs, then 4j+2 and 4j+3 of them. */
Q8_INLINE void put_words(__m256i v, const int j, unsigned char *half) {
    const __m256i first = _mm256_set1_epi64x(0x0580048001800080), second = _mm256_set1_epi64x(0x0780068003800280);
    const __m256i lane = _mm256_setr_epi64x(0, 0x0808080808080808, 0, 0x0808080808080808);
    const __m256i turn[2] = {_mm256_or_si256(first, lane), _mm256_or_si256(second, lane)};
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        _mm256_store_si256((__m256i *)(void *)(half + 128 * j + 64 * i),
                           _mm256_srai_epi16(_mm256_shuffle_epi8(v, turn[i]), 8));
}

Q8_INLINE void chunk_unpack(const struct q8_instance k, const struct pl_cpu_weight *w, const unsigned char *tile,
                            size_t first, size_t count, struct q8_chunk *c) {
    __m256i book = _mm256_setzero_si256();
    if (k.book != NULL) book = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)k.book));
    for (size_t b = 0; b < count; b++) {
        cpu_prefetch_block(k.storage, k.scale, &w->layout, tile, first + b);
        for (size_t h8 = 0; h8 < TILE_ROWS; h8 += 8) {
            const unsigned char *p = tile + (first + b) * w->layout.plane_bytes + 4 * h8;
            const struct q8_scales s = load_scales(k, w, tile, first + b, h8);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                __m256i v = unpack(k, p, j);
                if (k.book != NULL) v = _mm256_shuffle_epi8(book, v);
                if (is_words(k))
                    put_words(_mm256_xor_si256(v, _mm256_set1_epi8((char)0x80)), j, c->codes + codes_at(k, b) + 4 * h8);
                else
                    _mm256_store_si256((__m256i *)(void *)(c->codes + codes_at(k, b) + 64 * j + 4 * h8), v);
            }
            for (int i = 0; i < (cpu_scale_halves(k.scale) ? 2 : 1); i++) {
                _mm256_store_ps(c->scale[b][i] + h8, s.s[i]);
                if (k.has_min) _mm256_store_ps(c->min[b][i] + h8, s.m[i]);
            }
        }
    }
}

/* d[m][h] += codes of vectors [from, to), half h of the outputs, . activations, for n rows. part: as in q8_dots. */
Q8_INLINE void chunk_dots(const struct q8_instance k, const unsigned char *codes, const int8_t *q, const int from,
                          const int to, const int n, __m256i (*part)[2], __m256i (*d)[2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int pairs = many_by_lanes(k) ? 8 : k.pairs;
    (void)pairs, (void)ones, (void)part;
#pragma GCC unroll 8
    for (int j = from; j < to; j++) {
        const __m256i v[2] = {as_written(load32(codes + 64 * j)), as_written(load32(codes + 64 * j + 32))};
#pragma GCC unroll 4
        for (int m = 0; m < n; m++) {
            const __m256i a = act4(q + 32 * m + 4 * j);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
#if defined(__AVXVNNI__)
                d[m][h] = _mm256_dpbusd_avx_epi32(d[m][h], v[h], a);
#else
                const __m256i x = _mm256_maddubs_epi16(v[h], a);
                part[m][h] = (j - from) % pairs == 0 && !many_by_lanes(k) ? x : as_written(_mm256_add_epi16(part[m][h], x));
                if ((j - from) % pairs == pairs - 1 || j == to - 1)
                    d[m][h] = as_written(_mm256_add_epi32(d[m][h], _mm256_madd_epi16(part[m][h], ones)));
#endif
            }
        }
    }
}

/* The same of words, of two inputs each: q is rows of 32 words. */
Q8_INLINE void chunk_words(const unsigned char *codes, const int16_t *q, const int from, const int to, const int n,
                           __m256i (*d)[2]) {
#pragma GCC unroll 16
    for (int j = from; j < to; j++) {
        const __m256i v[2] = {as_written(load32(codes + 64 * j)), as_written(load32(codes + 64 * j + 32))};
#pragma GCC unroll 4
        for (int m = 0; m < n; m++) {
            const __m256i a = act4((const int8_t *)(q + 32 * m + 2 * j));
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) d[m][h] = as_written(_mm256_add_epi32(d[m][h], _mm256_madd_epi16(v[h], a)));
        }
    }
}
/* The inputs of a group's blocks as words. */
Q8_INLINE void widen_inputs(const unsigned char *a, size_t blocks, int16_t (*to)[GROUP_ROWS * ACT_BLOCK]) {
    for (size_t b = 0; b < blocks; b++, a += GROUP_ROWS * ACT_ROW_BYTES)
#pragma GCC unroll 8
        for (int i = 0; i < GROUP_ROWS * ACT_BLOCK; i += 16)
            _mm256_store_si256((__m256i *)(void *)(to[b] + i),
                               _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(a + i))));
}

/* Rows [m0, m0 + n) of a block, or of its half i where halves have scales of their own, into acc. */
Q8_INLINE void chunk_rows(const struct q8_instance k, const struct q8_chunk *c, size_t b, const unsigned char *a,
                          const int16_t *words, const bool halves, const int i, const int m0, const int n,
                          float (*acc)[TILE_ROWS]) {
    const float *scale = (const float *)(const void *)(a + 32 * GROUP_ROWS) + m0, *ssum = scale + GROUP_ROWS;
    const int32_t *nsum = (const int32_t *)(const void *)(ssum + GROUP_ROWS);
    const int half = halves ? i : -1;
    const bool twice = !halves && many_by_lanes(k) && k.pairs == 2; /* a 16-bit sum holds half a block of 6 bits */
    __m256i d[4][2], part[4][2];
#pragma GCC unroll 4
    for (int m = 0; m < n; m++) {
        d[m][0] = d[m][1] = start(k, many_by_lanes(k), minus_sum(nsum, GROUP_ROWS, half, m));
        if (many_by_lanes(k)) part[m][0] = part[m][1] = lanes_start(k, nsum, GROUP_ROWS, twice ? 0 : half, m);
    }
    if (is_words(k))
        chunk_words(c->codes + codes_at(k, b), words + 32 * m0, i > 0 ? 8 : 0, halves && i == 0 ? 8 : 16, n, d);
    else
        chunk_dots(k, c->codes + codes_at(k, b), (const int8_t *)a + 32 * m0, i > 0 ? 4 : 0,
                   twice || (halves && i == 0) ? 4 : 8, n, part, d);
    if (twice) {
#pragma GCC unroll 4
        for (int m = 0; m < n; m++) part[m][0] = part[m][1] = lanes_start(k, nsum, GROUP_ROWS, 1, m);
        chunk_dots(k, c->codes + codes_at(k, b), (const int8_t *)a + 32 * m0, 4, 8, n, part, d);
    }
#pragma GCC unroll 4
    for (int m = 0; m < n; m++) {
        const __m256 s = _mm256_set1_ps(scale[m]);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            float *at = acc[m0 + m] + 8 * h;
            __m256 v = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(c->scale[b][i] + 8 * h), s), _mm256_cvtepi32_ps(d[m][h]),
                                       _mm256_load_ps(at));
            if (k.has_min)
                v = _mm256_fmadd_ps(
                    _mm256_load_ps(c->min[b][i] + 8 * h),
                    _mm256_set1_ps(halves ? scale[m] * (float)-minus_sum(nsum, GROUP_ROWS, half, m) : ssum[m]), v);
            _mm256_store_ps(at, v);
        }
    }
}

/* n groups of four rows. */
Q8_INLINE void groups_run(const struct q8_instance k, const struct pl_cpu_weight *w, size_t tile_index,
                          const struct cpu_act_group *g, size_t n, float *y, size_t y_stride, const float *bias,
                          bool accumulate) {
    const bool halves = cpu_scale_halves(k.scale);
    const int together =
        k.pairs == 8 || many_by_lanes(k) || is_words(k) || BYTES_BY_WORDS ? 4 : 2; /* as many as registers hold */
    const unsigned char *tile = w->tiles + tile_index * w->layout.bytes;
    struct q8_chunk chunk;
    _Alignas(32) float acc[CHUNK_GROUPS][GROUP_ROWS][TILE_ROWS];
    _Alignas(32) int16_t words[CHUNK_BLOCKS][GROUP_ROWS * ACT_BLOCK];
    memset(acc, 0, n * sizeof acc[0]);
    for (size_t first = 0, count; first < w->layout.blocks; first += count) {
        count = PL_MIN((size_t)CHUNK_BLOCKS, w->layout.blocks - first);
        chunk_unpack(k, w, tile, first, count, &chunk);
        for (size_t i = 0; i < n; i++) {
            const unsigned char *a = g[i].data + first * GROUP_ROWS * ACT_ROW_BYTES;
            if (is_words(k)) widen_inputs(a, count, words);
            for (size_t b = 0; b < count; b++, a += GROUP_ROWS * ACT_ROW_BYTES)
#pragma GCC unroll 2
                for (int m0 = 0; m0 < GROUP_ROWS; m0 += together) {
                    chunk_rows(k, &chunk, b, a, words[b], halves, 0, m0, together, acc[i]);
                    if (halves) chunk_rows(k, &chunk, b, a, words[b], true, 1, m0, together, acc[i]);
                }
        }
    }
    for (size_t i = 0; i < n; i++)
        for (size_t m = 0; m < GROUP_ROWS; m++)
            for (size_t h8 = 0; h8 < TILE_ROWS && tile_index * TILE_ROWS + h8 < w->out; h8 += 8)
                q8_store(w, tile_index * TILE_ROWS + h8, _mm256_load_ps(acc[i][m] + h8), bias != NULL ? bias + h8 : NULL,
                         accumulate, y + (g[i].first + m) * y_stride + h8);
}

#endif
