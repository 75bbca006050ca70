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

/* One layer's pages, the step's sequences, the matrices of each head or expert. */
struct pl_cpu_kv cpu_ops_pages(const struct pl_ops *o, uint32_t layer);
const struct pl_cpu_seq *cpu_ops_seqs(const struct pl_ops *o);
size_t cpu_ops_positions(const struct pl_ops *o); /* no sequence is longer, */
size_t cpu_ops_rows_max(const struct pl_ops *o);  /* and no step */
const struct pl_cpu_weight *const *cpu_ops_heads(const struct pl_weight *w);
/* A layer step of attention, "cpu" or "expanded". */
void cpu_ops_count_attention(struct pl_ops *o, const struct pl_attention *p, size_t rows, const char *form);

/* cpu_latent.c */
bool cpu_ops_takes_expanded(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w);
enum pl_status cpu_ops_expanded(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w,
                                const struct pl_activation *q, const struct pl_activation *qa, struct pl_activation *out);

/* cpu_ssm.c */
enum pl_status cpu_ops_causal_conv(struct pl_ops *o, const struct pl_conv *p, const struct pl_activation *x,
                                   struct pl_activation *y);
enum pl_status cpu_ops_delta(struct pl_ops *o, const struct pl_delta *p, struct pl_activation *y);
enum pl_status cpu_ops_ssm_update(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y);
enum pl_status cpu_ops_ssm_scan(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y);
enum pl_status cpu_ops_gated_norm(struct pl_ops *o, const struct pl_gated_norm *p, const struct pl_activation *x,
                                  const struct pl_activation *z, struct pl_activation *y);

#endif
