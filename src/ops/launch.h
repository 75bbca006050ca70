/* launch - the portable kernels as functions: which values specialise each, its grid, its arguments.
 *
 * struct pl_kernels is one device with its compiler cache and one stream. A struct pl_kernel is one specialised kernel,
 * held by whoever uses it; making one may compile. Launches are enqueued at once, or, between pl_kernels_record_begin
 * and _end on a device with graphs, collected and replayed as a graph: the graph is reused only when the collected list
 * equals, byte for byte, the one it was made from.
 * Every launch counts twice: on the host, and on the device by the kernel itself. The counts stand in a record that stays
 * until the device is closed, whatever becomes of the kernel. */
#ifndef PL_OPS_LAUNCH_H
#define PL_OPS_LAUNCH_H

#include "device/device.h"
#include "device/gemm.h"
#include "jit/jit.h"
#include "kernels/args/args.h"
#include "tensor/tensor.h"

/* One kernel as the witness names it. */
struct pl_kernel_record {
    struct pl_kernel_record *next;
    const struct pl_jit_kernel *jit; /* NULL: a call of the vendor's library */
    char name[48], symbol[48];
    struct pl_buf variant; /* its specialisation values */
    struct pl_device_buffer counter;
    uint64_t eager, graph; /* launches by the host */
    bool counted;          /* the kernel counts as well */
    uint32_t *values;      /* SPARSE_V: the counter's words as of the last fetch, in memory the device writes; else NULL */
};
struct pl_kernel {
    const struct pl_jit_kernel *jit; /* NULL: not made yet */
    struct pl_device_buffer counter; /* its record's */
    struct pl_kernel_record *record;
    uint32_t group;
    char name[48]; /* "linear/q4_0/r4" */
};

/* Servers meet many kinds of steps: each number of sequences, each size of the attention's grid. Which were met: by hash. */
enum { PL_GRAPHS_MAX = 256, PL_GRAPHS_MET = 1024 };
struct pl_kernel_graph {
    struct pl_buf list;
    struct pl_device_graph graph;
    uint64_t hash, used;
};
struct pl_kernels {
    struct pl_device *device;
    struct pl_jit *jit;
    struct pl_gemm *gemm; /* NULL: not opened */
    struct pl_device_stream stream;
    uint32_t wide;                     /* group size of elementwise kernels */
    uint32_t norm;                     /* of norms */
    uint32_t head;                     /* of rope and attention */
    uint32_t team, linear;             /* threads that share an output, group size of products */
    bool recording, graphs, uncounted; /* uncounted: kernels made from now on do not count on the device */
    bool every_lane; /* tests: kernels made from now on have each lane tell what one tells for its warp, which racecheck
                        needs */
    bool fixed;      /* products add in an order that no number of rows changes (cuda_mma.h, cuda_fast.h) */
    bool planning;   /* kernels are only noted in `wanted`, launches do not happen */
    struct pl_jit_spec *wanted;
    size_t wanted_count, wanted_cap;
    struct pl_kernel_record *records;
    const char *skipped;      /* tests: launches of the kernel of this name do not happen */
    bool overlap;             /* a launch may start while the one before it ends: kernels wait in count_launch */
    uint32_t collected, part; /* launches in the list; which part of the step it is */
    struct pl_buf list;
    struct pl_kernel_graph cache[PL_GRAPHS_MAX];
    uint64_t met[PL_GRAPHS_MET];
    uint64_t clock, graph_launches, graphs_made, graphs_ns, launched_once;
    struct pl_err err; /* of the last failed launch */
};
enum pl_status pl_kernels_open(enum pl_device_kind kind, int index, const struct pl_jit_options *jit, struct pl_kernels *out,
                               struct pl_err *err) PL_MUST_CHECK;
void pl_kernels_close(struct pl_kernels *ks);
void pl_kernels_record_begin(struct pl_kernels *ks);
void pl_kernels_record_whole(struct pl_kernels *ks); /* after begin: one graph, the device has work meanwhile */
enum pl_status pl_kernels_record_end(struct pl_kernels *ks) PL_MUST_CHECK;

void pl_kernels_sizes(struct pl_kernels *ks); /* group sizes for ks->device */
void pl_kernels_plan_begin(struct pl_kernels *ks);
/* Compiles what was asked for since, in parallel; kernels made from now on find it. */
enum pl_status pl_kernels_plan_end(struct pl_kernels *ks, struct pl_err *err) PL_MUST_CHECK;

enum pl_status pl_kernel_make(struct pl_kernels *ks, const struct pl_jit_spec *spec, uint32_t group, const char *name,
                              struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
void pl_kernel_free(struct pl_kernels *ks, struct pl_kernel *k);
/* What the kernel counted itself since the last reset. */
enum pl_status pl_kernel_counted(struct pl_kernels *ks, const struct pl_kernel *k, uint64_t *launches,
                                 struct pl_err *err) PL_MUST_CHECK;
/* All counts to zero, on the device in the order of the stream. */
void pl_kernels_reset_counts(struct pl_kernels *ks);
/* Enqueues copies of what kernels counted of rows of values; pl_kernels_values sums those that have arrived. */
enum pl_status pl_kernels_fetch_values(struct pl_kernels *ks) PL_MUST_CHECK;
void pl_kernels_values(const struct pl_kernels *ks, uint64_t *rows, uint64_t *skipped);
enum pl_status pl_kernel_record_counted(struct pl_kernels *ks, const struct pl_kernel_record *r, uint64_t *launches,
                                        struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_kernel_launch(struct pl_kernels *ks, struct pl_kernel *k, uint32_t gx, uint32_t gy, uint32_t shared_bytes,
                                const struct pl_device_arg *args, size_t count) PL_MUST_CHECK;

/* A product of the vendor's library (ks->gemm is open), enqueued or collected like a launch. */
enum pl_status pl_kernel_gemm(struct pl_kernels *ks, const struct pl_gemm_call *c) PL_MUST_CHECK;

/* A weight on the device; scales and biases of MLX weights in buffers of their own. */
struct pl_device_weight {
    enum pl_dtype dtype;
    uint64_t rows, cols, row_bytes;
    struct pl_device_buffer data, scales, biases;
    enum pl_dtype scale_dtype;
    uint32_t bits, group;
    bool strips; /* data was rearranged for kernels/cuda/mma.k.c */
};
void pl_jit_set_weight(struct pl_jit_spec *s, const struct pl_device_weight *w);
enum pl_status pl_jit_set_kv(struct pl_jit_spec *s, enum pl_dtype dtype, size_t head_dim, size_t page_tokens) PL_MUST_CHECK;

enum pl_elementwise {
    PL_EW_ADD,
    PL_EW_SILU, /* gated */
    PL_EW_GELU_TANH,
    PL_EW_RELU2,
    PL_EW_SILU_ALONE, /* not gated */
    PL_EW_GELU_TANH_ALONE,
    PL_EW_RELU2_ALONE,
    PL_EW_SCALE,
    PL_EW_GATE_ROWS,
    PL_EW_SOFTCAP,
    PL_EW_GATHER,
    PL_EW_ARGMAX,
    PL_EW_RARE, /* from here on: made when used */
    PL_EW_GELU_ERF = PL_EW_RARE,
    PL_EW_GELU_ERF_ALONE,
    PL_EW_PRODUCT, /* gated by the values themselves, */
    PL_EW_SIGMOID, /* by their sigmoid */
    PL_EW_COUNT
};
enum pl_status pl_kernel_elementwise(struct pl_kernels *ks, enum pl_elementwise which, struct pl_kernel *out,
                                     struct pl_err *err) PL_MUST_CHECK;
/* Few rows are shared by PL_PICK_SLICES groups each, which leave [rows, PL_PICK_SLICES, 2] words to join. */
enum { PL_PICK_SLICES = 16, PL_PICK_ROWS_FEW = 16 };
enum pl_picking { PL_PICK_ROWS, PL_PICK_PART, PL_PICK_JOIN, PL_PICK_COUNT };
enum pl_status pl_kernel_pick(struct pl_kernels *ks, enum pl_picking which, struct pl_kernel *out,
                              struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_kernel_norm(struct pl_kernels *ks, bool add, struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_kernel_layer_norm(struct pl_kernels *ks, bool bias, struct pl_kernel *out,
                                    struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_kernel_embed(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_kernel *out,
                               struct pl_err *err) PL_MUST_CHECK;
enum { PL_TILE_COUNT = 4 }; /* 1, 2, 4 or 8 rows share an unpacked weight */
void pl_kernel_linear_name(const struct pl_kernels *ks, const struct pl_device_weight *w, uint32_t tile, char out[48]);
uint32_t pl_tile_of(size_t rows, uint32_t *tile_rows); /* index of the tile for so many rows */
enum pl_status pl_kernel_linear(struct pl_kernels *ks, const struct pl_device_weight *w, uint32_t tile,
                                struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
struct pl_rope_kind {
    bool q_norm, k_norm, rope, halves;
};
enum pl_status pl_kernel_rope(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens,
                              struct pl_rope_kind kind, struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
/* The same on NVIDIA devices, with a warp for each head, where it takes the shape (kernels/cuda/rope_warps.k.c). */
bool pl_rope_by_warps(const struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, struct pl_rope_kind kind,
                      size_t rope_dim);
enum pl_status pl_kernel_rope_warps(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens,
                                    struct pl_rope_kind kind, struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
/* value_dim: as head_dim, or so many first numbers of each value. */
/* Caches in few bits, for kernels that read f16: kernels/widen.k.c. */
enum pl_status pl_kernel_widen(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens,
                               struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_kernel_turn_back(struct pl_kernels *ks, size_t head_dim, struct pl_kernel *out,
                                   struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_kernel_attention(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t value_dim,
                                   size_t page_tokens, bool sinks, bool sparse, struct pl_kernel *out,
                                   struct pl_err *err) PL_MUST_CHECK;

/* Buffers are not changed by a launch call, what they hold may be. */
#define pl_buffer_in const struct pl_device_buffer
enum pl_status pl_launch_add(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *add, size_t rows,
                             size_t cols) PL_MUST_CHECK;
enum pl_status pl_launch_glu(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *gate, pl_buffer_in *up,
                             pl_buffer_in *y, size_t rows, size_t cols) PL_MUST_CHECK;
enum pl_status pl_launch_act(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *gate, pl_buffer_in *y, size_t rows,
                             size_t cols) PL_MUST_CHECK;
/* softcap and scale: the one number each has. */
enum pl_status pl_launch_softcap(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, size_t rows, size_t cols,
                                 float cap) PL_MUST_CHECK;
enum pl_status pl_launch_gather(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *step,
                                uint32_t stride, pl_buffer_in *y, size_t rows, size_t cols) PL_MUST_CHECK;
enum pl_status pl_launch_pick(struct pl_kernels *ks, enum pl_picking which, struct pl_kernel *k, pl_buffer_in *x,
                              pl_buffer_in *best, size_t rows, size_t cols) PL_MUST_CHECK;
enum pl_status pl_launch_argmax(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *best, size_t rows,
                                size_t cols) PL_MUST_CHECK;
enum pl_status pl_launch_norm(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *add,
                              pl_buffer_in *w, pl_buffer_in *y, size_t rows, size_t cols, float eps,
                              float offset) PL_MUST_CHECK;
enum pl_status pl_launch_layer_norm(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *w,
                                    pl_buffer_in *bias, pl_buffer_in *y, size_t rows, size_t cols, float eps) PL_MUST_CHECK;
enum pl_status pl_launch_embed(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_device_weight *w,
                               pl_buffer_in *step, uint32_t stride, pl_buffer_in *chosen, pl_buffer_in *x, size_t rows,
                               float scale) PL_MUST_CHECK;
enum pl_status pl_launch_linear(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_device_weight *w,
                                pl_buffer_in *x, pl_buffer_in *bias, pl_buffer_in *y, size_t rows, uint32_t tile_rows,
                                bool add) PL_MUST_CHECK;
struct pl_launch_rope {
    pl_buffer_in *q, *k, *v, *q_norm, *k_norm, *cos_sin, *step, *k_pages, *v_pages;
    uint32_t rows, heads, kv_heads, rope_dim, stride;
    float norm_eps, norm_offset;
};
enum pl_status pl_launch_rope(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_rope *r) PL_MUST_CHECK;
struct pl_launch_attention {
    pl_buffer_in *q, *k_pages, *v_pages, *step, *out;
    uint32_t rows, heads, kv_heads, window, stride;
    float scale, softcap;
    pl_buffer_in *sinks; /* [heads] or NULL; the portable kernel's */
    float least;         /* with SPARSE_V; the portable kernel's */
};
/* Tokens [first, end) of the sequence at row0 to wide_k and wide_v; rows [row0, row0 + rows) of a->out turned back. */
enum pl_status pl_launch_widen(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_attention *a,
                               uint32_t row0, uint32_t first, uint32_t end, pl_buffer_in *wide_k,
                               pl_buffer_in *wide_v) PL_MUST_CHECK;
enum pl_status pl_launch_turn_back(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_attention *a,
                                   uint32_t row0, uint32_t rows) PL_MUST_CHECK;
enum pl_status pl_launch_attention(struct pl_kernels *ks, struct pl_kernel *k,
                                   const struct pl_launch_attention *a) PL_MUST_CHECK;

#endif
