#include "ref/ref.h"

#include <math.h>

#include "tensor/quant.h"

enum pl_status pl_ref_matmul(const struct pl_tensor *w, const float *bias, const float *x, size_t x_stride, size_t rows,
                             bool accumulate, float *y, size_t y_stride, double *magnitude, float *row) {
    size_t out = (size_t)pl_tensor_rows(w), in = (size_t)pl_tensor_cols(w);
    for (size_t o = 0; o < out; o++) {
        PL_TRY(pl_dequant_row_product(w, o, row));
        for (size_t r = 0; r < rows; r++) {
            double sum = 0, mag = 0;
            for (size_t i = 0; i < in; i++) {
                sum += (double)x[r * x_stride + i] * (double)row[i];
                mag += fabs((double)x[r * x_stride + i] * (double)row[i]);
            }
            if (bias != NULL) sum += (double)bias[o];
            if (accumulate) sum += (double)y[r * y_stride + o];
            y[r * y_stride + o] = (float)sum;
            if (magnitude != NULL) magnitude[r * out + o] = mag;
        }
    }
    return PL_OK;
}

void pl_ref_rmsnorm(const float *x, const float *w, size_t cols, double eps, double offset, float *y) {
    double sum = 0;
    for (size_t i = 0; i < cols; i++) sum += (double)x[i] * (double)x[i];
    double inv = 1.0 / sqrt(sum / (double)cols + eps);
    for (size_t i = 0; i < cols; i++) y[i] = (float)((double)x[i] * inv * (offset + (double)w[i]));
}

void pl_ref_layernorm(const float *x, const float *w, const float *bias, size_t cols, double eps, float *y) {
    double mean = 0, squares = 0;
    for (size_t i = 0; i < cols; i++) mean += (double)x[i] / (double)cols;
    for (size_t i = 0; i < cols; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    double inv = 1.0 / sqrt(squares / (double)cols + eps);
    for (size_t i = 0; i < cols; i++)
        y[i] = (float)(((double)x[i] - mean) * inv * (double)w[i] + (bias != NULL ? (double)bias[i] : 0));
}

static double activation(enum pl_ref_act act, double g) {
    switch (act) {
    case PL_REF_SILU: return g / (1.0 + exp(-g));
    case PL_REF_GELU_TANH: return 0.5 * g * (1.0 + tanh(sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g)));
    case PL_REF_GELU_ERF: return 0.5 * g * (1.0 + erf(g / sqrt(2.0)));
    case PL_REF_RELU2: return g > 0 ? g * g : 0;
    case PL_REF_NONE: return g;
    case PL_REF_SIGMOID: return 1 / (1 + exp(-g));
    case PL_REF_SWIGLU_CLAMPED: g = fmin(g, 7); return g / (1.0 + exp(-1.702 * g));
    }
    return NAN;
}

void pl_ref_glu(enum pl_ref_act act, const float *gate, const float *up, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double u = (double)up[i];
        if (act == PL_REF_SWIGLU_CLAMPED) u = fmax(fmin(u, 7), -7) + 1;
        y[i] = (float)(activation(act, (double)gate[i]) * u);
    }
}

static double score_of(const struct pl_ref_route *r, const float *logits, size_t e) {
    double top = -INFINITY, sum = 0;
    if (r->sigmoid) return 1 / (1 + exp(-(double)logits[e]));
    for (size_t i = 0; i < r->experts; i++) top = fmax(top, (double)logits[i]);
    for (size_t i = 0; i < r->experts; i++) sum += exp((double)logits[i] - top);
    return exp((double)logits[e] - top) / sum;
}
/* Index of the largest of v, of equals the first, NaN last; what is +inf has been taken. */
static size_t best_of(const double *v, size_t n) {
    size_t best = n;
    for (size_t i = 0; i < n; i++) {
        if (v[i] == INFINITY) continue;
        if (best == n || v[i] > v[best] || (isnan(v[best]) && !isnan(v[i]))) best = i;
    }
    return best;
}

void pl_ref_route(const struct pl_ref_route *r, const float *logits, size_t *ids, double *weights, double *scratch) {
    double *choice = scratch, *group = scratch + r->experts, sum = 0;
    bool by_logit = !r->sigmoid && r->choice_bias == NULL && r->groups == 0; /* the same order, without rounding */
    for (size_t e = 0; e < r->experts; e++) {
        choice[e] = by_logit ? (double)logits[e] : score_of(r, logits, e);
        if (r->choice_bias != NULL) choice[e] += (double)r->choice_bias[e];
    }
    for (size_t g = 0; g < r->groups; g++) { /* the best, then the best without it */
        size_t n = r->experts / r->groups, a = best_of(choice + g * n, n);
        double first = choice[g * n + a], second = -INFINITY;
        for (size_t i = 0; i < n; i++)
            if (i != a) second = fmax(second, choice[g * n + i]);
        group[g] = r->group_top > 1 && n > 1 ? first + second : first;
    }
    for (size_t k = 0; k < r->groups_used && r->groups > 0; k++) group[best_of(group, r->groups)] = INFINITY;
    for (size_t e = 0; e < r->experts && r->groups > 0; e++)
        if (group[e / (r->experts / r->groups)] != INFINITY) choice[e] = INFINITY;
    for (size_t k = 0; k < r->used; k++) {
        ids[k] = best_of(choice, r->experts);
        choice[ids[k]] = INFINITY;
        weights[k] = r->renormalise && !r->sigmoid ? exp((double)logits[ids[k]] - (double)logits[ids[0]])
                                                   : score_of(r, logits, ids[k]);
        sum += weights[k];
    }
    for (size_t k = 0; k < r->used; k++) weights[k] *= r->scale / (r->renormalise ? sum + 1e-20 : 1);
}

void pl_ref_softcap(float *x, size_t n, double cap) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(cap * tanh((double)x[i] / cap));
}

void pl_ref_rope(float *x, const float *cos_sin, size_t dim, bool halves) {
    for (size_t i = 0; i < dim / 2; i++) {
        size_t ia = halves ? i : 2 * i, ib = halves ? i + dim / 2 : 2 * i + 1;
        double c = (double)cos_sin[2 * i], s = (double)cos_sin[2 * i + 1], a = (double)x[ia], b = (double)x[ib];
        x[ia] = (float)(a * c - b * s);
        x[ib] = (float)(b * c + a * s);
    }
}

size_t pl_ref_argmax(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static double score(const struct pl_ref_attention *a, const float *q, size_t token, size_t g) {
    const float *k = a->k + (token * a->kv_heads + g) * a->head_dim;
    double s = 0;
    for (size_t i = 0; i < a->head_dim; i++) s += (double)q[i] * (double)k[i];
    s *= a->scale;
    return a->softcap > 0 ? a->softcap * tanh(s / a->softcap) : s;
}

static void attend(const struct pl_ref_attention *a, size_t row, size_t head, double *s) {
    size_t pos = a->past + row, lo = a->window != 0 && pos + 1 > a->window ? pos + 1 - a->window : 0;
    size_t g = head / (a->heads / a->kv_heads), d = a->head_dim;
    const float *q = a->q + row * a->q_stride + head * d;
    double top = -INFINITY, sum = 0;
    for (size_t t = lo; t <= pos; t++) {
        s[t] = score(a, q, t, g);
        top = fmax(top, s[t]);
    }
    for (size_t t = lo; t <= pos; t++) {
        s[t] = exp(s[t] - top);
        sum += s[t];
    }
    if (a->sinks != NULL) sum += exp((double)a->sinks[head] - top);
    for (size_t i = 0; i < d; i++) {
        double o = 0;
        for (size_t t = lo; t <= pos; t++) o += s[t] * (double)a->v[(t * a->kv_heads + g) * d + i];
        a->out[row * a->out_stride + head * d + i] = (float)(o / sum);
    }
}

void pl_ref_attention(const struct pl_ref_attention *a, double *scores) {
    for (size_t row = 0; row < a->rows; row++)
        for (size_t head = 0; head < a->heads; head++) attend(a, row, head, scores);
}

static double normal_density(double x) { return exp(-x * x / 2) / sqrt(2 * acos(-1.0)); }
static double normal_above(double x) { return erfc(x / sqrt(2.0)) / 2; }

void pl_ref_lloyd_max(double levels[8]) {
    for (int i = 0; i < 8; i++) levels[i] = 0.15 + 0.33 * i;
    for (int round = 0; round < 4000; round++) {
        double from = 0;
        for (int i = 0; i < 8; i++) { /* each becomes the mean of what is nearest to it; the next is still the old one */
            double to = i < 7 ? (levels[i] + levels[i + 1]) / 2 : 40;
            levels[i] = (normal_density(from) - normal_density(to)) / (normal_above(from) - normal_above(to));
            from = to;
        }
    }
}

/* Row i, column j of the Walsh-Hadamard matrix: minus one to the number of ones that i and j share. */
static double walsh(size_t i, size_t j) {
    int ones = 0;
    for (size_t both = i & j; both > 0; both >>= 1) ones += (int)(both & 1);
    return ones % 2 == 0 ? 1 : -1;
}
static double kv4_sign(size_t i) {
    uint64_t h = (uint64_t)(i + 1) * 2654435761u % 4294967296u;
    h = (h ^ h / 32768) * 2246822507u % 4294967296u;
    return (h ^ h / 8192) % 2 == 1 ? -1 : 1;
}
static void kv4_walsh(const double *x, size_t n, double *y) {
    size_t block = 1;
    while (n % (2 * block) == 0) block *= 2;
    for (size_t i = 0; i < n; i++) {
        y[i] = 0;
        for (size_t j = 0; j < block; j++) y[i] += walsh(i % block, j) * x[i - i % block + j];
        y[i] /= sqrt((double)block);
    }
}

void pl_ref_kv4(const float *x, size_t n, const double levels[8], size_t shift, size_t flip, float *y, double *work) {
    double *turned = work, *back = work + n, *signed_x = work + 2 * n, squares = 0, along = 0, length = 0;
    for (size_t i = 0; i < n; i++) signed_x[i] = kv4_sign(i) * (double)x[i];
    kv4_walsh(signed_x, n, turned);
    for (size_t i = 0; i < n; i++) squares += turned[i] * turned[i];
    double root = sqrt(squares / (double)n);
    for (size_t i = 0; i < n; i++) {
        size_t best = 0;
        for (size_t l = 1; l < 8; l++)
            if (fabs(fabs(turned[i]) - levels[l] * root) < fabs(fabs(turned[i]) - levels[best] * root)) best = l;
        best = best + shift < 8 ? best + shift : 7;
        back[i] = turned[i] < 0 ? -levels[best] : levels[best];
        along += turned[i] * back[i];
        length += back[i] * back[i];
    }
    for (size_t i = 0; i < n; i++) back[i] *= along / length;
    kv4_walsh(back, n, turned);
    for (size_t i = 0; i < n; i++) y[i] = (float)((i == flip ? -1 : 1) * kv4_sign(i) * turned[i]);
}

void pl_ref_quantize(const float *x, size_t cols, int8_t *q, float *scale) {
    for (size_t b = 0; b * 32 < cols; b++) {
        float top = 0;
        for (size_t i = b * 32; i < cols && i < b * 32 + 32; i++) top = fmaxf(top, fabsf(x[i]));
        scale[b] = top / 127.0f;
        for (size_t i = b * 32; i < b * 32 + 32; i++)
            q[i] = i < cols && top >= 1e-30f ? (int8_t)lrintf(x[i] * (127.0f / top)) : 0;
    }
}

void pl_ref_causal_conv(const float *w, const float *bias, size_t channels, size_t kernel, bool silu, const float *x,
                        size_t rows, float *state, float *y) {
    for (size_t c = 0; c < channels; c++) {
        for (size_t t = 0; t < rows; t++) {
            double sum = bias != NULL ? (double)bias[c] : 0;
            for (size_t k = 0; k < kernel; k++) {
                double in = t + k >= kernel - 1 ? x[(t + k - (kernel - 1)) * channels + c] : state[(t + k) * channels + c];
                sum += (double)w[k * channels + c] * in;
            }
            y[t * channels + c] = (float)(silu ? activation(PL_REF_SILU, sum) : sum);
        }
        for (size_t k = 0; k < kernel - 1; k++)
            state[k * channels + c] =
                rows + k >= kernel - 1 ? x[(rows + k - (kernel - 1)) * channels + c] : state[(rows + k) * channels + c];
    }
}

void pl_ref_ssm(const struct pl_ref_ssm *p, double *state, float *y) {
    size_t n = p->state, inner = p->heads * p->head_dim, bc = p->groups * n;
    for (size_t t = 0; t < p->rows; t++)
        for (size_t i = 0; i < inner; i++) {
            size_t h = i / p->head_dim, g = h / (p->heads / p->groups);
            double d = (double)p->dt[t * p->heads + h] + (p->dt_bias != NULL ? (double)p->dt_bias[h] : 0);
            d = fmin(fmax(d > 30 ? d : log1p(exp(d)), p->dt_min), p->dt_max);
            double x = p->x[t * inner + i], sum = p->skip != NULL ? (double)p->skip[h] * x : 0, *s = state + i * n;
            for (size_t k = 0; k < n; k++) {
                double a = p->a[p->full ? h * n + k : h];
                s[k] = exp(d * a) * s[k] + d * x * (double)p->b[t * bc + g * n + k];
                sum += s[k] * (double)p->c[t * bc + g * n + k];
            }
            if (p->z != NULL) sum *= activation(PL_REF_SILU, (double)p->z[t * inner + i]);
            y[t * inner + i] = (float)sum;
        }
}

static double length_of(const float *x, size_t n) {
    double sum = 1e-6;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static void delta_row(const struct pl_ref_delta *p, size_t t, size_t h, double *state, float *y) {
    size_t n = p->state, d = p->head_dim, g = p->in_turn ? h % p->groups : h / (p->heads / p->groups);
    const float *q = p->q + (t * p->groups + g) * n, *k = p->k + (t * p->groups + g) * n, *v = p->v + (t * p->heads + h) * d;
    double step = (double)p->dt[t * p->heads + h] + (double)p->dt_bias[h], ql = length_of(q, n) * sqrt((double)n),
           kl = length_of(k, n), keep = exp((double)p->a[h] * (step > 30 ? step : log1p(exp(step)))),
           rate = 1 / (1 + exp(-(double)p->beta[t * p->heads + h])), *s = state + h * n * d;
    for (size_t j = 0; j < d; j++) {
        double held = 0, sum = 0;
        for (size_t i = 0; i < n; i++) held += (s[i * d + j] *= keep) * (double)k[i] / kl;
        double put = rate * ((double)v[j] - held);
        for (size_t i = 0; i < n; i++) sum += (s[i * d + j] += (double)k[i] / kl * put) * (double)q[i] / ql;
        y[(t * p->heads + h) * d + j] = (float)sum;
    }
}

void pl_ref_delta(const struct pl_ref_delta *p, double *state, float *y) {
    for (size_t t = 0; t < p->rows; t++)
        for (size_t h = 0; h < p->heads; h++) delta_row(p, t, h, state, y);
}

void pl_ref_gated_norm(const float *x, const float *z, const float *w, size_t cols, size_t groups, double eps,
                       bool norm_first, float *y) {
    size_t n = cols / groups;
    for (size_t g = 0; g < groups; g++) {
        double sum = 0;
        for (size_t i = g * n; i < (g + 1) * n; i++) {
            double v = (double)x[i] * (z != NULL && !norm_first ? activation(PL_REF_SILU, (double)z[i]) : 1);
            sum += v * v;
        }
        double inv = 1 / sqrt(sum / (double)n + eps);
        for (size_t i = g * n; i < (g + 1) * n; i++)
            y[i] = (float)((double)x[i] * (z != NULL ? activation(PL_REF_SILU, (double)z[i]) : 1) * inv * (double)w[i]);
    }
}

enum pl_status pl_ref_ternary(const struct pl_tensor *w, const float *x, size_t x_stride, size_t rows, float *y,
                              size_t y_stride, float *row) {
    size_t out = (size_t)pl_tensor_rows(w), in = (size_t)pl_tensor_cols(w);
    for (size_t o = 0; o < out; o++) {
        PL_TRY(pl_dequant_row_product(w, o, row));
        for (size_t r = 0; r < rows; r++) {
            const float *v = x + r * x_stride;
            float top = 1e-5f;
            double sum = 0;
            for (size_t i = 0; i < in; i++) top = fmaxf(top, fabsf(v[i]));
            for (size_t i = 0; i < in; i++) sum += (double)lrintf(v[i] * (127.0f / top)) * (double)row[i];
            y[r * y_stride + o] = (float)(sum * (double)top / 127.0);
        }
    }
    return PL_OK;
}
