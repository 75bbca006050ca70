/* draw - a token from each row of logits: argmax(logit / T + Gumbel noise) over what top_k, top_p and min_p leave.
 *
 * Rows without top_k climb, in one reading of all logits and one more where there is top_p. What the filters leave is the upper
 * end of a row, wherever it is cut: a token that another with no smaller logit beats cannot be the choice. climb: of each part
 * those that are left, its stairs (few: about the logarithm of its length), by the noise of every token but the logarithms of
 * few, and its masses, in floats. weigh: the mass above each of the row's last stairs. choose: the best stair whose mass
 * above fits top_p. Floats decide where they are further from the edge than DOUBT; else, and where a list was too short, the row is
 * read again, with exact masses.
 *
 * Other rows. scan: largest and lowest index of it in each part of a row, and the maxima of threads. gather: what can be kept at
 * all lies above a floor (from min_p, from the k-th largest of the threads' maxima, from the mass that top_p gives away); of the
 * tokens that are kept for sure the best score, of the others a list. choose: the best is taken if it passes the filters; else
 * it is refused, with all that is no larger, and the next best is tried: two pivots a round, the second halfway between it and
 * what is known to pass, at most 32 rounds.
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
/* Around what has barriers: behind a condition PoCL compiles all that follows twice. */
#define ALWAYS(condition) (((condition) | (PL_SHUFFLE == 0)) != 0u)

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
/* 2^x, below 2^-126 perhaps 0. */
FN f32 power_of_two(f32 x) {
#ifdef PL_TARGET_CUDA
    f32 y; /* without what exp2f does for the smallest numbers */
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return EXP2(x);
#endif
}
/* True when a token cannot reach a score, without logarithms: for that its noise must be t or more, which needs -log u <= e^-t,
 * and 1 - u is less than -log u. scaled <= 0; the margin is larger than all that is rounded. word: 23 bits of it are u. */
FN u32 is_beaten(f32 scaled, u32 word, f32 bound) {
    f32 rest = (2.0f - bits_f32(0x3F800000u | word >> 9)) - 5.9604645e-8f; /* 1 - u */
    return rest > power_of_two(FMA(scaled, 1.4426936f, 0.0144269504f - bound * 1.44269504f));
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

/* Whether a row goes by its stairs. */
FN u32 climbs(GLOBAL const struct pl_args_draw *d, const struct pl_args_draws a) {
    return a.climbs != 0u && d->inverse_t != 0.0f && d->top_k == 0u;
}

#ifdef DRAW_SCAN
/* grid: parts, rows. part_max, part_id [rows, parts]; maxima [rows, parts * a.maxima]. */
KERNEL(draw_scan)(GLOBAL const logit_t *x, GLOBAL const struct pl_args_draw *draws, GLOBAL f32 *part_max, GLOBAL u32 *part_id, GLOBAL f32 *maxima, GLOBAL u32 *witness,
                  const struct pl_args_draws a) {
    LOCAL f32 value[GROUP];
    LOCAL u32 index[GROUP];
    count_launch(witness);
    u32 row = GROUP_Y, part = GROUP_X, end = part_begin(a, part + 1u), at = PL_PICK_NONE;
    if (climbs(draws + row, a)) return; /* the same for all threads */
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

FN u64 budget_of(u64 total, GLOBAL const struct pl_args_draw *d) {
    return (total >> 32) * d->top_p + (((total & 0xFFFFFFFFu) * d->top_p) >> 32);
}

/* Below it min_p and top_p keep nothing. */
FN f32 floor_of(GLOBAL const struct pl_args_draw *d, f32 max) {
    EXACT
    f32 floor = NEG_INF;
    if (d->min_floor > NEG_INF) floor = ADD(max, d->min_floor);
    if (d->top_p > 0u) floor = FMAX(floor, ADD(max, d->mass_floor));
    return floor;
}
/* e^x in floats. */
FN f32 rough_mass(f32 x) { return power_of_two(x * 1.44269504f); }
/* Scores that are made of other differences are this much apart at most, and half of it again. */
FN f32 slack_of(f32 scaled) { return 1e-3f + 1e-6f * FABS(scaled); }

#ifdef DRAW_CLIMB
#define LEDGES 32u  /* by the distance to a large logit; the last holds all that is further */
#define HELD   512u /* stairs and what might have been some */
struct climb {
    v4u held[HELD], few[HELD]; /* logit, noise, score, id */
    u32 best[LEDGES];          /* score found on each, ordered */
    f32 bound[LEDGES];         /* the best of all above a ledge */
    u32 listed, left, stays[HELD];
    f32 scratch[GROUP];
};
FN u32 ledge_of(f32 v, f32 from, f32 per) { return (u32)FMIN(FMAX((from - v) * per, 0.0f), (f32)(LEDGES - 1u)); }
/* Loads what a thread looks at together; the largest of it. */
FN f32 load_all(GLOBAL const logit_t *p, u32 base, u32 end, u32 aligned, f32 (*e)[4]) {
    f32 most = NEG_INF;
    for (u32 i = 0; i < QUADS; i++) load4(p, base + 4u * (i * GROUP + LOCAL_X), end, aligned, e[i]);
    ROLLED UNROLLED for (u32 i = 0; i < 4u * QUADS; i++) most = FMAX(most, e[i / 4u][i % 4u]);
    return most;
}
/* All that was found becomes known to all. */
FN void raise(LOCAL_PTR struct climb *s, f32 least) {
    BARRIER();
    for (u32 i = LOCAL_X; i < LEDGES; i += GROUP) {
        u32 most = ordered(least);
        ROLLED UNROLLED for (u32 j = 0; j + 1u < LEDGES; j++) most = j < i && s->best[j] > most ? s->best[j] : most;
        s->bound[i] = unordered(most);
    }
    BARRIER();
}
/* Which of n stay, and the best of those, in order, to `to`; how many there were of this thread's. */
FN f32 keep_stairs(LOCAL_PTR struct climb *s, u32 n, f32 from, f32 per, f32 inverse_t, GLOBAL struct pl_draw_stair *to) {
    f32 mine = 0.0f;
    for (u32 i = LOCAL_X; i < n; i += GROUP) { /* most were found before better ones */
        v4u q = s->held[i];
        f32 v = bits_f32(q.x), slack = slack_of((v - from) * inverse_t);
        if (v <= from && bits_f32(q.z) + slack < s->bound[ledge_of(v, from, per)]) continue;
        u32 place = LOCAL_COUNT(&s->left);
        s->few[place] = q;
    }
    BARRIER();
    u32 m = s->left;
    for (u32 i = LOCAL_X; i < m; i += GROUP) {
        f32 v = bits_f32(s->few[i].x), beats = bits_f32(s->few[i].z) + slack_of((v - from) * inverse_t);
        u32 stays = 1u;
        ROLLED for (u32 j = 0; j < m; j++) {
            v4u o = s->few[j];
            if (bits_f32(o.x) >= v && bits_f32(o.z) > beats) stays = 0u;
        }
        s->stays[i] = stays;
        mine += (f32)stays;
    }
    BARRIER();
    for (u32 i = LOCAL_X; i < m; i += GROUP) {
        v4u q = s->few[i];
        u32 rank = s->stays[i] != 0u ? 0u : PL_DRAW_STAIRS;
        ROLLED for (u32 j = 0; j < m; j++) {
            f32 other = bits_f32(s->few[j].z);
            u32 before = other > bits_f32(q.z) || (other == bits_f32(q.z) && j < i);
            rank += s->stays[j] & before;
        }
        if (rank < PL_DRAW_STAIRS) {
            to[rank].logit = bits_f32(q.x);
            to[rank].noise = bits_f32(q.y);
            to[rank].id = q.w;
        }
    }
    return mine;
}

/* grid: parts, rows. rises [rows, parts], stairs [rows, parts, PL_DRAW_STAIRS] from the best score on. */
KERNEL(draw_climb)(GLOBAL const logit_t *x, GLOBAL const struct pl_args_draw *draws, GLOBAL struct pl_draw_rise *rises,
                   GLOBAL struct pl_draw_stair *stairs, GLOBAL u32 *witness, const struct pl_args_draws a) {
    LOCAL struct climb s;
    count_launch_late(witness); /* weigh reads logits before this launch is done */
    u32 row = GROUP_Y, part = GROUP_X, first = part_begin(a, part), end = part_begin(a, part + 1u), broken = 0u;
    GLOBAL const struct pl_args_draw *d = draws + row;
    if (!climbs(d, a)) return; /* the same for all threads */
    GLOBAL const logit_t *p = x + (u64)row * a.cols;
    f32 inverse_t = d->inverse_t, from = 0.0f, per = 0.0f, least = NEG_INF, floor = -3.402823466e38f, max = NEG_INF, sum = 0.0f;
    u32 room = PL_MIN(a.list, HELD);
    for (u32 i = LOCAL_X; i < LEDGES; i += GROUP) s.best[i] = ordered(NEG_INF);
    if (LOCAL_X == 0u) s.listed = 0u, s.left = 0u;
    f32 e[QUADS][4], most = load_all(p, first, end, is_aligned(a), e);
    /* The largest of what is loaded first is what distances are from, and the best token of each thread there a first bound. */
    from = group_max(most, s.scratch);
    f32 low = -group_max(most > NEG_INF ? -most : -from, s.scratch);
    u32 real = from > NEG_INF; /* the same for all threads */
    if (real && from > low) per = 12.0f / (from - low);
    if (real) least = -2.83f; /* the least noise, for `from` itself */
    if (!real) from = 0.0f;   /* nothing is passed over */
    if (d->min_floor > NEG_INF && real) floor = FMAX(floor, from + d->min_floor - 1e-3f);
    if (d->top_p > 0u && real) floor = FMAX(floor, from + d->mass_floor - 1e-3f);
    if (most > NEG_INF) {
        u32 at = 0u;
        ROLLED for (u32 i = 0; i < 4u * QUADS; i++) at = e[i / 4u][i % 4u] == most ? i : at;
        f32 score = score_of(d, most, from, first + 4u * (at / 4u * GROUP + LOCAL_X) + at % 4u);
        LOCAL_MAX(&s.best[ledge_of(most, from, per)], ordered(score));
    }
    raise(&s, least);
    for (u32 base = first; base < end; base += 4u * QUADS * GROUP) {
        u32 hits = 0u; /* what might be a stair: few, so looked at one by one */
        if (base != first) most = load_all(p, base, end, is_aligned(a), e);
        max = FMAX(max, most);
        ROLLED UNROLLED for (u32 i = 0; i < QUADS; i++) {
            u32 word[4];
            ROLLED UNROLLED for (u32 j = 0; j < 4u; j++) broken |= is_bad(e[i][j]);
            if (d->top_p > 0u) {
                ROLLED UNROLLED for (u32 j = 0; j < 4u; j++) sum += rough_mass(e[i][j] - from);
            }
            words_of(d, base / 4u + i * GROUP + LOCAL_X, word);
            ROLLED UNROLLED for (u32 j = 0; j < 4u; j++) {
                f32 v = e[i][j], scaled = (v - from) * inverse_t;
                u32 beaten = is_beaten(scaled, word[j], s.bound[ledge_of(v, from, per)]), above = v > from, kept = v >= floor;
                hits |= (kept & (above | (beaten ^ 1u))) << (4u * i + j);
            }
        }
        ROLLED while (hits != 0u) {
            u32 k = (f32_bits((f32)(hits & (0u - hits))) >> 23) - 127u; /* the lowest one */
            u32 id = base + 4u * (k / 4u * GROUP + LOCAL_X) + k % 4u;
            f32 v = load_logit(p + id), of = noise(d, id), scaled = tempered(d, v, from), score = scaled + of;
            hits &= hits - 1u;
            if (v <= from && score + slack_of(scaled) < s.bound[ledge_of(v, from, per)]) continue;
            LOCAL_MAX(&s.best[ledge_of(v, from, per)], ordered(score));
            u32 n = LOCAL_COUNT(&s.listed);
            v4u q;
            q.x = f32_bits(v), q.y = f32_bits(of), q.z = f32_bits(score), q.w = id;
            if (n < room) s.held[n] = q;
        }
        raise(&s, least);
    }
    u64 place = (u64)row * a.parts + part;
    BARRIER();
    u32 n = PL_MIN(s.listed, room);
    f32 count = keep_stairs(&s, n, from, per, inverse_t, stairs + place * PL_DRAW_STAIRS);
    count = group_sum(count, s.scratch);
    max = group_max(max, s.scratch);
    sum = group_sum(sum, s.scratch);
    f32 bad = group_max((f32)broken, s.scratch);
    if (LOCAL_X == 0u) {
        GLOBAL struct pl_draw_rise *r = rises + place;
        r->max = max;
        r->from = from;
        r->sum = sum;
        r->count = (u32)count;
        r->lost = s.listed > room || (!real && FABS(max) < POS_INF && FABS(max) > 60.0f); /* its masses might be none, or too many */
        r->broken = bad != 0.0f;
    }
}
#endif

#if defined(DRAW_WEIGH) || defined(DRAW_CHOOSE)
#define STAIRS_MAX (PL_DRAW_PARTS_MAX * PL_DRAW_STAIRS)
/* A row's parts, and its stairs from the best score on. */
struct flight {
    v4u all[STAIRS_MAX];                 /* logit, score, id; id PL_PICK_NONE: none */
    v4u stair[PL_DRAW_STAIRS];           /* likewise: the row's */
    u32 left[STAIRS_MAX], count;         /* places in `all` that no other beats */
    f32 max[PL_DRAW_PARTS_MAX], from[PL_DRAW_PARTS_MAX], sum[PL_DRAW_PARTS_MAX];
    u32 stairs[PL_DRAW_PARTS_MAX], lost[PL_DRAW_PARTS_MAX], broken[PL_DRAW_PARTS_MAX];
};
/* What is known of a row together. */
struct summit {
    f32 max, sum; /* sum: of its masses, 1 is the largest's */
    u32 broken, lost;
};
FN struct summit summit_of(LOCAL_PTR struct flight *s, GLOBAL const struct pl_draw_rise *rises, u32 row, u32 parts) {
    struct summit m;
    for (u32 i = LOCAL_X; i < parts; i += GROUP) {
        GLOBAL const struct pl_draw_rise *r = rises + row * parts + i;
        s->max[i] = r->max;
        s->from[i] = r->from;
        s->sum[i] = r->sum;
        s->stairs[i] = r->count;
        s->lost[i] = r->lost;
        s->broken[i] = r->broken;
    }
    if (LOCAL_X == 0u) s->count = 0u;
    BARRIER();
    m.max = NEG_INF, m.sum = 0.0f, m.broken = 0u, m.lost = 0u;
    for (u32 i = 0; i < parts; i++) {
        m.max = FMAX(m.max, s->max[i]);
        m.broken |= s->broken[i];
        m.lost |= s->lost[i];
    }
    for (u32 i = 0; i < parts; i++) m.sum += s->sum[i] > 0.0f ? s->sum[i] * rough_mass(s->from[i] - m.max) : 0.0f;
    return m;
}
FN u32 is_better(v4u a, v4u b) {
    return bits_f32(a.y) > bits_f32(b.y) || (bits_f32(a.y) == bits_f32(b.y) && a.z < b.z);
}
FN void order_stairs(LOCAL_PTR struct flight *s, GLOBAL const struct pl_args_draw *d, GLOBAL const struct pl_draw_stair *stairs, u32 row,
                     f32 max, u32 parts) {
    f32 floor = floor_of(d, max);
    u32 all = parts * PL_DRAW_STAIRS;
    v4u none;
    none.x = none.y = f32_bits(NEG_INF), none.z = none.w = PL_PICK_NONE;
    for (u32 i = LOCAL_X; i < all; i += GROUP) {
        EXACT
        GLOBAL const struct pl_draw_stair *q = stairs + (u64)row * all + i;
        u32 here = i % PL_DRAW_STAIRS < s->stairs[i / PL_DRAW_STAIRS];
        f32 v = here ? q->logit : NEG_INF;
        v4u e = none;
        if (v >= floor && here) e.x = f32_bits(v), e.y = f32_bits(ADD(tempered(d, v, max), q->noise)), e.z = q->id;
        s->all[i] = e;
    }
    for (u32 i = LOCAL_X; i < PL_DRAW_STAIRS; i += GROUP) s->stair[i] = none;
    BARRIER();
    for (u32 i = LOCAL_X; i < all; i += GROUP) {
        v4u e = s->all[i];
        u32 stays = e.z != PL_PICK_NONE;
        ROLLED for (u32 j = 0; j < all; j++) {
            v4u o = s->all[j];
            if (is_better(o, e) && bits_f32(o.x) >= bits_f32(e.x)) stays = 0u;
        }
        if (stays == 0u) continue;
        u32 n = LOCAL_COUNT(&s->count);
        s->left[n] = i;
    }
    BARRIER();
    u32 left = s->count;
    for (u32 i = LOCAL_X; i < left; i += GROUP) {
        v4u e = s->all[s->left[i]];
        u32 rank = 0u;
        ROLLED for (u32 j = 0; j < left; j++) rank += is_better(s->all[s->left[j]], e);
        if (rank < PL_DRAW_STAIRS) s->stair[rank] = e;
    }
    BARRIER();
}
#endif

#ifdef DRAW_WEIGH
#define CHUNK     (4u * QUADS * GROUP) /* logits that are looked at together */
#define SURE      4u                   /* stairs that nearly always suffice where top_p is SURE_FROM or more */
#define SURE_FROM 3650722202u          /* 0.85 */
#define UNWEIGHED 3e37f                /* more than any mass; of all parts still a number */
FN void add_above(LOCAL_PTR const f32 *stair, u32 count, f32 low, f32 max, const f32 (*e)[4], f32 *mass) {
    f32 at[PL_DRAW_STAIRS];
    ROLLED UNROLLED for (u32 k = 0; k < PL_DRAW_STAIRS; k++) at[k] = stair[k];
    ROLLED UNROLLED for (u32 i = 0; i < QUADS; i++) {
        if (!(FMAX(FMAX(e[i][0], e[i][1]), FMAX(e[i][2], e[i][3])) > low)) continue;
        ROLLED UNROLLED for (u32 j = 0; j < 4u; j++) {
            f32 v = e[i][j], one = rough_mass(v - max);
            ROLLED UNROLLED for (u32 k = 0; k < SURE; k++) {
                if (v > at[k]) mass[k] += one;
            }
            if (count <= SURE) continue; /* the same for all threads */
            ROLLED UNROLLED for (u32 k = SURE; k < PL_DRAW_STAIRS; k++) {
                if (v > at[k]) mass[k] += one;
            }
        }
    }
}
/* Sums over the group, to above[]. scratch: GROUP floats. */
FN void leave_masses(f32 *mass, u32 count, LOCAL_PTR f32 *scratch, GLOBAL f32 *above) {
#if PL_SHUFFLE
    enum { WARPS = GROUP / PL_LANES };
    ROLLED UNROLLED for (u32 k = 0; k < PL_DRAW_STAIRS; k++) {
        for (u32 m = PL_LANES / 2; m > 0; m >>= 1) mass[k] += lane_xor(mass[k], m);
        if (LOCAL_X % PL_LANES == 0u) scratch[k * WARPS + LOCAL_X / PL_LANES] = mass[k];
    }
    BARRIER();
    if (LOCAL_X < PL_DRAW_STAIRS) {
        f32 sum = 0.0f;
        for (u32 i = 0; i < WARPS; i++) sum += scratch[LOCAL_X * WARPS + i];
        above[LOCAL_X] = LOCAL_X < count ? sum : UNWEIGHED;
    }
#else
    ROLLED UNROLLED for (u32 k = 0; k < PL_DRAW_STAIRS; k++) {
        f32 sum = group_sum(mass[k], scratch);
        if (LOCAL_X == 0u) above[k] = k < count ? sum : UNWEIGHED;
    }
#endif
}
/* grid: parts, rows. above [rows, parts, PL_DRAW_STAIRS]: the mass of the part's logits above each stair of the row, of those that
 * are weighed. Logits from the last on, which the reading before this one leaves in the cache; the first of them before
 * the stairs are known. */
KERNEL(draw_weigh)(GLOBAL const logit_t *x, GLOBAL const struct pl_args_draw *draws, GLOBAL const struct pl_draw_rise *rises,
                   GLOBAL const struct pl_draw_stair *stairs, GLOBAL f32 *above, GLOBAL u32 *witness, const struct pl_args_draws a) {
    LOCAL struct flight s;
    LOCAL f32 scratch[GROUP], stair[PL_DRAW_STAIRS];
    u32 row = GROUP_Y, part = GROUP_X, first = part_begin(a, part), end = part_begin(a, part + 1u), aligned = is_aligned(a);
    GLOBAL const struct pl_args_draw *d = draws + row;
    GLOBAL const logit_t *p = x + (u64)row * a.cols;
    u32 weighs = climbs(d, a) && d->top_p != 0u; /* the same for all threads */
    u32 chunk = weighs ? (end - first + CHUNK - 1u) / CHUNK : 0u;
    f32 e[QUADS][4], next[QUADS][4];
    for (u32 i = 0; i < QUADS && chunk > 0u; i++) load4(p, first + (chunk - 1u) * CHUNK + 4u * (i * GROUP + LOCAL_X), end, aligned, e[i]);
    count_launch(witness);
    if (!weighs) return;
    struct summit m = summit_of(&s, rises, row, a.parts);
    order_stairs(&s, d, stairs, row, m.max, a.parts);
    f32 mass[PL_DRAW_STAIRS], low = POS_INF;
    u32 count = d->top_p >= SURE_FROM ? SURE : PL_DRAW_STAIRS;
    ROLLED UNROLLED for (u32 k = 0; k < PL_DRAW_STAIRS; k++) {
        f32 at = s.stair[k].z != PL_PICK_NONE ? bits_f32(s.stair[k].x) : POS_INF;
        if (k < count) low = FMIN(low, at);
        if (LOCAL_X == 0u) stair[k] = at;
        mass[k] = 0.0f;
    }
    BARRIER();
    ROLLED for (; chunk > 0u; chunk--) {
        for (u32 i = 0; i < QUADS && chunk > 1u; i++)
            load4(p, first + (chunk - 2u) * CHUNK + 4u * (i * GROUP + LOCAL_X), end, aligned, next[i]);
        add_above(stair, count, low, m.max, e, mass);
        ROLLED UNROLLED for (u32 i = 0; i < 4u * QUADS; i++) e[i / 4u][i % 4u] = next[i / 4u][i % 4u];
    }
    leave_masses(mass, count, scratch, above + ((u64)row * a.parts + part) * PL_DRAW_STAIRS);
}
#endif

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

/* grid: parts, rows. Per part: the best of what is kept for sure and the mass of all; of what else stands
 * above the floor the best and the list (ids, logits, scores). */
KERNEL(draw_gather)(GLOBAL const logit_t *x, GLOBAL const struct pl_args_draw *draws, GLOBAL const f32 *part_max,
                    GLOBAL const u32 *part_id, GLOBAL const f32 *maxima, GLOBAL struct pl_draw_part *out, GLOBAL u32 *list_id, GLOBAL f32 *list_logit, GLOBAL f32 *list_score,
                    GLOBAL u32 *witness, const struct pl_args_draws a) {
    LOCAL struct harvest found;
    LOCAL u32 listed;
    count_launch(witness);
    u32 row = GROUP_Y, part = GROUP_X, end = part_begin(a, part + 1u);
    GLOBAL const struct pl_args_draw *d = draws + row;
    struct best top = top_of(part_max, part_id, row, a.parts), sure = no_best(), open = no_best();
    f32 max = top.logit, inverse_t = d->inverse_t, floor = NEG_INF, highest = NEG_INF;
    if (climbs(d, a) || inverse_t == 0.0f || top.id >= PL_PICK_NONE) return; /* the same for all threads */
    /* How far below the largest a token is kept for sure. */
    f32 sure_from = d->top_k > 0u || d->top_p > 0u ? 1.0f : NEG_INF;
    floor = floor_of(d, max);
    if (d->top_k > 0) {
        u32 n = a.parts * a.maxima;
        floor = FMAX(floor, kth_floor(maxima + (u64)row * n, n, d->top_k, found.score[0]));
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
            if (d->top_p > 0u) {
                ROLLED UNROLLED for (u32 j = 0; j < 4u; j++) {
                    EXACT
                    mass += mass_of(ADD(e[i][j], -max));
                }
            }
            if (!(most >= floor)) continue;
            words_of(d, base / 4u + i * GROUP + LOCAL_X, word);
            ROLLED UNROLLED for (u32 j = 0; j < 4u; j++) {
                EXACT
                f32 v = e[i][j], below = ADD(v, -max);
                u32 certain = below > sure_from;
                if (v >= floor && (certain ? !is_beaten(MUL(below, inverse_t), word[j], bound) : below > NEG_INF))
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

/* The best stair that passes top_p, or PL_DRAW_UNKNOWN where floats do not tell. The same for all threads. mass: above each stair, of
 * each part. */
#define DOUBT 6.1e-5f /* of a row's mass: more than sums of floats, their exponentials and exact masses are apart */
FN u32 best_stair(LOCAL_PTR const struct flight *s, LOCAL_PTR const f32 *mass, GLOBAL const struct pl_args_draw *d,
                  const struct summit *m, GLOBAL const struct pl_draw_stair *stairs, u32 row, u32 parts) {
    f32 doubt = DOUBT * m->sum, edge = m->sum * ((f32)d->top_p * 2.3283064365e-10f);
    u32 k = 0u;
    if (m->lost || s->stair[0].z == PL_PICK_NONE) return PL_DRAW_UNKNOWN;
    if (d->top_p > 0u && !(m->sum < 1e30f)) return PL_DRAW_UNKNOWN;
    for (; d->top_p > 0u; k++) {
        f32 above = 0.0f;
        if (k == PL_DRAW_STAIRS || s->stair[k].z == PL_PICK_NONE) return PL_DRAW_UNKNOWN;
        for (u32 i = 0; i < parts; i++) above += mass[i * PL_DRAW_STAIRS + k];
        if (!(FABS(above - edge) > doubt)) return PL_DRAW_UNKNOWN;
        if (above < edge) break;
    }
    f32 score = bits_f32(s->stair[k].y);
    for (u32 i = 0; i < parts; i++) { /* parts that had more stairs than places: those that stand there are known to be better */
        if (s->stairs[i] <= PL_DRAW_STAIRS) continue;
        GLOBAL const struct pl_draw_stair *last = stairs + ((u64)row * parts + i + 1u) * PL_DRAW_STAIRS - 1u;
        f32 scaled = tempered(d, last->logit, m->max);
        if (scaled + last->noise + slack_of(scaled) > score) return PL_DRAW_UNKNOWN;
    }
    return s->stair[k].z;
}
/* A row as it is: afterwards places 0 hold the best of what is above the floor, all mass, and the largest. */
FN void read_whole(LOCAL_PTR struct above *s, GLOBAL const struct pl_args_draw *d, GLOBAL const logit_t *p, u32 cols, f32 max) {
    struct best b = no_best(), top = no_best();
    f32 floor = floor_of(d, max);
    u64 mass = 0;
    ROLLED for (u32 id = LOCAL_X; id < cols; id += GROUP) {
        EXACT
        f32 v = load_logit(p + id);
        if (d->top_p > 0u) mass += mass_of(ADD(v, -max));
        take(&top, v, v, id);
        if (v >= floor && v > NEG_INF) take(&b, score_of(d, v, max, id), v, id);
    }
    put_above(s, 0, 0, mass, b);
    put_above(s, 1, 0, 0, top);
    for (u32 m = GROUP / 2; m > 0; m >>= 1) {
        BARRIER();
        if (LOCAL_X < m) {
            fold_above(s, 0, m);
            fold_above(s, 1, m);
        }
    }
    BARRIER();
}

/* grid: rows. All barriers are passed by all threads: conditions around them depend on the row alone. */
KERNEL(draw_choose)(GLOBAL const logit_t *x, GLOBAL const struct pl_args_draw *draws, GLOBAL const f32 *part_max,
                    GLOBAL const u32 *part_id, GLOBAL const struct pl_draw_part *found, GLOBAL const u32 *list_id,
                    GLOBAL const f32 *list_logit, GLOBAL const f32 *list_score,
                    GLOBAL const struct pl_draw_rise *rises, GLOBAL const struct pl_draw_stair *stairs, GLOBAL const f32 *above,
                    GLOBAL u32 *out, GLOBAL u32 *witness,
                    const struct pl_args_draws a) {
    LOCAL struct above s;
    LOCAL struct flight stair;
    LOCAL f32 mass[STAIRS_MAX];
    count_launch(witness);
    u32 row = GROUP_X, whole = 0, done = 1;
    GLOBAL const struct pl_args_draw *d = draws + row;
    GLOBAL const logit_t *p = x + (u64)row * a.cols;
    struct best top = no_best(), b = top, sure = top;
    f32 max = NEG_INF, low = 0.0f, high = NEG_INF;
    u64 total = 0, budget = 0;
    u32 climbing = climbs(d, a), parts = climbing ? a.parts : 0u, taken = PL_DRAW_UNKNOWN;
    struct summit m = summit_of(&stair, rises, row, parts);
    if (ALWAYS(climbing)) {
        order_stairs(&stair, d, stairs, row, m.max, parts);
        for (u32 i = LOCAL_X; i < parts * PL_DRAW_STAIRS; i += GROUP)
            mass[i] = d->top_p > 0u ? above[(u64)row * parts * PL_DRAW_STAIRS + i] : 0.0f;
        BARRIER();
    }
    if (climbing) taken = m.broken ? PL_PICK_BROKEN : m.max > NEG_INF ? best_stair(&stair, mass, d, &m, stairs, row, parts) : PL_PICK_NONE;
    u32 again = climbing && taken == PL_DRAW_UNKNOWN;
    if (ALWAYS(again)) read_whole(&s, d, p, again ? a.cols : 0u, m.max);
    if (again) {
        whole = 1;
        top = best_above(&s, 1, 0);
        b = best_above(&s, 0, 0);
        budget = budget_of(s.mass[0][0], d);
        done = d->top_p == 0u;
        low = b.logit;
        max = high = m.max;
    } else if (!climbing) {
        b = top = top_of(part_max, part_id, row, a.parts);
        max = top.logit;
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
            budget = budget_of(total, d);
            b = sure;
            take(&b, open.score, open.logit, open.id);
            done = b.id == sure.id;
            low = b.logit;
            if (whole) high = max;
        }
    }
    for (u32 round = 0; round < 32u && !done; round++) {
        f32 mid = low < high ? unordered(ordered(low) + (ordered(high) - ordered(low)) / 2u) : low;
        struct seen t;
        t.n0 = t.n1 = 0;
        t.m0 = t.m1 = 0;
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
        out[row] = taken != PL_DRAW_UNKNOWN ? taken : done ? b.id : top.id;
        out[a.rows + row] = !done;
    }
}
#endif
