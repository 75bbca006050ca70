/* cpu - vectorised kernels for the host, one table per instruction set, picked once at run time.
 *
 * All functions are called from one thread (the engine's) and use the pool inside. Activations are f32, row-major,
 * rows `stride` elements apart. Results do not depend on the thread count, bit for bit. No function allocates after
 * pl_cpu_create and pl_cpu_reserve. Nothing here can fail once its arguments were checked at load time, so the hot
 * functions return void; weights of a dtype without a special path use the plain one, and say so by kernel name. */
#ifndef PL_CPU_CPU_H
#define PL_CPU_CPU_H

#include <stdatomic.h>

#include "base/pool.h"
#include "tensor/tensor.h"

/* Ascending: each includes the ones before on its architecture, but for AVX-VNNI, which an AVX-512 CPU may lack; the last
 * two are aarch64's. */
#define PL_ISA_LIST(X)             \
    X(PL_ISA_SCALAR, "scalar")     \
    X(PL_ISA_AVX2, "avx2")         \
    X(PL_ISA_AVX_VNNI, "avx-vnni") \
    X(PL_ISA_AVX512, "avx512-vnni") X(PL_ISA_AMX, "avx512-amx") X(PL_ISA_NEON, "neon-dotprod") X(PL_ISA_I8MM, "neon-i8mm")
enum pl_isa {
#define PL_ISA_ENUM(name, text) name,
    PL_ISA_LIST(PL_ISA_ENUM)
#undef PL_ISA_ENUM
        PL_ISA_COUNT
};

struct pl_cpu;        /* pool + table + scratch */
struct pl_cpu_weight; /* a matrix [out, in] prepared for the table (repacked, or a view of the file where that is best) */

enum pl_isa pl_cpu_best_isa(void); /* probed, not assumed */
bool pl_cpu_isa_available(enum pl_isa isa);
/* NULL, or why an instruction set that this CPU names is not used here: static text. */
const char *pl_cpu_isa_declined(enum pl_isa isa);
/* Tests: the AMX table with its tile instructions in C counts as available wherever AVX-512 is. */
void pl_cpu_emulate_amx(bool on);
const char *pl_isa_name(enum pl_isa isa);
bool pl_isa_from_name(const char *name, enum pl_isa *out);

/* threads 0 = all usable CPUs. PL_UNSUPPORTED when this machine lacks isa. */
enum pl_status pl_cpu_create(enum pl_isa isa, int threads, struct pl_cpu **out, struct pl_err *err) PL_MUST_CHECK;
/* The same on a pool of these options: pinned threads, another topology. */
enum pl_status pl_cpu_create_with(enum pl_isa isa, const struct pl_pool_options *pool, struct pl_cpu **out,
                                  struct pl_err *err) PL_MUST_CHECK;
void pl_cpu_destroy(struct pl_cpu *c);
struct pl_pool *pl_cpu_pool(struct pl_cpu *c);
enum pl_isa pl_cpu_isa(const struct pl_cpu *c);
/* Tests and comparisons: this part runs with another instruction set's kernels. Before any weight is made. */
enum pl_cpu_part {
    PL_CPU_EMBED,
    PL_CPU_NORM,
    PL_CPU_ADD,
    PL_CPU_LINEAR,
    PL_CPU_ROPE,
    PL_CPU_ATTENTION,
    PL_CPU_GLU,
    PL_CPU_SOFTCAP,
    PL_CPU_SSM,
    PL_CPU_PARTS
};
enum pl_status pl_cpu_override(struct pl_cpu *c, enum pl_cpu_part part, enum pl_isa isa, struct pl_err *err) PL_MUST_CHECK;
/* Scratch for products of up to max_rows rows and max_in inputs, and attention over up to max_tokens cached tokens. */
enum pl_status pl_cpu_reserve(struct pl_cpu *c, size_t max_rows, size_t max_in, size_t max_tokens,
                              struct pl_err *err) PL_MUST_CHECK;

/* Before pl_cpu_reserve: products of many rows may round both sides to bf16, where that is faster. Their results are the
 * same bits for any thread count, and for any number of rows that is enough for them, but not those of few rows. */
void pl_cpu_allow_wide(struct pl_cpu *c, bool allow);

/* The tensor's bytes must outlive the weight (it may stay a view). *bytes_owned of it are private copies. */
enum pl_status pl_cpu_weight_create(struct pl_cpu *c, const struct pl_tensor *t, struct pl_cpu_weight **out,
                                    struct pl_err *err) PL_MUST_CHECK;
/* From now on a weight of at least min_bytes only gets its memory when it is created: its first product packs each tile
 * in scratch and forgets it again, its second one fills the memory. So the first answer waits for no copy, and nothing
 * is held twice: when_packed is told of each weight once the tensor's bytes are not read any more. Same bits. */
void pl_cpu_pack_later(struct pl_cpu *c, size_t min_bytes, void (*when_packed)(void *user, const struct pl_tensor *t),
                       void *user);
/* Another least size from here on; returns the one before. For experts: each is small, all together are not. */
size_t pl_cpu_pack_threshold(struct pl_cpu *c, size_t min_bytes);
void pl_cpu_weight_destroy(struct pl_cpu_weight *w);
size_t pl_cpu_weight_bytes_owned(const struct pl_cpu_weight *w);
size_t pl_cpu_weight_bytes_read(const struct pl_cpu_weight *w); /* streamed from memory by one product of few rows */
/* NULL, or why the table's own products do not take this weight, so that its rows are widened one by one. */
const char *pl_cpu_weight_declines(const struct pl_cpu *c, const struct pl_cpu_weight *w);
/* Name of the kernel a product of this many rows runs, for witnesses and receipts: "avx512-vnni/q4_1xq8/gemv". Static. */
const char *pl_cpu_weight_kernel(const struct pl_cpu *c, const struct pl_cpu_weight *w, size_t rows);

/* y[i] (rows x out_i) = x (rows x in) * w[i]^T [+ bias[i]] [added to y[i] when accumulate], for count matrices of one
 * input width: activations are quantised once, one parallel region. bias or its entries may be NULL. */
struct pl_cpu_span {
    size_t first, rows;
    size_t group, groups, term_group, term_groups; /* the product's own */
};
struct pl_cpu_matmul {
    size_t count, rows;
    const struct pl_cpu_weight *const *w;
    const float *const *bias;
    const float *x;
    size_t x_stride;
    float *const *y;
    const size_t *y_stride;
    bool accumulate;
    bool fine;                 /* where activations are made 8-bit: of 16 or in two terms, so that about 15 bits count */
    struct pl_cpu_span *spans; /* [count]: the rows of x and y that matrix i is for; NULL: all. Not with fine. */
};
void pl_cpu_matmul(struct pl_cpu *c, const struct pl_cpu_matmul *m);
/* Rows `ids` of the matrix (the embedding table) as f32, times scale. */
void pl_cpu_embed(struct pl_cpu *c, const struct pl_tensor *table, const uint32_t *ids, size_t rows, float scale, float *y,
                  size_t y_stride);

/* y = x / rms(x) * (offset + w); x += add first when add is not NULL. May run in place (y == x). */
struct pl_cpu_norm {
    size_t rows, cols;
    float *x;
    size_t x_stride;
    const float *add;
    size_t add_stride;
    const float *w; /* [cols] */
    float eps, offset;
    float *y;
    size_t y_stride;
    bool center;       /* layer norm: y = (x - mean) / deviation * w + bias; offset does not count */
    const float *bias; /* [cols] or NULL; with center */
};
void pl_cpu_rmsnorm(struct pl_cpu *c, const struct pl_cpu_norm *n);
void pl_cpu_add(struct pl_cpu *c, float *x, const float *add, size_t rows, size_t cols, size_t x_stride, size_t add_stride);

/* The last is gated: (min(max(up, -7), 7) + 1) * g * sigmoid(1.702 g) with g = min(gate, 7). */
enum pl_act {
    PL_ACT_SILU,
    PL_ACT_GELU_TANH,
    PL_ACT_GELU_ERF,
    PL_ACT_RELU2,
    PL_ACT_NONE,
    PL_ACT_SIGMOID,
    PL_ACT_SWIGLU_CLAMPED
};
/* y = act(gate) * up; y may be gate. up NULL: y = act(gate). */
void pl_cpu_glu(struct pl_cpu *c, enum pl_act act, const float *gate, const float *up, float *y, size_t rows, size_t cols,
                size_t gate_stride, size_t up_stride, size_t y_stride);
void pl_cpu_scale(struct pl_cpu *c, float *x, size_t rows, size_t cols, size_t stride, float scale);
void pl_cpu_softcap(struct pl_cpu *c, float *x, size_t rows, size_t cols, size_t stride, float cap); /* cap*tanh(x/cap) */

/* A mixture of experts. Each has a score: its logit's part in the softmax over all, or the sigmoid of its logit. Of each row
 * the `used` experts with the largest score (plus choice_bias; of equals the first, NaN last) count, weighted by their
 * scores, which are divided by the chosen ones' sum when renormalise; with groups only experts of the groups_used best
 * groups, each as good as its group_top best experts together. y += scale * sum of weight * down(act(gate x) * up x), best
 * first. Rows are grouped by expert: each chosen expert's weights are read once. */
struct pl_cpu_moe {
    size_t rows, experts, used, in, inner;
    bool sigmoid, renormalise;
    size_t groups, groups_used, group_top; /* groups 0: none */
    float scale;
    const float *choice_bias;                     /* [experts] or NULL */
    const float *gate_bias, *up_bias, *down_bias; /* [experts, inner], [experts, inner], [experts, in], or NULL */
    enum pl_act act;
    const float *logits; /* [rows, experts] */
    size_t logits_stride;
    const struct pl_cpu_weight *const *gate, *const *up, *const *down; /* [experts]; gate NULL: act(up x) alone */
    const float *x;
    size_t x_stride;
    float *y;
    size_t y_stride;
};
/* Scratch for m's experts and sizes and up to `rows` rows. */
enum pl_status pl_cpu_moe_reserve(struct pl_cpu *c, const struct pl_cpu_moe *m, size_t rows,
                                  struct pl_err *err) PL_MUST_CHECK;
/* Returns the bytes of the experts that were read. */
size_t pl_cpu_moe(struct pl_cpu *c, const struct pl_cpu_moe *m);
/* x[r] *= sigmoid(gate[r]), one gate a row. */
void pl_cpu_gate_rows(struct pl_cpu *c, float *x, const float *gate, size_t rows, size_t cols, size_t x_stride,
                      size_t gate_stride);

/* The KV cache of one layer: pages [P, S, G, D] for each side, f16, bf16 or f32. */
struct pl_cpu_kv {
    void *k, *v;
    enum pl_dtype dtype;
    size_t page_tokens; /* S */
    size_t kv_heads;    /* G */
    size_t head_dim;    /* D */
    size_t value_dim;   /* not 0: v is k, of which so many numbers count as values, and out has so many of each head */
};
/* One sequence's part of a step. */
struct pl_cpu_seq {
    size_t first_row, rows; /* its rows in q, k, v, out */
    size_t past;            /* tokens in the cache before this step; row i is position past+i */
    const uint32_t *pages;  /* physical page of tokens [S*j, S*(j+1)) */
};
/* Per-head RMS norm of q and k (when their weights are given), rotary embedding, append of k and v to the cache.
 * cos_sin [positions, rope_dim/2, 2] f32; pairs are (i, i+rope_dim/2) when halves, else (2i, 2i+1). */
struct pl_cpu_rope_append {
    size_t seq_count;
    const struct pl_cpu_seq *seqs;
    size_t heads; /* H */
    float *q;
    const float *k, *v;
    size_t q_stride, k_stride, v_stride;
    const float *q_norm, *k_norm; /* [D] or NULL */
    float norm_eps, norm_offset;
    const float *cos_sin; /* NULL: no rotation */
    size_t rope_dim;
    bool halves;
    const struct pl_cpu_kv *kv;
};
void pl_cpu_rope_append(struct pl_cpu *c, const struct pl_cpu_rope_append *a);

/* y[r, h] = w[h] x[r, h] for every head h: of x_head numbers from x + h * x_head on the first w->in, likewise y. */
struct pl_cpu_heads {
    size_t rows, heads;
    const struct pl_cpu_weight *const *w; /* [heads], of one shape */
    const float *x;
    size_t x_stride, x_head;
    float *y;
    size_t y_stride, y_head;
};
/* Scratch for so many heads of so many inputs and outputs. */
enum pl_status pl_cpu_heads_reserve(struct pl_cpu *c, size_t heads, size_t in, size_t out, size_t rows,
                                    struct pl_err *err) PL_MUST_CHECK;
/* Returns the bytes of the weights that were read. */
size_t pl_cpu_heads_linear(struct pl_cpu *c, const struct pl_cpu_heads *p);

/* Latent attention: of each row the first value_dim numbers of `latent` normed, the other ones rotated, into the cache; the
 * last rotated numbers of each head of q, rotated, into the last of each head of qa. */
struct pl_cpu_latent_append {
    size_t seq_count;
    const struct pl_cpu_seq *seqs;
    size_t heads, q_head; /* numbers of a head of q */
    const float *q, *latent;
    float *qa;
    size_t q_stride, latent_stride, qa_stride;
    const float *norm; /* [value_dim] */
    float norm_eps;
    const float *cos_sin;
    bool halves;
    const struct pl_cpu_kv *kv;
};
void pl_cpu_latent_append(struct pl_cpu *c, const struct pl_cpu_latent_append *a);

/* Sparse V: a token's values are not read where no query of a tile weighs it by `least` or more of the largest weight in its
 * chunk; such a weight still counts in the softmax's sum. Its own share of the sum is then below least. Counted: values of
 * one token and KV head that a tile would have read, and those it did not. */
struct pl_cpu_sparse {
    float least;
    _Atomic uint64_t rows, skipped;
};

/* Latent attention by keys and values of each head, made from the cached latents (latent_expand.c): what products of the
 * heads and attention over latents give, but for rounding. q [rows, H, nope + rope], of which the last stand rotated in qa
 * [rows, H, latent + rope]; out [rows, H, value]. */
struct pl_cpu_latent_shape {
    size_t heads, nope, rope, value, latent;
};
struct pl_cpu_latent_attention {
    size_t seq_count;
    const struct pl_cpu_seq *seqs;
    const struct pl_cpu_weight *const *k, *const *v; /* [heads]: [latent, nope] and [value, latent] */
    const float *q, *qa;
    size_t q_stride, qa_stride;
    float scale;
    const struct pl_cpu_kv *kv; /* f32, f16 or bf16 */
    float *out;
    size_t out_stride;
};
/* Scratch for sequences of up to so many tokens, of which so many rows in a step: `room` bytes each of keys and queries at
 * most, or what all heads take. False: no memory. Allocates when a step first wants it, which most models never do. */
enum { PL_CPU_EXPAND_ROOM = 96 << 20 };
bool pl_cpu_expand_reserve(struct pl_cpu *c, const struct pl_cpu_latent_shape *shape, size_t positions, size_t rows,
                           size_t room);
/* How many heads of such a sequence fit at once; 0: it is too long. */
size_t pl_cpu_expand_heads(const struct pl_cpu *c, size_t tokens, size_t rows);
void pl_cpu_latent_attention(struct pl_cpu *c, const struct pl_cpu_latent_attention *p);

/* out [rows, H*D] = softmax(mask(softcap(q k^T * scale))) v. Causal; a row at position p sees tokens
 * (p-window, p] when window > 0, else [0, p]. The step's own k and v are in the cache already. */
struct pl_cpu_attention {
    size_t seq_count;
    const struct pl_cpu_seq *seqs;
    size_t heads;
    const float *q;
    size_t q_stride;
    float scale, softcap; /* softcap 0: none */
    size_t window;        /* 0: none */
    const struct pl_cpu_kv *kv;
    float *out;
    size_t out_stride;
    const float *sinks;           /* [heads] or NULL: one more score in each softmax, that weighs nothing */
    struct pl_cpu_sparse *sparse; /* NULL: all values are read */
};
void pl_cpu_attention(struct pl_cpu *c, const struct pl_cpu_attention *a);

#endif
