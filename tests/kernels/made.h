/* made - random weights of every type for kernel tests, on the host and on the device. */
#ifndef MADE_H
#define MADE_H

#include "kit.h"
#include "tensor/iq.h"

struct made {
    struct pl_tensor t;
    void *data, *scales, *biases;
};

static inline uint16_t small_f16(void) { return pl_f32_to_f16((kit_f32() + 2.0f) * 0.01f); }

/* Random bytes, with every scale field made a sensible f16. */
static inline void fill_blocks(enum pl_dtype dtype, uint8_t *p, size_t blocks) {
    static const struct {
        enum pl_dtype dtype;
        int first, second;
    } fields[] = {{PL_Q4_0, 0, -1},    {PL_Q4_1, 0, 2},    {PL_Q5_0, 0, -1},   {PL_Q5_1, 0, 2},     {PL_Q8_0, 0, -1},
                  {PL_Q2_K, 80, 82},   {PL_Q3_K, 108, -1}, {PL_Q4_K, 0, 2},    {PL_Q5_K, 0, 2},     {PL_Q6_K, 208, -1},
                  {PL_IQ4_NL, 0, -1},  {PL_IQ4_XS, 0, -1}, {PL_TQ1_0, 52, -1}, {PL_TQ2_0, 64, -1},  {PL_IQ1_S, 0, -1},
                  {PL_IQ2_XXS, 0, -1}, {PL_IQ2_XS, 0, -1}, {PL_IQ2_S, 0, -1},  {PL_IQ3_XXS, 0, -1}, {PL_IQ3_S, 0, -1}};
    size_t stride = pl_dtype_info(dtype)->block_bytes;
    for (size_t i = 0; i < blocks * stride; i++) p[i] = (uint8_t)kit_u32();
    for (size_t b = 0; b < blocks; b++) {
        for (size_t f = 0; f < PL_COUNT_OF(fields); f++) {
            if (fields[f].dtype != dtype) continue;
            uint16_t h = small_f16();
            memcpy(p + b * stride + fields[f].first, &h, 2);
            h = small_f16();
            if (fields[f].second >= 0) memcpy(p + b * stride + fields[f].second, &h, 2);
        }
        if (dtype == PL_IQ1_M) pl_iq1_m_put_d(p + b * stride, small_f16());
        if (dtype == PL_MXFP4) p[b * stride] = (uint8_t)(118 + kit_u32() % 8);
    }
}

static inline void fill_plain(enum pl_dtype dtype, void *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float v = kit_f32();
        uint16_t h = dtype == PL_F16 ? pl_f32_to_f16(v) : pl_f32_to_bf16(v);
        if (dtype == PL_F32) memcpy((char *)p + 4 * i, &v, 4);
        if (dtype != PL_F32) memcpy((char *)p + 2 * i, &h, 2);
    }
}

static inline struct made make_tensor(enum pl_dtype dtype, size_t rows, size_t cols, uint32_t bits, uint32_t group,
                                      enum pl_dtype scale_dtype) {
    struct made m = {.t = {.name = "w", .dtype = dtype, .ndim = 2, .shape = {rows, cols, 1, 1}}};
    uint64_t row_bytes = cols * bits / 8;
    if (dtype != PL_MLX) assert_true(pl_dtype_row_bytes(dtype, cols, &row_bytes));
    m.t.bytes = rows * row_bytes;
    m.t.data = m.data = malloc(m.t.bytes);
    if (dtype == PL_F32 || dtype == PL_F16 || dtype == PL_BF16) {
        fill_plain(dtype, m.data, rows * cols);
    } else if (dtype == PL_MLX) {
        size_t n = rows * (cols / group);
        for (size_t i = 0; i < m.t.bytes; i++) ((uint8_t *)m.data)[i] = (uint8_t)kit_u32();
        m.t.scales = m.scales = malloc(n * 4);
        m.t.biases = m.biases = malloc(n * 4);
        fill_plain(scale_dtype, m.scales, n);
        fill_plain(scale_dtype, m.biases, n);
        m.t.scale_dtype = scale_dtype;
        m.t.bits = bits;
        m.t.group = group;
    } else {
        fill_blocks(dtype, m.data, m.t.bytes / pl_dtype_info(dtype)->block_bytes);
    }
    return m;
}

static inline struct pl_device_weight upload(const struct made *m) {
    const struct pl_tensor *t = &m->t;
    struct pl_device_weight w = {.dtype = t->dtype, .rows = t->shape[0], .cols = t->shape[1]};
    w.row_bytes = t->bytes / w.rows;
    w.data = kit_up(t->data, t->bytes);
    if (t->dtype == PL_MLX) {
        size_t n = w.rows * (w.cols / t->group) * pl_dtype_info(t->scale_dtype)->block_bytes;
        w.scales = kit_up(t->scales, n);
        w.biases = kit_up(t->biases, n);
        w.scale_dtype = t->scale_dtype;
        w.bits = t->bits;
        w.group = t->group;
    }
    return w;
}

static inline void made_free(struct made *m, struct pl_device_weight *w) {
    kit_drop(&w->data);
    if (m->t.dtype == PL_MLX) kit_drop(&w->scales), kit_drop(&w->biases);
    free(m->data), free(m->scales), free(m->biases);
}

#endif
