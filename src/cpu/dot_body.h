/* dot_body - f32 dot product of a vector table. */
#ifndef PL_CPU_DOT_BODY_H
#define PL_CPU_DOT_BODY_H

#include "cpu/vec.h"

static float dot(const float *x, const float *y, size_t n) {
    vf a = vf_set1(0), b = a, c = a, d = a;
    size_t i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW) {
        a = vf_fma(vf_load(x + i), vf_load(y + i), a);
        b = vf_fma(vf_load(x + i + VW), vf_load(y + i + VW), b);
        c = vf_fma(vf_load(x + i + 2 * VW), vf_load(y + i + 2 * VW), c);
        d = vf_fma(vf_load(x + i + 3 * VW), vf_load(y + i + 3 * VW), d);
    }
    for (; i < n; i += VW) {
        size_t k = n - i < VW ? n - i : VW;
        a = vf_fma(vf_loadn(x + i, k), vf_loadn(y + i, k), a);
    }
    return vf_hsum(vf_add(vf_add(a, b), vf_add(c, d)));
}

#endif
