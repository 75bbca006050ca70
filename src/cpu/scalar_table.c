/* The plain table: any machine, weights widened to f32, no 8-bit activations. */
#include "cpu/attn_body.h"

static float dot(const float *a, const float *b, size_t n) {
    float s[8] = {0};
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t k = 0; k < 8; k++) s[k] += a[i + k] * b[i + k];
    for (; i < n; i++) s[i % 8] += a[i] * b[i];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

const struct cpu_table cpu_table_scalar = {.isa = PL_ISA_SCALAR, .group_max = 1, .dot = dot, ROW_KERNELS};
