/* internal - what the files of src/cpu share: the context, weights, the plan of one product. */
#ifndef PL_CPU_INTERNAL_H
#define PL_CPU_INTERNAL_H

#include <stdatomic.h>

#include "cpu/table.h"
#include "cpu/tile.h"

/* Activations whose largest magnitude is below this are taken as zeros: the inverse scale must stay finite. */
#define PL_CPU_ACT_TINY 1e-30f

/* Fewer rows than these, in a group and together: AVX-512, with the same bits and sooner (docs/perf/cpu.md, AMX). */
enum { CPU_AMX_GROUP_MIN = 8, CPU_AMX_ROWS_MIN = 32 };

/* Memory nodes that work is shared out to; threads of further ones take part with the first. */
enum { CPU_NODES = 16 };

/* How a weight is held and multiplied. */
enum cpu_kind {
    KIND_PLAIN, /* a view, rows widened to f32 one by one: any dtype, any table */
    KIND_FLOAT, /* a view of f32, f16 or bf16, vector products in f32 */
    KIND_Q8     /* packed into tiles (tile.h), activations in 8 bits per block of 32 */
};

struct pl_cpu_weight {
    struct pl_tensor t;
    size_t out, in;
    enum cpu_kind kind;
    const struct cpu_tile_format *format; /* KIND_Q8 */
    unsigned char *tiles;                 /* KIND_Q8: owned */
    float scale;                          /* PL_TERNARY */
    bool packed, met;                     /* KIND_Q8: the tiles are filled; a product has been asked for */
    struct cpu_tile_layout layout;
    size_t bytes_owned, bytes_read;
};

/* Rows [first, first + rows) of the activations, packed together at `data` (see tile.h). */
struct cpu_act_group {
    size_t first, rows;
    const unsigned char *data;
};

/* Weights that waited for their second product, bytes of tiles. */
struct cpu_packing {
    size_t total, done;
    uint64_t begun_ns, last_ns, drawn_ns; /* of the weights that are packed one after another */
    uint64_t patience_ns;                 /* before a line of progress is shown */
    bool shown;
};

/* What a context has reserved. */
struct cpu_space {
    unsigned char *acts; /* packed activations, in groups */
    struct cpu_act_group *groups;
    unsigned char *terms; /* activations in terms, in groups of 16 rows; only on tables that multiply floats so */
    struct cpu_act_group *term_groups;
    unsigned char *wide;    /* rows of a pass of a wide product; only where those are allowed */
    unsigned char *scratch; /* one piece per thread */
    float *factors;         /* [max_rows] scales of rows, of ternary products */
    float *partial;         /* attention states of a split context */
};

struct pl_cpu {
    const struct cpu_table *table; /* one of the tables, or `mixed` */
    struct cpu_table mixed;        /* after pl_cpu_override; isa is that of the products */
    struct pl_pool *pool;
    enum pl_isa isa;
    size_t max_rows, max_in, max_tokens;
    bool wide; /* products of many rows may be wide.h's */
    struct cpu_space space;
    size_t group_cap, scratch_each, partial_floats;
    struct cpu_moe_scratch *moe;
    struct cpu_heads_scratch *heads;
    struct cpu_expand_scratch *expand;
    _Atomic size_t next;            /* unit of work to be taken next */
    _Atomic size_t near[CPU_NODES]; /* the same for work that is shared out by memory node */
    struct cpu_packing packing;
    size_t later_bytes; /* weights of at least so many packed bytes wait for their second product */
    void (*when_packed)(void *user, const struct pl_tensor *t);
    void *when_packed_user;
};

/* ternary.c */
enum { CPU_TERNARY_IN_MAX = 1 << 17 }; /* 127 times as much is below 2^24 */
/* One row to q [in / 32][32], blocks `step` bytes apart; returns its scale. */
float cpu_ternary_row(const float *x, size_t in, int8_t *q, size_t step);
/* A group of rows in the packed form, every block's scale 1. */
void cpu_ternary_group(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst, float *factors);
/* A tile without packed products; scratch holds a row of bytes. y is the tile's first output. */
void cpu_ternary_plain(const struct pl_cpu_weight *w, size_t tile, const float *x, size_t stride, size_t rows, float *y,
                       size_t y_stride, void *scratch);
/* What packed products left: sums, to be scaled. */
void cpu_ternary_scale(const struct pl_cpu_weight *w, size_t tile, const float *factors, size_t rows, float *y,
                       size_t y_stride);

/* packing.c: a weight that waited has been packed since; a product packs nothing. */
void cpu_packing_done(struct pl_cpu *c, const struct pl_cpu_weight *w, uint64_t since_ns);
void cpu_packing_rests(struct pl_cpu *c);
void cpu_packing_end(struct pl_cpu *c);

/* moe.c */
void cpu_moe_free(struct cpu_moe_scratch *s);

/* latent.c */
void cpu_heads_free(struct cpu_heads_scratch *s);

/* latent_expand.c */
void cpu_expand_free(struct cpu_expand_scratch *s);

static inline void *cpu_thread_scratch(const struct pl_cpu *c, int index) {
    return c->space.scratch + c->scratch_each * (size_t)index;
}

static inline bool cpu_take_of(_Atomic size_t *next, size_t grain, size_t total, size_t *begin, size_t *end) {
    size_t b = atomic_fetch_add_explicit(next, grain, memory_order_relaxed);
    if (b >= total) return false;
    *begin = b;
    *end = PL_MIN(b + grain, total);
    return true;
}
/* Takes the next `grain` units below total; false when none is left. Which thread runs a unit never changes its bits. */
static inline bool cpu_take(struct pl_cpu *c, size_t grain, size_t total, size_t *begin, size_t *end) {
    return cpu_take_of(&c->next, grain, total, begin, end);
}
/* The same, of what is left an equal share for twice the threads, and `least` at last: neighbours stay together, so that
 * what a thread asked memory for ahead is its own, and no thread is long alone at the end. */
static inline bool cpu_take_share(_Atomic size_t *next, size_t threads, size_t least, size_t total, size_t *begin,
                                  size_t *end) {
    size_t b = atomic_load_explicit(next, memory_order_relaxed), n;
    do {
        if (b >= total) return false;
        n = PL_MIN(PL_MAX(least, (total - b) / (2 * threads)), total - b);
    } while (!atomic_compare_exchange_weak_explicit(next, &b, b + n, memory_order_relaxed, memory_order_relaxed));
    *begin = b;
    *end = b + n;
    return true;
}

/* Tiles [begin, end) of `tiles` lie on this memory node: whoever packs them and whoever multiplies them begins with
 * those of its own node, so the first touch of a page is by a thread that will read it. One node: all of them. */
static inline int cpu_nodes(const struct pl_cpu *c) { return PL_MIN(pl_pool_nodes(c->pool), (int)CPU_NODES); }
static inline void cpu_near(const struct pl_cpu *c, size_t tiles, int node, size_t *begin, size_t *end) {
    size_t n = (size_t)cpu_nodes(c);
    *begin = tiles * (size_t)node / n;
    *end = tiles * ((size_t)node + 1) / n;
}
/* The node whose share the thread takes k-th: its own first. */
static inline int cpu_kth_node(const struct pl_cpu *c, int index, int k) {
    return (pl_pool_node(c->pool, index) + k) % cpu_nodes(c);
}
static inline void cpu_near_start(struct pl_cpu *c) {
    for (int i = 0; i < cpu_nodes(c); i++) atomic_store_explicit(&c->near[i], 0, memory_order_relaxed);
}

#endif
