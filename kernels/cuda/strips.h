/* strips - how packed weights and inputs lie for kernels/cuda/mma.k.c, and the instructions it is made of.
 *
 * Weights [out, in] are cut into strips of 16 outputs x 256 inputs, strip (m, k) at (m * in/256 + k) * STRIP_BYTES. Thread
 * `lane` of a warp (g = lane / 4, t = lane % 4) owns inputs [64 t, 64 t + 64) of outputs g and g + 8 of a strip; words of 8
 * nibbles: byte i of word w is input 64 t + 4 w + i in its low half and 32 inputs further in its high half.
 *   Q4_K: nibbles [4][32] of 16 bytes (g words 0-3, 4-7, then g + 8); per lane and output the bytes scale, scale, min, min of
 *         its two sub-blocks; per g d and dmin of both outputs.
 *   Q6_K: nibbles likewise; the upper two bits, 16 bytes per output and lane: bits 2c and 16 + 2c of word w/2 with
 *         c = 4 (w % 2) + {low bytes 0,2; low 1,3; high 0,2; high 1,3}; per lane and output four scales; per g d of both.
 * bf16 weights are not rearranged: thread t owns inputs [32 j + 8 t, 32 j + 8 t + 8) of outputs g and g + 8, j below 8; their inputs are
 * bf16 in the order [j][elements 0 1, 2 3, 4 5, 6 7][row][t] of 4 bytes, without sums and magnitudes.
 * Inputs: per 256 of them and 8 rows one piece: f16 divided by the largest magnitude of the row's 256, in the order the
 * matrix units want ([word][lane] of 16 bytes, row g; for WIDE products [word][half][inputs 0, 2 or 1, 3][row][t] of 4), sums of 32 as f16, then the 8 largest magnitudes in f32. */
#ifndef PL_STRIPS_H
#define PL_STRIPS_H

#include "dialect.h"

#define PIECE_SUMS  4096u
#define PIECE_SCALE 4224u
#define PIECE_BYTES 4256u

#ifdef WTYPE_BF16
/* Weights as the file has them: 16 rows of 512 bytes, in shared memory at distances that keep banks apart. */
#define STRIP_ROW   576u
#define STRIP_BYTES (16u * STRIP_ROW)
#elif defined(WTYPE_Q6_K)
#define STRIP_BYTES 3360u
#define STRIP_HIGH  2048u
#define STRIP_SCALE 3072u
#define STRIP_D     3328u
#elif !defined(WTYPE_STRIPS) /* kernels of several types go by the functions below */
#define STRIP_BYTES 2368u
#define STRIP_SCALE 2048u
#define STRIP_D     2304u
#endif
FN u32 strip_bytes(bool six) { return six ? 3360u : 2368u; }
FN u32 strip_high(void) { return 2048u; } /* of Q6_K */
FN u32 strip_scale(bool six) { return six ? 3072u : 2048u; }
FN u32 strip_d(bool six) { return six ? 3328u : 2304u; }

/* Weights are read once: past the first cache. Inputs are read by all warps: through it. */
FN uint4 stream16(const void *p) {
    uint4 q;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(p));
    return q;
}
FN uint2 stream8(const void *p) {
    uint2 q;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(q.x), "=r"(q.y) : "l"(p));
    return q;
}
/* (a & mask) | set, in one instruction */
FN u32 and_or(u32 a, u32 mask, u32 set) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(mask), "r"(set));
    return d;
}
FN u32 h2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
FN u32 h2_add(u32 a, u32 b) {
    u32 d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
FN u32 h2_mul(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
FN u32 h2_make(f32 lo, f32 hi) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
FN f32 h2_low(u32 v) {
    f32 f;
    u16 h = (u16)v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
FN f32 h2_high(u32 v) { return h2_low(v >> 16); }
/* c += a b: 16 outputs x 16 inputs with 16 inputs x 8 rows, f32 sums. */
FN void mma16(f32 *c, const u32 *a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* c = a b with 8 inputs */
FN void mma8(f32 *c, const u32 *a, u32 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "f"(0.0f));
}

FN u32 shared_at(const void *p) {
    u64 a;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(a) : "l"(p));
    return (u32)a;
}
#ifdef BULK
/* Copies by the engine of sm_90: a barrier in shared memory turns its phase when what was announced has come. */
FN void barrier_init(u64 *b, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(arrivals) : "memory");
}
FN void barriers_ready(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
FN void barrier_arrive(u64 *b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(b)) : "memory"); }
FN void barrier_expect(u64 *b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(b)), "r"(bytes) : "memory");
}
FN void barrier_wait(u64 *b, u32 phase) {
    asm volatile("{\n.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(shared_at(b)), "r"(phase) : "memory");
}
/* bytes % 16 == 0, both sides 16-byte aligned. */
FN void copy_bulk(void *to, const void *from, u32 bytes, u64 *b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_at(to)),
                 "l"(from), "r"(bytes), "r"(shared_at(b)) : "memory");
}
#define WARP_SYNC() __syncwarp()
#endif

#endif
