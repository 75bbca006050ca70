/* MLX affine: a row is a little-endian stream of `bits`-wide unsigned integers; each group of `group` elements has a
 * scale and a bias. MLX's own dequantiser rounds the product and the sum to the type of the scales. */
#include "tensor/dequant.h"

static float round_to(enum pl_dtype t, float v) {
    if (t == PL_F16) return pl_f16_to_f32(pl_f32_to_f16(v));
    if (t == PL_BF16) return pl_bf16_to_f32(pl_f32_to_bf16(v));
    return v;
}

static float load(enum pl_dtype t, const uint8_t *base, uint64_t i) {
    if (t == PL_F16) return pl_load_f16(base + 2 * i);
    if (t == PL_BF16) return pl_bf16_to_f32(pl_load_u16(base + 2 * i));
    float f;
    memcpy(&f, base + 4 * i, 4);
    return f;
}

/* Element i of the bit stream at p: it touches at most two bytes. */
static unsigned stream_bits(const uint8_t *p, uint64_t i, uint32_t bits) {
    uint64_t at = i * bits;
    unsigned shift = (unsigned)(at % 8), word = p[at / 8];
    if (shift + bits > 8) word |= (unsigned)p[at / 8 + 1] << 8;
    return word >> shift & ((1u << bits) - 1);
}

void pl_dequant_mlx_row(const struct pl_tensor *t, uint64_t row, enum pl_dtype rounding, float *out) {
    uint64_t cols = pl_tensor_cols(t), groups = cols / t->group;
    const uint8_t *packed = (const uint8_t *)t->data + row * (cols * t->bits / 8);
    const uint8_t *scales = t->scales, *biases = t->biases;
    for (uint64_t g = 0; g < groups; g++) {
        float scale = load(t->scale_dtype, scales, row * groups + g);
        float bias = load(t->scale_dtype, biases, row * groups + g);
        for (uint64_t i = g * t->group; i < (g + 1) * t->group; i++) {
            float product = round_to(rounding, (float)stream_bits(packed, i, t->bits) * scale);
            out[i] = round_to(rounding, product + bias);
        }
    }
}
