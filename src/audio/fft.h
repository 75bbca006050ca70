/* fft - the real Fourier transform of any length, behind one call.
 *
 * KissFFT on the CPU; on a device the vendor's library (device/fft.h). Nothing falls back: a device without a library, or a
 * build without KissFFT, is PL_UNSUPPORTED or PL_NOT_FOUND with what is missing. One transform belongs to one thread. */
#ifndef PL_AUDIO_FFT_H
#define PL_AUDIO_FFT_H

#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

enum { PL_FFT_LENGTH_MAX = 1 << 24, PL_FFT_ROWS_MAX = 1 << 16 };

struct pl_fft;
/* For rows_max rows of n values each; d NULL: the CPU. d outlives the result. */
enum pl_status pl_fft_create(struct pl_device *d, uint32_t n, uint32_t rows_max, struct pl_fft **out,
                             struct pl_err *err) PL_MUST_CHECK;
void pl_fft_destroy(struct pl_fft *f); /* NULL is allowed */

/* fft_run - Y[r][k] = sum over j of x[r][j] exp(-2 pi i j k / n), not scaled.
 *   x  [rows, n]            f32  in
 *   y  [rows, n/2 + 1, 2]   f32  out  real and imaginary part in turn
 * Requires: rows <= rows_max. Numerics: f32, relative to the largest |Y| of a row about 1e-6. */
enum pl_status pl_fft_run(struct pl_fft *f, uint32_t rows, const float *x, float *y, struct pl_err *err) PL_MUST_CHECK;
const char *pl_fft_library(const struct pl_fft *f); /* "KissFFT", "cuFFT", "hipFFT" */

#endif
