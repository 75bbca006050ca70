/* q8_formats - an instance of the including file's Q8_KERNEL (avx2_q8.h, neon_q8.h) for every packed format, and the choice
 * among them. The last constant is how many products of a code and a rounded input fit a 16-bit sum: 32767 over 2 * 127 *
 * the largest code; 1 where codes pass 127. */
#ifndef PL_CPU_Q8_FORMATS_H
#define PL_CPU_Q8_FORMATS_H

struct q8_kernel {
    void (*tile)(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                 const float *bias, bool accumulate);
    void (*groups)(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                   size_t y_stride, const float *bias, bool accumulate); /* of groups of the most rows; NULL: none */
};

Q8_KERNEL(q4_0, STORE_U4, SCALE_F16, false, 3, NULL, 8)
Q8_KERNEL(q4_1, STORE_U4, SCALE_F16, true, NO_OFFSET, NULL, 8)
Q8_KERNEL(q4_k, STORE_U4, SCALE_K32, true, NO_OFFSET, NULL, 8)
Q8_KERNEL(iq4_nl, STORE_U4, SCALE_F16, false, 7, cpu_iq4_codes, 1)
Q8_KERNEL(iq4_xs, STORE_U4, SCALE_K32, false, 7, cpu_iq4_codes, 1)
Q8_KERNEL(mxfp4, STORE_U4, SCALE_E8M0, false, 4, cpu_mxfp4_codes, 4)
Q8_KERNEL(iq1_s, STORE_U3, SCALE_K32E, false, 4, cpu_iq1_codes, 4)
Q8_KERNEL(iq1_m, STORE_U3, SCALE_K16E, false, 4, cpu_iq1_codes, 4)
Q8_KERNEL(iq2_32, STORE_U3, SCALE_K32E, false, 7, cpu_iq2_codes, 1)
Q8_KERNEL(iq2_16, STORE_U3, SCALE_K16E, false, 7, cpu_iq2_codes, 1)
Q8_KERNEL(iq3_xxs, STORE_U4, SCALE_K32E, false, 5, cpu_iq3_xxs_codes, 2)
Q8_KERNEL(iq3_s, STORE_U4, SCALE_K32, false, 4, cpu_iq3_s_codes, 4)
Q8_KERNEL(q5_0, STORE_U5, SCALE_F16, false, 4, NULL, 4)
Q8_KERNEL(q5_1, STORE_U5, SCALE_F16, true, NO_OFFSET, NULL, 4)
Q8_KERNEL(q5_k, STORE_U5, SCALE_K32, true, NO_OFFSET, NULL, 4)
Q8_KERNEL(q6_k, STORE_U6, SCALE_K16, false, 5, NULL, 2)
Q8_KERNEL(q8_0, STORE_U8, SCALE_F16, false, 7, NULL, 1)
Q8_KERNEL(q2_k, STORE_U2, SCALE_K16N, true, NO_OFFSET, NULL, 8)
Q8_KERNEL(q3_k, STORE_U3, SCALE_K16, false, 2, NULL, 8)
Q8_KERNEL(tq, STORE_U2, SCALE_F16, false, 0, NULL, 8)
Q8_KERNEL(mlx2, STORE_U2, SCALE_MLX, true, NO_OFFSET, NULL, 8)
Q8_KERNEL(mlx3, STORE_U3, SCALE_MLX, true, NO_OFFSET, NULL, 8)
Q8_KERNEL(mlx4, STORE_U4, SCALE_MLX, true, NO_OFFSET, NULL, 8)
Q8_KERNEL(mlx5, STORE_U5, SCALE_MLX, true, NO_OFFSET, NULL, 4)
Q8_KERNEL(mlx6, STORE_U6, SCALE_MLX, true, NO_OFFSET, NULL, 2)
Q8_KERNEL(mlx8, STORE_U8, SCALE_MLX, true, NO_OFFSET, NULL, 1)

static const struct q8_kernel *kernel_of(const struct cpu_tile_format *f) {
    switch (f->dtype) {
    case PL_Q4_0: return &q4_0;
    case PL_Q4_1: return &q4_1;
    case PL_Q5_0: return &q5_0;
    case PL_Q5_1: return &q5_1;
    case PL_Q8_0: return &q8_0;
    case PL_Q2_K: return &q2_k;
    case PL_Q3_K: return &q3_k;
    case PL_Q4_K: return &q4_k;
    case PL_Q5_K: return &q5_k;
    case PL_Q6_K: return &q6_k;
    case PL_IQ4_NL: return &iq4_nl;
    case PL_IQ4_XS: return &iq4_xs;
    case PL_MXFP4: return &mxfp4;
    case PL_IQ1_S: return &iq1_s;
    case PL_IQ1_M: return &iq1_m;
    case PL_IQ2_XXS: return &iq2_32;
    case PL_IQ2_XS:
    case PL_IQ2_S: return &iq2_16;
    case PL_IQ3_XXS: return &iq3_xxs;
    case PL_IQ3_S: return &iq3_s;
    case PL_TERNARY:
    case PL_TQ1_0:
    case PL_TQ2_0: return &tq;
    default: break;
    }
    return f->bits == 2   ? &mlx2
           : f->bits == 3 ? &mlx3
           : f->bits == 4 ? &mlx4
           : f->bits == 5 ? &mlx5
           : f->bits == 6 ? &mlx6
                          : &mlx8;
}

#endif
