/* Products of formats with four-bit codes. */
#include "cpu/avx512_q8.h"

Q8_KERNEL(avx512_q4_0, STORE_U4, SCALE_F16, false, 3, NULL)
Q8_KERNEL(avx512_q4_1, STORE_U4, SCALE_F16, true, NO_OFFSET, NULL)
Q8_KERNEL(avx512_q4_k, STORE_U4, SCALE_K32, true, NO_OFFSET, NULL)
Q8_KERNEL(avx512_iq4_nl, STORE_U4, SCALE_F16, false, 7, cpu_iq4_codes)
Q8_KERNEL(avx512_iq4_xs, STORE_U4, SCALE_K32, false, 7, cpu_iq4_codes)
Q8_KERNEL(avx512_mxfp4, STORE_U4, SCALE_E8M0, false, 4, cpu_mxfp4_codes)
Q8_KERNEL(avx512_mlx4, STORE_U4, SCALE_MLX, true, NO_OFFSET, NULL)
Q8_KERNEL(avx512_iq3_xxs, STORE_U4, SCALE_K32E, false, 5, cpu_iq3_xxs_codes)
Q8_KERNEL(avx512_iq3_s, STORE_U4, SCALE_K32, false, 4, cpu_iq3_s_codes)
