/* Mixtures of experts: choose, gather rows by expert, two grouped products, weighted sums. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "cpu/internal.h"

/* A slot is one (row, expert) pair; slots stand in order of their experts, and of their rows within one. */
struct cpu_moe_scratch {
    size_t rows, experts, used, in, inner;
    uint32_t *ids;        /* [rows, used]: chosen experts, best first */
    float *weights;       /* [rows, used] */
    uint32_t *slots;      /* [rows, used] */
    uint32_t *start;      /* [experts + 1]: first slot of each */
    float *x, *g, *u, *d; /* [slots]: gathered inputs, inner values, outputs */
    float *scores;        /* [experts], of the row at hand */
    bool *out;            /* [experts]: out of the running */
    const struct pl_cpu_weight **w;
    float **y;
    size_t *strides;
    struct pl_cpu_span *spans; /* [2 experts] */
};

void cpu_moe_free(struct cpu_moe_scratch *s) {
    if (s == NULL) return;
    void *all[] = {s->ids, s->weights,   s->slots,     s->start,   s->x,     s->g,      s->u,
                   s->d,   (void *)s->w, (void *)s->y, s->strides, s->spans, s->scores, s->out};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) pl_free(all[i]);
    pl_free(s);
}

static float *floats(size_t rows, size_t cols) {
    size_t n;
    return pl_mul_size(rows, cols, &n) && pl_mul_size(n, sizeof(float), &n) ? pl_alloc_aligned(n, 64) : NULL;
}

static bool fits(const struct cpu_moe_scratch *s, const struct pl_cpu_moe *m, size_t rows) {
    return s != NULL && rows <= s->rows && m->experts <= s->experts && m->used <= s->used && m->in <= s->in &&
           m->inner <= s->inner;
}

enum pl_status pl_cpu_moe_reserve(struct pl_cpu *c, const struct pl_cpu_moe *m, size_t rows, struct pl_err *err) {
    if (fits(c->moe, m, rows)) return PL_OK;
    struct cpu_moe_scratch now = {0}, *s = pl_calloc(1, sizeof *s);
    if (c->moe != NULL) now = *c->moe;
    size_t slots = 0;
    bool ok = s != NULL;
    if (ok) {
        s->rows = PL_MAX(now.rows, rows);
        s->experts = PL_MAX(now.experts, m->experts);
        s->used = PL_MAX(now.used, m->used);
        s->in = PL_MAX(now.in, m->in);
        s->inner = PL_MAX(now.inner, m->inner);
        ok = pl_mul_size(s->rows, s->used, &slots);
    }
    if (ok) {
        s->ids = pl_alloc(slots, sizeof *s->ids);
        s->weights = pl_alloc(slots, sizeof *s->weights);
        s->slots = pl_alloc(slots, sizeof *s->slots);
        s->start = pl_alloc(s->experts + 1, sizeof *s->start);
        s->scores = floats(1, s->experts);
        s->out = pl_calloc(s->experts, sizeof *s->out);
        s->x = floats(slots, s->in);
        s->g = floats(slots, s->inner);
        s->u = floats(slots, s->inner);
        s->d = floats(slots, s->in);
        s->w = (const struct pl_cpu_weight **)pl_alloc(2 * s->experts, sizeof *s->w);
        s->y = (float **)pl_alloc(2 * s->experts, sizeof *s->y);
        s->strides = pl_alloc(2 * s->experts, sizeof *s->strides);
        s->spans = pl_alloc(2 * s->experts, sizeof *s->spans);
        ok = s->ids != NULL && s->weights != NULL && s->slots != NULL && s->start != NULL && s->scores != NULL &&
             s->out != NULL && s->x != NULL && s->g != NULL && s->u != NULL && s->d != NULL && s->w != NULL &&
             s->y != NULL && s->strides != NULL && s->spans != NULL;
    }
    if (!ok) {
        cpu_moe_free(s);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for a mixture of %zu experts over %zu rows", m->experts, rows);
    }
    cpu_moe_free(c->moe);
    c->moe = s;
    return pl_cpu_reserve(c, slots, PL_MAX(m->in, m->inner), 0, err);
}

/* --- choosing --- */

static bool is_better(float a, float b) { return a > b || (isnan(b) && !isnan(a)); }

/* The largest scores, of equals the first; a NaN is chosen last, what is out of the running (taken) never. */
static void choose(const float *score, size_t experts, size_t used, const bool *out, uint32_t *ids) {
    for (size_t k = 0; k < used; k++) {
        size_t best = experts;
        for (size_t e = 0; e < experts; e++) {
            bool taken = out != NULL && out[e];
            for (size_t i = 0; i < k; i++) taken = taken || ids[i] == e;
            if (!taken && (best == experts || is_better(score[e], score[best]))) best = e;
        }
        ids[k] = (uint32_t)best;
    }
}

static float group_worth(const float *score, size_t size, size_t top) {
    float best = -INFINITY, second = -INFINITY;
    for (size_t e = 0; e < size; e++) {
        if (score[e] > best) {
            second = best;
            best = score[e];
        } else if (score[e] > second) {
            second = score[e];
        }
    }
    return top > 1 && size > 1 ? best + second : best;
}
/* Marks the experts of all groups but the best, of equals the first. */
static void drop_groups(const struct pl_cpu_moe *m, const float *score, bool *out) {
    size_t size = m->experts / m->groups;
    for (size_t g = 0; g < m->groups; g++) {
        float mine = group_worth(score + g * size, size, m->group_top);
        size_t before = 0;
        for (size_t o = 0; o < m->groups; o++) {
            float other = group_worth(score + o * size, size, m->group_top);
            before += other > mine || (other == mine && o < g);
        }
        for (size_t e = g * size; e < (g + 1) * size; e++) out[e] = before >= m->groups_used;
    }
}

/* A softmax keeps the logits' order: only a bias or sums of groups ask for its values. */
static void choose_row(const struct pl_cpu_moe *m, const float *logits, float *score, bool *out, uint32_t *ids) {
    if (!m->sigmoid && m->choice_bias == NULL && m->groups == 0) {
        choose(logits, m->experts, m->used, NULL, ids);
        return;
    }
    double top = -INFINITY, sum = 0;
    for (size_t e = 0; e < m->experts; e++) top = fmax(top, (double)logits[e]);
    for (size_t e = 0; e < m->experts; e++) sum += exp((double)logits[e] - top);
    for (size_t e = 0; e < m->experts; e++) {
        double l = (double)logits[e];
        score[e] = (float)(m->sigmoid ? 1 / (1 + exp(-l)) : exp(l - top) / sum);
        if (m->choice_bias != NULL) score[e] += m->choice_bias[e];
    }
    if (m->groups > 0) drop_groups(m, score, out);
    choose(score, m->experts, m->used, m->groups > 0 ? out : NULL, ids);
}

static void weigh(const struct pl_cpu_moe *m, const float *logits, const uint32_t *ids, float *weights) {
    double top = -INFINITY, sum = 0;
    for (size_t e = 0; e < m->experts; e++) top = fmax(top, (double)logits[e]);
    for (size_t e = 0; e < m->experts && !m->renormalise; e++) sum += exp((double)logits[e] - top);
    if (m->sigmoid) sum = m->renormalise ? 1e-20 : 1;
    for (size_t k = 0; k < m->used && m->renormalise; k++) {
        double l = (double)logits[ids[k]];
        sum += m->sigmoid ? 1 / (1 + exp(-l)) : exp(l - top);
    }
    for (size_t k = 0; k < m->used; k++) {
        double l = (double)logits[ids[k]], v = m->sigmoid ? 1 / (1 + exp(-l)) : exp(l - top);
        weights[k] = (float)(v / sum * (double)m->scale);
    }
}

/* Counting sort of the slots by expert. */
static void group(const struct pl_cpu_moe *m, struct cpu_moe_scratch *s) {
    size_t slots = m->rows * m->used;
    memset(s->start, 0, (m->experts + 1) * sizeof *s->start);
    for (size_t i = 0; i < slots; i++) s->start[s->ids[i] + 1]++;
    for (size_t e = 0; e < m->experts; e++) s->start[e + 1] += s->start[e];
    for (size_t i = 0; i < slots; i++) s->slots[i] = s->start[s->ids[i]]++;
    for (size_t e = m->experts; e > 0; e--) s->start[e] = s->start[e - 1];
    s->start[0] = 0;
}

/* --- rows, shared out --- */

struct moe_job {
    struct pl_cpu *c;
    const struct pl_cpu_moe *m;
};

static void gather_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    struct moe_job *j = arg;
    struct cpu_moe_scratch *s = j->c->moe;
    size_t r, end;
    while (cpu_take(j->c, 1, j->m->rows, &r, &end)) {
        const float *logits = j->m->logits + r * j->m->logits_stride;
        for (size_t k = 0; k < j->m->used; k++)
            memcpy(s->x + s->slots[r * j->m->used + k] * j->m->in, j->m->x + r * j->m->x_stride, j->m->in * sizeof(float));
        weigh(j->m, logits, s->ids + r * j->m->used, s->weights + r * j->m->used);
    }
}

/* y += the outputs of the row's experts, best first. */
static void combine_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    struct moe_job *j = arg;
    const struct cpu_moe_scratch *s = j->c->moe;
    size_t r, end;
    while (cpu_take(j->c, 1, j->m->rows, &r, &end)) {
        for (size_t k = 0; k < j->m->used; k++) {
            float *d = s->d + s->slots[r * j->m->used + k] * j->m->in;
            if (j->m->down_bias != NULL)
                j->c->table->add(d, j->m->down_bias + s->ids[r * j->m->used + k] * j->m->in, j->m->in);
            j->c->table->scale(d, s->weights[r * j->m->used + k], j->m->in);
            j->c->table->add(j->m->y + r * j->m->y_stride, d, j->m->in);
        }
    }
}

static void share_rows(struct pl_cpu *c, const struct pl_cpu_moe *m, pl_pool_fn fn) {
    struct moe_job j = {c, m};
    atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    if (m->rows < 4)
        fn(&j, 0, 1);
    else
        pl_pool_run_any(c->pool, fn, &j);
}

/* --- the two grouped products --- */

/* The chosen experts' matrices with their slots; returns how many. Two of a kind share a span: gate, then up; alone, up
 * takes the gate's place. */
static size_t list_experts(const struct pl_cpu_moe *m, struct cpu_moe_scratch *s, bool down, size_t *bytes) {
    size_t n = 0;
    for (size_t e = 0; e < m->experts; e++) {
        size_t first = s->start[e], rows = s->start[e + 1] - first;
        if (rows == 0) continue;
        bool two = !down && m->gate != NULL;
        const struct pl_cpu_weight *pair[] = {down ? m->down[e] : two ? m->gate[e] : m->up[e], m->up[e]};
        for (size_t i = 0; i < (two ? 2 : 1); i++, n++) {
            s->w[n] = pair[i];
            s->y[n] = down ? s->d : i == 0 ? s->g : s->u;
            s->strides[n] = down ? m->in : m->inner;
            s->spans[n] = (struct pl_cpu_span){.first = first, .rows = rows};
            *bytes += pair[i]->bytes_read;
        }
    }
    return n;
}

static void grouped(struct pl_cpu *c, const struct pl_cpu_moe *m, bool down, size_t *bytes) {
    struct cpu_moe_scratch *s = c->moe;
    struct pl_cpu_matmul p = {.count = list_experts(m, s, down, bytes),
                              .rows = m->rows * m->used,
                              .w = s->w,
                              .x = down ? s->g : s->x,
                              .x_stride = down ? m->inner : m->in,
                              .y = s->y,
                              .y_stride = s->strides,
                              .spans = s->spans};
    pl_cpu_matmul(c, &p);
}

static void add_biases(struct pl_cpu *c, const struct pl_cpu_moe *m) {
    struct cpu_moe_scratch *s = c->moe;
    for (size_t e = 0; e < m->experts; e++) {
        for (size_t i = s->start[e]; i < s->start[e + 1]; i++) {
            c->table->add(s->g + i * m->inner, m->gate_bias + e * m->inner, m->inner);
            c->table->add(s->u + i * m->inner, m->up_bias + e * m->inner, m->inner);
        }
    }
}

size_t pl_cpu_moe(struct pl_cpu *c, const struct pl_cpu_moe *m) {
    struct cpu_moe_scratch *s = c->moe;
    size_t bytes = 0, slots = m->rows * m->used;
    PL_ASSERT(fits(s, m, m->rows) && m->used >= 1 && m->used <= m->experts);
    if (m->rows == 0) return 0;
    for (size_t r = 0; r < m->rows; r++)
        choose_row(m, m->logits + r * m->logits_stride, s->scores, s->out, s->ids + r * m->used);
    group(m, s);
    share_rows(c, m, gather_worker);
    grouped(c, m, false, &bytes);
    if (m->gate_bias != NULL) add_biases(c, m);
    pl_cpu_glu(c, m->act, s->g, m->gate != NULL ? s->u : NULL, s->g, slots, m->inner, m->inner, m->inner, m->inner);
    grouped(c, m, true, &bytes);
    share_rows(c, m, combine_worker);
    return bytes;
}
