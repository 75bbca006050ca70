/* pick - the largest of each row, the lowest index of equals: greedy choice. One group a row.
 * A row with NaN or +inf gives PL_PICK_BROKEN, one of nothing but -inf PL_PICK_NONE. Exact. */
#include "dialect.h"
#include "args/args.h"

#define AT_ONCE 16u

KERNEL(pick)(GLOBAL const f32 *x, GLOBAL u32 *best, GLOBAL u32 *witness, const struct pl_args_rows a) {
    LOCAL f32 value[GROUP];
    LOCAL u32 index[GROUP];
    count_launch(witness);
    GLOBAL const f32 *row = x + (u64)GROUP_X * a.cols;
    f32 v = NEG_INF, inf = bits_f32(0x7F800000u);
    u32 at = PL_PICK_NONE;
    for (u32 base = 0; base < a.cols; base += AT_ONCE * GROUP) { /* loads first: they do not wait for each other */
        f32 e[AT_ONCE];
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 k = base + i * GROUP + LOCAL_X;
            e[i] = k < a.cols ? row[k] : NEG_INF;
        }
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 bits = f32_bits(e[i]); /* compared as bits: some compilers take floats for finite */
            if ((bits & 0x7F800000u) == 0x7F800000u && bits != 0xFF800000u) {
                v = inf; /* nothing is larger */
                at = PL_PICK_BROKEN;
            } else if (e[i] > v) {
                v = e[i];
                at = base + i * GROUP + LOCAL_X;
            }
        }
    }
    value[LOCAL_X] = v;
    index[LOCAL_X] = at;
    for (u32 m = GROUP / 2; m > 0; m >>= 1) {
        BARRIER();
        if (LOCAL_X < m) {
            f32 other = value[LOCAL_X + m];
            if (other > value[LOCAL_X] || (other == value[LOCAL_X] && index[LOCAL_X + m] < index[LOCAL_X])) {
                value[LOCAL_X] = other;
                index[LOCAL_X] = index[LOCAL_X + m];
            }
        }
    }
    if (LOCAL_X == 0) best[GROUP_X] = index[0];
}
