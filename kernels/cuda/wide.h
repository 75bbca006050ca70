/* wide - attention by four warps together (wgmma) on sm_90a: tiles of BLOCK tokens in shared memory as panels of 64 elements (128 bytes)
 * a token, 16-byte units exchanged by token % 8; teams of four warps; signs (barriers) between those who copy and those who multiply.
 * Emulators bring their own. */
#ifndef PL_WIDE_H
#define PL_WIDE_H

#include "dialect.h"

#define TEAM       128u
#define ME         (LOCAL_X % TEAM)
#define BLOCK      64u
#define PANEL      (BLOCK * 128u)
#define PANELS     (HEAD_DIM / 64u)
#define ROWS_BYTES (PANELS * PANEL) /* 64 rows or tokens */
#define TILE_BYTES (2u * ROWS_BYTES)

/* Where unit `unit` of row `row` stands in panels. */
FN u32 unit_at(u32 row, u32 unit) { return unit / 8u * PANEL + row * 128u + ((unit ^ row) & 7u) * 16u; }
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
#ifdef TWICE
FN void score_low(f32 (*d)[4], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, %32, %33, 1, 1, 1, 0, 0;"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3), OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7)
                 : "l"(a), "l"(b));
}
#endif
/* d += 64 rows x 16 tokens, by HEAD_DIM values */
FN void weigh(f32 (*d)[4], const u32 *a, u64 b) {
#if HEAD_DIM == 128
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3), OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7),
                   OUT4(d, 8), OUT4(d, 9), OUT4(d, 10), OUT4(d, 11), OUT4(d, 12), OUT4(d, 13), OUT4(d, 14), OUT4(d, 15)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#else
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." WIDE_TYPE " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : OUT4(d, 0), OUT4(d, 1), OUT4(d, 2), OUT4(d, 3), OUT4(d, 4), OUT4(d, 5), OUT4(d, 6), OUT4(d, 7)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}
/* What was written by this thread is seen by the matrix units. */
FN void units_see(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FN void sign_init(u32 sign, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sign), "r"(arrivals) : "memory"); }
FN void sign_arrive(u32 sign) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sign) : "memory"); }
FN void sign_wait(u32 sign, u32 phase) {
    asm volatile("{\n.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(sign), "r"(phase) : "memory");
}
FN void signs_ready(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
#define FEW_REGISTERS()  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;")
#define MANY_REGISTERS() asm volatile("setmaxnreg.inc.sync.aligned.u32 232;")
#endif

#endif
