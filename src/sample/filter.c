#include "sample/filter.h"

#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "base/noise.h"

enum pl_status pl_filter_scratch_init(struct pl_filter_scratch *f, uint32_t vocab) {
    f->ids = pl_alloc(vocab, sizeof *f->ids);
    f->logits = pl_alloc(vocab, sizeof *f->logits);
    f->weights = pl_alloc(vocab, sizeof *f->weights);
    f->keys = pl_alloc(vocab, sizeof *f->keys);
    f->masses = pl_alloc(vocab, sizeof *f->masses);
    bool ok = f->ids != NULL && f->logits != NULL && f->weights != NULL && f->keys != NULL && f->masses != NULL;
    return ok ? PL_OK : PL_NO_MEMORY;
}

void pl_filter_scratch_deinit(struct pl_filter_scratch *f) {
    pl_free(f->ids);
    pl_free(f->logits);
    pl_free(f->weights);
    pl_free(f->keys);
    pl_free(f->masses);
    *f = (struct pl_filter_scratch){0};
}

static float median3(float a, float b, float c) {
    float lo = PL_MIN(a, b), hi = PL_MAX(a, b);
    return c < lo ? lo : c > hi ? hi : c;
}

static void swap_at(float *keys, float *masses, uint32_t i, uint32_t j) {
    float k = keys[i], m = masses[i];
    keys[i] = keys[j];
    masses[i] = masses[j];
    keys[j] = k;
    masses[j] = m;
}

/* Three-way quickselect, descending: [begin, gt) > pivot, [gt, lt) == pivot, [lt, end) < pivot. */
float pl_select_threshold(float *keys, float *masses, uint32_t n, double budget) {
    uint32_t begin = 0, end = n;
    double above = 0.0;
    float best = INFINITY;
    while (begin < end) {
        float pivot = median3(keys[begin], keys[begin + (end - begin) / 2], keys[end - 1]);
        uint32_t gt = begin, lt = end, i = begin;
        double mass_gt = 0.0, mass_eq = 0.0;
        while (i < lt) {
            if (keys[i] > pivot) {
                mass_gt += (double)masses[i];
                swap_at(keys, masses, i++, gt++);
            } else if (keys[i] < pivot) {
                swap_at(keys, masses, i, --lt);
            } else {
                mass_eq += (double)masses[i++];
            }
        }
        if (above + mass_gt > budget && gt > begin) {
            end = gt;
            continue;
        }
        best = pivot;
        above += mass_gt + mass_eq;
        if (above > budget) break;
        begin = lt;
    }
    return best;
}

/* Keeps the survivors whose logit is at least `floor`. */
static void keep_from(struct pl_filter_scratch *f, float floor) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        if (!(f->logits[i] >= floor)) continue;
        f->ids[kept] = f->ids[i];
        f->logits[kept] = f->logits[i];
        f->weights[kept++] = f->weights[i];
    }
    f->count = kept;
}

static void load_all(struct pl_filter_scratch *f, const float *logits, uint32_t vocab, float floor) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        f->ids[kept] = i;
        f->logits[kept] = logits[i];
        kept += logits[i] >= floor;
    }
    f->count = kept;
}

/* The mass of the survivors whose logit is above `floor`: exact in any order, so in eight sums that do not wait for each
 * other. */
static double mass_above(const struct pl_filter_scratch *f, float floor) {
    double sum[8] = {0};
    uint32_t i = 0;
    for (; i + 8 <= f->count; i += 8)
        for (uint32_t k = 0; k < 8; k++) sum[k] += f->logits[i + k] > floor ? (double)f->weights[i + k] : 0.0;
    for (; i < f->count; i++) sum[0] += f->logits[i] > floor ? (double)f->weights[i] : 0.0;
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static double weigh(struct pl_filter_scratch *f, float max) {
    for (uint32_t i = 0; i < f->count; i++) f->weights[i] = pl_mass(f->logits[i] - max);
    return mass_above(f, -INFINITY);
}

/* Keeps the tokens whose surprise is nearest to the entropy, up to the mass typical_p. Returns the new total. */
static double keep_typical(struct pl_filter_scratch *f, float typical_p, float max, double total) {
    double log_total = log(total), entropy = 0.0;
    for (uint32_t i = 0; i < f->count; i++)
        entropy += (double)f->weights[i] / total * (log_total - (double)(f->logits[i] - max));
    for (uint32_t i = 0; i < f->count; i++) {
        f->keys[i] = (float)-fabs(log_total - (double)(f->logits[i] - max) - entropy);
        f->masses[i] = f->weights[i];
    }
    float floor = pl_select_threshold(f->keys, f->masses, f->count, (double)typical_p * total);
    uint32_t kept = 0;
    double mass = 0.0;
    for (uint32_t i = 0; i < f->count; i++) {
        if ((float)-fabs(log_total - (double)(f->logits[i] - max) - entropy) < floor) continue;
        f->ids[kept] = f->ids[i];
        f->logits[kept] = f->logits[i];
        f->weights[kept++] = f->weights[i];
        mass += (double)f->weights[kept - 1];
    }
    f->count = kept;
    return mass;
}

static void keep_top_p(struct pl_filter_scratch *f, float top_p, float max, double total) {
    /* In integers, as the kernels do it: the budget is cut to a whole mass. */
    double budget = (double)pl_top_p_budget((uint64_t)(total * 0x1p34), pl_top_p_fixed(top_p)) * 0x1p-34;
    /* Where more than the budget lies above a floor, so does the threshold: the many tokens below need no looking at. */
    float floor = -INFINITY;
    for (float depth = 3.0f; depth <= 12.0f && floor == -INFINITY; depth *= 2.0f)
        if (mass_above(f, max - depth) > budget) floor = max - depth;
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        f->keys[n] = f->logits[i];
        f->masses[n] = f->weights[i];
        n += f->logits[i] > floor || floor == -INFINITY;
    }
    keep_from(f, pl_select_threshold(f->keys, f->masses, n, budget));
}

/* The k-th largest logit of the survivors, in one pass over a buffer of 2k candidates. */
static float kth_largest(struct pl_filter_scratch *f, uint32_t k) {
    if (k >= f->count) return -INFINITY;
    uint32_t cap = k > f->count / 2 ? f->count : 2 * k, held = 0;
    float floor = -INFINITY;
    for (uint32_t i = 0; i < f->count; i++) {
        if (f->logits[i] < floor) continue;
        f->keys[held] = f->logits[i];
        f->masses[held++] = 1.0f;
        if (held < cap || i + 1 == f->count) continue;
        floor = pl_select_threshold(f->keys, f->masses, held, (double)k - 1.0);
        uint32_t above = 0;
        for (uint32_t j = 0; j < held; j++) {
            if (f->keys[j] > floor) f->keys[above++] = f->keys[j];
        }
        while (above < k) f->keys[above++] = floor;
        held = k;
        for (uint32_t j = 0; j < held; j++) f->masses[j] = 1.0f;
    }
    return pl_select_threshold(f->keys, f->masses, held, (double)k - 1.0);
}

static uint32_t index_of_max(const struct pl_filter_scratch *f) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < f->count; i++) {
        if (f->logits[i] > f->logits[best]) best = i;
    }
    return best;
}

uint32_t pl_filter_apply(struct pl_filter_scratch *f, const struct pl_sampling *p, const float *logits, uint32_t vocab,
                         float max) {
    bool needs_total = p->top_p < 1.0f || p->typical_p < 1.0f;
    /* Without a total to add up, min_p alone already drops most tokens. */
    float min_floor = p->min_p > 0.0f ? logf(p->min_p) : -INFINITY;
    load_all(f, logits, vocab, needs_total || min_floor == -INFINITY ? -FLT_MAX : max + min_floor);
    double total = needs_total ? weigh(f, max) : 0.0;
    if (p->typical_p < 1.0f) {
        total = keep_typical(f, p->typical_p, max, total);
        max = f->logits[index_of_max(f)];
    }
    if (p->min_p > 0.0f) keep_from(f, max + min_floor);
    if (p->top_k > 0) keep_from(f, kth_largest(f, p->top_k));
    if (p->top_p < 1.0f) keep_top_p(f, p->top_p, max, total);
    return index_of_max(f);
}
