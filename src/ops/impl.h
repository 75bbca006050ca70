/* impl - what a backend provides. ops.c checks arguments, keeps row counts, skips empty work and calls these; a backend
 * only computes. Every handle begins with the common part below; the backend allocates its own longer struct. */
#ifndef PL_OPS_IMPL_H
#define PL_OPS_IMPL_H

#include "meter/meter.h"
#include "meter/outcome.h"
#include "ops/choose.h"

struct pl_weight {
    enum pl_weight_use use;
    uint64_t rows, cols; /* vector: 1, n */
    size_t experts;      /* PL_WEIGHT_EXPERTS, PL_WEIGHT_HEADS: how many of rows x cols */
};
struct pl_activation {
    size_t rows_max, cols;
    size_t rows;  /* held now */
    bool rounded; /* as bf16, which only products of this backend read: others have them made f32 again first (whole) */
};
struct pl_kv_store {
    struct pl_kv_shape shape;
};
struct pl_rope {
    size_t positions, dim;
    bool halves;
};

struct pl_ops_impl {
    enum pl_backend backend;
    void (*destroy)(struct pl_ops *o);

    enum pl_status (*weight_create)(struct pl_ops *o, const struct pl_tensor *t, enum pl_weight_use use,
                                    struct pl_weight **out, struct pl_err *err);
    void (*weight_destroy)(struct pl_ops *o, struct pl_weight *w);
    uint64_t (*weight_bytes_owned)(const struct pl_ops *o, const struct pl_weight *w);
    const char *(*weight_kernel)(const struct pl_ops *o, const struct pl_weight *w, size_t rows);
    enum pl_status (*activation_create)(struct pl_ops *o, size_t rows_max, size_t cols, struct pl_activation **out,
                                        struct pl_err *err);
    void (*activation_destroy)(struct pl_ops *o, struct pl_activation *a);
    enum pl_status (*activation_read)(struct pl_ops *o, const struct pl_activation *a, size_t first_row, size_t rows,
                                      float *out);
    enum pl_status (*kv_create)(struct pl_ops *o, const struct pl_kv_shape *shape, struct pl_kv_store **out,
                                struct pl_err *err);
    void (*kv_destroy)(struct pl_ops *o, struct pl_kv_store *kv);
    void (*share)(struct pl_ops *o, size_t units, void (*fn)(void *arg, size_t unit), void *arg); /* NULL: no threads */
    enum pl_status (*state_copy)(struct pl_ops *o, struct pl_kv_store *kv, uint32_t from, uint32_t to);
    enum pl_status (*kv_copy_page)(struct pl_ops *o, struct pl_kv_store *kv, bool windowed, uint32_t from, uint32_t to);
    enum pl_status (*rope_create)(struct pl_ops *o, const float *cos_sin, size_t positions, size_t dim, bool halves,
                                  struct pl_rope **out, struct pl_err *err);
    void (*rope_destroy)(struct pl_ops *o, struct pl_rope *r);

    enum pl_status (*begin)(struct pl_ops *o, const struct pl_batch *b, struct pl_kv_store *kv);
    enum pl_status (*end)(struct pl_ops *o);

    /* Makes what is rounded f32 again; NULL: nothing ever is. */
    enum pl_status (*whole)(struct pl_ops *o, struct pl_activation *a);

    /* One function per entry of PL_OP_LIST, NULL exactly where the port table says "no port". */
    enum pl_status (*embed)(struct pl_ops *o, const struct pl_weight *table, float scale, struct pl_activation *x);
    enum pl_status (*norm)(struct pl_ops *o, struct pl_activation *x, const struct pl_weight *w, float eps, float offset,
                           struct pl_activation *y);
    enum pl_status (*add_norm)(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *add,
                               const struct pl_weight *w, float eps, float offset, struct pl_activation *y);
    enum pl_status (*layer_norm)(struct pl_ops *o, struct pl_activation *x, const struct pl_weight *w,
                                 const struct pl_weight *bias, float eps, struct pl_activation *y);
    enum pl_status (*add)(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *add);
    enum pl_status (*linear)(struct pl_ops *o, size_t count, const struct pl_weight *const *w,
                             const struct pl_weight *const *bias, const struct pl_activation *x,
                             struct pl_activation *const *y);
    enum pl_status (*linear_add)(struct pl_ops *o, const struct pl_weight *w, const struct pl_activation *x,
                                 struct pl_activation *y);
    enum pl_status (*ternary)(struct pl_ops *o, size_t count, const struct pl_weight *const *w,
                              const struct pl_activation *x, struct pl_activation *const *y);
    enum pl_status (*rope_append)(struct pl_ops *o, const struct pl_qkv *p, struct pl_activation *q, struct pl_activation *k,
                                  struct pl_activation *v);
    enum pl_status (*attention)(struct pl_ops *o, const struct pl_attention *p, const struct pl_activation *q,
                                struct pl_activation *out);
    enum pl_status (*glu)(struct pl_ops *o, enum pl_ops_act act, const struct pl_activation *gate,
                          const struct pl_activation *up, struct pl_activation *y);
    /* Optional: gate and up and what makes one of them, in fewer launches. y[1] is scratch. */
    bool (*takes_gated)(const struct pl_ops *o, const struct pl_weight *const *w, const struct pl_weight *const *bias,
                        const struct pl_activation *x);
    enum pl_status (*gated)(struct pl_ops *o, const struct pl_weight *const *w, const struct pl_weight *const *bias,
                            enum pl_ops_act act, const struct pl_activation *x, struct pl_activation *const *y);
    enum pl_status (*gather)(struct pl_ops *o, const struct pl_activation *x, struct pl_activation *y);
    enum pl_status (*softcap)(struct pl_ops *o, struct pl_activation *x, float cap);
    enum pl_status (*scale)(struct pl_ops *o, struct pl_activation *x, float scale);
    enum pl_status (*gate_rows)(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *gate);
    enum pl_status (*moe)(struct pl_ops *o, const struct pl_moe *p, const struct pl_activation *logits,
                          const struct pl_activation *x, struct pl_activation *y);
    enum pl_status (*heads_linear)(struct pl_ops *o, const struct pl_weight *w, const struct pl_activation *x,
                                   struct pl_activation *y);
    enum pl_status (*latent_append)(struct pl_ops *o, const struct pl_latent *p, const struct pl_activation *q,
                                    const struct pl_activation *kv, struct pl_activation *qa);
    /* Optional: latent attention by keys and values of each head, where it says that it takes the step. */
    bool (*takes_expanded)(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w);
    enum pl_status (*expanded)(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w,
                               const struct pl_activation *q, const struct pl_activation *qa, struct pl_activation *out);
    /* With heads_linear, else NULL. heads_reserve: optional. */
    enum pl_status (*heads_create)(struct pl_ops *o, const struct pl_tensor *heads, size_t count, struct pl_weight **out,
                                   struct pl_err *err);
    enum pl_status (*heads_reserve)(struct pl_ops *o, const struct pl_weight *w, size_t rows, struct pl_err *err);
    enum pl_status (*causal_conv)(struct pl_ops *o, const struct pl_conv *p, const struct pl_activation *x,
                                  struct pl_activation *y);
    /* Optional: a convolution and the recurrence over it at once, where it says that it takes them. */
    bool (*takes_conv_ssm)(struct pl_ops *o, const struct pl_conv *conv, const struct pl_ssm *p);
    enum pl_status (*conv_ssm)(struct pl_ops *o, const struct pl_conv *conv, const struct pl_activation *in,
                               const struct pl_ssm *p, struct pl_activation *y);
    enum pl_status (*delta)(struct pl_ops *o, const struct pl_delta *p, struct pl_activation *y);
    enum pl_status (*ssm_update)(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y);
    enum pl_status (*ssm_scan)(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y);
    enum pl_status (*gated_norm)(struct pl_ops *o, const struct pl_gated_norm *p, const struct pl_activation *x,
                                 const struct pl_activation *z, struct pl_activation *y);
    /* With moe, else NULL. */
    enum pl_status (*experts_create)(struct pl_ops *o, const struct pl_tensor *experts, size_t count, struct pl_weight **out,
                                     struct pl_err *err);
    enum pl_status (*moe_reserve)(struct pl_ops *o, const struct pl_moe *p, size_t rows, struct pl_err *err);
    enum pl_status (*argmax)(struct pl_ops *o, const struct pl_activation *x, size_t rows, uint32_t slot); /* enqueues */
    enum pl_status (*draw)(struct pl_ops *o, const struct pl_activation *x, size_t rows, const struct pl_draw *draws,
                           uint32_t slot);
    enum pl_status (*chosen)(struct pl_ops *o, uint32_t slot, uint32_t *ids, size_t rows); /* with argmax, else NULL */

    /* Optional: NULL where there are no compiled kernels. */
    void (*value_rows)(const struct pl_ops *o, uint64_t *rows, uint64_t *skipped); /* what kernels counted so far */
    enum pl_status (*settle)(struct pl_ops *o);                                    /* waits for what is under way */
    enum pl_status (*kernels)(struct pl_ops *o, struct pl_ops_kernel *out, size_t cap, size_t *count, struct pl_err *err);
    void (*kernels_reset)(struct pl_ops *o);
    void (*plan_begin)(struct pl_ops *o);
    enum pl_status (*plan_end)(struct pl_ops *o, struct pl_err *err);
    bool (*cache_state)(const struct pl_ops *o, struct pl_ops_cache *out);
    void (*pack_later)(struct pl_ops *o, void (*when_packed)(void *user, const struct pl_tensor *t), void *user);
};

/* The common part of a backend's own struct. */
struct pl_ops {
    const struct pl_ops_impl *impl;
    struct pl_meter meter;       /* group = op name, name = kernel */
    struct pl_outcomes outcomes; /* subject = op */
    struct pl_choice choice;
    struct pl_pick usual[PL_OP_COUNT]; /* how a decision ends that the backend does not end itself */
    struct pl_meter attention;         /* groups "form" and "cascade", one count a layer step */
    struct pl_ops_attention_totals attention_totals;
    bool invariant;
    uint32_t choice_slot; /* of the last choose */
    size_t choices;       /* its rows */
    uint64_t unconverged;
    struct pl_ops_graphs graphs;
    const struct pl_batch *batch; /* between begin and end */
    struct pl_kv_store *kv;
    char describe[192], forced[256], refusal[400];
    const char *failure; /* of the device, its last sentence; NULL: there is none */
};

/* For backends: the common part ready, and one count per launch. A row that cannot be made is lost only when memory is. */
void pl_ops_init(struct pl_ops *o, const struct pl_ops_impl *impl);
/* Reads what is forced and disabled; usual[] becomes the last-ranked implementation of each operation. */
enum pl_status pl_ops_set_choice(struct pl_ops *o, const struct pl_ops_options *opt, struct pl_err *err) PL_MUST_CHECK;
/* Picks, ends `n` decisions, and refuses with PL_UNSUPPORTED naming operation, shape and reason. */
enum pl_status pl_ops_decide(struct pl_ops *o, enum pl_op op, const struct pl_candidate *list, size_t count, uint64_t n,
                             const char *shape, enum pl_impl *taken) PL_MUST_CHECK;
/* Ends n decisions as picked; the refusal's text when nothing was taken. */
enum pl_status pl_ops_end_decision(struct pl_ops *o, enum pl_op op, const struct pl_pick *p, uint64_t n,
                                   const char *shape) PL_MUST_CHECK;
/* Whether this step's latent attention goes by keys and values of each head, as far as the shape is taken: never where
 * results may not depend on how many rows there are; by itself where a sequence has many rows and the step as a whole costs
 * less so (costs NULL: only when asked for). A step goes one way. */
bool pl_ops_wants_expanded(const struct pl_ops *o, const struct pl_latent_heads *w, const struct pl_latent_costs *costs);
/* One layer step of attention ended so. Texts are static. */
void pl_ops_count_attention(struct pl_ops *o, const char *form, const char *reason, uint64_t bytes);
void pl_ops_count_cascade(struct pl_ops *o, bool used, const char *reason);
void pl_ops_count(struct pl_ops *o, enum pl_op op, const char *kernel, uint64_t launches, uint64_t bytes);

/* Each backend's creator; a build without one has NULL in ops.c's table. */
enum pl_status pl_ops_cpu_create(const struct pl_ops_options *opt, struct pl_ops **out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_ops_cuda_create(const struct pl_ops_options *opt, struct pl_ops **out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_ops_rocm_create(const struct pl_ops_options *opt, struct pl_ops **out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_ops_opencl_create(const struct pl_ops_options *opt, struct pl_ops **out, struct pl_err *err) PL_MUST_CHECK;

#endif
