/* tf32x3 - f32 values cut in two for the matrix units' tf32: what kernels/cuda/tf32x3.k.c and tf32x3_few.k.c share. */
#ifndef PL_TF32X3_H
#define PL_TF32X3_H

#include "dialect.h"

/* v = high + low, and bits that tf32 does not see. */
FN void cut(f32 v, u32 *high, u32 *low) {
    *high = (f32_bits(v) + 0x1000u) & 0xFFFFE000u;
    *low = f32_bits(v - bits_f32(*high)) + 0x1000u;
}
/* c += a b: 16 rows x 8 inputs with 8 inputs x 8 outputs. */
FN void mma_tf32(f32 *c, const u32 *a, const u32 *b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FN f32 of(const float4 *v, u32 i) { return i == 0u ? v->x : i == 1u ? v->y : i == 2u ? v->z : v->w; }

#endif
