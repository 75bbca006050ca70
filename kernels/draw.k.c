/* draw - a token from each row of logits: argmax(logit / T + Gumbel noise) over what top_k, top_p and min_p leave.
 *
 * Launches. scan: largest and lowest index of it in each part of a row, and the maxima of threads. weigh, where a row has
 * top_p: the mass of each part, and how much of it lies how far below the largest. gather: what can be kept at all lies above
 * a floor (from min_p, from the k-th largest of the threads' maxima, from the mass that top_p gives away, from what weigh
 * found); of the tokens that are kept for sure the best score, of the others a list. choose: the best is taken if it passes
 * the filters; else it is refused, with all that is no larger, and the next best is tried: two pivots a round, the second
 * halfway between it and what is known to pass, at most 32 rounds.
 *
 * Same tokens as src/sample for the same seed and position: masses are integers (2^-34), exponential and logarithm the same
 * polynomials, each product and sum rounded on its own (EXACT, MUL, ADD). What a bound passes over could not have won.
 * out[r] is a token, PL_PICK_NONE or PL_PICK_BROKEN; out[rows + r] is 1 when the rounds did not suffice (the largest is taken).
 * LOGITS_F32, LOGITS_F16 or LOGITS_BF16 says what a row holds. */
#include "dialect.h"
#include "args/args.h"

#if defined(LOGITS_F32)
typedef f32 logit_t;
FN f32 load_logit(GLOBAL const logit_t *p) { return *p; }
#elif defined(LOGITS_F16)
typedef u16 logit_t;
FN f32 load_logit(GLOBAL const logit_t *p) { return f16_load(p); }
#else
typedef u16 logit_t;
FN f32 load_logit(GLOBAL const logit_t *p) { return bf16_load(p); }
#endif

#define QUADS    4u /* of neighbouring logits, loaded at once by a thread */
#define POS_INF  bits_f32(0x7F800000u)
#define NO_SCORE NEG_INF

/* Four neighbouring logits of a row, k a multiple of four; -inf from `end` on. aligned: rows begin at multiples of four. */
FN void load4(GLOBAL const logit_t *p, u32 k, u32 end, u32 aligned, f32 *e) {
#ifdef LOGITS_F32
    if (aligned && k + 4u <= end) {
        v4u four = *(GLOBAL const v4u *)(p + k);
        e[0] = bits_f32(four.x), e[1] = bits_f32(four.y), e[2] = bits_f32(four.z), e[3] = bits_f32(four.w);
        return;
    }
#else
    (void)aligned;
#endif
    for (u32 i = 0; i < 4u; i++) e[i] = k + i < end ? load_logit(p + k + i) : NEG_INF;
}

FN u32 is_bad(f32 v) { /* NaN or +inf, compared as bits: some compilers take floats for finite */
    u32 bits = f32_bits(v);
    return (bits & 0x7F800000u) == 0x7F800000u && bits != 0xFF800000u;
}
/* Larger floats give larger integers. */
FN u32 ordered(f32 v) {
    u32 b = f32_bits(v);
    return (b & 0x80000000u) ? ~b : b | 0x80000000u;
}
FN f32 unordered(u32 o) { return bits_f32((o & 0x80000000u) ? o & 0x7FFFFFFFu : ~o); }

/* src/sample/filter.h, pl_exp_neg: e^x for x <= 0, as an integer of 2^-34. */
FN u64 mass_of(f32 x) {
    EXACT
    if (!(x >= -87.0f)) return 0;
    f32 k = ADD(MUL(x, 1.44269504f), 12582912.0f), n = ADD(k, -12582912.0f);
    f32 r = ADD(ADD(x, -MUL(n, 0.693359375f)), MUL(n, 2.12194440e-4f));
    f32 y = 1.9875691500e-4f;
    y = ADD(MUL(y, r), 1.3981999507e-3f);
    y = ADD(MUL(y, r), 8.3334519073e-3f);
    y = ADD(MUL(y, r), 4.1665795894e-2f);
    y = ADD(MUL(y, r), 1.6666665459e-1f);
    y = ADD(MUL(y, r), 5.0000001201e-1f);
    y = ADD(ADD(MUL(MUL(y, r), r), r), 1.0f);
    return (u64)RINT(MUL(MUL(y, bits_f32((u32)((i32)n + 127) << 23)), 17179869184.0f));
}

/* src/base/noise.h, pl_log_pos. */
FN f32 log_of(f32 x) {
    EXACT
    u32 bits = f32_bits(x);
    i32 e = (i32)(bits >> 23) - 127;
    f32 m = bits_f32((bits & 0x7FFFFFu) | 0x3F800000u);
    if (m > 1.41421356f) {
        m = MUL(m, 0.5f);
        e++;
    }
    f32 f = ADD(m, -1.0f), z = MUL(f, f), y = 7.0376836292e-2f;
    y = ADD(MUL(y, f), -1.1514610310e-1f);
    y = ADD(MUL(y, f), 1.1676998740e-1f);
    y = ADD(MUL(y, f), -1.2420140846e-1f);
    y = ADD(MUL(y, f), 1.4249322787e-1f);
    y = ADD(MUL(y, f), -1.6668057665e-1f);
    y = ADD(MUL(y, f), 2.0000714765e-1f);
    y = ADD(MUL(y, f), -2.4999993993e-1f);
    y = ADD(MUL(y, f), 3.3333331174e-1f);
    y = MUL(MUL(y, f), z);
    y = ADD(y, MUL((f32)e, -2.12194440e-4f));
    y = ADD(y, -MUL(0.5f, z));
    return ADD(ADD(f, y), MUL((f32)e, 0.693359375f));
}

/* Philox4x32-10 at counter {id / 4, position high, 0, position low}: words of four neighbouring ids. */
FN void words_of(GLOBAL const struct pl_args_draw *d, u32 quad, u32 *word) {
    u32 c0 = quad, c1 = d->position_high, c2 = 0, c3 = d->position_low, k0 = d->seed_low, k1 = d->seed_high;
    ROLLED for (u32 round = 0; round < 10u; round++) {
        u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        u32 n0 = (u32)(p1 >> 32) ^ c1 ^ k0, n2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (u32)p1;
        c3 = (u32)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
}
FN f32 uniform_of(u32 word) {
    EXACT
    return MUL(ADD((f32)(word >> 9), 0.5f), 1.1920928955078125e-7f);
}
FN f32 noise_of(u32 word) { return -log_of(-log_of(uniform_of(word))); }
FN f32 noise(GLOBAL const struct pl_args_draw *d, u32 id) {
    u32 word[4];
    words_of(d, id >> 2, word);
    return noise_of((id & 2u) ? ((id & 1u) ? word[3] : word[2]) : ((id & 1u) ? word[1] : word[0]));
}

struct best {
    f32 score, logit;
    u32 id;
};
FN struct best no_best(void) {
    struct best b;
    b.score = NO_SCORE;
    b.logit = NEG_INF;
    b.id = PL_PICK_NONE;
    return b;
}
FN void take(struct best *b, f32 score, f32 logit, u32 id) {
    if (score > b->score || (score == b->score && id < b->id)) {
        b->score = score;
        b->logit = logit;
        b->id = id;
    }
}
FN f32 tempered(GLOBAL const struct pl_args_draw *d, f32 logit, f32 max) {
    EXACT
    return MUL(ADD(logit, -max), d->inverse_t);
}
FN f32 score_of(GLOBAL const struct pl_args_draw *d, f32 logit, f32 max, u32 id) {
    EXACT
    return ADD(tempered(d, logit, max), noise(d, id));
}
/* True when a token cannot reach a score, without logarithms: for that its noise must be t or more, which needs -log u <= e^-t,
 * and 1 - u is less than -log u. scaled <= 0; the margin is larger than all that is rounded. word: 23 bits of it are u. */
FN u32 is_beaten(f32 scaled, u32 word, f32 bound) {
    f32 rest = (2.0f - bits_f32(0x3F800000u | word >> 9)) - 5.9604645e-8f; /* 1 - u */
    return rest > EXP2(FMA(scaled, 1.4426936f, 0.0144269504f - bound * 1.44269504f));
}

FN u64 reduce_sum(u64 v, LOCAL_PTR u64 *s) {
    BARRIER();
    s[LOCAL_X] = v;
    for (u32 m = GROUP / 2; m > 0; m >>= 1) {
        BARRIER();
        if (LOCAL_X < m) s[LOCAL_X] += s[LOCAL_X + m];
    }
    BARRIER();
    return s[0];
}

/* Parts begin at multiples of four: four neighbours share one Philox. */
FN u32 part_begin(const struct pl_args_draws a, u32 part) {
    u32 span = ((a.cols + a.parts - 1u) / a.parts + 3u) / 4u * 4u;
    return PL_MIN(part * span, a.cols);
}
FN u32 is_aligned(const struct pl_args_draws a) { return a.cols % 4u == 0u; }

#ifdef DRAW_SCAN
/* grid: parts, rows. part_max, part_id [rows, parts]; maxima [rows, parts * a.maxima]. */
KERNEL(draw_scan)(GLOBAL const logit_t *x, GLOBAL f32 *part_max, GLOBAL u32 *part_id, GLOBAL f32 *maxima, GLOBAL u32 *witness,
                  const struct pl_args_draws a) {
    LOCAL f32 value[GROUP];
    LOCAL u32 index[GROUP];
    count_launch(witness);
    u32 row = GROUP_Y, part = GROUP_X, end = part_begin(a, part + 1u), at = PL_PICK_NONE;
    GLOBAL const logit_t *p = x + (u64)row * a.cols;
    f32 v = NEG_INF;
    for (u32 base = part_begin(a, part); base < end; base += 4u * QUADS * GROUP) { /* loads first: they do not wait */
        f32 e[QUADS][4];
        for (u32 i = 0; i < QUADS; i++) load4(p, base + 4u * (i * GROUP + LOCAL_X), end, is_aligned(a), e[i]);
        ROLLED for (u32 i = 0; i < 4u * QUADS; i++) {
            if (is_bad(e[i / 4u][i % 4u])) {
                v = POS_INF;
                at = PL_PICK_BROKEN;
            } else if (e[i / 4u][i % 4u] > v) {
                v = e[i / 4u][i % 4u];
                at = base + 4u * (i / 4u * GROUP + LOCAL_X) + i % 4u;
            }
        }
    }
    value[LOCAL_X] = v;
    index[LOCAL_X] = at;
    BARRIER();
    for (u32 m = GROUP; m > 0; m >>= 1) {
        if (m < GROUP && LOCAL_X < m) {
            f32 other = value[LOCAL_X + m];
            if (other > value[LOCAL_X] || (other == value[LOCAL_X] && index[LOCAL_X + m] < index[LOCAL_X])) {
                value[LOCAL_X] = other;
                index[LOCAL_X] = index[LOCAL_X + m];
            }
        }
        if (m == a.maxima && LOCAL_X < m) maxima[((u64)row * a.parts + part) * m + LOCAL_X] = value[LOCAL_X];
        BARRIER();
    }
    if (LOCAL_X == 0) {
        part_max[row * a.parts + part] = value[0];
        part_id[row * a.parts + part] = index[0];
    }
}

#endif

/* Largest of a row and its lowest index, from the parts. */
FN struct best top_of(GLOBAL const f32 *part_max, GLOBAL const u32 *part_id, u32 row, u32 parts) {
    struct best b = no_best();
    for (u32 i = 0; i < parts; i++) take(&b, part_max[row * parts + i], 0.0f, part_id[row * parts + i]);
    b.logit = b.score;
    return b;
}

#define BINS 256u /* of an eighth each, by the distance to the largest; the last holds all that is further */
FN u32 bin_of(f32 logit, f32 max) {
    EXACT
    return (u32)FMIN(MUL(ADD(max, -logit), 8.0f), (f32)(BINS - 1u));
}
/* Bins hold whole multiples of this power of two of a mass, so that a part's sum fits 32 bits. */
FN u32 coarse(const struct pl_args_draws a) {
    u32 span = part_begin(a, 1u), bits = 0u;
    while (span >> bits != 0u) bits++;
    return bits + 3u;
}
FN u64 budget_of(u64 total, GLOBAL const struct pl_args_draw *d) {
    return (total >> 32) * d->top_p + (((total & 0xFFFFFFFFu) * d->top_p) >> 32);
}

#ifdef DRAW_WEIGH
#define COPIES 8u /* neighbours add to different places */
/* grid: parts, rows. weights [rows, parts] u64, bins [rows, parts, BINS]. */
KERNEL(draw_weigh)(GLOBAL const logit_t *x, GLOBAL const struct pl_args_draw *draws, GLOBAL const f32 *part_max,
                   GLOBAL const u32 *part_id, GLOBAL u64 *weights, GLOBAL u32 *bins, GLOBAL u32 *witness,
                   const struct pl_args_draws a) {
    LOCAL u32 sums[BINS * COPIES];
    LOCAL u64 all[GROUP];
    count_launch(witness);
    u32 row = GROUP_Y, part = GROUP_X, end = part_begin(a, part + 1u), shift = coarse(a);
    GLOBAL const struct pl_args_draw *d = draws + row;
    struct best top = top_of(part_max, part_id, row, a.parts);
    if (d->inverse_t == 0.0f || d->top_p == 0u || top.id >= PL_PICK_NONE) return; /* the same for all threads */
    f32 max = top.logit;
    for (u32 i = LOCAL_X; i < BINS * COPIES; i += GROUP) sums[i] = 0u;
    BARRIER();
    GLOBAL const logit_t *p = x + (u64)row * a.cols;
    u64 mass = 0;
    for (u32 base = part_begin(a, part); base < end; base += 4u * QUADS * GROUP) {
        f32 e[QUADS][4];
        for (u32 i = 0; i < QUADS; i++) load4(p, base + 4u * (i * GROUP + LOCAL_X), end, is_aligned(a), e[i]);
        ROLLED for (u32 i = 0; i < 4u * QUADS; i++) {
            EXACT
            f32 v = e[i / 4u][i % 4u];
            u64 m = mass_of(ADD(v, -max));
            u32 add = (u32)(m >> shift);
            mass += m;
            if (add != 0u) (void)LOCAL_ADD(&sums[bin_of(v, max) * COPIES + LOCAL_X % COPIES], add);
        }
    }
    mass = reduce_sum(mass, all);
    for (u32 i = LOCAL_X; i < BINS; i += GROUP) {
        u32 sum = 0u;
        for (u32 c = 0; c < COPIES; c++) sum += sums[i * COPIES + c];
        bins[((u64)row * a.parts + part) * BINS + i] = sum;
    }
    if (LOCAL_X == 0u) weights[row * a.parts + part] = mass;
}
#endif

FN u64 total_of(GLOBAL const u64 *weights, u32 row, u32 parts) {
    u64 total = 0;
    for (u32 i = 0; i < parts; i++) total += weights[row * parts + i];
    return total;
}

#ifdef DRAW_GATHER
/* At least k of the row's logits are no smaller than this: the k-th largest of the maxima, cut to 20 bits. */
FN f32 kth_floor(GLOBAL const f32 *maxima, u32 count, u32 k, LOCAL_PTR f32 *scratch) {
    enum { EACH = 8 };
    u32 mine[EACH], found = 0;
    if (k > count) return NEG_INF;
    for (u32 i = 0; i < EACH; i++) {
        u32 j = i * GROUP + LOCAL_X;
        mine[i] = j < count ? ordered(maxima[j]) : 0u;
    }
    for (u32 bit = 31; bit >= 12u; bit--) {
        u32 candidate = found | (1u << bit);
        f32 n = 0.0f;
        for (u32 i = 0; i < EACH; i++) n += mine[i] >= candidate ? 1.0f : 0.0f;
        if (group_sum(n, scratch) >= (f32)k) found = candidate;
    }
    f32 floor = unordered(found);
    return is_bad(floor) || floor != floor ? NEG_INF : floor;
}

/* What top_p does to whole bins: those below `kept` stay, those from `dropped` on go, between them single tokens decide. */
struct cut {
    u32 kept, dropped;
};
FN struct cut cut_of(GLOBAL const struct pl_args_draw *d, GLOBAL const u64 *weights, GLOBAL const u32 *bins, u32 row,
                     u32 weighed, LOCAL_PTR u64 *sums, LOCAL_PTR f32 *scratch, const struct pl_args_draws a) {
    u64 total = weighed ? total_of(weights, row, a.parts) : 0, budget = budget_of(total, d);
    u32 shift = coarse(a), kept = 0u, within = 0u;
    for (u32 i = LOCAL_X; i < BINS; i += GROUP) {
        u64 sum = 0;
        for (u32 part = weighed ? 0u : a.parts; part < a.parts; part++) sum += bins[((u64)row * a.parts + part) * BINS + i];
        sums[i] = sum << shift;
    }
    ROLLED for (u32 m = 1u; m < BINS; m *= 2u) { /* sums of all bins up to each: all read before any is written */
        u64 more[(BINS + GROUP - 1u) / GROUP];
        BARRIER();
        for (u32 i = LOCAL_X, j = 0; i < BINS; i += GROUP, j++) more[j] = i >= m ? sums[i - m] : 0;
        BARRIER();
        for (u32 i = LOCAL_X, j = 0; i < BINS; i += GROUP, j++) sums[i] += more[j];
    }
    BARRIER();
    u64 missing = total - sums[BINS - 1u]; /* by cutting masses: wherever it may be */
    for (u32 i = LOCAL_X; i < BINS; i += GROUP) {
        kept += sums[i] + missing <= budget;
        within += sums[i] <= budget;
    }
    struct cut c;
    c.kept = (u32)group_sum((f32)kept, scratch);
    c.dropped = (u32)group_sum((f32)within, scratch) + 1u;
    return c;
}

/* The best score that threads which run in step have found. */
FN f32 shared_bound(f32 v) {
#if PL_SHUFFLE
    for (u32 m = PL_LANES / 2; m > 0; m >>= 1) v = FMAX(v, lane_xor(v, m));
#endif
    return v;
}

/* A score that is reached: the largest's with the least noise that there is; where threads run in step, the best of one token
 * of each of them as well. */
FN f32 first_bound(GLOBAL const struct pl_args_draw *d, GLOBAL const logit_t *p, u32 id, u32 end, f32 max, f32 sure_from,
                   f32 floor) {
    EXACT
    f32 bound = -2.82f;
#if PL_SHUFFLE
    f32 v = id < end ? load_logit(p + id) : NEG_INF;
    if (v >= floor && ADD(v, -max) > sure_from) bound = FMAX(bound, score_of(d, v, max, id));
    bound = shared_bound(bound);
#endif
    return bound;
}

/* What one thread has found; [0]: kept for sure, [1]: listed. */
struct harvest {
    f32 score[2][GROUP], logit[2][GROUP], highest[GROUP];
    u32 id[2][GROUP];
    u64 mass[GROUP];
};
FN void put_best(LOCAL_PTR struct harvest *s, u32 which, struct best b) {
    s->score[which][LOCAL_X] = b.score;
    s->logit[which][LOCAL_X] = b.logit;
    s->id[which][LOCAL_X] = b.id;
}
/* Afterwards thread 0's places hold what the group found. */
FN void reduce(LOCAL_PTR struct harvest *s, struct best sure, struct best open) {
    put_best(s, 0, sure);
    put_best(s, 1, open);
    for (u32 m = GROUP / 2; m > 0; m >>= 1) {
        BARRIER();
        if (LOCAL_X < m) {
            take(&sure, s->score[0][LOCAL_X + m], s->logit[0][LOCAL_X + m], s->id[0][LOCAL_X + m]);
            take(&open, s->score[1][LOCAL_X + m], s->logit[1][LOCAL_X + m], s->id[1][LOCAL_X + m]);
            s->mass[LOCAL_X] += s->mass[LOCAL_X + m];
            s->highest[LOCAL_X] = FMAX(s->highest[LOCAL_X], s->highest[LOCAL_X + m]);
            put_best(s, 0, sure);
            put_best(s, 1, open);
        }
    }
}

/* grid: parts, rows. Per part: the best of what is kept for sure and its mass (without weights: the mass of all); of what
 * else stands above the floor the best and the list (ids, logits, scores). */
KERNEL(draw_gather)(GLOBAL const logit_t *x, GLOBAL const struct pl_args_draw *draws, GLOBAL const f32 *part_max,
                    GLOBAL const u32 *part_id, GLOBAL const f32 *maxima, GLOBAL const u64 *weights, GLOBAL const u32 *bins,
                    GLOBAL struct pl_draw_part *out, GLOBAL u32 *list_id, GLOBAL f32 *list_logit, GLOBAL f32 *list_score,
                    GLOBAL u32 *witness, const struct pl_args_draws a) {
    LOCAL struct harvest found;
    LOCAL u64 sums[BINS];
    LOCAL u32 listed;
    count_launch(witness);
    u32 row = GROUP_Y, part = GROUP_X, end = part_begin(a, part + 1u);
    GLOBAL const struct pl_args_draw *d = draws + row;
    struct best top = top_of(part_max, part_id, row, a.parts), sure = no_best(), open = no_best();
    f32 max = top.logit, inverse_t = d->inverse_t, floor = NEG_INF, highest = NEG_INF;
    if (inverse_t == 0.0f || top.id >= PL_PICK_NONE) return; /* the same for all threads */
    /* How far below the largest a token is kept for sure, and may be kept at all: these distances are -inf for no limit. */
    f32 sure_from = d->top_k > 0u || d->top_p > 0u ? 1.0f : NEG_INF, open_from = NEG_INF;
    u32 weighed = a.weighed && d->top_p > 0u;
    {
        EXACT
        if (d->min_floor > NEG_INF) floor = ADD(max, d->min_floor);
        if (d->top_p > 0) floor = FMAX(floor, ADD(max, d->mass_floor));
    }
    if (d->top_k > 0) {
        u32 n = a.parts * a.maxima;
        floor = FMAX(floor, kth_floor(maxima + (u64)row * n, n, d->top_k, found.score[0]));
    }
    if ((weighed | (PL_SHUFFLE == 0)) != 0u) { /* behind a condition PoCL compiles all that follows twice */
        struct cut c = cut_of(d, weights, bins, row, weighed, sums, found.score[0], a);
        if (weighed && d->top_k == 0u && c.kept > 0u) sure_from = c.kept < BINS ? (f32)c.kept * -0.125f : NEG_INF;
        if (weighed && c.dropped < BINS) open_from = (f32)c.dropped * -0.125f;
    }
    if (LOCAL_X == 0) listed = 0;
    BARRIER();
    GLOBAL const logit_t *p = x + (u64)row * a.cols;
    u64 place = ((u64)row * a.parts + part) * a.list, mass = 0;
    f32 bound = first_bound(d, p, part_begin(a, part) + LOCAL_X, end, max, sure_from, floor);
    for (u32 base = part_begin(a, part); base < end; base += 4u * QUADS * GROUP) {
        f32 e[QUADS][4];
        u32 hits = 0u; /* what may win or must be listed: few, so looked at one by one */
        for (u32 i = 0; i < QUADS; i++) load4(p, base + 4u * (i * GROUP + LOCAL_X), end, is_aligned(a), e[i]);
        ROLLED UNROLLED for (u32 i = 0; i < QUADS; i++) {
            u32 word[4];
            f32 most = FMAX(FMAX(e[i][0], e[i][1]), FMAX(e[i][2], e[i][3]));
            if (d->top_p > 0u && (!weighed || most >= floor)) {
                ROLLED UNROLLED for (u32 j = 0; j < 4u; j++) {
                    EXACT
                    f32 below = ADD(e[i][j], -max);
                    if (!weighed || below > sure_from) mass += mass_of(below);
                }
            }
            if (!(most >= floor)) continue;
            words_of(d, base / 4u + i * GROUP + LOCAL_X, word);
            ROLLED UNROLLED for (u32 j = 0; j < 4u; j++) {
                EXACT
                f32 v = e[i][j], below = ADD(v, -max);
                u32 certain = below > sure_from;
                if (v >= floor && (certain ? !is_beaten(MUL(below, inverse_t), word[j], bound) : below > open_from))
                    hits |= 1u << (4u * i + j);
            }
        }
        ROLLED while (hits != 0u) {
            EXACT
            u32 k = (f32_bits((f32)(hits & (0u - hits))) >> 23) - 127u; /* the lowest one */
            u32 id = base + 4u * (k / 4u * GROUP + LOCAL_X) + k % 4u;
            f32 v = load_logit(p + id), score = score_of(d, v, max, id);
            hits &= hits - 1u;
            if (ADD(v, -max) > sure_from) {
                take(&sure, score, v, id);
                bound = FMAX(bound, score);
                continue;
            }
            take(&open, score, v, id);
            highest = FMAX(highest, v);
            u32 n = LOCAL_COUNT(&listed);
            if (n < a.list) {
                list_id[place + n] = id;
                list_logit[place + n] = v;
                list_score[place + n] = score;
            }
        }
        bound = shared_bound(bound);
    }
    BARRIER();
    found.mass[LOCAL_X] = mass;
    found.highest[LOCAL_X] = highest;
    reduce(&found, sure, open);
    if (LOCAL_X == 0) {
        GLOBAL struct pl_draw_part *o = out + row * a.parts + part;
        o->mass = found.mass[0];
        o->score = found.score[0][0];
        o->logit = found.logit[0][0];
        o->id = found.id[0][0];
        o->listed = listed;
        o->open_score = found.score[1][0];
        o->open_logit = found.logit[1][0];
        o->open_id = found.id[1][0];
        o->highest = found.highest[0];
    }
}

#endif

#ifdef DRAW_CHOOSE
/* Tokens above a pivot: how many, their mass, the best of them. Two pivots, one place of each a thread. */
struct above {
    u64 mass[2][GROUP];
    u32 count[2][GROUP], id[2][GROUP];
    f32 score[2][GROUP], logit[2][GROUP];
};
FN void put_above(LOCAL_PTR struct above *s, u32 pivot, u32 count, u64 mass, struct best b) {
    s->count[pivot][LOCAL_X] = count;
    s->mass[pivot][LOCAL_X] = mass;
    s->score[pivot][LOCAL_X] = b.score;
    s->logit[pivot][LOCAL_X] = b.logit;
    s->id[pivot][LOCAL_X] = b.id;
}
FN struct best best_above(LOCAL_PTR struct above *s, u32 pivot, u32 at) {
    struct best b;
    b.score = s->score[pivot][at];
    b.logit = s->logit[pivot][at];
    b.id = s->id[pivot][at];
    return b;
}
FN void fold_above(LOCAL_PTR struct above *s, u32 pivot, u32 m) {
    struct best b = best_above(s, pivot, LOCAL_X), other = best_above(s, pivot, LOCAL_X + m);
    take(&b, other.score, other.logit, other.id);
    put_above(s, pivot, s->count[pivot][LOCAL_X] + s->count[pivot][LOCAL_X + m],
              s->mass[pivot][LOCAL_X] + s->mass[pivot][LOCAL_X + m], b);
}
FN u32 passes(GLOBAL const struct pl_args_draw *d, LOCAL_PTR struct above *s, u32 pivot, u64 budget) {
    return (d->top_k == 0 || s->count[pivot][0] < d->top_k) && (d->top_p == 0 || s->mass[pivot][0] <= budget);
}
/* What one thread has seen above both pivots. */
struct seen {
    u32 n0, n1;
    u64 m0, m1;
    struct best b0, b1;
};
FN void see(struct seen *s, GLOBAL const struct pl_args_draw *d, f32 logit, f32 max, f32 mid, f32 score, u32 id) {
    EXACT
    u64 mass = d->top_p > 0 ? mass_of(ADD(logit, -max)) : 0;
    s->n0++;
    s->m0 += mass;
    take(&s->b0, score, logit, id);
    if (logit > mid) {
        s->n1++;
        s->m1 += mass;
        take(&s->b1, score, logit, id);
    }
}

/* grid: rows. All barriers are passed by all threads: conditions around them depend on the row alone. */
KERNEL(draw_choose)(GLOBAL const logit_t *x, GLOBAL const struct pl_args_draw *draws, GLOBAL const f32 *part_max,
                    GLOBAL const u32 *part_id, GLOBAL const u64 *weights, GLOBAL const struct pl_draw_part *found,
                    GLOBAL const u32 *list_id,
                    GLOBAL const f32 *list_logit, GLOBAL const f32 *list_score, GLOBAL u32 *out, GLOBAL u32 *witness,
                    const struct pl_args_draws a) {
    LOCAL struct above s;
    count_launch(witness);
    u32 row = GROUP_X, whole = 0, done = 1;
    GLOBAL const struct pl_args_draw *d = draws + row;
    GLOBAL const logit_t *p = x + (u64)row * a.cols;
    struct best top = top_of(part_max, part_id, row, a.parts), b = top, sure = no_best();
    f32 max = top.logit, low = 0.0f, high = NEG_INF;
    u64 total = 0, budget = 0, above = 0; /* above: the mass of what is sure, all of it larger than what is listed */
    if (d->inverse_t != 0.0f && top.id < PL_PICK_NONE) {
        struct best open = no_best();
        for (u32 i = 0; i < a.parts; i++) {
            GLOBAL const struct pl_draw_part *f = found + row * a.parts + i;
            total += f->mass;
            take(&sure, f->score, f->logit, f->id);
            take(&open, f->open_score, f->open_logit, f->open_id);
            high = FMAX(high, f->highest);
            if (f->listed > a.list) whole = 1; /* more than a list holds: the row itself is read again */
        }
        if (a.weighed && d->top_p > 0u) {
            above = total;
            total = total_of(weights, row, a.parts);
        }
        budget = budget_of(total, d);
        b = sure;
        take(&b, open.score, open.logit, open.id);
        done = b.id == sure.id;
        low = b.logit;
        if (whole) high = max;
    }
    for (u32 round = 0; round < 32u && !done; round++) {
        f32 mid = low < high ? unordered(ordered(low) + (ordered(high) - ordered(low)) / 2u) : low;
        struct seen t;
        t.n0 = t.n1 = 0;
        t.m0 = t.m1 = LOCAL_X == 0u && !whole ? above : 0;
        t.b0 = t.b1 = LOCAL_X == 0u && !whole ? sure : no_best();
        for (u32 id = whole ? LOCAL_X : a.cols; id < a.cols; id += GROUP) {
            f32 v = load_logit(p + id);
            if (v > low) see(&t, d, v, max, mid, score_of(d, v, max, id), id);
        }
        for (u32 part = whole ? a.parts : 0u; part < a.parts; part++) {
            u32 n = found[row * a.parts + part].listed;
            u64 place = ((u64)row * a.parts + part) * a.list;
            for (u32 i = LOCAL_X; i < n; i += GROUP) {
                f32 v = list_logit[place + i];
                if (v > low) see(&t, d, v, max, mid, list_score[place + i], list_id[place + i]);
            }
        }
        BARRIER();
        put_above(&s, 0, t.n0, t.m0, t.b0);
        put_above(&s, 1, t.n1, t.m1, t.b1);
        for (u32 m = GROUP / 2; m > 0; m >>= 1) {
            BARRIER();
            if (LOCAL_X < m) {
                fold_above(&s, 0, m);
                fold_above(&s, 1, m);
            }
        }
        BARRIER();
        done = passes(d, &s, 0, budget);
        if (!done) {
            u32 pivot = passes(d, &s, 1, budget) ? 0u : 1u; /* what is above the second passes: the first was too low */
            if (pivot == 0) high = mid;
            b = best_above(&s, pivot, 0);
            low = b.logit;
        }
    }
    if (LOCAL_X == 0) {
        out[row] = done ? b.id : top.id;
        out[a.rows + row] = !done;
    }
}
#endif
