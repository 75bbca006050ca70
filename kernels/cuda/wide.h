/* wide - what kernels on Hopper's tensor cores (sm_90a) with 16-bit keys and values are made of: four warps multiply together (wgmma),
 * their factors in registers and in shared memory, where tiles lie in panels of 64 elements (128 bytes) a row, 16-byte units exchanged by
 * row % 8; signs (mbarriers) between who copies tiles and who reads them. Emulators bring their own.
 *
 * Before this file is included: PANEL, the bytes from one panel of a tile to the next; cuda/units.h. */
#ifndef PL_WIDE_H
#define PL_WIDE_H

/* What lies in panels at `at`: 8 rows of 128 bytes, then the next 8; `lead` bytes to the next panel where columns are the long side. */
FN u64 panels_at(u32 at, u32 lead) {
    return (u64)((at & 0x3FFFFu) >> 4) | (u64)(lead >> 4) << 16 | (u64)(1024u >> 4) << 32 | 1ull << 62;
}
#ifndef PL_EMULATED
#ifdef KV_BF16
#define WIDE_TYPE "bf16.bf16"
#else
#define WIDE_TYPE "f16.f16"
#endif
#define OUT4(d, i) "+f"((d)[i][0]), "+f"((d)[i][1]), "+f"((d)[i][2]), "+f"((d)[i][3])
FN void wide_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void wide_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
FN void wide_wait(void) { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
/* Registers that the units write: nobody reads them before this. */
template <u32 N> FN void settle(f32 (*d)[4]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) asm volatile("" : OUT4(d, i)::"memory");
}
/* d (+)= 64 rows x 16 inputs, by 64 tokens */
FN void score(f32 (*d)[4], const u32 *a, u64 b, u32 go_on) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3), OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(go_on));
}
/* d += 64 rows x 16 tokens, by HEAD_DIM values */
FN void weigh(f32 (*d)[4], const u32 *a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3), OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7),
                   OUT4(d, 8), OUT4(d, 9), OUT4(d, 10), OUT4(d, 11), OUT4(d, 12), OUT4(d, 13), OUT4(d, 14), OUT4(d, 15)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/* What was written by this thread is seen by the matrix units. */
FN void units_see(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FN void sign_init(u32 sign, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sign), "r"(arrivals) : "memory"); }
FN void sign_arrive(u32 sign) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sign) : "memory"); }
FN void sign_wait(u32 sign, u32 phase) {
    u32 done;
    do {
        asm volatile("{\n.reg .pred done;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, done;\n}" : "=r"(done) : "r"(sign), "r"(phase) : "memory");
    } while (done == 0u);
}
FN void signs_ready(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
#define FEW_REGISTERS()  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;")
#define MANY_REGISTERS() asm volatile("setmaxnreg.inc.sync.aligned.u32 232;")
#endif

/* A warp says once that it has read; racecheck follows threads, so there each lane says so. */
#ifdef EVERY_LANE
#define SAYS      1u
#define VOICES    32u
#else
#define SAYS      (LOCAL_X % 32u == 0u)
#define VOICES    1u
#endif

/* Where unit `unit` of row `row` stands in panels. */
FN u32 unit_at(u32 row, u32 unit) { return unit / 8u * PANEL + row * 128u + ((unit ^ row) & 7u) * 16u; }

#endif
