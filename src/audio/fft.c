#include "audio/fft.h"

#include <string.h>

#include "base/mem.h"
#include "device/fft.h"
#ifdef PL_HAVE_KISSFFT
#include <kissfft/kiss_fft.h>
#include <kissfft/kiss_fftr.h>
_Static_assert(sizeof(kiss_fft_scalar) == sizeof(float), "KissFFT's variant for floats");
#endif

struct pl_fft {
    uint32_t n, rows_max;
    void *plan;    /* KissFFT's, in memory of ours */
    float *padded; /* odd lengths: [n] complex in, [n] complex out */
    struct pl_device *device;
    struct pl_device_fft *vendor;
    struct pl_device_buffer in, out;
};

#ifdef PL_HAVE_KISSFFT
/* The library says how much memory a plan takes when it is given none. */
static bool plan_make(struct pl_fft *f) {
    size_t bytes = 0;
    int n = (int)f->n;
    bool even = n % 2 == 0;
    if (even)
        kiss_fftr_alloc(n, 0, NULL, &bytes);
    else
        kiss_fft_alloc(n, 0, NULL, &bytes);
    f->plan = bytes > 0 ? pl_alloc_aligned(bytes, 64) : NULL;
    f->padded = even ? NULL : pl_calloc(4 * (size_t)n, sizeof(float));
    if (f->plan == NULL || (!even && f->padded == NULL)) return false;
    return (even ? (void *)kiss_fftr_alloc(n, 0, f->plan, &bytes) : (void *)kiss_fft_alloc(n, 0, f->plan, &bytes)) != NULL;
}

static enum pl_status make_here(struct pl_fft *f, struct pl_err *err) {
    if (!plan_make(f)) PL_FAIL(err, PL_NO_MEMORY, "no memory for a transform of %u values", f->n);
    return PL_OK;
}

static void transform_here(struct pl_fft *f, const float *x, float *y) {
    if (f->padded == NULL) {
        kiss_fftr(f->plan, x, (kiss_fft_cpx *)(void *)y);
        return;
    }
    for (size_t j = 0; j < f->n; j++) f->padded[2 * j] = x[j];
    float *out = f->padded + 2 * (size_t)f->n;
    kiss_fft(f->plan, (const kiss_fft_cpx *)(const void *)f->padded, (kiss_fft_cpx *)(void *)out);
    memcpy(y, out, (f->n / 2 + 1) * 2 * sizeof(float));
}
#else
static enum pl_status make_here(struct pl_fft *f, struct pl_err *err) {
    (void)f;
    PL_FAIL(err, PL_UNSUPPORTED, "this build has no Fourier transform for the CPU: install libkissfft-dev and build again");
}
static void transform_here(struct pl_fft *f, const float *x, float *y) { (void)f, (void)x, (void)y; }
#endif

static enum pl_status make_there(struct pl_fft *f, struct pl_err *err) {
    PL_TRY(pl_device_fft_open(f->device, f->n, f->rows_max, &f->vendor, err));
    PL_TRY(pl_device_alloc(f->device, (uint64_t)f->rows_max * f->n * sizeof(float), &f->in, err));
    return pl_device_alloc(f->device, (uint64_t)f->rows_max * (f->n / 2 + 1) * 2 * sizeof(float), &f->out, err);
}

enum pl_status pl_fft_create(struct pl_device *d, uint32_t n, uint32_t rows_max, struct pl_fft **out, struct pl_err *err) {
    if (n < 1 || n > PL_FFT_LENGTH_MAX || rows_max < 1 || rows_max > PL_FFT_ROWS_MAX) {
        PL_FAIL(err, PL_LIMIT, "a transform of %u rows of %u values: up to %d rows of 1 to %d values are possible", rows_max,
                n, PL_FFT_ROWS_MAX, PL_FFT_LENGTH_MAX);
    }
    struct pl_fft *f = pl_calloc(1, sizeof *f);
    if (f == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a transform");
    *f = (struct pl_fft){.n = n, .rows_max = rows_max, .device = d};
    enum pl_status st = d == NULL ? make_here(f, err) : make_there(f, err);
    if (st != PL_OK) {
        pl_fft_destroy(f);
        return st;
    }
    *out = f;
    return PL_OK;
}

void pl_fft_destroy(struct pl_fft *f) {
    if (f == NULL) return;
    if (f->device != NULL) {
        pl_device_fft_close(f->vendor);
        pl_device_free(f->device, &f->in);
        pl_device_free(f->device, &f->out);
    }
    pl_free(f->plan);
    pl_free(f->padded);
    pl_free(f);
}

const char *pl_fft_library(const struct pl_fft *f) {
    return f->device == NULL ? "KissFFT" : pl_device_fft_library(f->vendor);
}

static enum pl_status run_there(struct pl_fft *f, uint32_t rows, const float *x, float *y, struct pl_err *err) {
    struct pl_device_stream s = {NULL};
    PL_TRY(pl_device_stream_create(f->device, &s, err));
    enum pl_status st = pl_device_upload(f->device, s, &f->in, 0, x, (uint64_t)rows * f->n * sizeof(float), err);
    if (st == PL_OK) st = pl_device_fft_run(f->vendor, s, &f->in, &f->out, err);
    if (st == PL_OK) {
        st = pl_device_download(f->device, s, y, &f->out, 0, (uint64_t)rows * (f->n / 2 + 1) * 2 * sizeof(float), err);
    }
    struct pl_err late = {0};
    enum pl_status waited = pl_device_stream_wait(f->device, s, st == PL_OK ? err : &late);
    pl_device_stream_destroy(f->device, &s);
    return st != PL_OK ? st : waited;
}

enum pl_status pl_fft_run(struct pl_fft *f, uint32_t rows, const float *x, float *y, struct pl_err *err) {
    PL_ASSERT(rows <= f->rows_max);
    if (f->device != NULL) return run_there(f, rows, x, y, err);
    for (size_t r = 0; r < rows; r++) transform_here(f, x + r * f->n, y + r * (f->n / 2 + 1) * 2);
    return PL_OK;
}
