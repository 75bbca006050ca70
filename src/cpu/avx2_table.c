/* The avx2 table. */
#include "cpu/attn_body.h"
#include "cpu/dot_body.h"

void avx2_float_tile(const struct pl_cpu_matmul *m, size_t i, size_t tile, size_t begin, size_t end);

const struct cpu_table cpu_table_avx2 = {
    .isa = PL_ISA_AVX2, .group_max = 4, .dot = dot, .float_tile = avx2_float_tile, ROW_KERNELS};
