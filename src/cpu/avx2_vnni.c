/* Products of every packed format on AVX-VNNI. */
#include "cpu/avx2_q8.h"

void avx2_vnni_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate);
void avx2_vnni_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate) {
    kernel_of(w->format)->tile(w, tile, g, y, y_stride, bias, accumulate);
}

void avx2_vnni_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                      size_t y_stride, const float *bias, bool accumulate);
void avx2_vnni_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                      size_t y_stride, const float *bias, bool accumulate) {
    all_groups(kernel_of(w->format), w, tile, g, n, y, y_stride, bias, accumulate);
}
