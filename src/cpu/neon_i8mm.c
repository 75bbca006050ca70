/* Products of every packed format with NEON's matrix products of bytes (FEAT_I8MM). */
#include "cpu/neon_q8.h"
#include "cpu/q8_formats.h"

void neon_i8mm_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate);
void neon_i8mm_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate) {
    kernel_of(w->format)->tile(w, tile, g, y, y_stride, bias, accumulate);
}
