/* moe_route - which experts each row takes and with what weight (route), the slots put in order of their experts and cut
 * into tiles (order), the weighted sum of what the experts made (combine). Contract: struct pl_moe in src/ops/ops.h; the
 * records: args/args.h.
 *
 * EXPERTS and USED are specialisation values. Numerics: f32, choices as by the logits' exact order, NaN last, of equals the
 * first. route and combine repeat bit for bit; places within an expert depend on the order in which threads come, results
 * do not: each row is a sum of its own. */
#include "dialect.h"
#include "args/args.h"

#if defined(MOE_ROUTE)
/* Larger is better; NaN 1, taken or out of the running 0. */
FN u32 key_of(f32 v) {
    u32 b = f32_bits(v);
    if ((b & 0x7FFFFFFFu) > 0x7F800000u) return 1u;
    if (b == 0x80000000u) b = 0u; /* -0 equals 0 */
    return (b >> 31) != 0u ? ~b : b | 0x80000000u;
}
FN bool better(u32 a, u32 at_a, u32 b, u32 at_b) { return a > b || (a == b && at_a < at_b); }

/* The two best experts' scores of a group together, or the best's; without NaN. */
FN f32 group_worth(LOCAL_PTR const f32 *score, u32 first, u32 size, u32 top) {
    f32 best = NEG_INF, second = NEG_INF;
    for (u32 e = first; e < first + size; e++) {
        f32 v = score[e];
        if (v > best) {
            second = best;
            best = v;
        } else if (v > second) {
            second = v;
        }
    }
    return top > 1u && size > 1u ? best + second : best;
}

#define FOURS(n) (((n) + 3u) / 4u * 4u)
/* grid: (rows) */
KERNEL(moe_route)(GLOBAL const f32 *logits, GLOBAL const f32 *bias, GLOBAL u32 *ids, GLOBAL f32 *weights, GLOBAL u32 *witness,
                  const struct pl_args_route a) {
    /* Whole 16 bytes each: compilers fetch four neighbours at once, and what of another array came with them would be a race. */
    LOCAL f32 score[FOURS(EXPERTS)], scratch[GROUP];
    LOCAL u32 key[FOURS(EXPERTS)], value[GROUP], index[GROUP], chosen[FOURS(USED)];
    count_launch(witness);
    GLOBAL const f32 *row = logits + (u64)GROUP_X * EXPERTS;
    bool sigmoid = (a.flags & PL_ROUTE_SIGMOID) != 0u;
    f32 top = NEG_INF, sum = 0.0f;
    for (u32 e = LOCAL_X; e < EXPERTS; e += GROUP) {
        f32 v = row[e];
        if (v > top) top = v;
    }
    top = group_max(top, scratch);
    for (u32 e = LOCAL_X; e < EXPERTS; e += GROUP) sum += EXP(row[e] - top);
    sum = group_sum(sum, scratch);
    /* A softmax keeps the logits' order, which is exact; only a bias or sums of groups ask for its values. */
    bool values = sigmoid || (a.flags & PL_ROUTE_BIAS) != 0u || a.groups > 0u;
    for (u32 e = LOCAL_X; e < EXPERTS; e += GROUP) {
        f32 v = row[e];
        if (values) v = sigmoid ? 1.0f / (1.0f + EXP(-v)) : EXP(v - top) / sum;
        if ((a.flags & PL_ROUTE_BIAS) != 0u) v += bias[e];
        score[e] = v;
        key[e] = key_of(v);
    }
    BARRIER();
    if (a.groups > 0u) {
        u32 size = EXPERTS / a.groups;
        for (u32 g = LOCAL_X; g < a.groups; g += GROUP) {
            f32 mine = group_worth(score, g * size, size, a.group_top);
            u32 before = 0u; /* groups that come before this one */
            for (u32 o = 0; o < a.groups; o++) {
                f32 other = group_worth(score, o * size, size, a.group_top);
                if (other > mine || (other == mine && o < g)) before++;
            }
            if (before < a.groups_used) continue;
            for (u32 e = g * size; e < (g + 1u) * size; e++) key[e] = 0u;
        }
        BARRIER();
    }
    for (u32 k = 0; k < USED; k++) {
        u32 best = 0u, at = EXPERTS;
        for (u32 e = LOCAL_X; e < EXPERTS; e += GROUP) {
            if (key[e] != 0u && (at == EXPERTS || key[e] > best)) {
                best = key[e];
                at = e;
            }
        }
        value[LOCAL_X] = best;
        index[LOCAL_X] = at;
        for (u32 m = GROUP / 2; m > 0; m >>= 1) {
            BARRIER();
            if (LOCAL_X < m && better(value[LOCAL_X + m], index[LOCAL_X + m], value[LOCAL_X], index[LOCAL_X])) {
                value[LOCAL_X] = value[LOCAL_X + m];
                index[LOCAL_X] = index[LOCAL_X + m];
            }
        }
        BARRIER();
        if (LOCAL_X == 0u) {
            chosen[k] = PL_MIN(index[0], EXPERTS - 1u);
            key[chosen[k]] = 0u;
        }
        BARRIER();
    }
    if (LOCAL_X == 0u) {
        f32 all = 0.0f;
        for (u32 k = 0; k < USED; k++) {
            f32 v = row[chosen[k]];
            scratch[0] = sigmoid ? 1.0f / (1.0f + EXP(-v)) : EXP(v - top);
            all += scratch[0];
            weights[(u64)GROUP_X * USED + k] = scratch[0];
            ids[(u64)GROUP_X * USED + k] = chosen[k];
        }
        if ((a.flags & PL_ROUTE_RENORMALISE) == 0u) all = sigmoid ? 1.0f : sum;
        else if (sigmoid) all += 1e-20f; /* all may be 0 */
        for (u32 k = 0; k < USED; k++) {
            u64 i = (u64)GROUP_X * USED + k;
            weights[i] = weights[i] / all * a.scale;
        }
    }
}
#elif defined(MOE_ORDER)
#define PER     ((EXPERTS + GROUP - 1u) / GROUP) /* experts of a thread */
#define AT_ONCE 4u
/* grid: (1). slots = rows * USED; TILE rows a tile. */
KERNEL(moe_order)(GLOBAL const u32 *ids, GLOBAL u32 *order, GLOBAL u32 *witness, const u32 slots, const u32 stride) {
    LOCAL u32 start[EXPERTS], tiles[EXPERTS], places[GROUP], counts[GROUP];
    count_launch(witness);
    for (u32 e = LOCAL_X; e < EXPERTS; e += GROUP) start[e] = 0u;
    BARRIER();
    for (u32 i = LOCAL_X; i < slots; i += AT_ONCE * GROUP) {
        u32 e[AT_ONCE];
        for (u32 k = 0; k < AT_ONCE; k++) e[k] = i + k * GROUP < slots ? ids[i + k * GROUP] : 0u;
        for (u32 k = 0; k < AT_ONCE; k++)
            if (i + k * GROUP < slots) LOCAL_INC(&start[e[k]]);
    }
    BARRIER();
    /* Where each expert's places and tiles begin: a thread has neighbouring experts, then sums over the threads before it. */
    u32 first = PL_MIN(LOCAL_X * PER, EXPERTS), end = PL_MIN(first + PER, EXPERTS), all = 0u, cut = 0u;
    for (u32 e = first; e < end; e++) {
        all += start[e];
        cut += (start[e] + TILE - 1u) / TILE;
    }
    places[LOCAL_X] = all;
    counts[LOCAL_X] = cut;
    for (u32 m = 1u; m < GROUP && m * PER < EXPERTS; m <<= 1) {
        BARRIER();
        u32 p = LOCAL_X >= m ? places[LOCAL_X - m] : 0u, q = LOCAL_X >= m ? counts[LOCAL_X - m] : 0u;
        BARRIER();
        places[LOCAL_X] += p;
        counts[LOCAL_X] += q;
    }
    if (end == EXPERTS && first < end) order[PL_ORDER_TILES] = counts[LOCAL_X];
    all = places[LOCAL_X] - all;
    cut = counts[LOCAL_X] - cut;
    for (u32 e = first; e < end; e++) {
        u32 n = start[e];
        start[e] = all;
        tiles[e] = cut;
        all += n;
        cut += (n + TILE - 1u) / TILE;
    }
    BARRIER();
    for (u32 e = LOCAL_X; e < EXPERTS; e += GROUP) {
        u32 end = e + 1u < EXPERTS ? start[e + 1u] : slots, t = tiles[e];
        order[PL_ORDER_COUNT(stride) + e] = end - start[e];
        for (u32 p = start[e]; p < end; p += TILE, t++) {
            GLOBAL u32 *tile = order + PL_ORDER_TILE(stride) + (u64)t * PL_TILE_WORDS;
            tile[0] = e;
            tile[1] = p;
            tile[2] = PL_MIN(end - p, (u32)TILE);
            tile[3] = 0u;
        }
    }
    BARRIER(); /* the starts were read by their neighbours */
    for (u32 i = LOCAL_X; i < slots; i += AT_ONCE * GROUP) {
        u32 e[AT_ONCE];
        for (u32 k = 0; k < AT_ONCE; k++) e[k] = i + k * GROUP < slots ? ids[i + k * GROUP] : 0u;
        for (u32 k = 0; k < AT_ONCE; k++) {
            u32 slot = i + k * GROUP;
            if (slot >= slots) continue;
            u32 p = LOCAL_INC(&start[e[k]]);
            order[PL_ORDER_SLOT(stride) + p] = slot;
            order[PL_ORDER_PLACE(stride) + slot] = p;
        }
    }
}
#else
/* y[row] += sum over k of weight * made[place], best first. grid: (cols / GROUP, rows) */
KERNEL(moe_combine)(GLOBAL const f32 *made, GLOBAL const u32 *order, GLOBAL const f32 *weights, GLOBAL f32 *y, GLOBAL u32 *witness,
                    const struct pl_args_rows a, const u32 stride) {
    count_launch(witness);
    u32 col = GROUP_X * GROUP + LOCAL_X;
    if (col >= a.cols) return;
    u64 at = (u64)GROUP_Y * a.cols + col;
    f32 s = y[at];
    for (u32 k = 0; k < USED; k++) {
        u32 slot = GROUP_Y * USED + k;
        s = FMA(weights[slot], made[(u64)order[PL_ORDER_PLACE(stride) + slot] * a.cols + col], s);
    }
    y[at] = s;
}
#endif
