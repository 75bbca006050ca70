/* WAV files: every format that is read has the same values, everything hostile is an error with a sentence. */
#include <math.h>
#include <stdio.h>

#include "audio/wav.h"
#include "base/mem.h"
#include "tests/devices.h"

struct file {
    uint8_t bytes[512];
    size_t size;
};

static void put(struct file *f, const void *data, size_t n) {
    memcpy(f->bytes + f->size, data, n);
    f->size += n;
}
static void put_n(struct file *f, uint64_t v, int n) {
    for (int i = 0; i < n; i++) f->bytes[f->size++] = (uint8_t)(v >> (8 * i));
}

struct shape {
    uint32_t tag, channels, bits;
    bool extensible;
};

static struct file begin(struct shape s, size_t data_bytes) {
    struct file f = {0};
    uint32_t align = s.channels * s.bits / 8;
    put(&f, "RIFF\0\0\0\0WAVELIST\3\0\0\0abc\0fmt ", 28);
    put_n(&f, s.extensible ? 40 : 16, 4);
    put_n(&f, s.extensible ? 0xFFFE : s.tag, 2);
    put_n(&f, s.channels, 2);
    put_n(&f, 16000, 4);
    put_n(&f, 16000 * align, 4);
    put_n(&f, align, 2);
    put_n(&f, s.bits, 2);
    if (s.extensible) {
        put_n(&f, 22, 2);
        put_n(&f, s.bits, 2);
        put_n(&f, 0, 4);
        put_n(&f, s.tag, 2);
        put(&f, "\0\0\0\0\x10\0\x80\0\0\xAA\0\x38\x9B\x71", 14);
    }
    put(&f, "data", 4);
    put_n(&f, data_bytes, 4);
    return f;
}

static const double values[] = {0.0, 0.5, -0.25, -1.0};

static struct file sound(struct shape s) {
    struct file f = begin(s, 4 * s.channels * s.bits / 8);
    for (size_t i = 0; i < 4; i++) {
        for (uint32_t k = 0; k < s.channels; k++) {
            double v = s.channels == 1 ? values[i] : values[i] * (k == 0 ? 0.5 : 1.5); /* a mean of v with two */
            float f32 = (float)v;
            uint64_t bits = 0;
            if (s.tag == 3 && s.bits == 32) memcpy(&bits, &f32, 4);
            if (s.tag == 3 && s.bits == 64) memcpy(&bits, &v, 8);
            if (s.tag == 1) bits = (uint64_t)(int64_t)lrint(ldexp(v, (int)s.bits - 1)) + (s.bits == 8 ? 128 : 0);
            put_n(&f, bits, (int)s.bits / 8);
        }
    }
    return f;
}

static enum pl_status parse(const struct file *f, size_t size, struct pl_wav *w, struct pl_err *err) {
    uint8_t *exact = malloc(size + 1); /* a heap block of its own, so that a sanitizer sees one byte too many */
    memcpy(exact, f->bytes, size);
    enum pl_status st = pl_wav_parse("x.wav", exact, size, 1000, w, err);
    free(exact);
    return st;
}

static void every_format_has_the_same_values(void **state) {
    static const struct shape shapes[] = {{1, 1, 8, 0},  {1, 1, 16, 0}, {1, 1, 24, 0}, {1, 1, 32, 0}, {3, 1, 32, 0},
                                          {3, 1, 64, 0}, {1, 1, 16, 1}, {3, 1, 32, 1}, {3, 2, 32, 0}, {3, 2, 64, 0}};
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) {
        struct file f = sound(shapes[i]);
        struct pl_wav w = {0};
        struct pl_err err = {0};
        if (parse(&f, f.size, &w, &err) != PL_OK) fail_msg("shape %zu: %s", i, err.text);
        assert_int_equal(w.count, 4);
        assert_int_equal(w.channels, shapes[i].channels);
        for (size_t k = 0; k < 4; k++) assert_true(fabs((double)w.samples[k] - values[k]) < 1e-7);
        pl_wav_deinit(&w);
    }
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    struct file f = sound((struct shape){1, 2, 8, 1});
    for (size_t n = 0; n < f.size; n++) {
        struct pl_wav w = {0};
        struct pl_err err = {0};
        assert_int_not_equal(parse(&f, n, &w, &err), PL_OK);
        assert_true(err.text[0] != 0 && w.samples == NULL);
    }
}

/* A change at one place of a good file, and a word of the sentence that names it. */
static void what_cannot_be_read_is_named(void **state) {
    static const struct {
        size_t at;
        uint64_t value;
        int bytes;
        const char *word;
    } changes[] = {{0, 0x34364652, 4, "RF64"},
                   {8, 0, 4, "RIFF and WAVE"},
                   {32, 6, 2, "format tag 6"},
                   {32, 0xFFFE, 2, "subformat"},
                   {34, 0, 2, "channels"},
                   {34, 9, 2, "channels"},
                   {36, 0, 4, "samples a second"},
                   {44, 3, 2, "bytes a frame"},
                   {46, 12, 2, "12 bits"},
                   {46, 24, 2, "bytes a frame"},
                   {16, 0x7fffffff, 4, "cut off"},
                   {52, 0xFFFFFFFF, 4, "unknown length"},
                   {52, 0xFFFFFFF0, 4, "cut off"},
                   {28, 2, 4, "cut off"},
                   {48, 0x20746d66, 4, "two 'fmt '"},
                   {24, 0x20202020, 4, "no 'fmt '"},
                   {48, 0x20202020, 4, "no 'data'"},
                   {52, 7, 4, "whole number"}};
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(changes); i++) {
        struct file f = sound((struct shape){1, 1, 16, 0});
        struct pl_wav w = {0};
        struct pl_err err = {0};
        for (int k = 0; k < changes[i].bytes; k++) f.bytes[changes[i].at + k] = (uint8_t)(changes[i].value >> (8 * k));
        assert_int_not_equal(parse(&f, f.size, &w, &err), PL_OK);
        if (strstr(err.text, changes[i].word) == NULL) fail_msg("change %zu: %s", i, err.text);
    }
}

static void samples_that_are_no_sound_are_refused(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e6f};
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(bad); i++) {
        struct file f = begin((struct shape){3, 1, 32, 0}, 8);
        struct pl_wav w = {0};
        struct pl_err err = {0};
        put_n(&f, 0, 4);
        put(&f, &bad[i], 4);
        assert_int_equal(parse(&f, f.size, &w, &err), PL_INVALID);
        assert_non_null(strstr(err.text, "sample 1"));
    }
}

static void memory_and_limits(void **state) {
    (void)state;
    struct file f = sound((struct shape){1, 1, 16, 0});
    struct pl_wav w = {0};
    struct pl_err err = {0};
    assert_int_equal(pl_wav_parse("x", f.bytes, f.size, 2, &w, &err), PL_OK);
    assert_true(w.count == 2 && w.frames == 4);
    pl_wav_deinit(&w);
    pl_mem_fail_at(1);
    assert_int_equal(pl_wav_parse("x", f.bytes, f.size, 4, &w, &err), PL_NO_MEMORY);
    pl_mem_fail_at(0);
    assert_int_equal(pl_wav_open("/does/not/exist.wav", 4, &w, &err), PL_NOT_FOUND);
    assert_int_not_equal(pl_wav_open("/dev/zero", 4, &w, &err), PL_OK);
}

int main(void) {
    struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_has_the_same_values),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(what_cannot_be_read_is_named),
        cmocka_unit_test(samples_that_are_no_sound_are_refused),
        cmocka_unit_test(memory_and_limits),
    };
    return TEST_RUN("wav", tests);
}
