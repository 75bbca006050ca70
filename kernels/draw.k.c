/* draw - a token from each row of logits: argmax(logit / T + Gumbel noise) over what top_k, top_p and min_p leave.
 *
 * Three launches. scan: largest and lowest index of it in each part of a row, and the maxima of threads. gather: what can be
 * kept at all lies above a floor (from min_p, from the k-th largest of the threads' maxima, from the mass that top_p gives
 * away); of the tokens above it the best score and a list, and the mass of all. choose: the best is taken if it passes the
 * filters; else it is refused, with all that is no larger, and the next best is tried: two pivots a round, the second halfway
 * between it and what is known to pass, at most 32 rounds.
 *
 * Same tokens as src/sample for the same seed and position: masses are integers (2^-34), exponential and logarithm the same
 * polynomials, each product and sum rounded on its own (EXACT, MUL, ADD).
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

#define AT_ONCE  8u
#define POS_INF  bits_f32(0x7F800000u)
#define NO_SCORE NEG_INF

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

/* Philox4x32-10 at counter {id / 4, position high, 0, position low}, word id mod 4. */
FN f32 noise(GLOBAL const struct pl_args_draw *d, u32 id) {
    EXACT
    u32 c0 = id >> 2, c1 = d->position_high, c2 = 0, c3 = d->position_low, k0 = d->seed_low, k1 = d->seed_high;
    for (u32 round = 0; round < 10u; round++) {
        u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        u32 n0 = (u32)(p1 >> 32) ^ c1 ^ k0, n2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (u32)p1;
        c3 = (u32)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    u32 word = (id & 2u) ? ((id & 1u) ? c3 : c2) : ((id & 1u) ? c1 : c0);
    f32 u = MUL(ADD((f32)(word >> 9), 0.5f), 1.1920928955078125e-7f);
    return -log_of(-log_of(u));
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
FN f32 score_of(GLOBAL const struct pl_args_draw *d, f32 logit, f32 max, u32 id) {
    EXACT
    return ADD(MUL(ADD(logit, -max), d->inverse_t), noise(d, id));
}
/* No noise exceeds 16.7: true when id cannot beat b. */
FN u32 is_hopeless(GLOBAL const struct pl_args_draw *d, f32 logit, f32 max, const struct best *b) {
    EXACT
    return ADD(MUL(ADD(logit, -max), d->inverse_t), 16.7f) < b->score;
}

struct reduce { /* of a group */
    f32 score[GROUP], logit[GROUP];
    u32 id[GROUP];
};
FN struct best reduce_best(struct best b, LOCAL_PTR struct reduce *s) {
    BARRIER();
    s->score[LOCAL_X] = b.score;
    s->logit[LOCAL_X] = b.logit;
    s->id[LOCAL_X] = b.id;
    for (u32 m = GROUP / 2; m > 0; m >>= 1) {
        BARRIER();
        if (LOCAL_X < m) {
            take(&b, s->score[LOCAL_X + m], s->logit[LOCAL_X + m], s->id[LOCAL_X + m]);
            s->score[LOCAL_X] = b.score;
            s->logit[LOCAL_X] = b.logit;
            s->id[LOCAL_X] = b.id;
        }
    }
    BARRIER();
    b.score = s->score[0];
    b.logit = s->logit[0];
    b.id = s->id[0];
    return b;
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

FN u32 part_begin(const struct pl_args_draws a, u32 part) {
    u32 span = (a.cols + a.parts - 1u) / a.parts;
    return PL_MIN(part * span, a.cols);
}

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
    for (u32 base = part_begin(a, part); base < end; base += AT_ONCE * GROUP) { /* loads first: they do not wait */
        f32 e[AT_ONCE];
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 k = base + i * GROUP + LOCAL_X;
            e[i] = k < end ? load_logit(p + k) : NEG_INF;
        }
        for (u32 i = 0; i < AT_ONCE; i++) {
            if (is_bad(e[i])) {
                v = POS_INF;
                at = PL_PICK_BROKEN;
            } else if (e[i] > v) {
                v = e[i];
                at = base + i * GROUP + LOCAL_X;
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

/* grid: parts, rows. Per part: mass, best, and the list of what stands above the floor (ids, logits, scores). */
KERNEL(draw_gather)(GLOBAL const logit_t *x, GLOBAL const struct pl_args_draw *draws, GLOBAL const f32 *part_max,
                    GLOBAL const u32 *part_id, GLOBAL const f32 *maxima, GLOBAL struct pl_draw_part *out, GLOBAL u32 *list_id,
                    GLOBAL f32 *list_logit, GLOBAL f32 *list_score, GLOBAL u32 *witness, const struct pl_args_draws a) {
    LOCAL struct reduce scratch;
    LOCAL u64 sums[GROUP];
    LOCAL u32 listed;
    count_launch(witness);
    u32 row = GROUP_Y, part = GROUP_X, end = part_begin(a, part + 1u);
    GLOBAL const struct pl_args_draw *d = draws + row;
    struct best top = top_of(part_max, part_id, row, a.parts), b = no_best();
    if (d->inverse_t == 0.0f || top.id >= PL_PICK_NONE) return; /* the same for all threads */
    f32 max = top.logit, floor = NEG_INF;
    u32 lists = d->top_k > 0 || d->top_p > 0;
    {
        EXACT
        if (d->min_floor > NEG_INF) floor = ADD(max, d->min_floor);
        if (d->top_p > 0) floor = FMAX(floor, ADD(max, d->mass_floor));
    }
    if (d->top_k > 0) {
        u32 n = a.parts * a.maxima;
        floor = FMAX(floor, kth_floor(maxima + (u64)row * n, n, d->top_k, scratch.score));
    }
    if (LOCAL_X == 0) listed = 0;
    BARRIER();
    GLOBAL const logit_t *p = x + (u64)row * a.cols;
    u64 place = ((u64)row * a.parts + part) * a.list, mass = 0;
    for (u32 base = part_begin(a, part); base < end; base += AT_ONCE * GROUP) {
        f32 e[AT_ONCE];
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 k = base + i * GROUP + LOCAL_X;
            e[i] = k < end ? load_logit(p + k) : NEG_INF;
        }
        for (u32 i = 0; i < AT_ONCE; i++) {
            EXACT
            u32 id = base + i * GROUP + LOCAL_X;
            if (d->top_p > 0) mass += mass_of(ADD(e[i], -max));
            if (!(e[i] >= floor) || id >= end || e[i] == NEG_INF) continue;
            if (!lists && is_hopeless(d, e[i], max, &b)) continue;
            f32 score = score_of(d, e[i], max, id);
            take(&b, score, e[i], id);
            if (!lists) continue;
            u32 n = LOCAL_COUNT(&listed);
            if (n < a.list) {
                list_id[place + n] = id;
                list_logit[place + n] = e[i];
                list_score[place + n] = score;
            }
        }
    }
    b = reduce_best(b, &scratch);
    mass = reduce_sum(mass, sums);
    if (LOCAL_X == 0) {
        GLOBAL struct pl_draw_part *o = out + row * a.parts + part;
        o->mass = mass;
        o->score = b.score;
        o->logit = b.logit;
        o->id = b.id;
        o->listed = listed;
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
                    GLOBAL const u32 *part_id, GLOBAL const struct pl_draw_part *found, GLOBAL const u32 *list_id,
                    GLOBAL const f32 *list_logit, GLOBAL const f32 *list_score, GLOBAL u32 *out, GLOBAL u32 *witness,
                    const struct pl_args_draws a) {
    LOCAL struct above s;
    count_launch(witness);
    u32 row = GROUP_X, whole = 0, done = 1;
    GLOBAL const struct pl_args_draw *d = draws + row;
    GLOBAL const logit_t *p = x + (u64)row * a.cols;
    struct best top = top_of(part_max, part_id, row, a.parts), b = no_best();
    f32 max = top.logit, low = 0.0f, high = max;
    u64 total = 0, budget = 0;
    if (d->inverse_t != 0.0f && top.id < PL_PICK_NONE) {
        for (u32 i = 0; i < a.parts; i++) {
            GLOBAL const struct pl_draw_part *f = found + row * a.parts + i;
            total += f->mass;
            take(&b, f->score, f->logit, f->id);
            if (f->listed > a.list) whole = 1; /* more than a list holds: the row itself is read again */
        }
        budget = (total >> 32) * d->top_p + (((total & 0xFFFFFFFFu) * d->top_p) >> 32);
        done = d->top_k == 0 && d->top_p == 0;
        low = b.logit;
    } else {
        b = top;
    }
    for (u32 round = 0; round < 32u && !done; round++) {
        f32 mid = low < high ? unordered(ordered(low) + (ordered(high) - ordered(low)) / 2u) : low;
        struct seen t;
        t.n0 = t.n1 = 0;
        t.m0 = t.m1 = 0;
        t.b0 = t.b1 = no_best();
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
