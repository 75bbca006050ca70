/* BitNet's products: activations in 8 bits with one scale for a whole row, weights of -1, 0 and 1, one scale for a matrix.
 *
 * The packed formats' kernels do the work: every block gets the scale 1, so that a sum is a whole number, exact in f32 (in
 * <= CPU_TERNARY_IN_MAX); both scales are applied at the end. Therefore all instruction sets give the same bits. */
#include <string.h>

#include "cpu/internal.h"

#define LEAST 1e-5f /* of a row's largest magnitude, as the model was trained */

static uint32_t bits_of(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}

/* Among numbers the larger one has the larger bits; whole numbers are compared in vectors. */
static float largest(const float *x, size_t n) {
    int32_t top = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t b = (int32_t)(bits_of(x[i]) & 0x7FFFFFFFu);
        top = b > top ? b : top;
    }
    float v;
    memcpy(&v, &top, 4);
    return v < LEAST ? LEAST : v;
}

/* Rounded to the nearest, of two the even: adding 1.5 * 2^23 leaves the number in the last bits. */
static void round_block(const float *x, float by, int8_t *q) {
    for (size_t i = 0; i < ACT_BLOCK; i++) q[i] = (int8_t)(uint8_t)(bits_of(x[i] * by + 12582912.0f) & 0xFFu);
}

float cpu_ternary_row(const float *x, size_t in, int8_t *q, size_t step) {
    float top = largest(x, in), by = 127.0f / top;
    for (size_t b = 0; b < in / ACT_BLOCK; b++) round_block(x + b * ACT_BLOCK, by, q + b * step);
    return top / 127.0f;
}

void cpu_ternary_group(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst, float *factors) {
    const size_t each = rows * ACT_ROW_BYTES;
    for (size_t m = 0; m < rows; m++) factors[m] = cpu_ternary_row(x + m * stride, in, (int8_t *)dst + 32 * m, each);
    for (size_t b = 0; b < in / ACT_BLOCK; b++, dst += each) {
        float *scale = (float *)(void *)(dst + 32 * rows), *ssum = scale + rows;
        int32_t *nsum = (int32_t *)(void *)(ssum + rows), *n0 = nsum + rows, *n1 = n0 + rows;
        for (size_t m = 0; m < rows; m++) {
            const int8_t *q = (const int8_t *)dst + 32 * m;
            int32_t sum[2] = {0, 0};
            for (size_t i = 0; i < ACT_BLOCK; i++) sum[i / 16] += q[i];
            scale[m] = 1.0f;
            ssum[m] = (float)(sum[0] + sum[1]);
            nsum[m] = -(sum[0] + sum[1]);
            n0[m] = -sum[0];
            n1[m] = -sum[1];
        }
    }
}

void cpu_ternary_plain(const struct pl_cpu_weight *w, size_t tile, const float *x, size_t stride, size_t rows, float *y,
                       size_t y_stride, void *scratch) {
    const size_t first = tile * TILE_ROWS, last = PL_MIN(first + TILE_ROWS, w->out), each = w->in / 4;
    const float scale = w->scale;
    int8_t *q = scratch;
    for (size_t r = 0; r < rows; r++) {
        float factor = cpu_ternary_row(x + r * stride, w->in, q, ACT_BLOCK);
        for (size_t o = first; o < last; o++) {
            const uint8_t *code = (const uint8_t *)w->t.data + o * each;
            int32_t sum = 0;
            for (size_t k = 0; k < w->in; k += 16, code += 4) {
                for (size_t i = 0; i < 16; i++) sum += q[k + i] * ((code[i % 4] >> (i / 4 * 2) & 3) - 1);
            }
            y[r * y_stride + o - first] = (float)sum * (factor * scale);
        }
    }
}

void cpu_ternary_scale(const struct pl_cpu_weight *w, size_t tile, const float *factors, size_t rows, float *y,
                       size_t y_stride) {
    const size_t outs = PL_MIN((size_t)TILE_ROWS, w->out - tile * TILE_ROWS);
    const float scale = w->scale;
    for (size_t r = 0; r < rows; r++) {
        for (size_t o = 0; o < outs; o++) y[r * y_stride + o] *= factors[r] * scale;
    }
}
