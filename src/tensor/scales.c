/* Scales of quantised blocks that are NaN or infinite: one of them poisons every token. */
#include "tensor/dequant.h"
#include "tensor/iq.h"
#include "tensor/quant.h"

/* Where the f16 scales stand in a block; -1: none. */
struct scale_fields {
    int16_t first, second;
};

static struct scale_fields fields_of(enum pl_dtype t) {
    switch (t) {
    case PL_Q4_0:
    case PL_Q5_0:
    case PL_Q8_0:
    case PL_IQ4_NL:
    case PL_IQ4_XS:
    case PL_IQ1_S:
    case PL_IQ2_XXS:
    case PL_IQ2_XS:
    case PL_IQ2_S:
    case PL_IQ3_XXS:
    case PL_IQ3_S: return (struct scale_fields){0, -1};
    case PL_Q4_1:
    case PL_Q5_1:
    case PL_Q4_K:
    case PL_Q5_K: return (struct scale_fields){0, 2};
    case PL_Q2_K: return (struct scale_fields){80, 82};
    case PL_Q3_K: return (struct scale_fields){108, -1};
    case PL_Q6_K: return (struct scale_fields){208, -1};
    case PL_TQ1_0: return (struct scale_fields){52, -1};
    case PL_TQ2_0: return (struct scale_fields){64, -1};
    default: return (struct scale_fields){-1, -1};
    }
}

enum { MX_EXPONENT_MAX = 252 }; /* 6 * 2^(252 - 127) is the last that fits f32; 255 means NaN */

static bool bad_f16(uint16_t h) { return (h & 0x7C00u) == 0x7C00u; }

/* Index of the first block with a bad scale, or count; p points at the first block's scales. No early exit inside a
 * run: the loop stays simple. Blocks with one scale look at it twice. */
static uint64_t first_bad_f16(const uint8_t *p, uint64_t count, uint32_t stride, uint32_t second) {
    enum { RUN = 256 };
    for (uint64_t at = 0; at < count; at += RUN) {
        const uint8_t *b = p + at * stride;
        uint64_t n = PL_MIN(count - at, (uint64_t)RUN);
        unsigned bad = 0;
        for (uint64_t i = 0; i < n; i++)
            bad |= (unsigned)bad_f16(pl_load_u16(b + i * stride)) | (unsigned)bad_f16(pl_load_u16(b + i * stride + second));
        if (bad == 0) continue;
        while (!bad_f16(pl_load_u16(p + at * stride)) && !bad_f16(pl_load_u16(p + at * stride + second))) at++;
        return at;
    }
    return count;
}

uint64_t pl_scales_first_bad(enum pl_dtype dtype, const void *src, uint64_t blocks) {
    const uint8_t *p = src;
    uint32_t stride = pl_dtype_info(dtype)->block_bytes;
    if (dtype == PL_MXFP4) {
        uint64_t i = 0;
        while (i < blocks && p[i * stride] <= MX_EXPONENT_MAX) i++;
        return i;
    }
    if (dtype == PL_IQ1_M) {
        uint64_t i = 0;
        while (i < blocks && !bad_f16(pl_iq1_m_d(p + i * stride))) i++;
        return i;
    }
    struct scale_fields f = fields_of(dtype);
    if (f.first < 0) return blocks;
    return first_bad_f16(p + f.first, blocks, stride, f.second < 0 ? 0 : (uint32_t)(f.second - f.first));
}

/* The same for an array of plain scales (MLX). */
static uint64_t first_bad_plain(enum pl_dtype t, const uint8_t *p, uint64_t count) {
    uint32_t exponent = t == PL_F16 ? 0x7C00u : t == PL_BF16 ? 0x7F80u : 0x7F800000u;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t u;
        if (t == PL_F32)
            memcpy(&u, p + 4 * i, 4);
        else
            u = pl_load_u16(p + 2 * i);
        if ((u & exponent) == exponent) return i;
    }
    return count;
}

static enum pl_status check_mlx(const struct pl_tensor *t, uint64_t begin, uint64_t end, struct pl_err *err) {
    uint64_t groups = pl_tensor_cols(t) / t->group, size = pl_dtype_info(t->scale_dtype)->block_bytes,
             count = (end - begin) * groups;
    const uint8_t *arrays[2] = {t->scales, t->biases};
    for (int i = 0; i < 2; i++) {
        uint64_t bad = first_bad_plain(t->scale_dtype, arrays[i] + begin * groups * size, count);
        if (bad == count) continue;
        PL_FAIL(err, PL_FORMAT, "tensor %s: row %llu, group %llu has a %s that is NaN or infinite; expected a finite number",
                t->name, (unsigned long long)(begin + bad / groups), (unsigned long long)(bad % groups),
                i == 0 ? "scale" : "bias");
    }
    return PL_OK;
}

static enum pl_status check_exponents(const struct pl_tensor *t, uint64_t begin, uint64_t end, struct pl_err *err) {
    uint64_t groups = pl_tensor_cols(t) / t->group;
    const uint8_t *p = t->scales;
    for (uint64_t i = begin * groups; i < end * groups; i++)
        if (p[i] > MX_EXPONENT_MAX)
            PL_FAIL(err, PL_FORMAT, "tensor %s: row %llu, group %llu has the exponent %u; at most %d was expected", t->name,
                    (unsigned long long)(i / groups), (unsigned long long)(i % groups), p[i], MX_EXPONENT_MAX);
    return PL_OK;
}

enum pl_status pl_tensor_check_scales_rows(const struct pl_tensor *t, uint64_t begin, uint64_t end, struct pl_err *err) {
    PL_ASSERT(begin <= end && end <= pl_tensor_rows(t));
    if (t->dtype == PL_MLX) return check_mlx(t, begin, end, err);
    if (t->dtype == PL_MLX_MXFP4) return check_exponents(t, begin, end, err);
    const struct pl_dtype_info *d = pl_dtype_info(t->dtype);
    if (d->block_elems == 1) return PL_OK;
    uint64_t per_row = pl_tensor_cols(t) / d->block_elems, count = (end - begin) * per_row;
    uint64_t at = begin * per_row;
    uint64_t bad = pl_scales_first_bad(t->dtype, (const uint8_t *)t->data + at * d->block_bytes, count);
    if (bad == count) return PL_OK;
    at += bad;
    PL_FAIL(
        err, PL_FORMAT,
        "tensor %s (%s): block %llu of row %llu, byte %llu of the tensor, has a scale that is NaN or infinite; expected a "
        "finite number: the file is damaged",
        t->name, d->name, (unsigned long long)(at % per_row), (unsigned long long)(at / per_row),
        (unsigned long long)(at * d->block_bytes));
}

enum pl_status pl_tensor_check_scales(const struct pl_tensor *t, struct pl_err *err) {
    return pl_tensor_check_scales_rows(t, 0, pl_tensor_rows(t), err);
}
