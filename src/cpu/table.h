/* table - what one instruction set offers to cpu.c: serial kernels over ranges, no threads, no allocation.
 *
 * cpu.c checks, splits the work by output element and calls these from all threads; so every kernel must give the same
 * bits for an element whatever range it is called with. */
#ifndef PL_CPU_TABLE_H
#define PL_CPU_TABLE_H

#include "cpu/cpu.h"
#include "cpu/ssm.h"

enum {
    ATTN_CHUNK = 128,     /* tokens of one softmax state, at absolute multiples: the split never changes a bit */
    ATTN_GROUP = 16,      /* tokens converted at a time */
    ATTN_QUERIES = 64,    /* query vectors of one tile */
    ATTN_HEAD_MAX = 1024, /* largest head size */
    SSM_BLOCK = 64,       /* outputs of a state-space layer that one thread computes together */
    SSM_HEAD_MAX = 256    /* largest head of one */
};

/* One tile of attention work: queries [first, first+count) of (sequence, KV head), query = row * R + r. */
struct cpu_attn_tile {
    const struct pl_cpu_attention *a;
    const struct pl_cpu_seq *seq;
    size_t kv_head, first, count;
};
/* The softmax state of one query over a span of tokens: o is not divided by l yet. */
struct cpu_attn_state {
    float m, l; /* m = -inf: nothing seen */
};

struct pl_cpu_weight;
struct cpu_act_group;
struct wide_rows;
struct wide_scratch;

struct cpu_table {
    enum pl_isa isa;
    size_t group_max; /* rows of a group of packed activations */
    float (*dot)(const float *a, const float *b, size_t n);
    /* Weights of f32, f16 or bf16: output rows [16*tile, +16) for rows [begin, end) of the activations; scratch holds
     * 16 rows of weights as f32. */
    void (*float_tile)(const struct pl_cpu_matmul *m, size_t i, size_t tile, size_t begin, size_t end, void *scratch);
    /* Both NULL on a table without 8-bit products. */
    void (*quantize)(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst);
    void (*q8_tile)(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate);
    /* NULL, or n groups at once, y being row 0 of the activations; the same bits as q8_tile for each. */
    void (*q8_groups)(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                      size_t y_stride, const float *bias, bool accumulate);
    /* Both NULL, or fine products with inputs of 16 bits (else they take two terms of 8): x of a group put into dst,
     * FINE_ROW_BYTES for a block of a row; a tile by one group. */
    void (*fine_inputs)(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst);
    void (*fine_tile)(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                      const float *bias, bool accumulate);
    /* Both NULL, or f32, f16 and bf16 weights by terms: x of up to 16 rows put into dst, 6 bytes for an input (inputs in
     * blocks of 32); a tile by n groups of them, y being row 0 of the activations. For any number of rows. */
    void (*float_terms)(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst);
    void (*float_groups)(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                         size_t y_stride, const float *bias, bool accumulate);
    /* Both NULL, or products of many rows in bf16 (wide.h): the rows of a group of a pass, x being the first of them,
     * put where they belong; tiles [tile, tile + tiles) by the rows of a pass, y being its row 0. */
    void (*wide_group)(const float *x, size_t stride, size_t in, const struct wide_rows *to, size_t group);
    void (*wide_tiles)(const struct pl_cpu_weight *w, size_t tile, size_t tiles, const struct wide_rows *rows, float *y,
                       size_t y_stride, const float *bias, bool accumulate, struct wide_scratch *s);
    void (*norm)(const struct pl_cpu_norm *n, size_t begin, size_t end);
    void (*add)(float *x, const float *add, size_t cols);
    void (*scale)(float *x, float scale, size_t cols);
    void (*glu)(enum pl_act act, const float *gate, const float *up, float *y, size_t cols);
    void (*softcap)(float *x, size_t cols, float cap);
    /* Row `row` of sequence s, all heads; tmp has head_dim floats. */
    void (*rope_append)(const struct pl_cpu_rope_append *a, const struct pl_cpu_seq *s, size_t row, float *tmp);
    /* One chunk of tokens for a tile: states [count], o [count, o_stride]. scratch: pl_cpu_attn_scratch() bytes. */
    void (*attn_chunk)(const struct cpu_attn_tile *t, size_t chunk, struct cpu_attn_state *states, float *o, size_t o_stride,
                       void *scratch);
    /* (m, l, o) absorbs (m2, l2, o2): the fixed-order merge. */
    void (*attn_merge)(struct cpu_attn_state *s, float *o, const struct cpu_attn_state *s2, const float *o2, size_t n);
    void (*attn_finish)(const struct cpu_attn_state *s, const float *o, float *out, size_t n);
    /* All rows of one sequence: channels, or heads, [begin, end); one row, all groups. */
    void (*conv)(const struct pl_cpu_conv *p, const struct pl_cpu_state_seq *s, size_t begin, size_t end);
    void (*ssm)(const struct pl_cpu_ssm *p, const struct pl_cpu_state_seq *s, size_t begin, size_t end);
    void (*delta)(const struct pl_cpu_delta *p, const struct pl_cpu_state_seq *s, size_t head);
    void (*gated_norm)(const struct pl_cpu_gated_norm *p, size_t row);
};

extern const struct cpu_table cpu_table_scalar, cpu_table_avx2, cpu_table_avx_vnni, cpu_table_avx512, cpu_table_neon,
    cpu_table_i8mm;

static inline size_t cpu_head_pad(size_t d) { return (d + 15) & ~(size_t)15; }
static inline size_t cpu_value_dim(const struct pl_cpu_kv *kv) { return kv->value_dim > 0 ? kv->value_dim : kv->head_dim; }

#endif
