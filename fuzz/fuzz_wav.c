/* Any bytes as a WAV file; what can be read becomes mel values, which are finite and within the clamp. */
#include <math.h>

#include "audio/mel.h"
#include "audio/wav.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pl_wav w = {0};
    struct pl_mel m = {0};
    struct pl_err err = {0};
    if (pl_wav_parse("x.wav", data, size, PL_MEL_SAMPLES, &w, &err) != PL_OK) {
        PL_ASSERT(w.samples == NULL && err.text[0] != '\0');
        return 0;
    }
    PL_ASSERT(w.count <= w.frames && w.frames <= size);
    for (size_t i = 0; i < w.count; i++) PL_ASSERT(isfinite(w.samples[i]));
    if (pl_mel_make(w.samples, w.count, 80, true, NULL, &m, &err) == PL_OK) {
        float least = m.values[0], most = m.values[0];
        for (size_t i = 0; i < (size_t)m.bands * m.frames; i++) {
            PL_ASSERT(isfinite(m.values[i]));
            least = fminf(least, m.values[i]);
            most = fmaxf(most, m.values[i]);
        }
        PL_ASSERT(most - least <= 2.0001f);
        pl_mel_deinit(&m);
    }
    pl_wav_deinit(&w);
    return 0;
}
