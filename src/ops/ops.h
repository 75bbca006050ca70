/* ops - the operations a model's forward pass is written in, and the only place that chooses an implementation.
 *
 * One struct pl_ops is one backend opened for one engine: "cpu", and the device kinds. Models call these functions
 * in order; on the CPU they run at once, on devices they are enqueued. Handles (weights, activations, KV) belong to
 * the pl_ops that made them. Hot functions return a bare status. Every call is counted by kernel name (witness).
 *
 * A step is described once by a pl_batch and reused by all layers. An activation carries how many rows it holds: embed
 * sets it from the batch, gather from the logit rows, every other op hands its input's count on. An op on zero rows does
 * nothing. Wrong widths, a missing begin, a foreign handle are programmer errors (assertions). */
#ifndef PL_OPS_OPS_H
#define PL_OPS_OPS_H

#include "base/status.h"
#include "tensor/tensor.h"

struct pl_ops;
struct pl_weight;     /* a matrix [out,in] or a vector on the backend */
struct pl_activation; /* [rows_max, cols] f32 on the backend */
struct pl_kv_store;   /* KV pages of all layers on the backend */

enum pl_backend { PL_BACKEND_CPU, PL_BACKEND_METAL, PL_BACKEND_CUDA, PL_BACKEND_ROCM, PL_BACKEND_OPENCL, PL_BACKEND_COUNT };

const char *pl_backend_name(enum pl_backend b); /* "cpu", "metal", "cuda", "rocm", "opencl" */
bool pl_backend_from_name(const char *name, enum pl_backend *out);

/* --- ports: per operation and backend either an implementation or an explicit "no port" --- */
/* clang-format off */
#define PL_OP_LIST(X) \
    X(embed) X(norm) X(add_norm) X(layer_norm) X(add) X(linear) X(linear_add) X(rope_append) X(attention) X(glu) X(gather) \
    X(softcap) X(scale) X(gate_rows) X(moe) X(heads_linear) X(latent_append) X(ternary) X(argmax) X(draw) \
    X(causal_conv) X(ssm_update) X(ssm_scan) X(delta) X(gated_norm)
/* clang-format on */
enum pl_op {
#define PL_OP_ENUM(name) PL_OP_##name,
    PL_OP_LIST(PL_OP_ENUM)
#undef PL_OP_ENUM
        PL_OP_COUNT
};
enum pl_port { PL_PORT_NONE, PL_PORT_CPU, PL_PORT_COMPOSED, PL_PORT_FUSED };
const char *pl_op_name(enum pl_op op);
enum pl_port pl_ops_port(enum pl_op op, enum pl_backend b); /* the table the dispatcher itself uses */
const char *pl_port_name(enum pl_port p);                   /* "no port", "cpu", "composed", "fused" */

struct pl_ops_options {
    enum pl_backend backend;
    int device;      /* index on that backend */
    int threads;     /* CPU; 0 = all */
    bool pin;        /* CPU: each thread stays on one CPU */
    const char *isa; /* CPU: NULL = best */
    bool exact;      /* devices: products keep f32 inputs for any number of rows, no tensor cores (tests, comparisons) */
    bool strict;     /* any implementation but the planned one is refused */
    const char *force, *disable; /* "operation=implementation,..."; NULL: none. Names: choose.h */
    const char *jit_cache;       /* "off", "on" (NULL) or "verify" */
    bool uncounted;              /* devices: kernels do not count their launches (what counting costs) */
    const char *attn, *attn_off; /* decode attention: NULL or "auto", "v1", "v2", "cascade", "gather"; forms switched off */
    bool invariant;              /* a row's result does not depend on what else is in the step; slower */
    const struct pl_attn_table *attn_table; /* devices: measured floors and costs; NULL: built in */
    bool no_graphs;                         /* devices: every launch at once, none collected into a graph */
    float sparse_values; /* a token's values are not read where its weight is below this; 0: all are read (docs/attention.md)
                          */
};
/* What the planner of decode attention is given for a device: measured by `plumb tune`, or built in. */
struct pl_attn_table {
    uint32_t slots;                            /* groups that run at once; 0: from the device's units */
    float chunk_cost, merge_cost, member_cost; /* plan/plan.h, struct pl_plan_costs */
    uint32_t span_min, members_min;            /* least pages and rows worth a cascade */
    uint32_t v1_tokens_max;                    /* rows no longer than this on average, not split: one pass */
    char source[64];                           /* "built in" or "measured" */
};
/* Starting points until `plumb tune` has measured: a GPU hides the merge, a CPU under OpenCL pays for every group. */
struct pl_attn_table pl_attn_built_in(uint32_t units, bool is_cpu, uint32_t capability); /* of CUDA: 90; else 0 */
enum pl_status pl_ops_create(const struct pl_ops_options *opt, struct pl_ops **out, struct pl_err *err) PL_MUST_CHECK;
/* What "auto" means here: CUDA when its driver finds a device, else ROCm, else the CPU; never OpenCL. why says what was
 * found and what was not. */
enum pl_backend pl_ops_auto(char *why, size_t size);
void pl_ops_destroy(struct pl_ops *o);
/* "cpu (avx512-vnni, 2 threads)": what the start-up line prints after "kernel backend: ". */
const char *pl_ops_describe(const struct pl_ops *o);
enum pl_backend pl_ops_backend(const struct pl_ops *o);
/* "forced linear=portable", "" when everything is as planned by default. */
const char *pl_ops_forced(const struct pl_ops *o);
bool pl_ops_strict(const struct pl_ops *o);
/* Why the last operation was refused (no planned implementation, strict); "" when none was. */
const char *pl_ops_refusal(const struct pl_ops *o);
/* What the device said when an operation last failed; "" when it has not or there is no device. */
const char *pl_ops_failure(const struct pl_ops *o);

/* --- handles --- */
enum pl_weight_use {
    PL_WEIGHT_MATRIX,  /* right side of linear */
    PL_WEIGHT_VECTOR,  /* norm weight or bias, converted to f32 */
    PL_WEIGHT_EMBED,   /* row lookup */
    PL_WEIGHT_HEAD,    /* right side of the output product: what it rounds, every logit shows */
    PL_WEIGHT_TIED,    /* embed and head in one */
    PL_WEIGHT_TERNARY, /* right side of ternary; of type PL_TERNARY */
    PL_WEIGHT_EXPERTS, /* one matrix of every expert of a layer, made by pl_ops_experts_create */
    PL_WEIGHT_HEADS    /* one matrix of every head, made by pl_ops_heads_create */
};
/* t's bytes must outlive the weight: it may stay a view. A ternary one that owns bytes (below) is none. PL_UNSUPPORTED,
 * naming the backend, where it has no port of ternary. */
enum pl_status pl_ops_weight_create(struct pl_ops *o, const struct pl_tensor *t, enum pl_weight_use use,
                                    struct pl_weight **out, struct pl_err *err) PL_MUST_CHECK;
/* Expert i of the tensor [experts, out, in] that holds all of them (no MLX type). Offsets are of 64 bits. */
static inline struct pl_tensor pl_expert_of(const struct pl_tensor *t, uint64_t i) {
    struct pl_tensor e = *t;
    e.ndim = 2;
    e.shape[0] = t->shape[1];
    e.shape[1] = t->shape[2];
    e.shape[2] = 1;
    e.bytes = t->bytes / t->shape[0];
    e.data = (const char *)t->data + i * e.bytes;
    return e;
}
/* One matrix of each of `count` experts, all [out, in]. PL_UNSUPPORTED, naming the backend, where it has no port of moe. */
enum pl_status pl_ops_experts_create(struct pl_ops *o, const struct pl_tensor *experts, size_t count, struct pl_weight **out,
                                     struct pl_err *err) PL_MUST_CHECK;
/* One matrix [out, in] of each of `count` heads, one after the other, for pl_ops_heads_linear. PL_UNSUPPORTED, naming the
 * backend, where it has no port of it. */
enum pl_status pl_ops_heads_create(struct pl_ops *o, const struct pl_tensor *heads, size_t count, struct pl_weight **out,
                                   struct pl_err *err) PL_MUST_CHECK;
/* Where true is returned, large weights created from now on are copied when they are used for the second time, and
 * when_packed is told of each weight whose tensor is not read any more; t and user must live as long as o. */
bool pl_ops_pack_later(struct pl_ops *o, void (*when_packed)(void *user, const struct pl_tensor *t), void *user);
void pl_ops_weight_destroy(struct pl_ops *o, struct pl_weight *w);
uint64_t pl_ops_weight_bytes_owned(const struct pl_ops *o, const struct pl_weight *w); /* private copies, 0 for a view */
/* The kernel a product of `rows` rows with this weight runs. Valid while o lives. */
const char *pl_ops_weight_kernel(const struct pl_ops *o, const struct pl_weight *w, size_t rows);
enum pl_status pl_ops_activation_create(struct pl_ops *o, size_t rows_max, size_t cols, struct pl_activation **out,
                                        struct pl_err *err) PL_MUST_CHECK;
void pl_ops_activation_destroy(struct pl_ops *o, struct pl_activation *a);
/* Copies `rows` rows to host memory, waiting for the device. */
enum pl_status pl_ops_activation_read(struct pl_ops *o, const struct pl_activation *a, size_t first_row, size_t rows,
                                      float *out) PL_MUST_CHECK;

enum { PL_KV_LAYERS_MAX = 512 };
struct pl_kv_shape {
    size_t layers, page_count, page_tokens, kv_heads, head_dim;
    enum pl_dtype dtype; /* f16, bf16, f32; PL_I8, PL_F8, PL_K8V4: each token and head with a scale (tensor/kv8.h) */
    size_t value_dim;    /* not 0: a token has no values of its own, they are the first value_dim numbers of each key */
    /* Recurrent state beside the pages, f32: one slot a sequence, in each slot for every layer that has a state the inputs
     * of its convolution and the state itself. layers, above, may then be 0: no layer has a cache. */
    size_t state_layers, state_slots, state_conv, state_ssm; /* the last two in values of one slot of one layer */
    /* Layers with a sliding window (a bit for each) may have pages of their own, so many, which are found by block tables of
     * their own; page_count is then that of the others. 0: all layers have the same pages. */
    size_t window_page_count;
    uint64_t windowed[PL_KV_LAYERS_MAX / 64];
};
/* Whether a layer's pages are those of windowed layers. */
static inline bool pl_kv_is_windowed(const struct pl_kv_shape *s, size_t layer) {
    return s->window_page_count > 0 && (s->windowed[layer / 64] >> layer % 64 & 1u) != 0;
}
static inline size_t pl_kv_layer_pages(const struct pl_kv_shape *s, size_t layer) {
    return pl_kv_is_windowed(s, layer) ? s->window_page_count : s->page_count;
}
size_t pl_kv_windowed_layers(const struct pl_kv_shape *s);
/* Pages of all layers before this one. */
size_t pl_kv_pages_before(const struct pl_kv_shape *s, size_t layer);
/* "f16", "bf16", "f32", "int8", "fp8", "k8v4" */
const char *pl_kv_type_name(enum pl_dtype t);
bool pl_kv_type_from_name(const char *name, enum pl_dtype *out);
/* Buffers of a layer: keys and values, or keys that hold their values. */
static inline size_t pl_kv_sides(const struct pl_kv_shape *s) { return s->value_dim > 0 ? 1 : 2; }
/* What attention gives for each head. */
static inline size_t pl_kv_value_dim(const struct pl_kv_shape *s) { return s->value_dim > 0 ? s->value_dim : s->head_dim; }
enum pl_status pl_ops_kv_create(struct pl_ops *o, const struct pl_kv_shape *shape, struct pl_kv_store **out,
                                struct pl_err *err) PL_MUST_CHECK;
void pl_ops_kv_destroy(struct pl_ops *o, struct pl_kv_store *kv);
size_t pl_kv_token_bytes(const struct pl_kv_shape *shape); /* of one token and KV head of one layer, both sides */
size_t pl_kv_page_bytes(const struct pl_kv_shape *shape, size_t side); /* of one layer's page; side 0: keys, 1: values */
size_t pl_kv_shape_bytes(const struct pl_kv_shape *shape);             /* of pages and state; 0 on overflow */
size_t pl_kv_pages_bytes(const struct pl_kv_shape *shape); /* of pages alone; 0 where there are none, or on overflow */
size_t pl_kv_state_bytes(const struct pl_kv_shape *shape); /* of the state alone; likewise */
/* Copies a whole page (copy-on-write), both sides of all layers that share the pages of its number: windowed ones with pages
 * of their own, or the others. */
enum pl_status pl_ops_kv_copy_page(struct pl_ops *o, struct pl_kv_store *kv, bool windowed, uint32_t from,
                                   uint32_t to) PL_MUST_CHECK;

/* Copies one slot of recurrent state, all layers. */
enum pl_status pl_ops_state_copy(struct pl_ops *o, struct pl_kv_store *kv, uint32_t from, uint32_t to) PL_MUST_CHECK;

/* fn(arg, unit) for every unit below `units`, in any order: on the threads that the backend keeps, one after the other on
 * a backend that keeps none. */
void pl_ops_share(struct pl_ops *o, size_t units, void (*fn)(void *arg, size_t unit), void *arg);

/* --- one step --- */
struct pl_batch_seq {
    uint32_t first_row, rows; /* its rows are contiguous in the batch */
    uint32_t past;            /* tokens in the cache before this step; row i is at position past + i */
    uint32_t page_first;      /* its block table begins here in pl_batch.pages; covers past+rows tokens */
    uint32_t state;           /* its slot of recurrent state, which counts as zeros where past is 0 */
};
struct pl_batch {
    uint32_t rows;
    const uint32_t *tokens; /* [rows]; or PL_TOKEN_CHOSEN | i */
    uint32_t seq_count;
    const struct pl_batch_seq *seqs;
    const uint32_t *pages; /* block tables of all sequences, one after the other */
    uint32_t page_entries;
    const uint32_t *window_pages; /* [page_entries] the same of windowed layers that have pages of their own; else NULL.
                                     Entries whose tokens no row sees count for nothing, but are numbers of pages */
    uint32_t logit_count;
    const uint32_t *logit_rows; /* rows whose logits are wanted, ascending */
    uint64_t epoch;             /* equal epochs, not 0, promise equal seqs (but for past) and pages that did not move */
};
/* b must stay as it is until pl_ops_end. PL_INVALID when it is inconsistent (rows not contiguous, block tables too
 * short, pages that kv does not have). */
enum pl_status pl_ops_begin(struct pl_ops *o, const struct pl_batch *b, struct pl_kv_store *kv) PL_MUST_CHECK;
enum pl_status pl_ops_end(struct pl_ops *o) PL_MUST_CHECK;

/* Between plan_begin and plan_end steps choose and prepare but launch, count and compute nothing; refusals (strict, forced)
 * come as they would in a real step. plan_end compiles every kernel those steps need, on all processors. False: a
 * backend that has nothing to prepare; do not run steps then. */
bool pl_ops_plan_begin(struct pl_ops *o);
enum pl_status pl_ops_plan_end(struct pl_ops *o, struct pl_err *err) PL_MUST_CHECK;

/* Rotary tables: one per distinct (dim, base, scaling). cos_sin is [positions, dim/2, 2] f32, made by the model. */
struct pl_rope;
enum pl_status pl_ops_rope_create(struct pl_ops *o, const float *cos_sin, size_t positions, size_t dim, bool halves,
                                  struct pl_rope **out, struct pl_err *err) PL_MUST_CHECK;
void pl_ops_rope_destroy(struct pl_ops *o, struct pl_rope *r);

/* In what follows T is the rows of a step, H and G are query and KV heads, D the head size; all activations are f32. Where
 * nothing else is said a result may not be an input. A status that is not PL_OK is PL_UNSUPPORTED (pl_ops_refusal has the
 * reason) or what the device or the making of a kernel ran into (pl_ops_failure); the step is then void. */
/* x[t] = scale * table[token of row t]. table [V, E], x [T, E]. */
enum pl_status pl_ops_embed(struct pl_ops *o, const struct pl_weight *table, float scale, struct pl_activation *x);
/* y = rmsnorm(x) * (offset + w). y may be x. */
enum pl_status pl_ops_norm(struct pl_ops *o, struct pl_activation *x, const struct pl_weight *w, float eps, float offset,
                           struct pl_activation *y);
/* x += add, then y = rmsnorm(x) * (offset + w). y may be x or add. */
enum pl_status pl_ops_add_norm(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *add,
                               const struct pl_weight *w, float eps, float offset, struct pl_activation *y);
/* y = (x - mean) / sqrt(variance + eps) * w + bias. bias may be NULL, y may be x. */
enum pl_status pl_ops_layer_norm(struct pl_ops *o, struct pl_activation *x, const struct pl_weight *w,
                                 const struct pl_weight *bias, float eps, struct pl_activation *y);
enum pl_status pl_ops_add(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *add); /* x += add */
enum { PL_OPS_LINEAR_MAX = 4 };
/* y[i] = x * w[i]^T + bias[i] for count matrices sharing x (count <= PL_OPS_LINEAR_MAX). bias, or its entries, may be NULL.
 */
enum pl_status pl_ops_linear(struct pl_ops *o, size_t count, const struct pl_weight *const *w,
                             const struct pl_weight *const *bias, const struct pl_activation *x,
                             struct pl_activation *const *y);
/* y += x * w^T: the residual add of an output product. */
enum pl_status pl_ops_linear_add(struct pl_ops *o, const struct pl_weight *w, const struct pl_activation *x,
                                 struct pl_activation *y);
/* BitNet's product: x in 8 bits, one scale a row (127 / max(max|x|, 1e-5), rounded to nearest even), times w[i]'s codes of
 * -1, 0 and 1, times both scales. Sums are whole numbers: every backend gives the same bits but for two roundings. */
enum pl_status pl_ops_ternary(struct pl_ops *o, size_t count, const struct pl_weight *const *w,
                              const struct pl_activation *x, struct pl_activation *const *y);
struct pl_qkv {
    uint32_t layer, heads;
    const struct pl_weight *q_norm, *k_norm; /* [D] or NULL */
    float norm_eps, norm_offset;
    const struct pl_rope *rope; /* NULL: none */
};
/* Head norms and rotation of q [T, H, D] and k [T, G, D] in place, then append of k and v to the layer's pages (whose values
 * are their own).
 * After the attention of that layer q holds nothing of use: a backend may do both at once. PL_LIMIT past the table of rope.
 */
enum pl_status pl_ops_rope_append(struct pl_ops *o, const struct pl_qkv *p, struct pl_activation *q, struct pl_activation *k,
                                  struct pl_activation *v);
/* Multi-head latent attention: all heads share one key a token, c then r: c = norm(first value_dim numbers of kv), r = the
 * others, rotated. Of every head of q [nope + r numbers] the last are rotated into the last of the head in qa [c + r
 * numbers], whose first ones a product of the heads has made or will make. Appends the keys to the layer's pages. */
struct pl_latent {
    uint32_t layer, heads;
    const struct pl_weight *norm; /* [value_dim] */
    float norm_eps;
    const struct pl_rope *rope; /* its dim is r */
};
enum pl_status pl_ops_latent_append(struct pl_ops *o, const struct pl_latent *p, const struct pl_activation *q,
                                    const struct pl_activation *kv, struct pl_activation *qa);
/* For each head h: y[r, h, 0 .. out) = w[h] x[r, h, 0 .. in). A head of x has x->cols / heads numbers, of which the first
 * `in` count, one of y likewise; the others of y stay. */
enum pl_status pl_ops_heads_linear(struct pl_ops *o, const struct pl_weight *w, const struct pl_activation *x,
                                   struct pl_activation *y);
struct pl_attention {
    uint32_t layer, heads;
    float scale, softcap;          /* softcap 0: none */
    uint32_t window;               /* 0: none; else a row at p sees (p-window, p] */
    const struct pl_weight *sinks; /* vector [heads] or NULL: a score of each head that weighs nothing, in every softmax */
};
/* out = softmax(scale q k^T) v of each head over the layer's pages: the tokens up to a row's own. q [T, H, D], out [T, H,
 * D], or [T, H, value_dim] where keys hold their values. */
enum pl_status pl_ops_attention(struct pl_ops *o, const struct pl_attention *p, const struct pl_activation *q,
                                struct pl_activation *out);
struct pl_latent_heads {
    const struct pl_weight *k_heads, *v_heads; /* of each head [latent, nope] and [value, latent] */
};
/* Latent attention, the keys of the step appended and q rotated into qa: products of the heads, attention over latents and
 * products again, through qa and made; or by keys and values of each head, made from the latents, where that is less work
 * (pl_latent_saving). p: of the latents. */
enum pl_status pl_ops_latent_attention(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w,
                                       const struct pl_activation *q, struct pl_activation *qa, struct pl_activation *made,
                                       struct pl_activation *out);
enum { PL_EXPANDED_ROWS = 64 };             /* no sequence with as many: by the latents */
#define PL_EXPAND_ROOM ((uint64_t)64 << 20) /* bytes of keys and values of one chunk on devices */
struct pl_latent_sizes {
    uint64_t heads, nope, rope, value, latent;
};
/* The most bytes that keys and values of each head take on any backend, beside the operands, in steps of so many rows with
 * sequences of so many tokens. False: more than can be counted. */
bool pl_latent_scratch_bytes(const struct pl_latent_sizes *s, uint64_t tokens, uint64_t rows, uint64_t *out);
/* What multiply-adds cost beside each other. By the latents: of the products of each row, and of a pair of row and token; by
 * keys and values of each head: of the products of each token, and of such a pair. */
struct pl_latent_costs {
    double product, pair, head_product, head_pair;
    bool padded; /* there values meet the queries as well, which are zero */
};
/* What a head costs by the latents, less what it does by keys and values of its own: above 0 where the second is less work.
 */
double pl_latent_saving(const struct pl_latent_costs *c, size_t rows, size_t past, size_t latent, size_t rope, size_t nope,
                        size_t value);
/* Clamped: gpt-oss's, of experts alone: gate is held below 7, up within 7, y = (up + 1) * gate * sigmoid(1.702 gate).
 * Relu2, the square of what is above zero: of glu and of experts without gates. Gelu: by the error function, of glu alone.
 * No act: the plain product; sigmoid: of what goes out by a gate; both of glu alone, gated.
 */
enum pl_ops_act {
    PL_OPS_SILU,
    PL_OPS_GELU_TANH,
    PL_OPS_SWIGLU_CLAMPED,
    PL_OPS_RELU2,
    PL_OPS_GELU,
    PL_OPS_NO_ACT,
    PL_OPS_SIGMOID
};
/* y = act(gate) * up; up NULL: y = act(gate). */
enum pl_status pl_ops_glu(struct pl_ops *o, enum pl_ops_act act, const struct pl_activation *gate,
                          const struct pl_activation *up, struct pl_activation *y);
/* y[0] = act(x * w[0]^T + bias[0]) * (x * w[1]^T + bias[1]); y[1] holds nothing of use afterwards. Asked and counted as
 * linear and glu. */
enum pl_status pl_ops_gated(struct pl_ops *o, const struct pl_weight *const *w, const struct pl_weight *const *bias,
                            enum pl_ops_act act, const struct pl_activation *x, struct pl_activation *const *y);
/* The batch's logit rows of x, packed into y. */
enum pl_status pl_ops_gather_logit_rows(struct pl_ops *o, const struct pl_activation *x, struct pl_activation *y);
enum pl_status pl_ops_softcap(struct pl_ops *o, struct pl_activation *x, float cap); /* over the logit rows */
enum pl_status pl_ops_scale(struct pl_ops *o, struct pl_activation *x, float scale); /* x *= scale */

/* x[r] *= sigmoid(gate[r]); gate has one column. */
enum pl_status pl_ops_gate_rows(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *gate);

/* What steps of up to `rows` rows need of heads_linear. Before the first step, for every weight. */
enum pl_status pl_ops_heads_reserve(struct pl_ops *o, const struct pl_weight *w, size_t rows,
                                    struct pl_err *err) PL_MUST_CHECK;

/* A mixture of experts. Each has a score: its logit's part in the softmax over all, or the sigmoid of its logit. Of each row
 * the `used` experts with the largest score (plus choice_bias, which counts for the choice alone) are mixed, of equals the
 * first; their weights are their scores, divided by the chosen ones' sum where renormalise, times scale. With groups only
 * the experts of the best groups_used of them can be chosen; a group is as good as its group_top best experts together. */
enum pl_router { PL_ROUTER_SOFTMAX, PL_ROUTER_SIGMOID };
struct pl_moe {
    size_t used;
    enum pl_router router;
    bool renormalise;
    float scale;                             /* of the weights */
    uint32_t groups, groups_used, group_top; /* groups 0: none; of equal size; group_top 1 or 2 */
    const struct pl_weight *choice_bias;     /* vector [experts] or NULL */
    enum pl_ops_act act;
    const struct pl_weight *gate, *up, *down;                /* experts; gate NULL: act(up x) goes down */
    const struct pl_weight *gate_bias, *up_bias, *down_bias; /* vectors [experts * outputs] or NULL, all or none */
};
/* The matrices and the shape of p are what counts here. What steps of up to `rows` rows need. Before the first step, for
 * every layer: a backend may rearrange its matrices now that it knows all three. */
enum pl_status pl_ops_moe_reserve(struct pl_ops *o, const struct pl_moe *p, size_t rows, struct pl_err *err) PL_MUST_CHECK;
/* y += sum of weight * down(act(gate x) * up x) over the row's experts, without gates of weight * down(act(up x)). logits:
 * [rows, experts]. */
enum pl_status pl_ops_moe(struct pl_ops *o, const struct pl_moe *p, const struct pl_activation *logits,
                          const struct pl_activation *x, struct pl_activation *y);

/* --- state-space layers; x, B, C, dt and z are columns of activations, the state of a layer is the batch's slots --- */
/* y[t, c] = act(bias[c] + sum over k of w[k, c] x[t - K + 1 + k, c]), inputs before the step coming from the state. */
enum { PL_OPS_CONV_MAX = 8, PL_OPS_STATE_MAX = 256, PL_OPS_SSM_HEAD_MAX = 256 };
struct pl_conv {
    uint32_t layer, kernel; /* layer: of those with a state; kernel K: 2 to PL_OPS_CONV_MAX */
    bool silu;
    const struct pl_weight *w, *bias; /* vector [K * channels], a row for each of K; vector [channels] or NULL */
};
enum pl_status pl_ops_causal_conv(struct pl_ops *o, const struct pl_conv *p, const struct pl_activation *x,
                                  struct pl_activation *y);
/* The recurrence of Mamba and Mamba-2: src/cpu/ssm.h has its definition. Counted as ssm_update where every sequence has one
 * row, else as ssm_scan. */
struct pl_ssm {
    uint32_t layer, heads, head_dim, groups, state; /* H, P, G, N */
    bool full;                                      /* a is [H * N], else [H] */
    const struct pl_weight *a, *dt_bias, *skip;     /* vectors; the last two [H] or NULL */
    float dt_min, dt_max;                           /* of a step, after softplus */
    const struct pl_activation *x, *b, *c, *dt, *z; /* z: a gate silu(z) on the result, or NULL */
    uint32_t x_first, b_first, c_first;             /* columns */
};
enum pl_status pl_ops_ssm(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y);
/* Both asked as one: the recurrence's x, B and C are columns of what the convolution makes of `in`, p->x, which nobody else
 * reads and which may be left as it is. */
enum pl_status pl_ops_conv_ssm(struct pl_ops *o, const struct pl_conv *conv, const struct pl_activation *in,
                               struct pl_activation *made, const struct pl_ssm *p, struct pl_activation *y);
/* The gated delta rule: src/cpu/ssm.h has its definition. q, k [G * N] and v [H * P] are columns of x. */
struct pl_delta {
    uint32_t layer, heads, head_dim, groups, state; /* H, P, G, N */
    bool in_turn;                                   /* the key head of h is h mod G, else h / (H / G) */
    const struct pl_weight *a, *dt_bias;            /* vectors [H] */
    const struct pl_activation *x, *dt, *beta;      /* the latter two [H] */
    uint32_t q_first, k_first, v_first;             /* columns */
};
enum pl_status pl_ops_delta(struct pl_ops *o, const struct pl_delta *p, struct pl_activation *y);
/* y = RMS norm by groups of x silu(z), times w; norm_first: the gate comes after. z may be NULL; y may be x. */
struct pl_gated_norm {
    uint32_t groups;
    bool norm_first;
    float eps;
    const struct pl_weight *w;
};
enum pl_status pl_ops_gated_norm(struct pl_ops *o, const struct pl_gated_norm *p, const struct pl_activation *x,
                                 const struct pl_activation *z, struct pl_activation *y);

/* --- choosing tokens where the logits are; a backend whose rows are in host memory anyway has no port --- */
enum { PL_OPS_PICK_NONE = -2, PL_OPS_PICK_BROKEN = -1 }; /* as uint32_t: nothing above -inf; NaN or +inf */
bool pl_ops_chooses(const struct pl_ops *o);
struct pl_draw {       /* what src/sample draws from a row alone, with the same result */
    float temperature; /* 0: the largest, the lowest index of equals */
    uint32_t top_k;    /* 0: off */
    float top_p, min_p;
    uint64_t seed, position;
};
/* After the step: enqueues the choice of a token from each of the first `rows` rows of x, by draws[row], or the largest of
 * each where draws is NULL, and returns at once. *slot is for pl_ops_chosen; the choices of the last two calls can be read.
 */
enum pl_status pl_ops_choose(struct pl_ops *o, const struct pl_activation *x, size_t rows, const struct pl_draw *draws,
                             uint32_t *slot) PL_MUST_CHECK;
/* Rows, of those read so far, that were drawn in too many rounds and got their largest token instead. */
uint64_t pl_ops_unconverged(const struct pl_ops *o);
/* Launches that were collected into graphs: how often one was replayed, made, or not worth making (its first time). */
struct pl_ops_graphs {
    uint64_t replayed, made, made_ns, once;
};
struct pl_ops_graphs pl_ops_graphs(const struct pl_ops *o);
/* Waits for those choices. Where a row has no choice, its entry says why. */
enum pl_status pl_ops_chosen(struct pl_ops *o, uint32_t slot, uint32_t *ids, size_t rows) PL_MUST_CHECK;
/* In a batch, PL_TOKEN_CHOSEN | i is the token chosen of row i by the last pl_ops_choose: nobody needs to have read it. */
#define PL_TOKEN_CHOSEN 0x80000000u
bool pl_ops_is_token(const struct pl_ops *o, uint32_t token, uint64_t vocab); /* below vocab, or such a choice */

/* --- what ran (witness): one entry per kernel name, launches since the last reset --- */
struct pl_ops_launches {
    const char *op, *kernel;
    uint64_t launches;
    uint64_t bytes; /* least bytes moved, where the op knows */
};
size_t pl_ops_witness(const struct pl_ops *o, struct pl_ops_launches *out, size_t cap); /* returns the full count */
void pl_ops_witness_reset(struct pl_ops *o); /* all three: launches, kernels, decisions */

/* Every compiled kernel (or library call) that was made: launches as the host counted them and as the kernel itself did.
 * The call waits for the device. A backend without compiled kernels (the CPU) has none. Texts live as long as o. */
struct pl_ops_kernel {
    const char *kernel, *symbol, *variant, *module, *target, *origin;
    uint64_t eager, graph; /* by the host */
    bool counted;          /* the device counted too */
    uint64_t device;
};
enum pl_status pl_ops_kernels(struct pl_ops *o, struct pl_ops_kernel *out, size_t cap, size_t *count,
                              struct pl_err *err) PL_MUST_CHECK;
/* PL_INTERNAL naming the first kernel whose two counts differ. */
enum pl_status pl_ops_kernels_agree(struct pl_ops *o, struct pl_err *err) PL_MUST_CHECK;

/* How decisions ended: one row per (operation, outcome, taken, planned, reason). asked/ended per operation. */
struct pl_ops_decision {
    const char *op, *outcome, *taken, *planned, *reason;
    uint64_t count;
};
size_t pl_ops_decisions(const struct pl_ops *o, struct pl_ops_decision *out, size_t cap); /* returns the full count */
uint64_t pl_ops_asked(const struct pl_ops *o, enum pl_op op);
bool pl_ops_decisions_add_up(const struct pl_ops *o);

/* Attention by form: every layer step ends in exactly one row, so they sum up to steps x layers. */
struct pl_ops_attention {
    const char *form, *reason; /* "v1", "v2", "cascade", "gather", "split", "tiles", "portable", "cpu", "failed" */
    uint64_t layer_steps, bytes;
};
struct pl_ops_attention_totals { /* of all layer steps, but for the first two */
    uint64_t steps, plans, plans_reused;
    uint64_t layer_steps, rows, tokens; /* tokens: visible, summed over rows */
    uint64_t chunks, merged_rows, merged_states;
    uint64_t cascade_groups, cascade_members, cascade_span_pages, cascade_tokens_saved;
    uint64_t gathered_pages, gathered_bytes;
    uint64_t value_rows, value_rows_skipped; /* sparse values: of one token and KV head, as a tile of queries reads them */
};
size_t pl_ops_attention_rows(const struct pl_ops *o, struct pl_ops_attention *out, size_t cap); /* returns the full count */
/* Why layer steps by plan did not share: form "used" or "declined", with the reason. */
size_t pl_ops_cascade_rows(const struct pl_ops *o, struct pl_ops_attention *out, size_t cap);
/* Devices count rows of values themselves: as of the last step that was waited for, or exactly after
 * pl_ops_attention_settle, which waits for all of them. */
void pl_ops_attention_totals(const struct pl_ops *o, struct pl_ops_attention_totals *out);
enum pl_status pl_ops_attention_settle(struct pl_ops *o);
bool pl_ops_invariant(const struct pl_ops *o);

/* What the compiled-kernel cache did; false on a backend without one. */
struct pl_ops_cache {
    const char *mode, *dir, *compiler;
    uint64_t memory_hits, disk_hits, compiled, shipped, loaded, differed, damaged, stored, evicted;
};
bool pl_ops_cache_state(const struct pl_ops *o, struct pl_ops_cache *out);

#endif
