/* device_ops - the records of a device backend (inside src/ops only). */
#ifndef PL_OPS_DEVICE_OPS_H
#define PL_OPS_DEVICE_OPS_H

#include "device/stage.h"
#include "ops/cuda_chain.h"
#include "ops/cuda_dense.h"
#include "ops/cuda_fast.h"
#include "ops/cuda_layers.h"
#include "ops/cuda_mma.h"
#include "ops/draw.h"
#include "ops/expand.h"
#include "ops/cuda_moe.h"
#include "ops/cuda_ssm.h"
#include "ops/cuda_stream.h"
#include "ops/cuda_ternary.h"
#include "ops/impl.h"
#include "ops/latent.h"
#include "ops/launch.h"
#include "ops/moe.h"
#include "ops/paged.h"
#include "ops/ssm.h"
#include "ops/ternary.h"

/* One weight format and the kernels made for it. */
struct dev_format {
    struct dev_format *next;
    struct pl_device_weight w; /* no data: dtype, bits, group, scales' type */
    struct pl_kernel linear[PL_TILE_COUNT], embed, gemv[PL_GEMV_ROWS_MAX], unpack, retile, mma[PL_MMA_SIZES],
        stream[PL_STREAM_CHUNKS][PL_STREAM_KINDS], chain[PL_CHAIN_KINDS];
    struct pl_kernel moe[PL_MOE_KERNELS][PL_MOE_ACTS][2];       /* in order, by slot */
    struct pl_kernel moe_mma[PL_MOE_MMA_COUNT][PL_MOE_ACTS][3]; /* in order, by slot, in order by bulk copies */
    struct pl_kernel moe_unpack, moe_routed, moe_one[PL_MOE_ONE_COUNT], moe_tall[3]; /* with silu, with gelu, down */
    struct pl_kernel heads[PL_TILE_COUNT + 1], turn;                                 /* the last: PL_HEADS_TILE */
    uint32_t routed_experts, routed_used;                                            /* of moe_routed */
    uint32_t one_experts[PL_MOE_ONE_COUNT], one_used[PL_MOE_ONE_COUNT];
    char names[PL_TILE_COUNT][48], gemv_names[PL_GEMV_ROWS_MAX][48], mma_names[PL_MMA_SIZES][48], stream_name[48];
};
struct dev_weight {
    struct pl_weight base;
    struct pl_device_weight w;    /* a vector: data only */
    struct dev_format *format;    /* NULL for vectors */
    uint64_t bytes;               /* read by one product */
    float scale;                  /* PL_TERNARY */
    struct pl_device_buffer kept; /* unpacked to bf16; without handle: not kept (device_keep.c) */
    struct dev_weight *next_packed;
};
struct dev_activation {
    struct pl_activation base;
    struct pl_device_buffer data;
};
struct dev_kv {
    struct pl_kv_store base;
    struct pl_device_buffer *sides; /* [layer][K, V], or [layer] where values are a part of keys */
    size_t side_count;
    struct pl_device_buffer *states; /* [state layers] */
    size_t state_count;
    struct pl_kernel attention, attention_sinks;
    struct pl_kernel rope[16], rope_warps[16], whole[2][16];  /* by which norms and which rotation: dev_rope_index */
    struct pl_split_attention split;                          /* made when first used */
    struct pl_kernel tiles[PL_TILES_COUNT], widen, turn_back; /* likewise */
    struct pl_paged paged[2];                                 /* by number of query heads; heads 0: not made yet */
};
/* Attention by plan for one (window, heads): planned at the first layer of a step that asks, reused by the others. */
enum { DEV_PLANS_MAX = 4 };
struct dev_plan {
    bool used;
    uint32_t window, heads;
    uint64_t step; /* planned for */
    enum pl_status status;
    struct pl_plan plan;
    struct pl_plan_row *rows;
    size_t row_cap;
    uint32_t *staging;
    uint64_t staging_words;
    struct pl_device_event uploaded;
    bool pending;
    struct pl_device_buffer record, parts, lse, arrived, dense_k, dense_v;
};
struct dev_rope {
    struct pl_rope base;
    struct pl_device_buffer cos_sin;
};
/* Tokens chosen on the device: where the next step reads them, and the two places where the host does. */
struct dev_choice {
    struct pl_kernel pick[PL_PICK_COUNT];
    struct pl_draw_kernels draw;
    struct pl_draw_room room;
    struct pl_device_buffer parts;         /* of rows that are shared */
    struct pl_device_buffer tokens, draws; /* [2 rows_max], [rows_max] of the last choose */
    size_t rows_max;
    struct dev_choice_slot {
        uint32_t *host;             /* pinned: tokens, then what draw says of its rounds */
        struct pl_args_draw *draws; /* pinned */
        bool drawn;
        struct pl_device_event arrived;
        size_t rows;
    } slots[2];
};
/* A norm of one row that has been asked for and not launched; y NULL: none. */
struct dev_norm {
    struct pl_activation *x, *y;
    const struct pl_weight *w;
    float eps, offset;
};
/* Ternary products of one row that have been asked for and not launched, behind the norm that waited for them; count 0:
 * none. */
struct dev_ternary_waits {
    size_t count;
    const struct pl_weight *w[PL_TERNARY_MATRICES_MAX];
    const struct pl_activation *x;
    struct pl_activation *y[PL_TERNARY_MATRICES_MAX];
    struct dev_norm norm; /* y NULL: none */
};
enum { DEV_TERNARY_KERNELS = 16 };
/* A rotation and append that has been asked for and not launched: the attention after it does it. r.q NULL: none. */
struct dev_rope_waits {
    struct pl_launch_rope r;
    struct pl_rope_kind kind;
    uint64_t bytes;
};
struct dev_ssm_kernel {
    struct pl_kernel kernel;
    struct pl_ssm_kind kind;
};
/* Keys and values of each head of one chunk of a sequence (device_expand.c): kernels and scratch, made when first used. */
struct dev_expand {
    struct pl_expand_shape shape; /* of kernels */
    struct pl_kernel kernels[PL_EXPAND_COUNT];
    uint32_t chunk, heads; /* tokens that scratch is for, of so many heads */
    bool given_up;         /* there was no room, or no kernel */
    struct pl_device_buffer kv, latents, rotated, w, lse;
};
/* What waits to become one launch (device_chain.c), up to and with what `at` names. */
struct dev_chain {
    enum dev_chain_at {
        DEV_CHAIN_EMPTY,
        DEV_CHAIN_O,
        DEV_CHAIN_NORM,
        DEV_CHAIN_GATED,
        DEV_CHAIN_DOWN,
        DEV_CHAIN_NEXT_NORM
    } at;
    const struct pl_weight *o, *gate_up[2], *down, *next[PL_STREAM_MATRICES_MAX], *bias[PL_STREAM_MATRICES_MAX];
    const struct pl_activation *from;
    struct pl_activation *x, *g[2], *y[PL_STREAM_MATRICES_MAX];
    struct dev_norm norm[2];
    size_t count;
    bool gelu;
    bool fits;      /* the product being decided continues it */
    bool replaying; /* what waited is launched one by one */
    bool off;       /* layers of this model are no chains */
    struct pl_device_buffer meet;
};
/* A launch of ssm_step, and the bytes of what it reads and writes: of the convolution's part, of the state. */
struct dev_step_launch {
    struct pl_step_kind kind;
    struct pl_launch_conv conv;
    struct pl_launch_ssm ssm;
    uint64_t bytes[2];
};
/* Launches of Mamba-2 layers that wait to become one (device_layers.c), up to what `at` names in the last of them. */
struct dev_layers {
    enum dev_layers_at { DEV_LAYERS_NOTHING, DEV_LAYERS_PRODUCTS, DEV_LAYERS_SSM, DEV_LAYERS_WHOLE } at;
    struct dev_held_layer {
        struct pl_layer_launches l;
        struct dev_format *formats[2]; /* of its first products, of the last */
        uint64_t bytes[2], state_bytes[2];
    } * layer; /* [PL_LAYERS_MAX]; NULL: not wanted */
    size_t count;
    bool off;       /* this model's layers are no such */
    bool releasing; /* what waited is launched */
    struct pl_kernel k;
    struct pl_device_buffer table, meet;
    uint64_t (*uploaded)[PL_LAYERS_WORDS]; /* [2 PL_LAYERS_MAX]: what stands in table, what shall */
    struct pl_layer_launches all[PL_LAYERS_MAX];
};
struct dev_ops {
    struct pl_ops base;
    struct pl_kernels ks;
    struct pl_kernel elementwise[PL_EW_COUNT], norm, add_norm, layer_norm[2]; /* without and with bias: made when used */
    struct dev_choice choice;
    struct pl_kernel fma[PL_FMA_KERNELS], router, norm_rows; /* the last for norm_cols */
    size_t norm_cols;
    struct dev_format *formats;
    struct pl_device_buffer step, step_windowed; /* the second: the same with the block tables of windowed layers */
    uint32_t *staging, stride, longest;          /* longest sequence of the step, in tokens */
    uint64_t step_entries;
    struct pl_device_event uploaded;
    bool upload_pending;
    struct pl_device_buffer parts, lse, arrived; /* scratch of split attention */
    struct pl_device_buffer wide_k, wide_v;      /* one sequence's cache in f16, of one in few bits */
    struct dev_rope_waits rope_waits;
    struct pl_dense dense;
    struct dev_plan plans[DEV_PLANS_MAX];
    uint64_t steps;
    struct pl_attn_table attn_table;
    bool attn_units;                  /* the shape at hand is one for tensor cores: plans come first on NVIDIA devices */
    bool exact;                       /* asked for: products never take dense */
    float sparse;                     /* values whose weight is below this are not read; 0: all are */
    bool plain;                       /* there are bf16 weights, which dense takes from fewer rows on */
    struct dev_weight *packed;        /* matrices that dense has to unpack */
    uint64_t dense_cols, dense_bytes; /* widest input, most unpacked weights, of what it may take */
    struct pl_mma_room mma;
    struct {
        struct pl_moe_room room;
        struct pl_moe_route route, route_dense; /* the second: its tiles are larger */
        struct pl_mma_room ready;               /* inputs that nobody else made ready */
        struct pl_moe_dense dense;
        struct pl_kernel pair[PL_MOE_ACTS], down, sum;
        uint32_t sum_used;        /* of sum */
        struct pl_kernel sort[2]; /* by tiles: few rows, many */
        uint32_t sort_experts[2];
        struct dev_moe_choice {
            struct pl_kernel k;
            uint32_t experts, used;
        } choose[3];       /* the choice alone, with an order for each size of tile */
        size_t dense_rows; /* room for so many; 0: none */
    } moe;
    struct pl_kernel prepare[PL_PREPARE_COUNT][PL_INPUTS_COUNT];
    struct {
        struct pl_device_buffer seqs;      /* of the step, PL_SEQ_WORDS each; only for models with state */
        uint32_t seqs_max, longest, least; /* most rows of one of them, and fewest */
        struct pl_kernel conv[4], norm[2]; /* by bias and activation; by gate */
        uint32_t conv_kernel;              /* that conv was made for */
        struct dev_ssm_kernel scan[2];     /* [1]: one row a sequence */
        struct pl_ssm_chunks chunks;       /* made for this kind, with room for so many rows */
        struct pl_ssm_kind chunks_kind;
        struct pl_device_buffer dots, steps;
        struct pl_kernel delta; /* made for this state */
        uint32_t delta_state;
        bool delta_in_turn;
        struct pl_kernel step; /* made for this kind */
        struct pl_step_kind step_kind;
        struct pl_device_buffer arrived;
        const char *not_step; /* why the last convolution and recurrence were not one launch */
    } ssm;
    bool strips; /* there are rearranged weights: inputs are made ready for those */
    enum pl_inputs prepared_as;
    struct pl_stage *stage;          /* while weights are loaded */
    struct pl_device_buffer loading; /* a weight as the file has it, before it is rearranged; gone with the first step */
    uint64_t mma_cols, mma_outputs;  /* widest input, most outputs of rearranged weights; 0: there are none */
    uint64_t streams;                /* weights that PL_IMPL_STREAM could take */
    uint64_t strip_streams;          /* the same of rearranged weights, where those are given to it (dev_streams_strips) */
    uint64_t routers;                /* weights of f32 that one launch takes with the norm before them */
    struct {
        struct pl_ternary_kernels k;
        struct pl_device_buffer q, row; /* inputs in 8 bits, the scale and sum of each row */
        uint64_t cols, room;            /* widest input; 0: there are no ternary weights */
        struct dev_ternary_kernel {
            struct pl_ternary_kind kind;
            struct pl_kernel k;
        } made[DEV_TERNARY_KERNELS];
        size_t made_count;
        struct dev_ternary_waits waits;
    } ternary;
    struct {
        struct pl_kernel append;
        enum pl_dtype kv; /* of append: what it was made for */
        size_t head_dim, value_dim, page_tokens;
        bool halves;
    } latent;
    struct dev_expand expand;
    struct dev_norm norm_waits, rounds; /* the second: of many rows (device_dense.c) */
    struct dev_chain chain;
    struct dev_layers layers;
    const struct pl_activation *prepared; /* whose rows stand ready in mma.x */
};

/* A device's records, of which the operations know the beginning. */
static inline struct dev_ops *dev_of(struct pl_ops *o) { return (struct dev_ops *)o; }
static inline const struct dev_weight *weight_of(const struct pl_weight *w) { return (const struct dev_weight *)w; }
/* What they hold in memory; NULL of NULL. */
static inline const struct pl_device_buffer *vector_of(const struct pl_weight *w) {
    return w != NULL ? &weight_of(w)->w.data : NULL;
}
static inline const struct pl_device_buffer *data_of(const struct pl_activation *a) {
    return a != NULL ? &((const struct dev_activation *)a)->data : NULL;
}

/* For the other files of this backend: a hot call's text to the log; a launch counted, its failure reported. */
enum pl_status dev_report(struct dev_ops *d, enum pl_status st) PL_MUST_CHECK;
enum pl_status dev_done(struct pl_ops *o, enum pl_op op, const struct pl_kernel *k, uint64_t bytes,
                        enum pl_status st) PL_MUST_CHECK;

/* The kernels of w's format. */
enum pl_status dev_format_of(struct dev_ops *d, const struct pl_device_weight *w, struct dev_format **out,
                             struct pl_err *err) PL_MUST_CHECK;
bool dev_is_matrix_type(enum pl_dtype t);

/* device_ssm.c. kv is freed by its owner when create fails half way. */
enum pl_status dev_states_create(struct dev_ops *d, struct dev_kv *kv, const struct pl_kv_shape *s,
                                 struct pl_err *err) PL_MUST_CHECK;
void dev_states_destroy(struct dev_ops *d, struct dev_kv *kv);
void dev_states_deinit(struct dev_ops *d);
enum pl_status dev_state_copy(struct pl_ops *o, struct pl_kv_store *kv, uint32_t from, uint32_t to) PL_MUST_CHECK;
/* The step's sequences to the device; staging: PL_SEQ_WORDS for each row of a step, in memory that lasts until the copy. */
enum pl_status dev_reserve_seqs(struct dev_ops *d) PL_MUST_CHECK;
enum pl_status dev_upload_seqs(struct dev_ops *d, const struct pl_batch *b, uint32_t *staging) PL_MUST_CHECK;
enum pl_status dev_causal_conv(struct pl_ops *o, const struct pl_conv *p, const struct pl_activation *x,
                               struct pl_activation *y) PL_MUST_CHECK;
enum pl_status dev_delta(struct pl_ops *o, const struct pl_delta *p, struct pl_activation *y) PL_MUST_CHECK;
enum pl_status dev_ssm_update(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y) PL_MUST_CHECK;
enum pl_status dev_ssm_scan(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y) PL_MUST_CHECK;
/* The convolution and the recurrence over it in one launch (cuda_ssm.h). */
bool dev_takes_conv_ssm(struct pl_ops *o, const struct pl_conv *conv, const struct pl_ssm *p);
enum pl_status dev_conv_ssm(struct pl_ops *o, const struct pl_conv *conv, const struct pl_activation *in,
                            const struct pl_ssm *p, struct pl_activation *y) PL_MUST_CHECK;
enum pl_status dev_gated_norm(struct pl_ops *o, const struct pl_gated_norm *p, const struct pl_activation *x,
                              const struct pl_activation *z, struct pl_activation *y) PL_MUST_CHECK;

/* device_ternary.c */
enum pl_status dev_ternary_fill(struct dev_ops *d, const struct pl_tensor *t, struct dev_weight *w,
                                struct pl_err *err) PL_MUST_CHECK;
enum pl_status dev_ternary_begin(struct dev_ops *d) PL_MUST_CHECK;
void dev_ternary_deinit(struct dev_ops *d);
const char *dev_ternary_name(const struct dev_ops *d, const struct dev_weight *w, size_t rows);
enum pl_status dev_ternary_settle(struct pl_ops *o) PL_MUST_CHECK; /* launches what waits */
/* Whether what waits can also do x += add, and y = act(gate) * up; doing it. */
bool dev_ternary_adds(const struct dev_ops *d, const struct pl_activation *x, const struct pl_activation *add);
enum pl_status dev_ternary_add(struct pl_ops *o, struct pl_activation *x) PL_MUST_CHECK;
bool dev_ternary_gates(const struct dev_ops *d, enum pl_ops_act act, const struct pl_activation *gate,
                       const struct pl_activation *up, const struct pl_activation *y);
enum pl_status dev_ternary_gate(struct pl_ops *o, enum pl_ops_act act, struct pl_activation *y) PL_MUST_CHECK;
enum pl_status dev_ternary(struct pl_ops *o, size_t count, const struct pl_weight *const *w, const struct pl_activation *x,
                           struct pl_activation *const *y) PL_MUST_CHECK;

/* device_stack.c: so many matrices of one type and shape as one tall one. bytes of the result: of all of them. */
enum pl_status dev_stack_create(struct pl_ops *o, const struct pl_tensor *parts, size_t count, struct dev_weight **out,
                                struct pl_err *err) PL_MUST_CHECK;

/* device_moe.c */
enum pl_status dev_experts_create(struct pl_ops *o, const struct pl_tensor *experts, size_t count, struct pl_weight **out,
                                  struct pl_err *err) PL_MUST_CHECK;
enum pl_status dev_moe_reserve(struct pl_ops *o, const struct pl_moe *p, size_t rows, struct pl_err *err) PL_MUST_CHECK;
enum pl_status dev_moe(struct pl_ops *o, const struct pl_moe *p, const struct pl_activation *logits,
                       const struct pl_activation *x, struct pl_activation *y) PL_MUST_CHECK;
void dev_moe_deinit(struct dev_ops *d);
/* device_moe_cuda.c: the logits of a router with the norm before them. */
bool dev_takes_router(const struct dev_ops *d, const struct pl_weight *w, const struct pl_activation *x,
                      struct pl_activation *y);
enum pl_status dev_router(struct pl_ops *o, const struct pl_weight *w, const struct pl_weight *bias,
                          const struct pl_activation *x, struct pl_activation *y) PL_MUST_CHECK;

/* device_latent.c */
enum pl_status dev_heads_create(struct pl_ops *o, const struct pl_tensor *heads, size_t count, struct pl_weight **out,
                                struct pl_err *err) PL_MUST_CHECK;
enum pl_status dev_heads_linear(struct pl_ops *o, const struct pl_weight *w, const struct pl_activation *x,
                                struct pl_activation *y) PL_MUST_CHECK;
enum pl_status dev_latent_append(struct pl_ops *o, const struct pl_latent *p, const struct pl_activation *q,
                                 const struct pl_activation *kv, struct pl_activation *qa) PL_MUST_CHECK;
void dev_latent_deinit(struct dev_ops *d);

/* device_expand.c */
bool dev_takes_expanded(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w);
enum pl_status dev_expanded(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w,
                            const struct pl_activation *q, const struct pl_activation *qa,
                            struct pl_activation *out) PL_MUST_CHECK;
void dev_expand_deinit(struct dev_ops *d);

/* Bytes of a weight to the device, by the stage where that helps. `from` may be let go of once the stream was waited for. */
enum pl_status dev_upload(struct dev_ops *d, const struct pl_device_buffer *to, uint64_t offset, const void *from,
                          uint64_t n, struct pl_err *err) PL_MUST_CHECK;

/* The step record of a layer: with the block tables of its pages. */
static inline const struct pl_device_buffer *dev_step(const struct dev_ops *d, uint32_t layer) {
    return pl_kv_is_windowed(&d->base.kv->shape, layer) ? &d->step_windowed : &d->step;
}

/* device_attention.c */
void dev_attention_init(struct dev_ops *d, const struct pl_ops_options *opt);
void dev_attention_deinit(struct dev_ops *d);
size_t dev_rope_index(struct pl_rope_kind kind);
/* Whether a rotation may wait for the attention after it. */
bool dev_whole(const struct dev_ops *d, const struct pl_launch_rope *r, struct pl_rope_kind kind);
/* Launches it on its own. */
enum pl_status dev_rope(struct pl_ops *o, const struct pl_launch_rope *r, struct pl_rope_kind kind, uint64_t bytes);
void dev_value_rows(const struct pl_ops *o, uint64_t *rows, uint64_t *skipped);
enum pl_status dev_settle_counts(struct pl_ops *o);
enum pl_status dev_attention(struct pl_ops *o, const struct pl_attention *p, const struct pl_activation *q,
                             struct pl_activation *out) PL_MUST_CHECK;

/* device_choice.c */
enum pl_status dev_choice_begin(struct dev_ops *d) PL_MUST_CHECK; /* before a step is collected */
void dev_choice_deinit(struct dev_ops *d);
enum pl_status dev_argmax(struct pl_ops *o, const struct pl_activation *x, size_t rows, uint32_t slot) PL_MUST_CHECK;
enum pl_status dev_draw(struct pl_ops *o, const struct pl_activation *x, size_t rows, const struct pl_draw *draws,
                        uint32_t slot) PL_MUST_CHECK;
enum pl_status dev_chosen(struct pl_ops *o, uint32_t slot, uint32_t *ids, size_t rows) PL_MUST_CHECK;

/* device_mma.c: products with rearranged weights. */
/* Whether w, not yet on the device, will be rearranged; then dev_load_strips does both. */
bool dev_wants_strips(const struct dev_ops *d, const struct pl_device_weight *w, enum pl_weight_use use);
enum pl_status dev_load_strips(struct dev_ops *d, const void *bytes, uint64_t n, struct dev_weight *w,
                               struct pl_err *err) PL_MUST_CHECK;
enum pl_status dev_mma_begin(struct dev_ops *d) PL_MUST_CHECK;
void dev_mma_deinit(struct dev_ops *d);
/* Matrices of one format, at most PL_MMA_MATRICES_MAX, that share x. */
enum pl_status dev_mma(struct pl_ops *o, enum pl_op op, size_t count, const struct pl_weight *const *w,
                       const struct pl_weight *const *bias, const struct pl_activation *x, struct pl_activation *const *y);
const char *dev_mma_name(const struct dev_ops *d, struct dev_format *f, size_t rows);
/* Whether w, as the file has it, meets few rows in cuda_mma. */
bool dev_mma_plain(const struct dev_ops *d, const struct pl_device_weight *w);
/* Whether the operation that makes y should make it ready for products as well; then dev_prepare does both. */
bool dev_prepares(const struct dev_ops *d, size_t rows, size_t cols);
enum pl_status dev_prepare(struct pl_ops *o, enum pl_op op, enum pl_prepare which, const struct pl_launch_prepare *p,
                           const struct pl_activation *y);

/* device_chain.c: all between two attentions. */
bool dev_chain_wanted(const struct dev_ops *d);                  /* asked for, or by default, and the device can */
enum pl_status dev_chain_begin(struct dev_ops *d) PL_MUST_CHECK; /* before a step is collected */
void dev_chain_deinit(struct dev_ops *d);
/* Whether this product, or with op glu these two gated, is what comes next in a chain, or begins one; dev_chain_take takes
 * it. */
bool dev_chain_fits(const struct dev_ops *d, enum pl_op op, size_t count, const struct pl_weight *const *w,
                    const struct pl_weight *const *bias, const struct pl_activation *x, struct pl_activation *const *y);
enum pl_status dev_chain_take(struct pl_ops *o, enum pl_op op, size_t count, const struct pl_weight *const *w,
                              const struct pl_weight *const *bias, const struct pl_activation *x,
                              struct pl_activation *const *y, bool gelu) PL_MUST_CHECK;
bool dev_chain_norm(struct dev_ops *d, const struct dev_norm *n); /* likewise, taken when it fits */
enum pl_status dev_chain_settle(struct pl_ops *o) PL_MUST_CHECK;  /* launches what waits; its last norm may still wait */
enum pl_status dev_norm(struct pl_ops *o, const struct dev_norm *n) PL_MUST_CHECK; /* launches it on its own */

/* device_layers.c: Mamba-2 layers of one row. Each of `hold`: whether it is held back; otherwise it is to be launched, after
 * dev_layers_settle. */
enum pl_status dev_layers_begin(struct dev_ops *d,
                                const struct pl_kv_store *kv) PL_MUST_CHECK; /* before a step is collected */
void dev_layers_deinit(struct dev_ops *d);
bool dev_layers_hold_norm(struct dev_ops *d, const struct dev_norm *n);
bool dev_layers_hold_products(struct dev_ops *d, enum pl_op op, struct pl_stream_kind kind, const struct pl_launch_stream *l,
                              struct dev_format *f, uint64_t bytes);
bool dev_layers_hold_ssm(struct dev_ops *d, const struct dev_step_launch *s);
enum pl_status
dev_layers_settle(struct pl_ops *o) PL_MUST_CHECK; /* launches what is held; a norm that waits goes on waiting */
/* What is held back would launch, on its own. */
enum pl_status dev_stream_launch(struct pl_ops *o, enum pl_op op, struct pl_stream_kind kind,
                                 const struct pl_launch_stream *l, struct dev_format *f, uint64_t bytes) PL_MUST_CHECK;
enum pl_status dev_step_launch(struct pl_ops *o, const struct dev_step_launch *s) PL_MUST_CHECK;

/* device_dense.c: products by cuBLASLt, in bf16 where half. */
#define DEV_DENSE_NAME "cuda/cublaslt/bf16"
enum pl_status dev_dense(struct pl_ops *o, enum pl_op op, size_t count, const struct pl_weight *const *w,
                         const struct pl_weight *const *bias, const struct pl_activation *x, struct pl_activation *const *y,
                         bool half) PL_MUST_CHECK;
bool dev_may_round(const struct dev_ops *d, const struct pl_activation *x); /* whether cuBLASLt could take x at all */
bool dev_rounds_norm(struct dev_ops *d, const struct dev_norm *n);          /* whether it was put off */
/* Launches it if it waits and its result is x, which then is bf16. */
enum pl_status dev_round(struct pl_ops *o, const struct pl_activation *x, size_t count,
                         const struct pl_weight *const *w) PL_MUST_CHECK;
enum pl_status dev_round_settle(struct pl_ops *o) PL_MUST_CHECK; /* launches it if it waits, in f32 */
enum pl_status dev_whole_again(struct pl_ops *o, struct pl_activation *a) PL_MUST_CHECK;
bool dev_takes_gated_rounded(const struct dev_ops *d, const struct pl_weight *const *w, const struct pl_weight *const *bias,
                             const struct pl_activation *x);
enum pl_status dev_gated_rounded(struct pl_ops *o, const struct pl_weight *const *w, enum pl_ops_act act,
                                 const struct pl_activation *x, struct pl_activation *const *y) PL_MUST_CHECK;

/* device_stream.c: products of one row, and the norm before them. */
/* The kernel of norms of so many rows by themselves. */
enum pl_status dev_norm_kernel(struct dev_ops *d, size_t rows, size_t cols, struct pl_kernel **out) PL_MUST_CHECK;
/* Whether the norm was put off. */
bool dev_norm_waits(struct dev_ops *d, const struct dev_norm *n);
/* Launches the norm or rotation that waits, if one does: every operation but a product begins with it. */
enum pl_status dev_settle(struct pl_ops *o) PL_MUST_CHECK;
/* Whether rearranged weights meet one row in cuda_stream: asked for, or faster. */
bool dev_streams_strips(const struct dev_ops *d);
/* Ends the question that is open for a product. */
enum pl_status dev_decide(struct dev_ops *d, enum pl_op op, const struct dev_weight *w, size_t rows,
                          enum pl_impl *taken) PL_MUST_CHECK;
/* What a product of so many rows would be given to. */
enum pl_impl dev_product(const struct dev_ops *d, const struct dev_weight *w, size_t rows);
enum pl_status dev_stream(struct pl_ops *o, enum pl_op op, size_t count, const struct pl_weight *const *w,
                          const struct pl_weight *const *bias, const struct pl_activation *x,
                          struct pl_activation *const *y) PL_MUST_CHECK;
const char *dev_stream_name(struct dev_format *f);
/* Whether the norm that waits is of x, and a product that writes y can do it. */
bool dev_takes_norm(const struct dev_ops *d, size_t count, const struct pl_activation *x, struct pl_activation *const *y);
bool dev_takes_gated(const struct pl_ops *o, const struct pl_weight *const *w, const struct pl_weight *const *bias,
                     const struct pl_activation *x);
enum pl_status dev_gated(struct pl_ops *o, const struct pl_weight *const *w, const struct pl_weight *const *bias,
                         enum pl_ops_act act, const struct pl_activation *x, struct pl_activation *const *y) PL_MUST_CHECK;

#endif
