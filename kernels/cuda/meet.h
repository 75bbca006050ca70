/* meet - groups of threads of one launch that wait for each other, all of them resident: a counter in global memory that each adds one
 * to, and that never goes back. Emulators bring their own. */
#ifndef PL_MEET_H
#define PL_MEET_H

#include "dialect.h"

#ifndef PL_EMULATED
FN void add_one(u32 *p) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory"); }
FN void again(void) {}
FN u32 count_of(const u32 *p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
#endif

#endif
