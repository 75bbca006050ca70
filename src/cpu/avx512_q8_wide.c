/* Products of formats with five to eight bits. */
#include "cpu/avx512_q8.h"

Q8_KERNEL(avx512_q5_0, STORE_U5, SCALE_F16, false, 4, NULL)
Q8_KERNEL(avx512_q5_1, STORE_U5, SCALE_F16, true, NO_OFFSET, NULL)
Q8_KERNEL(avx512_q5_k, STORE_U5, SCALE_K32, true, NO_OFFSET, NULL)
Q8_KERNEL(avx512_q6_k, STORE_U6, SCALE_K16, false, 5, NULL)
Q8_KERNEL(avx512_mlx6, STORE_U6, SCALE_MLX, true, NO_OFFSET, NULL)
Q8_KERNEL(avx512_q8_0, STORE_U8, SCALE_F16, false, 7, NULL)
Q8_KERNEL(avx512_mlx8, STORE_U8, SCALE_MLX, true, NO_OFFSET, NULL)
