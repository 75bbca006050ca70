/* wav - RIFF/WAVE files to one channel of floats. The bytes come from outside: every size is checked against what is there.
 *
 * Read: PCM of 8, 16, 24 and 32 bits, floats of 32 and 64 bits, plain or WAVE_FORMAT_EXTENSIBLE, 1 to 8 channels (their
 * mean). Everything else is PL_UNSUPPORTED or PL_FORMAT with what was found; nothing is resampled. */
#ifndef PL_AUDIO_WAV_H
#define PL_AUDIO_WAV_H

#include <stdint.h>

#include "base/status.h"

enum { PL_WAV_CHANNELS_MAX = 8, PL_WAV_RATE_MAX = 1 << 20 };

struct pl_wav {
    uint32_t rate, channels, bits; /* as in the file */
    bool is_float;
    uint64_t frames; /* in the file; one value of each channel */
    size_t count;    /* samples below: frames, or the limit */
    float *samples;  /* [count] in about -1..1, the channels' mean */
};

/* At most limit frames become samples. name is only for messages. */
enum pl_status pl_wav_parse(const char *name, const void *data, size_t size, size_t limit, struct pl_wav *out,
                            struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_wav_open(const char *path, size_t limit, struct pl_wav *out, struct pl_err *err) PL_MUST_CHECK;
void pl_wav_deinit(struct pl_wav *w);

#endif
