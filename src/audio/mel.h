/* mel - the log-mel values that audio models of the Whisper kind take: 16,000 samples a second, windows of 400 (Hann,
 * periodic) every 160, mirrored at both ends, power, 80 or 128 bands of Slaney's scale up to 8 kHz, log10, clamped to eight
 * decades below the loudest value, (v + 4) / 4.
 *
 * Numerics: within 1e-4 of transformers' WhisperFeatureExtractor. */
#ifndef PL_AUDIO_MEL_H
#define PL_AUDIO_MEL_H

#include "base/status.h"
#include "device/device.h"

enum { PL_MEL_RATE = 16000, PL_MEL_WINDOW = 400, PL_MEL_HOP = 160, PL_MEL_SAMPLES = 30 * PL_MEL_RATE };
enum { PL_MEL_SAMPLES_MAX = 3600 * PL_MEL_RATE, PL_MEL_BANDS_MAX = 128 };

struct pl_mel {
    uint32_t bands, frames;
    float *values;       /* [bands, frames] */
    const char *library; /* what transformed, such as "KissFFT" */
};

/* whole: all of the samples (more than 200); otherwise exactly 30 seconds, cut off or filled up with silence.
 * d: the device that transforms, or NULL: the CPU. */
enum pl_status pl_mel_make(const float *samples, size_t count, uint32_t bands, bool whole, struct pl_device *d,
                           struct pl_mel *out, struct pl_err *err) PL_MUST_CHECK;
void pl_mel_deinit(struct pl_mel *m);

#endif
