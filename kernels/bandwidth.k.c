/* bandwidth - what reading memory gives: a tile of GROUP * UNROLL words of 16 bytes a group at a time, UNROLL loads of a
 * thread in flight. Group g begins at word g * first and takes `each` tiles, `step` words apart: side by side on GPUs, a stretch
 * of its own on CPUs. words is a multiple of a tile. The exclusive or of all goes to sink, so nothing can be left out. */
#include "dialect.h"

KERNEL(read)(GLOBAL const v4u *x, GLOBAL u32 *sink, GLOBAL u32 *witness, const u64 words, const u64 first,
             const u64 step, const u32 each) {
    LOCAL u32 all[GROUP];
    count_launch(witness);
    u32 sum = 0;
    u64 at = GROUP_X * first + LOCAL_X;
    for (u32 n = 0; n < each && at < words; n++, at += step) {
        v4u v[UNROLL];
        for (u32 i = 0; i < UNROLL; i++) v[i] = x[at + (u64)i * GROUP];
        for (u32 i = 0; i < UNROLL; i++) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    all[LOCAL_X] = sum;
    BARRIER();
    if (LOCAL_X == 0) {
        for (u32 i = 1; i < GROUP; i++) sum ^= all[i];
        sink[GROUP_X] = sum;
    }
}
