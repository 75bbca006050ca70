/* plumb mel - the log-mel spectrogram of a WAV file, as numbers or as a picture. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "audio/mel.h"
#include "audio/wav.h"
#include "base/mem.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "cmd/png.h"

struct request {
    const char *path, *png, *backend;
    uint32_t bands;
    bool whole;
};

static enum pl_status open_backend(const char *name, struct pl_device **out, struct pl_err *err) {
    if (strcmp(name, "cpu") == 0) return PL_OK;
    for (int kind = 0; kind < PL_DEVICE_KIND_COUNT; kind++) {
        if (strcmp(name, pl_device_kind_name((enum pl_device_kind)kind)) == 0) {
            return pl_device_open((enum pl_device_kind)kind, 0, out, err);
        }
    }
    PL_FAIL(err, PL_USAGE, "--backend %.40s: cpu, cuda or rocm can transform", name);
}

static enum pl_status make(const struct request *r, struct pl_device *d, struct pl_mel *out, struct pl_err *err) {
    struct pl_wav w = {0};
    PL_TRY(pl_wav_open(r->path, r->whole ? PL_MEL_SAMPLES_MAX + 1 : PL_MEL_SAMPLES, &w, err));
    enum pl_status st = PL_OK;
    if (w.rate != PL_MEL_RATE) {
        st = pl_err_set(
            err, __FILE__, __LINE__, PL_UNSUPPORTED,
            "%s: %u samples a second: %d are needed, and plumb does not resample; convert it, for example with 'ffmpeg -i "
            "IN -ar %d OUT.wav'",
            r->path, w.rate, PL_MEL_RATE, PL_MEL_RATE);
    }
    if (st == PL_OK && w.frames == 0) {
        st = pl_err_set(err, __FILE__, __LINE__, PL_INVALID, "%s: its data chunk is empty, so there is no sound", r->path);
    }
    if (st == PL_OK) {
        st = pl_mel_make(w.samples, w.count, r->bands, r->whole, d, out, err);
        if (st != PL_OK) (void)pl_err_note(err, "transforming %s", r->path);
    }
    if (st == PL_OK) {
        fprintf(stderr, "plumb: %.2f s, %u channel%s of %u-bit %s; %u frame%s of %u bands, transformed by %s\n",
                (double)w.frames / w.rate, w.channels, pl_cmd_s(w.channels), w.bits, w.is_float ? "floats" : "PCM",
                out->frames, pl_cmd_s(out->frames), out->bands, out->library);
    }
    pl_wav_deinit(&w);
    return st;
}

/* Clamped values span two: the loudest is white. Low bands are at the bottom. */
static enum pl_status draw(const char *path, const struct pl_mel *m, struct pl_err *err) {
    size_t n = (size_t)m->bands * m->frames;
    uint8_t *pixels = pl_alloc(n, 1);
    if (pixels == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a picture of %zu pixels", n);
    float top = m->values[0];
    for (size_t i = 0; i < n; i++) top = fmaxf(top, m->values[i]);
    for (uint32_t b = 0; b < m->bands; b++) {
        for (size_t f = 0; f < m->frames; f++) {
            float v = 1.0f - (top - m->values[(size_t)b * m->frames + f]) / 2.0f;
            pixels[(m->bands - 1 - b) * (size_t)m->frames + f] = (uint8_t)lrintf(255.0f * fminf(fmaxf(v, 0.0f), 1.0f));
        }
    }
    enum pl_status st = pl_png_write(path, pixels, m->frames, m->bands, err);
    pl_free(pixels);
    return st;
}

static void print(const struct pl_mel *m) {
    for (size_t f = 0; f < m->frames; f++) {
        for (uint32_t b = 0; b < m->bands; b++) {
            pl_out_printf("%s%.6f", b > 0 ? " " : "", (double)m->values[(size_t)b * m->frames + f]);
        }
        pl_out_str("\n");
    }
}

static enum pl_status answer(const struct request *r, struct pl_err *err) {
    struct pl_device *d = NULL;
    struct pl_mel m = {0};
    PL_TRY(open_backend(r->backend, &d, err));
    enum pl_status st = make(r, d, &m, err);
    if (d != NULL) pl_device_close(d);
    if (st == PL_OK && r->png != NULL) st = draw(r->png, &m, err);
    if (st == PL_OK && r->png == NULL) print(&m);
    pl_mel_deinit(&m);
    return st;
}

int pl_cmd_mel(int argc, char **argv) {
    struct request r = {.backend = "cpu", .bands = 80};
    const struct pl_arg options[] = {
        {0, "png", "FILE", PL_ARG_STR, &r.png, "draw it into a PNG file instead of printing numbers", 0, 0, NULL},
        {0, "bands", "N", PL_ARG_U32, &r.bands, "80 (default) or 128 mel bands", 80, 128, NULL},
        {0, "whole", NULL, PL_ARG_FLAG, &r.whole, "all of the sound, up to an hour, instead of exactly 30 seconds", 0, 0,
         NULL},
        {0, "backend", "NAME", PL_ARG_STR, &r.backend, "what transforms: cpu (KissFFT), cuda (cuFFT), rocm (hipFFT)", 0, 0,
         NULL},
        {0},
    };
    struct pl_args args = {
        .command = "mel",
        .synopsis = "FILE.wav [--png OUT.png]",
        .about = "Prints the log-mel spectrogram that Whisper's models take: a line for each hundredth of a second, a "
                 "number for\n"
                 "each band. WAV with PCM or float samples, 16,000 a second; several channels are mixed.",
        .examples = "  plumb mel speech.wav --png speech.png\n  plumb mel speech.wav --whole --bands 128 > speech.txt\n",
        .groups = (const struct pl_arg *const[]){options, NULL},
        .positional_max = 1,
        .positional = &r.path,
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code != -1) return code;
    if (args.positional_count == 0) return pl_cmd_usage("mel", "a WAV file is missing");
    if (r.bands != 80 && r.bands != 128) return pl_cmd_usage("mel", "--bands %u: 80 or 128 are possible", r.bands);
    struct pl_err err = {0};
    enum pl_status st = answer(&r, &err);
    return st == PL_OK ? pl_out_close() : pl_cmd_fail("mel", &err);
}
