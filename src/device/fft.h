/* fft - real transforms of the vendor's library (cuFFT, hipFFT), opened with dlopen when first asked for.
 *
 * Rows of n floats to rows of n/2 + 1 complex floats, not scaled, enqueued on a stream. All rows of the plan are
 * transformed in each run. hipFFT is compiled, not run: no AMD device was at hand. */
#ifndef PL_DEVICE_FFT_H
#define PL_DEVICE_FFT_H

#include "device/device.h"

struct pl_device_fft;
/* PL_NOT_FOUND or PL_UNSUPPORTED names what is missing. d outlives the result. */
enum pl_status pl_device_fft_open(struct pl_device *d, uint32_t n, uint32_t rows, struct pl_device_fft **out,
                                  struct pl_err *err) PL_MUST_CHECK;
void pl_device_fft_close(struct pl_device_fft *f); /* NULL is allowed */
/* in [rows, n] f32, out [rows, n/2 + 1, 2] f32; they may not overlap. */
enum pl_status pl_device_fft_run(struct pl_device_fft *f, struct pl_device_stream s, const struct pl_device_buffer *in,
                                 const struct pl_device_buffer *out, struct pl_err *err) PL_MUST_CHECK;
const char *pl_device_fft_library(const struct pl_device_fft *f);

#endif
