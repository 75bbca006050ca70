/* The avx512 table. */
#include "cpu/attn_body.h"
#include "cpu/dot_body.h"

const struct cpu_table cpu_table_avx512 = {.isa = PL_ISA_AVX512, .group_max = 16, .dot = dot, ROW_KERNELS};
