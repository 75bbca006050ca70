/* Rotary tables: frequencies and angles in double, one rounding to f32 at the end. */
#include <math.h>

#include "base/check.h"
#include "base/mem.h"
#include "model/arch.h"
#include "tensor/quant.h"

/* Llama 3: long wavelengths are slowed by the factor, short ones kept, those between blended. */
static double llama3_frequency(const struct pl_model_config *c, double freq) {
    double wavelength = 2 * M_PI / freq, context = c->rope_context_orig;
    if (wavelength > context / c->rope_low_freq) return freq / c->rope_factor;
    if (wavelength < context / c->rope_high_freq) return freq;
    double low = c->rope_low_freq, high = c->rope_high_freq, smooth = (context / wavelength - low) / (high - low);
    return (1 - smooth) * freq / c->rope_factor + smooth * freq;
}

/* YaRN: the pair index at which a wave makes `turns` rotations over the original context. */
static double yarn_pair(const struct pl_model_config *c, double base, double turns) {
    return c->rope_dim * log(c->rope_context_orig / (turns * 2 * M_PI)) / (2 * log(base));
}

static double yarn_frequency(const struct pl_model_config *c, double base, double freq, uint32_t pair) {
    double low = yarn_pair(c, base, c->rope_beta_fast), high = yarn_pair(c, base, c->rope_beta_slow);
    if (c->rope_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, c->rope_dim - 1);
    if (low == high) high += 0.001; /* as the paper's code: a step, not a division by zero */
    double ramp = fmin(fmax((pair - low) / (high - low), 0), 1);
    return freq / c->rope_factor * ramp + freq * (1 - ramp);
}

/* Dynamic NTK: past the original context the base grows with the text; here with the context that was asked for, so that all
 * positions of the cache turn alike. */
static double dynamic_base(const struct pl_model_config *c, double base, uint32_t context) {
    double grown = (double)c->rope_factor * context / c->rope_context_orig - ((double)c->rope_factor - 1);
    return context <= c->rope_context_orig ? base : base * pow(grown, c->rope_dim / (c->rope_dim - 2.0));
}

void pl_rope_frequencies(const struct pl_model_config *c, uint32_t context, bool local, const float *divisors, double *freq,
                         double *magnitude) {
    double base = local ? c->rope_base_local : c->rope_base;
    enum pl_rope_scaling scaling = local ? PL_ROPE_NONE : c->rope_scaling;
    if (scaling == PL_ROPE_DYNAMIC) base = dynamic_base(c, base, context);
    for (uint32_t i = 0; i < c->rope_dim / 2; i++) {
        double f = pow(base, -2.0 * i / c->rope_dim);
        if (divisors != NULL && !local) f /= divisors[i];
        if (scaling == PL_ROPE_LINEAR) f /= c->rope_factor;
        if (scaling == PL_ROPE_LLAMA3) f = llama3_frequency(c, f);
        if (scaling == PL_ROPE_YARN) f = yarn_frequency(c, base, f, i);
        freq[i] = f;
    }
    *magnitude = scaling == PL_ROPE_YARN || scaling == PL_ROPE_LONG ? c->rope_attn_factor : 1;
}

static void fill_table(const double *freq, uint32_t pairs, double magnitude, uint32_t positions, float *out) {
    for (size_t p = 0; p < positions; p++) {
        for (uint32_t i = 0; i < pairs; i++) {
            double angle = (double)p * freq[i];
            *out++ = (float)(cos(angle) * magnitude);
            *out++ = (float)(sin(angle) * magnitude);
        }
    }
}

static enum pl_status make_rope(struct pl_model *m, bool local, const float *divisors, struct pl_rope **out,
                                struct pl_err *err) {
    const struct pl_model_config *c = &m->cfg;
    size_t values;
    if (!pl_mul_size(m->max_context, c->rope_dim, &values))
        PL_FAIL(err, PL_LIMIT, "a rotary table of %u positions does not fit in memory", m->max_context);
    double *freq = pl_alloc(c->rope_dim / 2, sizeof *freq), magnitude;
    float *table = pl_alloc(values, sizeof *table);
    enum pl_status st = PL_NO_MEMORY;
    if (freq != NULL && table != NULL) {
        pl_rope_frequencies(c, m->max_context, local, divisors, freq, &magnitude);
        fill_table(freq, c->rope_dim / 2, magnitude, m->max_context, table);
        st = pl_ops_rope_create(m->ops, table, m->max_context, c->rope_dim, c->rope_halves, out, err);
        m->bytes_owned += values * sizeof *table;
    } else {
        st = pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for a rotary table of %u positions",
                        m->max_context);
    }
    pl_free(freq);
    pl_free(table);
    return st;
}

/* GGUF's rope_freqs.weight: one divisor per pair. */
static enum pl_status read_divisors(const struct pl_model_config *c, const struct pl_file *f, float **out,
                                    struct pl_err *err) {
    const struct pl_tensor *t = pl_file_tensor(f, "rope_freqs.weight");
    if (t == NULL || pl_tensor_rows(t) != 1 || pl_tensor_cols(t) != c->rope_dim / 2)
        PL_FAIL(err, PL_FORMAT, "tensor rope_freqs.weight has %llu entries; one per rotated pair (%u) was expected",
                t != NULL ? (unsigned long long)pl_tensor_cols(t) : 0, c->rope_dim / 2);
    float *d = pl_alloc(c->rope_dim / 2, sizeof *d);
    if (d == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for rope_freqs.weight");
    enum pl_status st = pl_dequant_row(t, 0, d);
    for (uint32_t i = 0; st == PL_OK && i < c->rope_dim / 2; i++)
        if (!(d[i] > 0) || !isfinite(d[i])) st = PL_FORMAT;
    if (st != PL_OK) {
        pl_free(d);
        PL_FAIL(err, PL_FORMAT, "tensor rope_freqs.weight holds a value that is no positive number");
    }
    *out = d;
    return PL_OK;
}

static bool any_windowed(const struct pl_model_config *c) {
    for (uint32_t l = 0; l < c->layers; l++)
        if (c->layer_windowed[l]) return true;
    return false;
}

/* Windowed layers get a table of their own where their base differs, or only the others are scaled. */
static bool needs_local(const struct pl_model_config *c) {
    if (!any_windowed(c)) return false;
    return c->rope_base_local != c->rope_base ||
           (pl_arch_def(c->arch)->windowed_unscaled && c->rope_scaling != PL_ROPE_NONE);
}

enum pl_status pl_model_make_ropes(struct pl_model *m, const struct pl_file *f, struct pl_err *err) {
    float *divisors = NULL;
    const struct pl_model_config *c = &m->cfg;
    if (c->rope_freq_tensor) PL_TRY(read_divisors(c, f, &divisors, err));
    const float *by = divisors;
    if (c->rope_scaling == PL_ROPE_LONG) by = m->max_context > c->rope_context_orig ? c->rope_long : c->rope_short;
    enum pl_status st = make_rope(m, false, by, &m->rope, err);
    if (st == PL_OK && needs_local(&m->cfg)) st = make_rope(m, true, NULL, &m->rope_local, err);
    pl_free(divisors);
    return st;
}
