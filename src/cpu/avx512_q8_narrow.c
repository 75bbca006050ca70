/* Products of formats with two and three bits. */
#include "cpu/avx512_q8.h"

Q8_KERNEL(avx512_q2_k, STORE_U2, SCALE_K16N, true, NO_OFFSET, NULL)
Q8_KERNEL(avx512_q3_k, STORE_U3, SCALE_K16, false, 2, NULL)
Q8_KERNEL(avx512_tq, STORE_U2, SCALE_F16, false, 0, NULL)
Q8_KERNEL(avx512_mlx2, STORE_U2, SCALE_MLX, true, NO_OFFSET, NULL)
Q8_KERNEL(avx512_mlx3, STORE_U3, SCALE_MLX, true, NO_OFFSET, NULL)
Q8_KERNEL(avx512_iq1_s, STORE_U3, SCALE_K32E, false, 4, cpu_iq1_codes)
Q8_KERNEL(avx512_iq1_m, STORE_U3, SCALE_K16E, false, 4, cpu_iq1_codes)
Q8_KERNEL(avx512_iq2_32, STORE_U3, SCALE_K32E, false, 7, cpu_iq2_codes)
Q8_KERNEL(avx512_iq2_16, STORE_U3, SCALE_K16E, false, 7, cpu_iq2_codes)
