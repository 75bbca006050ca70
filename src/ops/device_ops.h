/* device_ops - the records of a device backend (inside src/ops only). */
#ifndef PL_OPS_DEVICE_OPS_H
#define PL_OPS_DEVICE_OPS_H

#include "ops/cuda_dense.h"
#include "ops/cuda_fast.h"
#include "ops/impl.h"
#include "ops/launch.h"

/* One weight format and the kernels made for it. */
struct dev_format {
    struct dev_format *next;
    struct pl_device_weight w; /* no data: dtype, bits, group, scales' type */
    struct pl_kernel linear[PL_TILE_COUNT], embed, gemv[PL_GEMV_ROWS_MAX], unpack;
    char names[PL_TILE_COUNT][48], gemv_names[PL_GEMV_ROWS_MAX][48];
};
struct dev_weight {
    struct pl_weight base;
    struct pl_device_weight w; /* a vector: data only */
    struct dev_format *format; /* NULL for vectors */
    uint64_t bytes;            /* read by one product */
};
struct dev_activation {
    struct pl_activation base;
    struct pl_device_buffer data;
};
struct dev_kv {
    struct pl_kv_store base;
    struct pl_device_buffer *sides; /* [layer][K, V] */
    size_t side_count;
    struct pl_kernel attention, rope[16];
    struct pl_split_attention split; /* made when first used */
    struct pl_kernel tiles;          /* likewise */
};
struct dev_rope {
    struct pl_rope base;
    struct pl_device_buffer cos_sin;
};
struct dev_ops {
    struct pl_ops base;
    struct pl_kernels ks;
    struct pl_kernel elementwise[PL_EW_COUNT], norm, add_norm, layer_norm[2]; /* without and with bias: made when used */
    struct dev_format *formats;
    struct pl_device_buffer step;
    uint32_t *staging, stride, longest; /* longest sequence of the step, in tokens */
    uint64_t step_entries;
    struct pl_device_event uploaded;
    bool upload_pending;
    struct pl_device_buffer parts, lse; /* scratch of split attention */
    struct pl_dense dense;
    bool exact;                       /* asked for: products never take dense */
    uint64_t dense_cols, dense_bytes; /* widest input, most unpacked weights, of what it may take */
};

#endif
