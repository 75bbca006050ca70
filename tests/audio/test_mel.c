/* Log-mel values against those of transformers' WhisperFeatureExtractor (tools/make_mel_golden.py). */
#include <math.h>
#include <stdio.h>

#include "audio/mel.h"
#include "audio/wav.h"
#include "base/mem.h"
#include "tests/devices.h"

#define FOLDER "tests/golden/mel/"
enum { LEFT_FRAMES = 56 }; /* of the 3,000: the others are equal to the last of these */

static float *golden(const char *name, size_t count) {
    char path[200];
    float *v = malloc(count * sizeof *v);
    snprintf(path, sizeof path, FOLDER "%s", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(v, sizeof *v, count, f), count);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    return v;
}

static struct pl_wav sound(void) {
    struct pl_wav w = {0};
    struct pl_err err = {0};
    if (pl_wav_open(FOLDER "sound.wav", PL_MEL_SAMPLES, &w, &err) != PL_OK) fail_msg("%s", err.text);
    assert_true(w.count == 8000 && w.rate == PL_MEL_RATE);
    return w;
}

static struct pl_mel make(const struct pl_wav *w, uint32_t bands, bool whole, struct pl_device *d) {
    struct pl_mel m = {0};
    struct pl_err err = {0};
    enum pl_status st = pl_mel_make(w->samples, w->count, bands, whole, d, &m, &err);
    if (st == PL_UNSUPPORTED && d == NULL) {
        SKIP(err.text);
    }
    if (st != PL_OK) fail_msg("%s", err.text);
    return m;
}

static double distance(const struct pl_mel *m, const float *want, uint32_t want_frames) {
    double worst = 0;
    for (uint32_t b = 0; b < m->bands; b++) {
        for (uint32_t f = 0; f < m->frames; f++) {
            float w = want[(size_t)b * want_frames + PL_MIN(f, want_frames - 1)];
            worst = fmax(worst, fabs((double)(w - m->values[(size_t)b * m->frames + f])));
        }
    }
    return worst;
}

static void check(struct pl_device *d) {
    static const struct {
        uint32_t bands, frames, stored;
        bool whole;
        const char *name;
    } cases[] = {{80, 50, 50, true, "whole-80.bin"},
                 {128, 50, 50, true, "whole-128.bin"},
                 {80, 3000, LEFT_FRAMES, false, "window-80.bin"}};
    struct pl_wav w = sound();
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        struct pl_mel m = make(&w, cases[i].bands, cases[i].whole, d);
        float *want = golden(cases[i].name, (size_t)cases[i].bands * cases[i].stored);
        assert_int_equal(m.frames, cases[i].frames);
        double off = distance(&m, want, cases[i].stored);
        print_message("# %s by %s: at most %.1e off\n", cases[i].name, m.library, off);
        assert_true(off < 1e-4);
        want[7 * cases[i].stored + 3] += 2e-4f; /* the comparison sees one wrong value */
        assert_true(distance(&m, want, cases[i].stored) > 1e-4);
        free(want);
        pl_mel_deinit(&m);
    }
    pl_wav_deinit(&w);
}

static void values_of_transformers(void **state) {
    (void)state;
    check(NULL);
}

static void the_same_on_a_device(void **state) {
    struct pl_device *d = NULL;
    struct pl_err err = {0};
    (void)state;
    if (test_device_of(PL_DEVICE_CUDA) < 0) {
        SKIP("no CUDA device");
    }
    if (pl_device_open(PL_DEVICE_CUDA, test_device_of(PL_DEVICE_CUDA), &d, &err) != PL_OK) fail_msg("%s", err.text);
    check(d);
    pl_device_close(d);
}

static void lengths_that_make_no_frame_are_refused(void **state) {
    static const float x[401];
    static const struct {
        size_t count;
        uint32_t bands;
        bool whole;
        enum pl_status want;
    } cases[] = {
        {0, 80, true, PL_LIMIT},    {200, 80, true, PL_LIMIT},    {(size_t)PL_MEL_SAMPLES_MAX + 1, 80, true, PL_LIMIT},
        {401, 0, true, PL_INVALID}, {401, 81, false, PL_INVALID}, {401, 1000, true, PL_INVALID}};
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        struct pl_mel m = {0};
        struct pl_err err = {0};
        assert_int_equal(pl_mel_make(x, cases[i].count, cases[i].bands, cases[i].whole, NULL, &m, &err), cases[i].want);
    }
}

static void silence_and_the_shortest_sound(void **state) {
    static const float x[201];
    (void)state;
    struct pl_wav w = {.count = 201, .samples = (float *)x};
    struct pl_mel m = make(&w, 80, true, NULL);
    assert_int_equal(m.frames, 1);
    for (size_t i = 0; i < 80; i++) assert_true(m.values[i] == -1.5f); /* (log10(1e-10) + 4) / 4 */
    pl_mel_deinit(&m);
    w.count = 0; /* thirty seconds of nothing */
    m = make(&w, 80, false, NULL);
    assert_true(m.frames == 3000 && m.values[0] == -1.5f);
    pl_mel_deinit(&m);
}

static void every_allocation_may_fail(void **state) {
    struct pl_wav w = sound();
    (void)state;
    struct pl_mel first = make(&w, 80, true, NULL);
    pl_mel_deinit(&first);
    bool done = false;
    for (uint64_t nth = 1; !done; nth++) {
        struct pl_mel m = {0};
        struct pl_err err = {0};
        pl_mem_fail_at(nth);
        enum pl_status st = pl_mel_make(w.samples, w.count, 80, true, NULL, &m, &err);
        pl_mem_fail_at(0);
        done = st == PL_OK;
        if (!done) assert_int_equal(st, PL_NO_MEMORY);
        if (done) assert_true(nth > 5);
        pl_mel_deinit(&m);
    }
    pl_wav_deinit(&w);
}

int main(void) {
    struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_transformers),
        cmocka_unit_test(the_same_on_a_device),
        cmocka_unit_test(lengths_that_make_no_frame_are_refused),
        cmocka_unit_test(silence_and_the_shortest_sound),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return TEST_RUN("mel", tests);
}
