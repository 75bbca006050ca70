/* cpu_ops - what the CPU backend's files share: handles as src/cpu wants them. Private to this folder. */
#ifndef PL_OPS_CPU_OPS_H
#define PL_OPS_CPU_OPS_H

#include "cpu/ssm.h"
#include "ops/impl.h"

struct pl_cpu *cpu_ops_kernels(struct pl_ops *o);
float *cpu_ops_rows(const struct pl_activation *a, size_t *stride); /* NULL for NULL */
const float *cpu_ops_vector(const struct pl_weight *w);             /* NULL for NULL */
void cpu_ops_count(struct pl_ops *o, enum pl_op op, uint64_t bytes);
/* The step's sequences with their state of one layer; until the next call. */
const struct pl_cpu_state_seq *cpu_ops_states(struct pl_ops *o, uint32_t layer);

/* cpu_ssm.c */
enum pl_status cpu_ops_causal_conv(struct pl_ops *o, const struct pl_conv *p, const struct pl_activation *x,
                                   struct pl_activation *y);
enum pl_status cpu_ops_ssm_update(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y);
enum pl_status cpu_ops_ssm_scan(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y);
enum pl_status cpu_ops_gated_norm(struct pl_ops *o, const struct pl_gated_norm *p, const struct pl_activation *x,
                                  const struct pl_activation *z, struct pl_activation *y);

#endif
