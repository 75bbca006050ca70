/* The avx2 table. */
#include "cpu/attn_body.h"
#include "cpu/dot_body.h"

const struct cpu_table cpu_table_avx2 = {.isa = PL_ISA_AVX2, .group_max = 4, .dot = dot, ROW_KERNELS};
