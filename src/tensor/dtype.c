#include "tensor/dtype.h"

#include <string.h>

#include "base/check.h"

static const struct pl_dtype_info dtype_table[PL_DTYPE_COUNT] = {
#define ROW(name, text, elems, bytes, ggml) [name] = {text, elems, bytes, ggml},
    PL_DTYPE_LIST(ROW)
#undef ROW
};

/* Names by GGUF type number, including the ones plumb cannot read and the ones GGUF has withdrawn. */
static const char *const ggml_names[] = {
    "f32",      "f16",    "q4_0",  "q4_1", "q4_2",       "q4_3",       "q5_0",   "q5_1",    "q8_0",  "q8_1",     "q2_k",
    "q3_k",     "q4_k",   "q5_k",  "q6_k", "q8_k",       "iq2_xxs",    "iq2_xs", "iq3_xxs", "iq1_s", "iq4_nl",   "iq3_s",
    "iq2_s",    "iq4_xs", "i8",    "i16",  "i32",        "i64",        "f64",    "iq1_m",   "bf16",  "q4_0_4_4", "q4_0_4_8",
    "q4_0_8_8", "tq1_0",  "tq2_0", "i2_s", "iq4_nl_4_8", "iq4_nl_8_8", "mxfp4",  "nvfp4",   "q1_0",  "q2_0",
};

const struct pl_dtype_info *pl_dtype_info(enum pl_dtype t) {
    PL_ASSERT((unsigned)t < PL_DTYPE_COUNT);
    return &dtype_table[t];
}

const char *pl_dtype_name(enum pl_dtype t) { return (unsigned)t < PL_DTYPE_COUNT ? dtype_table[t].name : "?"; }

bool pl_dtype_from_name(const char *name, enum pl_dtype *out) {
    for (int i = 0; i < PL_DTYPE_COUNT; i++) {
        if (strcmp(name, dtype_table[i].name) != 0) continue;
        *out = (enum pl_dtype)i;
        return true;
    }
    return false;
}

bool pl_dtype_from_ggml(uint32_t ggml_type, enum pl_dtype *out) {
    for (int i = 0; i < PL_DTYPE_COUNT; i++) {
        if (dtype_table[i].ggml_type < 0 || (uint32_t)dtype_table[i].ggml_type != ggml_type) continue;
        *out = (enum pl_dtype)i;
        return true;
    }
    return false;
}

const char *pl_ggml_type_name(uint32_t ggml_type) {
    return ggml_type < PL_COUNT_OF(ggml_names) ? ggml_names[ggml_type] : NULL;
}

bool pl_dtype_row_bytes(enum pl_dtype t, uint64_t cols, uint64_t *bytes) {
    const struct pl_dtype_info *d = pl_dtype_info(t);
    if (d->block_bytes == 0 || cols % d->block_elems != 0) return false;
    return pl_mul_u64(cols / d->block_elems, d->block_bytes, bytes);
}
