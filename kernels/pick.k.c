/* pick - the largest of each row, the lowest index of equals: greedy choice. One group a row, or, where rows are few,
 * PICK_PART: one a slice of a row, which leaves value and index, and then PICK_JOIN over the a.rows slices of each row.
 * A row with NaN or +inf gives PL_PICK_BROKEN, one of nothing but -inf PL_PICK_NONE. Exact. */
#include "dialect.h"
#include "args/args.h"

#define AT_ONCE 16u

/* PICK_PART: best [rows, slices, 2]; PICK_JOIN: x are those. */
KERNEL(pick)(GLOBAL const f32 *x, GLOBAL u32 *best, GLOBAL u32 *witness, const struct pl_args_rows a) {
    LOCAL f32 value[GROUP];
    LOCAL u32 index[GROUP];
    count_launch(witness);
    f32 v = NEG_INF;
    u32 at = PL_PICK_NONE;
#ifdef PICK_JOIN
    GLOBAL const f32 *row = x + (u64)2 * GROUP_X * a.rows;
    if (LOCAL_X < a.rows) {
        v = row[2u * LOCAL_X];
        at = f32_bits(row[2u * LOCAL_X + 1u]);
    }
#else
    GLOBAL const f32 *row = x + (u64)GROUP_X * a.cols;
    f32 inf = bits_f32(0x7F800000u);
#ifdef PICK_PART
    u32 each = (a.cols + a.rows - 1u) / a.rows, start = PL_MIN(GROUP_Y * each, a.cols), end = PL_MIN(start + each, a.cols);
#else
    u32 start = 0u, end = a.cols;
#endif
    for (u32 base = start; base < end; base += AT_ONCE * GROUP) { /* loads first: they do not wait for each other */
        f32 e[AT_ONCE];
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 k = base + i * GROUP + LOCAL_X;
            e[i] = k < end ? row[k] : NEG_INF;
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
#endif
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
#ifdef PICK_PART
    if (LOCAL_X == 0) {
        u64 to = (u64)2 * ((u64)GROUP_X * a.rows + GROUP_Y);
        best[to] = f32_bits(value[0]);
        best[to + 1u] = index[0];
    }
#else
    if (LOCAL_X == 0) best[GROUP_X] = index[0];
#endif
}
