/* Products of every packed format on AVX2. */
#include "cpu/avx2_q8.h"
#include "cpu/q8_formats.h"

void avx2_q8_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                  const float *bias, bool accumulate);
void avx2_q8_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                  const float *bias, bool accumulate) {
    kernel_of(w->format)->tile(w, tile, g, y, y_stride, bias, accumulate);
}

void avx2_q8_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                    size_t y_stride, const float *bias, bool accumulate);
void avx2_q8_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                    size_t y_stride, const float *bias, bool accumulate) {
    const struct q8_kernel *kernel = kernel_of(w->format);
    for (size_t i = 0, run; i < n; i += run) {
        for (run = 0; run < CHUNK_GROUPS && i + run < n && g[i + run].rows == GROUP_ROWS;) run++;
        if (run > 1) { /* at least two share the widening */
            kernel->groups(w, tile, g + i, run, y, y_stride, bias, accumulate);
            continue;
        }
        run = 1;
        kernel->tile(w, tile, &g[i], y + g[i].first * y_stride, y_stride, bias, accumulate);
    }
}
