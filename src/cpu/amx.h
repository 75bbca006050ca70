/* amx - whether tile products may be used here: probed, asked for, and tried before the first real product.
 *
 * An AVX-512 CPU may name the tile instructions; a hypervisor may mask them, the system must save their registers and must
 * be asked for them once (arch_prctl), and a kernel of ours might be wrong on a machine that no test of ours ran on. So a
 * small product of every packed format is compared with the plain one. Whatever fails leaves the AVX-512 table, and a
 * sentence that says why. */
#ifndef PL_CPU_AMX_H
#define PL_CPU_AMX_H

#include "cpu/table.h"

bool cpu_amx_available(void);
/* NULL: available, or this CPU does not name the instructions at all. Else why they are left alone. */
const char *cpu_amx_declined(void);
const struct cpu_table *cpu_amx_table(void);

/* Tests: the tile instructions in C instead, where AVX-512 is there. */
void cpu_amx_emulate(bool on);
/* Tests: the instructions are there and declined for this reason; NULL: as it is. Static text. */
void cpu_amx_pretend_declined(const char *why);

/* A product of every format by these functions beside the plain one. False: why (of `size` bytes) names the first that
 * differs. */
struct cpu_amx_kernels {
    void (*groups)(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                   size_t y_stride, const float *bias, bool accumulate);
    void (*float_groups)(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                         size_t y_stride, const float *bias, bool accumulate);
    void (*wide_group)(const float *x, size_t stride, size_t in, const struct wide_rows *to, size_t group);
    void (*wide_tiles)(const struct pl_cpu_weight *w, size_t tile, size_t tiles, const struct wide_rows *rows, float *y,
                       size_t y_stride, const float *bias, bool accumulate, struct wide_scratch *s); /* NULL: none */
};
bool cpu_amx_check(const struct cpu_amx_kernels *k, char *why, size_t size);

#endif
