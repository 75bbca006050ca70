/* binder - what the two files of binding share. */
#ifndef PL_MODEL_BINDER_H
#define PL_MODEL_BINDER_H

#include "base/map.h"
#include "model/arch.h"

struct binder {
    struct pl_model *m;
    const struct pl_file *f;
    const struct pl_model_options *opt;
    const char *prefix;         /* Hugging Face only */
    struct pl_map index;        /* tensor name -> its number */
    bool *used;                 /* [tensor count] */
    struct pl_tensor **settled; /* [tensor count], NULL: as the file has it */
    uint64_t done_bytes;
    bool later; /* the backend tells when a copy is made */
    struct pl_err *err;
};
/* n outputs from `first` on, of `total` that the tensor must have. */
struct span {
    uint64_t first, n, total;
};

/* bind.c */
uint64_t pl_bind_dim(const struct pl_model_config *c, enum pl_dim d);
const char *pl_bind_dim_text(enum pl_dim d);
void pl_bind_shape_text(const struct pl_tensor *t, char *buf, size_t cap);
struct span pl_bind_span(const struct pl_model_config *c, const struct pl_binding *b, bool fused);
enum pl_status pl_bind_check_shape(const struct binder *d, const struct pl_binding *b, const struct span *s,
                                   const struct pl_tensor *t) PL_MUST_CHECK;
/* The weight's own tensor, or the fused one. */
enum pl_status pl_bind_find(struct binder *d, const struct pl_binding *b, uint32_t layer, bool *fused,
                            const struct pl_tensor **out) PL_MUST_CHECK;
/* The weight made of n tensors takes its place; what it copied need not stay in memory. */
void pl_bind_keep(struct binder *d, const struct pl_binding *b, uint32_t layer, struct pl_weight *w,
                  const struct pl_tensor *from, size_t n);

/* run(arg, unit) for every unit: on the backend's threads, or where it keeps none on threads of their own; should those not
 * start, on this one. */
void pl_bind_share(struct pl_model *m, size_t units, void (*run)(void *arg, size_t unit), void *arg);

/* Memory of the model's own, to go with it; p NULL: there was none. */
enum pl_status pl_bind_remember(struct binder *d, void *p) PL_MUST_CHECK;

/* bind_heads.c: the halves of kv_b for each head, as latent attention multiplies them: part K turned, part V as it is. */
enum pl_status pl_bind_heads(struct binder *d, const struct pl_binding *b, uint32_t layer) PL_MUST_CHECK;

/* bind_mxfp4.c: rows of MXFP4, cols a multiple of 32, in GGUF's order of bytes: row r is row first + step * r of codes
 * [.., cols / 2] and exponents [.., cols / 32]. The model owns what *out points to. */
enum pl_status pl_bind_mxfp4(struct binder *d, const char *name, const void *codes, const void *exponents, uint64_t first,
                             uint64_t step, uint64_t rows, uint64_t cols, const void **out) PL_MUST_CHECK;
/* Tensor `at` of the file in a form that products read. */
enum pl_status pl_bind_settle(struct binder *d, uint32_t at, const struct pl_tensor **out) PL_MUST_CHECK;

/* bind_ternary.c */
enum pl_status pl_bind_ternary(struct binder *d, const struct pl_binding *b, uint32_t layer) PL_MUST_CHECK;

/* bind_experts.c */
enum pl_status pl_bind_experts(struct binder *d, const struct pl_binding *b, uint32_t layer) PL_MUST_CHECK;
/* One row of each expert, as one vector. */
enum pl_status pl_bind_experts_bias(struct binder *d, const struct pl_binding *b, uint32_t layer) PL_MUST_CHECK;

/* bind_ssm.c: the rows of t that are this part's, copied into memory of the model's own */
enum pl_status pl_bind_picked(struct binder *d, enum pl_part part, const struct span *s, const struct pl_tensor *t,
                              struct pl_tensor *out) PL_MUST_CHECK;
/* What b->made says. */
enum pl_status pl_bind_made(struct binder *d, const struct pl_binding *b, uint32_t layer) PL_MUST_CHECK;

#endif
