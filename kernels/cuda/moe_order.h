/* moe_order - the order in which strips (strips.h) meet 256 inputs as 16 steps of the matrix units: input 64 t + 32 b + 4 w + i, of
 * thread t, half b of word w, stands at 32 w + 16 b + 8 (i % 2) + 2 t + i / 2. */
#ifndef PL_MOE_ORDER_H
#define PL_MOE_ORDER_H

/* Where an input stands among its 256. */
FN u32 in_order(u32 input) {
    u32 t = input >> 6 & 3u, b = input >> 5 & 1u, w = input >> 2 & 7u, i = input & 3u;
    return 32u * w + 16u * b + 8u * (i & 1u) + 2u * t + (i >> 1);
}
/* What stands there. */
FN u32 input_at(u32 place) {
    u32 w = place >> 5 & 7u, b = place >> 4 & 1u, low = place >> 3 & 1u, t = place >> 1 & 3u, high = place & 1u;
    return 64u * t + 32u * b + 4u * w + 2u * high + low;
}
#endif
