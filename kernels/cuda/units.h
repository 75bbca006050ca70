/* units - what kernels on tensor cores of NVIDIA GPUs (sm_80 and up) are made of: 16-bit matrix instructions over KV_TYPE,
 * loads of their factors from shared memory, copies into it that run on their own. Emulators bring their own. */
#ifndef PL_UNITS_H
#define PL_UNITS_H

#include "dialect.h"

#ifndef PL_EMULATED
FN u32 shared_at(const void *p) {
    u64 a;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(a) : "l"(p));
    return (u32)a;
}
/* Two floats rounded to the cache's type. */
FN u32 two(f32 lo, f32 hi) {
    u32 v;
#ifdef KV_BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
#endif
    return v;
}
/* c += a b: 16 x 16 by 16 x 8, f32 sums. */
FN void mma(f32 *c, const u32 *a, u32 b0, u32 b1) {
#ifdef KV_BF16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* Four 8 x 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8. */
FN void factors(u32 *r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
FN void factors_turned(u32 *r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
/* 16 bytes, the last 16 - bytes of them zeros, past the first cache. */
FN void copy16(u32 to, const void *from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
FN void copies_close(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until at most so many closed groups are on their way. */
#define COPIES_WAIT(groups) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory")
FN f32 power2(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN void shared_put16(u32 at, u32 x, u32 y, u32 z, u32 w) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
FN void shared_put8(u32 at, u32 x, u32 y) { asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(at), "r"(x), "r"(y) : "memory"); }
FN u32 shared_get4(u32 at) {
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}
/* Four bytes of x (0 to 3) and y (4 to 7), by the numbers in `which`, its lowest four bits first; plus 8: the byte's sign, spread. */
FN u32 pick_bytes(u32 x, u32 y, u32 which) {
    u32 v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(x), "r"(y), "r"(which));
    return v;
}
/* Both halves minus those of y. */
FN u32 minus2(u32 x, u32 y) {
    u32 v;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(x), "r"(y));
    return v;
}
FN void shared_put4(u32 at, u32 x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory"); }
/* Past the first cache: what other groups of this launch wrote. */
FN f32 fresh(const f32 *p) { return __ldcg(p); }
FN float4 fresh4(const f32 *p) { return __ldcg((const float4 *)p); }
FN u32 arrive(u32 *counter) {
    __threadfence();
    return atomicAdd(counter, 1u);
}
FN bool any_lane(bool v) { return __any_sync(0xFFFFFFFFu, v) != 0; }
#define WARP_BARRIER() __syncwarp()
#define FENCE()        __threadfence()
#endif

/* The two halves of what two() made, as f32. */
#ifdef KV_BF16
FN f32 low_of(u32 v) { return bits_f32(v << 16); }
FN f32 high_of(u32 v) { return bits_f32(v & 0xFFFF0000u); }
#else
FN f32 low_of(u32 v) {
    u16 h = (u16)v;
    return f16_load(&h);
}
FN f32 high_of(u32 v) {
    u16 h = (u16)(v >> 16);
    return f16_load(&h);
}
#endif

#endif
