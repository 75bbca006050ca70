#include "audio/mel.h"

#include <math.h>

#include "audio/fft.h"
#include "base/mem.h"

enum { BINS = PL_MEL_WINDOW / 2 + 1, EDGE = PL_MEL_WINDOW / 2, ROWS = 256 };

struct work {
    struct pl_fft *fft;
    float *rows, *spectrum; /* [ROWS, WINDOW], [ROWS, BINS, 2] */
    double window[PL_MEL_WINDOW];
    double weights[PL_MEL_BANDS_MAX][BINS];
    uint32_t first[PL_MEL_BANDS_MAX], last[PL_MEL_BANDS_MAX]; /* the bins with a weight, last excluded */
};

/* Slaney's scale: linear to 1 kHz, then 27 steps for each factor of 6.4. */
static double mel_of(double hz) { return hz < 1000.0 ? 3.0 * hz / 200.0 : 15.0 + log(hz / 1000.0) * 27.0 / log(6.4); }
static double hz_of(double mel) { return mel < 15.0 ? 200.0 * mel / 3.0 : 1000.0 * exp((mel - 15.0) * log(6.4) / 27.0); }

/* A triangle over three neighbours of evenly spaced mels, of area 2 / its width in Hz. */
static void fill_bands(struct work *w, uint32_t bands) {
    double top = mel_of(PL_MEL_RATE / 2.0), hz[PL_MEL_BANDS_MAX + 2];
    for (uint32_t i = 0; i < bands + 2; i++) hz[i] = hz_of(top * i / (bands + 1));
    for (uint32_t b = 0; b < bands; b++) {
        w->first[b] = BINS, w->last[b] = 0;
        for (uint32_t k = 0; k < BINS; k++) {
            double f = (double)k * PL_MEL_RATE / PL_MEL_WINDOW;
            double up = (f - hz[b]) / (hz[b + 1] - hz[b]), down = (hz[b + 2] - f) / (hz[b + 2] - hz[b + 1]);
            w->weights[b][k] = fmax(0.0, fmin(up, down)) * 2.0 / (hz[b + 2] - hz[b]);
            if (w->weights[b][k] == 0.0) continue;
            w->first[b] = PL_MIN(w->first[b], k);
            w->last[b] = k + 1;
        }
    }
}

static enum pl_status work_init(struct work *w, uint32_t bands, struct pl_device *d, struct pl_err *err) {
    w->rows = pl_calloc((size_t)ROWS * PL_MEL_WINDOW, sizeof(float));
    w->spectrum = pl_calloc((size_t)ROWS * BINS * 2, sizeof(float));
    if (w->rows == NULL || w->spectrum == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a block of windows");
    for (int i = 0; i < PL_MEL_WINDOW; i++) w->window[i] = 0.5 - 0.5 * cos(2.0 * M_PI * i / PL_MEL_WINDOW);
    fill_bands(w, bands);
    return pl_fft_create(d, PL_MEL_WINDOW, ROWS, &w->fft, err);
}

/* The sample at a place that may lie up to half a window outside: there the sound runs backwards. length >= EDGE + 1. */
static double mirrored(const float *samples, size_t count, size_t length, int64_t at) {
    if (at < 0) at = -at;
    if (at >= (int64_t)length) at = 2 * (int64_t)length - 2 - at;
    return (size_t)at < count ? (double)samples[at] : 0.0;
}

static void fill_rows(struct work *w, const float *samples, size_t count, size_t length, size_t frame, uint32_t rows) {
    for (uint32_t r = 0; r < rows; r++) {
        int64_t start = (int64_t)((frame + r) * PL_MEL_HOP) - EDGE;
        for (int i = 0; i < PL_MEL_WINDOW; i++) {
            w->rows[(size_t)r * PL_MEL_WINDOW + i] = (float)(w->window[i] * mirrored(samples, count, length, start + i));
        }
    }
}

static void sum_bands(const struct work *w, const struct pl_mel *m, size_t frame, uint32_t rows) {
    for (uint32_t r = 0; r < rows; r++) {
        const float *y = w->spectrum + (size_t)r * BINS * 2;
        for (uint32_t b = 0; b < m->bands; b++) {
            double sum = 0;
            for (uint32_t k = w->first[b]; k < w->last[b]; k++) {
                double re = (double)y[2 * k], im = (double)y[2 * k + 1];
                sum += w->weights[b][k] * (re * re + im * im);
            }
            m->values[(size_t)b * m->frames + frame + r] = (float)log10(fmax(sum, 1e-10));
        }
    }
}

static void scale(const struct pl_mel *m) {
    size_t n = (size_t)m->bands * m->frames;
    float top = m->values[0];
    for (size_t i = 0; i < n; i++) top = fmaxf(top, m->values[i]);
    for (size_t i = 0; i < n; i++) m->values[i] = (fmaxf(m->values[i], top - 8.0f) + 4.0f) / 4.0f;
}

static enum pl_status fill(struct work *w, const float *samples, size_t count, size_t length, const struct pl_mel *m,
                           struct pl_err *err) {
    for (size_t frame = 0; frame < m->frames; frame += ROWS) {
        uint32_t rows = PL_MIN((uint32_t)(m->frames - frame), (uint32_t)ROWS);
        fill_rows(w, samples, count, length, frame, rows);
        PL_TRY(pl_fft_run(w->fft, rows, w->rows, w->spectrum, err));
        sum_bands(w, m, frame, rows);
    }
    scale(m);
    return PL_OK;
}

enum pl_status pl_mel_make(const float *samples, size_t count, uint32_t bands, bool whole, struct pl_device *d,
                           struct pl_mel *out, struct pl_err *err) {
    size_t length = whole ? count : PL_MEL_SAMPLES;
    if (bands != 80 && bands != 128) PL_FAIL(err, PL_INVALID, "%u mel bands: 80 or 128 are possible", bands);
    if (length <= EDGE || length > PL_MEL_SAMPLES_MAX) {
        PL_FAIL(err, PL_LIMIT, "%zu sample%s: %d to %d can be transformed as a whole", length, length == 1 ? "" : "s",
                EDGE + 1, PL_MEL_SAMPLES_MAX);
    }
    struct pl_mel m = {.bands = bands, .frames = (uint32_t)(length / PL_MEL_HOP)};
    struct work *w = pl_calloc(1, sizeof *w);
    m.values = pl_alloc((size_t)m.bands * m.frames, sizeof(float));
    enum pl_status st = PL_OK;
    if (w == NULL || m.values == NULL) st = pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for mel values");
    if (st == PL_OK) st = work_init(w, bands, d, err);
    if (st == PL_OK) st = fill(w, samples, PL_MIN(count, length), length, &m, err);
    if (w != NULL) {
        if (w->fft != NULL) m.library = pl_fft_library(w->fft);
        pl_fft_destroy(w->fft);
        pl_free(w->rows);
        pl_free(w->spectrum);
        pl_free(w);
    }
    if (st != PL_OK) {
        pl_mel_deinit(&m);
        return st;
    }
    *out = m;
    return PL_OK;
}

void pl_mel_deinit(struct pl_mel *m) {
    pl_free(m->values);
    *m = (struct pl_mel){0};
}
