/* The NEON table, and how activations are made 8-bit. */
#include "cpu/attn_body.h"
#include "cpu/dot_body.h"
#include "cpu/internal.h"

void neon_float_tile(const struct pl_cpu_matmul *m, size_t i, size_t tile, size_t begin, size_t end, void *scratch);
void neon_q8_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                  const float *bias, bool accumulate);
void neon_i8mm_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                    const float *bias, bool accumulate);

/* A block of one row: 8-bit values at q, its scale returned, the sums of its halves in sum. */
static inline float quantize_block(const float *x, size_t n, int8_t *q, int32_t *sum) {
    float32x4_t v[8], top = vdupq_n_f32(0);
    for (size_t k = 0; k < 8; k++) {
        v[k] = n >= 4 * k + 4 ? vld1q_f32(x + 4 * k) : n > 4 * k ? vf_loadn(x + 4 * k, n - 4 * k) : vdupq_n_f32(0);
        top = vmaxq_f32(top, vabsq_f32(v[k]));
    }
    const float max = vmaxvq_f32(top), inv = max >= PL_CPU_ACT_TINY ? 127.0f / max : 0.0f;
    for (size_t h = 0; h < 2; h++) {
        int16x4_t i[4];
        for (size_t k = 0; k < 4; k++) i[k] = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[4 * h + k], inv)));
        int16x8_t a = vcombine_s16(i[0], i[1]), b = vcombine_s16(i[2], i[3]);
        vst1q_s8(q + 16 * h, vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
        sum[h] = vaddlvq_s16(a) + vaddlvq_s16(b);
    }
    return max / 127.0f;
}

static void quantize(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst) {
    for (size_t at = 0; at < in; at += ACT_BLOCK, dst += rows * ACT_ROW_BYTES) {
        float *scale = (float *)(void *)(dst + 32 * rows), *ssum = scale + rows;
        int32_t *nsum = (int32_t *)(void *)(ssum + rows), *n0 = nsum + rows, *n1 = n0 + rows, sum[2];
        for (size_t m = 0; m < rows; m++) {
            scale[m] = quantize_block(x + m * stride + at, PL_MIN((size_t)ACT_BLOCK, in - at), (int8_t *)dst + 32 * m, sum);
            ssum[m] = scale[m] * (float)(sum[0] + sum[1]);
            nsum[m] = -(sum[0] + sum[1]);
            n0[m] = -sum[0];
            n1[m] = -sum[1];
        }
    }
}

const struct cpu_table cpu_table_neon = {.isa = PL_ISA_NEON,
                                         .group_max = 8,
                                         .dot = dot,
                                         .float_tile = neon_float_tile,
                                         .quantize = quantize,
                                         .q8_tile = neon_q8_tile,
                                         ROW_KERNELS};
const struct cpu_table cpu_table_i8mm = {.isa = PL_ISA_I8MM,
                                         .group_max = 8,
                                         .dot = dot,
                                         .float_tile = neon_float_tile,
                                         .quantize = quantize,
                                         .q8_tile = neon_i8mm_tile,
                                         ROW_KERNELS};
