/* ternary - BitNet's product: activations in 8 bits with one scale a row, weights of -1, 0 and 1 in two bits.
 *
 * pk_ternary_quantize, one group a row: q = x * 127 / max(max|x|, 1e-5), rounded to nearest even; row[r] = the inverse of
 * that scale and the sum of q. in is a multiple of 32.
 * pk_ternary: a team of TEAM threads owns PER outputs and walks their rows 32 elements at a time for ROWS rows of q; groups
 * along y take further blocks of ROWS rows. Element 4s + i of 16 is bits 2s, 2s+1 of byte i of a word, so one shift gives
 * the codes that meet four neighbours of q.
 * Numerics: sums are whole numbers, exact (in <= 131072); two rounded products at the end. Bitwise repeatable.
 * Cost: in * out / 4 bytes of weights for each block of ROWS rows. */
#include "dialect.h"
#include "args/args.h"

KERNEL(ternary_quantize)(GLOBAL const f32 *x, GLOBAL u32 *q, GLOBAL u32 *row, GLOBAL u32 *witness,
                         const struct pl_args_ternary a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    u64 base = (u64)GROUP_X * a.in;
    f32 top = 1e-5f, sum = 0.0f;
    for (u32 i = LOCAL_X; i < a.in; i += GROUP) top = FMAX(top, FABS(x[base + i]));
    top = group_max(top, scratch);
    f32 by = DIV(127.0f, top);
    for (u32 k = LOCAL_X; 4u * k < a.in; k += GROUP) {
        u32 packed = 0u;
        for (u32 i = 0; i < 4u; i++) {
            f32 v = RINT(x[base + 4u * k + i] * by);
            sum += v;
            packed |= ((u32)(i32)v & 255u) << (8u * i);
        }
        q[base / 4u + k] = packed;
    }
    sum = group_sum(sum, scratch);
    if (LOCAL_X == 0u) {
        row[2u * GROUP_X] = f32_bits(DIV(top, 127.0f));
        row[2u * GROUP_X + 1u] = f32_bits(sum);
    }
}

#ifdef ROWS
KERNEL(ternary)(GLOBAL const u64 *data, GLOBAL const v4u *q, GLOBAL const u32 *row, GLOBAL f32 *y, GLOBAL u32 *witness,
                const struct pl_args_ternary a) {
    LOCAL f32 scratch[GROUP];
    count_launch(witness);
    u32 lane = LOCAL_X % TEAM, first = (GROUP_X * (GROUP / TEAM) + LOCAL_X / TEAM) * PER, row0 = GROUP_Y * ROWS;
    i32 sum[ROWS][PER];
    u64 at[PER];
    for (u32 p = 0; p < PER; p++) at[p] = (u64)PL_MIN(first + p, a.out - 1u) * (a.in / 32u); /* past the end: the last again */
    for (u32 r = 0; r < ROWS; r++) {
        for (u32 p = 0; p < PER; p++) sum[r][p] = 0;
    }
    for (u32 k = lane; 32u * k < a.in; k += TEAM) {
        u64 w[PER];
        for (u32 p = 0; p < PER; p++) w[p] = data[at[p] + k];
        for (u32 r = 0; r < ROWS; r++) {
            GLOBAL const v4u *v = q + (u64)PL_MIN(row0 + r, a.rows - 1u) * (a.in / 16u) + 2u * k;
            for (u32 h = 0; h < 2u; h++) {
                v4u four = v[h];
                for (u32 p = 0; p < PER; p++) {
                    u32 c = (u32)(w[p] >> (32u * h));
                    i32 s = DOT4(c & 0x03030303u, four.x, sum[r][p]);
                    s = DOT4(c >> 2 & 0x03030303u, four.y, s);
                    s = DOT4(c >> 4 & 0x03030303u, four.z, s);
                    sum[r][p] = DOT4(c >> 6 & 0x03030303u, four.w, s);
                }
            }
        }
    }
    for (u32 r = 0; r < ROWS; r++) {
        for (u32 p = 0; p < PER; p++) {
            f32 s = team_sum((f32)sum[r][p], scratch);
            if (lane == 0u && first + p < a.out && row0 + r < a.rows) {
                s -= bits_f32(row[2u * (row0 + r) + 1u]); /* codes are values plus one */
                y[(u64)(row0 + r) * a.out + first + p] = s * (bits_f32(row[2u * (row0 + r)]) * a.scale);
            }
        }
    }
}
#endif
