/* float_body - products of f32, f16 and bf16 weights held as views of the file, in the words of vec.h.
 *
 * One vector of partial sums per (output row, activation row), along the inputs in order, added up at the end: the
 * same operations whatever the block of rows, so the number of rows of a call changes no bit. Few rows read the file's
 * own form; for more a tile is widened to f32 first, once for all of them. */
#ifndef PL_CPU_FLOAT_BODY_H
#define PL_CPU_FLOAT_BODY_H

#include <string.h>

#include "cpu/internal.h"
#include "cpu/vec.h"

#define FLOAT_INLINE static inline __attribute__((always_inline))

FLOAT_INLINE vf weight_load(const enum pl_dtype t, const void *row, size_t i) {
    if (t == PL_F16) return vf_load_f16((const uint16_t *)row + i);
    if (t == PL_BF16) return vf_load_bf16((const uint16_t *)row + i);
    return vf_load((const float *)row + i);
}
/* A safetensors file may put 16-bit weights at an odd address. */
FLOAT_INLINE vf weight_loadn(const enum pl_dtype t, const void *row, size_t i, size_t n) {
    float f[VW] = {0};
    for (size_t k = 0; k < n; k++) {
        uint16_t half;
        if (t == PL_F16 || t == PL_BF16) {
            memcpy(&half, (const char *)row + 2 * (i + k), 2);
            f[k] = t == PL_F16 ? pl_f16_to_f32(half) : pl_bf16_to_f32(half);
        } else {
            memcpy(&f[k], (const char *)row + 4 * (i + k), 4);
        }
    }
    return vf_load(f);
}

/* --- few rows: weights straight from the file's form --- */
/* One row: rows of weights of a turn. On AVX2 machines memory gives more to four streams than to eight. */
enum { FLOAT_WIDE = VW == 8 ? 4 : 8, FLOAT_OUT = 4, FLOAT_ROWS = VW == 16 ? 6 : VW == 4 ? 4 : 2, FLOAT_FEW = 16 };

/* Asks for what comes after a block of rows that lie one behind the other: line by line, as much as step i reads. */
FLOAT_INLINE void block_ahead(const void *first, const size_t outs, size_t in, size_t i, const size_t each) {
    const unsigned char *next = (const unsigned char *)first + outs * (in + i) * each;
#pragma GCC unroll 4
    for (size_t line = 0; line < outs * VW * each; line += 64) __builtin_prefetch(next + line);
}

/* outs output rows x rows activation rows -> sums[rows * outs] */
FLOAT_INLINE void float_block(const enum pl_dtype t, const int outs, const int rows, const void *const *w, const float *x,
                              size_t x_stride, size_t in, float *sums) {
    vf acc[FLOAT_WIDE > FLOAT_OUT * FLOAT_ROWS ? FLOAT_WIDE : FLOAT_OUT * FLOAT_ROWS];
#pragma GCC unroll 24
    for (int k = 0; k < outs * rows; k++) acc[k] = vf_set1(0.0f);
    const size_t each = t == PL_F32 ? 4 : 2, ahead = 2048 / each;
    size_t i = 0;
    for (; i + VW <= in; i += VW) {
        vf wv[FLOAT_WIDE];
        /* of this row, or of the one that follows the last of this block */
        const size_t next = (i + ahead < in ? i + ahead : i + ahead + (size_t)(outs - 1) * in) * each;
#pragma GCC unroll 8
        for (int o = 0; o < outs; o++) {
            wv[o] = weight_load(t, w[o], i);
            if (VW > 1 && VW != 8) __builtin_prefetch((const unsigned char *)w[o] + next);
        }
        if (VW == 8) block_ahead(w[0], (size_t)outs, in, i, each);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            vf xv = vf_load(x + (size_t)r * x_stride + i);
#pragma GCC unroll 8
            for (int o = 0; o < outs; o++) acc[r * outs + o] = vf_fma(xv, wv[o], acc[r * outs + o]);
        }
    }
    if (i < in) {
#pragma GCC unroll 8
        for (int o = 0; o < outs; o++) {
            vf wv = weight_loadn(t, w[o], i, in - i);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++)
                acc[r * outs + o] = vf_fma(vf_loadn(x + (size_t)r * x_stride + i, in - i), wv, acc[r * outs + o]);
        }
    }
#pragma GCC unroll 6
    for (int k = 0; k < outs * rows; k += 4) vf_hsum4(acc[k], acc[k + 1], acc[k + 2], acc[k + 3], sums + k);
}

static void float_put(const struct pl_cpu_matmul *m, size_t i, size_t o0, size_t outs, size_t r0, size_t rows,
                      const float *sums) {
    const float *bias = m->bias != NULL ? m->bias[i] : NULL;
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < outs && o0 + o < m->w[i]->out; o++) {
            float v = sums[r * outs + o] + (bias != NULL ? bias[o0 + o] : 0.0f),
                  *y = m->y[i] + (r0 + r) * m->y_stride[i] + o0 + o;
            *y = m->accumulate ? *y + v : v;
        }
}

/* Expands f(n) for the row counts that a block may have. */
#if defined(__AVX512F__)
#define FLOAT_CASES(f) f(1) f(2) f(3) f(4) f(5) f(6)
#elif defined(__aarch64__)
#define FLOAT_CASES(f) f(1) f(2) f(3) f(4)
#else
#define FLOAT_CASES(f) f(1) f(2)
#endif

FLOAT_INLINE void float_rows(const enum pl_dtype t, const struct pl_cpu_matmul *m, size_t i, size_t o0, const void *const *w,
                             size_t begin, size_t end) {
    const size_t in = m->w[i]->in;
    float sums[FLOAT_OUT * 6];
    for (size_t r = begin, n; r < end; r += n) {
        const float *x = m->x + r * m->x_stride;
        n = PL_MIN((size_t)FLOAT_ROWS, end - r);
        switch (n) {
#define FLOAT_CASE(k) \
    case k: float_block(t, FLOAT_OUT, k, w, x, m->x_stride, in, sums); break;
            FLOAT_CASES(FLOAT_CASE)
#undef FLOAT_CASE
        }
        float_put(m, i, o0, FLOAT_OUT, r, n, sums);
    }
}

FLOAT_INLINE void float_tile_few(const enum pl_dtype t, const struct pl_cpu_matmul *m, size_t i, size_t tile, size_t begin,
                                 size_t end) {
    const struct pl_cpu_weight *w = m->w[i];
    const size_t each = w->in * pl_dtype_info(t)->block_bytes, outs = end - begin == 1 ? FLOAT_WIDE : FLOAT_OUT;
    for (size_t o0 = tile * TILE_ROWS; o0 < PL_MIN((tile + 1) * TILE_ROWS, w->out); o0 += outs) {
        const void *rows[FLOAT_WIDE]; /* past the end: the last row again, not stored */
        for (size_t o = 0; o < outs; o++) rows[o] = (const unsigned char *)w->t.data + PL_MIN(o0 + o, w->out - 1) * each;
        if (end - begin == 1) {
            float sums[FLOAT_WIDE];
            float_block(t, FLOAT_WIDE, 1, rows, m->x + begin * m->x_stride, 0, w->in, sums);
            float_put(m, i, o0, FLOAT_WIDE, begin, 1, sums);
        } else {
            float_rows(t, m, i, o0, rows, begin, end);
        }
    }
}

/* --- many rows: a tile widened once, inputs in chunks that stay in the L1 cache --- */
enum { FLOAT_CHUNK = 256 }; /* inputs */
/* Rows of a block: with AVX2 three, whose vectors stay in registers while those of weights pass: 12 + 3 + 1. */
enum { FLOAT_MANY = VW == 8 ? 3 : FLOAT_ROWS };
#if defined(__AVX2__) && !defined(__AVX512F__)
#define MANY_CASES(f) f(1) f(2) f(3)
#else
#define MANY_CASES(f) FLOAT_CASES(f)
#endif

/* The tile as f32, chunk after chunk, in each the sixteen rows: evenly spread over the sets of the cache. */
FLOAT_INLINE void float_widen(const enum pl_dtype t, const struct pl_cpu_weight *w, size_t tile, float *wide) {
    const size_t each = t == PL_F32 ? 4 : 2;
    for (size_t o = 0; o < TILE_ROWS; o++) {
        const unsigned char *row =
            (const unsigned char *)w->t.data + PL_MIN(tile * TILE_ROWS + o, w->out - 1) * w->in * each;
        for (size_t from = 0; from < w->in; from += FLOAT_CHUNK) {
            float *to = wide + from * TILE_ROWS + o * FLOAT_CHUNK - from;
            size_t i = from, end = PL_MIN(w->in, from + FLOAT_CHUNK);
            for (; i + VW <= end; i += VW) {
                vf_store(to + i, weight_load(t, row, i));
                if (VW > 1) __builtin_prefetch(row + i * each + 2048);
            }
            if (i < end) vf_store(to + i, weight_loadn(t, row, i, end - i));
        }
    }
}

/* acc += x w^T over inputs [from, to) for FLOAT_OUT rows of weights */
FLOAT_INLINE void float_chunk(const int rows, const float *w, const float *x, size_t x_stride, size_t from, size_t to,
                              vf *sums) {
    w -= from;
    vf acc[FLOAT_OUT * FLOAT_MANY];
#pragma GCC unroll 24
    for (int k = 0; k < FLOAT_OUT * rows; k++) acc[k] = from == 0 ? vf_set1(0.0f) : sums[k];
    size_t i = from;
    for (; i + VW <= to; i += VW) {
        vf wv[FLOAT_OUT], xv[FLOAT_MANY];
        if (rows < FLOAT_OUT) {
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) xv[r] = vf_load(x + (size_t)r * x_stride + i);
        }
#pragma GCC unroll 4
        for (int o = 0; o < FLOAT_OUT; o++) {
            wv[o] = vf_load(w + o * FLOAT_CHUNK + i);
#pragma GCC unroll 6
            for (int r = 0; r < rows && rows < FLOAT_OUT; r++)
                acc[r * FLOAT_OUT + o] = vf_fma(xv[r], wv[o], acc[r * FLOAT_OUT + o]);
        }
#pragma GCC unroll 6
        for (int r = 0; r < rows && rows >= FLOAT_OUT; r++) {
            xv[0] = vf_load(x + (size_t)r * x_stride + i);
#pragma GCC unroll 4
            for (int o = 0; o < FLOAT_OUT; o++) acc[r * FLOAT_OUT + o] = vf_fma(xv[0], wv[o], acc[r * FLOAT_OUT + o]);
        }
    }
    if (i < to) {
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            vf xv = vf_loadn(x + (size_t)r * x_stride + i, to - i);
#pragma GCC unroll 4
            for (int o = 0; o < FLOAT_OUT; o++)
                acc[r * FLOAT_OUT + o] = vf_fma(xv, vf_load(w + o * FLOAT_CHUNK + i), acc[r * FLOAT_OUT + o]);
        }
    }
#pragma GCC unroll 24
    for (int k = 0; k < FLOAT_OUT * rows; k++) sums[k] = acc[k];
}

/* One block of activation rows against the widened tile. */
FLOAT_INLINE void float_many(const int rows, const struct pl_cpu_matmul *m, size_t i, size_t tile, const float *wide,
                             size_t begin) {
    const size_t in = m->w[i]->in;
    const float *x = m->x + begin * m->x_stride;
    vf sums[TILE_ROWS * FLOAT_MANY];
    for (size_t from = 0; from < in; from += FLOAT_CHUNK)
        for (size_t o = 0; o < TILE_ROWS; o += FLOAT_OUT)
            float_chunk(rows, wide + from * TILE_ROWS + o * FLOAT_CHUNK, x, m->x_stride, from,
                        PL_MIN(in, from + FLOAT_CHUNK), sums + o * FLOAT_MANY);
    for (size_t o = 0; o < TILE_ROWS && tile * TILE_ROWS + o < m->w[i]->out; o += FLOAT_OUT) {
        const vf *s = sums + o * FLOAT_MANY;
        float out[FLOAT_OUT * FLOAT_MANY];
        for (int k = 0; k < FLOAT_OUT * rows; k += 4) vf_hsum4(s[k], s[k + 1], s[k + 2], s[k + 3], out + k);
        float_put(m, i, tile * TILE_ROWS + o, FLOAT_OUT, begin, (size_t)rows, out);
    }
}

FLOAT_INLINE void float_tile_of(const enum pl_dtype t, const struct pl_cpu_matmul *m, size_t i, size_t tile, size_t begin,
                                size_t end, float *wide) {
    if (end - begin <= FLOAT_FEW) {
        float_tile_few(t, m, i, tile, begin, end);
        return;
    }
    float_widen(t, m->w[i], tile, wide);
    for (size_t r = begin, n; r < end; r += n) {
        n = PL_MIN((size_t)FLOAT_MANY, end - r);
        switch (n) {
#define FLOAT_CASE(k) \
    case k: float_many(k, m, i, tile, wide, r); break;
            MANY_CASES(FLOAT_CASE)
#undef FLOAT_CASE
        }
    }
}

static void float_tile(const struct pl_cpu_matmul *m, size_t i, size_t tile, size_t begin, size_t end, void *scratch) {
    if (m->w[i]->t.dtype == PL_F16)
        float_tile_of(PL_F16, m, i, tile, begin, end, scratch);
    else if (m->w[i]->t.dtype == PL_BF16)
        float_tile_of(PL_BF16, m, i, tile, begin, end, scratch);
    else
        float_tile_of(PL_F32, m, i, tile, begin, end, scratch);
}

#endif
