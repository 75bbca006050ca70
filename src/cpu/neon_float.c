/* Products of float weights. */
#include "cpu/float_body.h"

void neon_float_tile(const struct pl_cpu_matmul *m, size_t i, size_t tile, size_t begin, size_t end, void *scratch);
void neon_float_tile(const struct pl_cpu_matmul *m, size_t i, size_t tile, size_t begin, size_t end, void *scratch) {
    float_tile(m, i, tile, begin, end, scratch);
}
