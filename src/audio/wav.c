#include "audio/wav.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "file/reader.h"

enum { TAG_PCM = 1, TAG_FLOAT = 3, TAG_EXTENSIBLE = 0xFFFE, SAMPLE_MAX = 65536 };

struct format {
    uint32_t tag, channels, rate, align, bits;
};
struct chunks {
    const uint8_t *fmt, *data;
    size_t fmt_size, data_size;
};

static uint32_t u16_at(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }
static uint32_t u32_at(const uint8_t *p) { return u16_at(p) | u16_at(p + 2) << 16; }

static enum pl_status keep_chunk(const char *name, const uint8_t *at, size_t size, struct chunks *c, struct pl_err *err) {
    bool is_fmt = memcmp(at, "fmt ", 4) == 0, is_data = memcmp(at, "data", 4) == 0;
    if ((is_fmt && c->fmt != NULL) || (is_data && c->data != NULL)) {
        PL_FAIL(err, PL_FORMAT, "%s: two '%.4s' chunks: which one counts is not defined", name, (const char *)at);
    }
    if (is_fmt) c->fmt = at + 8, c->fmt_size = size;
    if (is_data) c->data = at + 8, c->data_size = size;
    return PL_OK;
}

static enum pl_status find_chunks(const char *name, const uint8_t *p, size_t size, struct chunks *c, struct pl_err *err) {
    if (size >= 12 && (memcmp(p, "RF64", 4) == 0 || memcmp(p, "RIFX", 4) == 0)) {
        PL_FAIL(err, PL_UNSUPPORTED, "%s: its form is %.4s: only RIFF is read; convert it to a plain WAV", name,
                (const char *)p);
    }
    if (size < 12 || memcmp(p, "RIFF", 4) != 0 || memcmp(p + 8, "WAVE", 4) != 0) {
        PL_FAIL(err, PL_FORMAT, "%s: not a WAV file: it does not begin with RIFF and WAVE", name);
    }
    for (size_t at = 12; size - at >= 8;) {
        uint32_t bytes = u32_at(p + at + 4);
        bool is_data = memcmp(p + at, "data", 4) == 0;
        if (is_data && bytes == UINT32_MAX) {
            PL_FAIL(err, PL_UNSUPPORTED,
                    "%s: a stream of unknown length (its data chunk has no size): write it to a file again", name);
        }
        if (bytes > size - at - 8) {
            PL_FAIL(err, PL_FORMAT, "%s: the chunk at byte %zu ends at byte %llu but the file has %zu: it is cut off", name,
                    at, (unsigned long long)at + 8 + bytes, size);
        }
        PL_TRY(keep_chunk(name, p + at, bytes, c, err));
        at += 8 + (size_t)bytes;
        if (bytes % 2 == 1 && at < size) at++; /* chunks begin at even places */
    }
    if (c->fmt == NULL) PL_FAIL(err, PL_FORMAT, "%s: no 'fmt ' chunk, so what its samples are is not known", name);
    if (c->data == NULL) PL_FAIL(err, PL_FORMAT, "%s: no 'data' chunk, so no sound", name);
    return PL_OK;
}

/* WAVE_FORMAT_EXTENSIBLE carries the true tag as the first bytes of a GUID whose rest is fixed. */
static enum pl_status true_tag(const char *name, const struct chunks *c, struct format *f, struct pl_err *err) {
    static const uint8_t rest[14] = {0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71};
    if (f->tag != TAG_EXTENSIBLE) return PL_OK;
    if (c->fmt_size < 40 || u16_at(c->fmt + 16) < 22 || memcmp(c->fmt + 26, rest, sizeof rest) != 0) {
        PL_FAIL(err, PL_UNSUPPORTED, "%s: an extensible format whose subformat is not a plain tag", name);
    }
    uint32_t valid = u16_at(c->fmt + 18);
    if (valid > f->bits) PL_FAIL(err, PL_FORMAT, "%s: %u valid bits in samples of %u", name, valid, f->bits);
    f->tag = u16_at(c->fmt + 24);
    return PL_OK;
}

static enum pl_status read_format(const char *name, const struct chunks *c, struct format *f, struct pl_err *err) {
    if (c->fmt_size < 16) PL_FAIL(err, PL_FORMAT, "%s: a 'fmt ' chunk of %zu bytes: 16 are the least", name, c->fmt_size);
    *f = (struct format){u16_at(c->fmt), u16_at(c->fmt + 2), u32_at(c->fmt + 4), u16_at(c->fmt + 12), u16_at(c->fmt + 14)};
    PL_TRY(true_tag(name, c, f, err));
    bool pcm = f->tag == TAG_PCM && (f->bits == 8 || f->bits == 16 || f->bits == 24 || f->bits == 32);
    bool real = f->tag == TAG_FLOAT && (f->bits == 32 || f->bits == 64);
    if (!pcm && !real) {
        PL_FAIL(err, PL_UNSUPPORTED,
                "%s: format tag %u with %u bits: read are PCM (1) of 8, 16, 24, 32 and floats (3) of 32, 64", name, f->tag,
                f->bits);
    }
    if (f->channels < 1 || f->channels > PL_WAV_CHANNELS_MAX) {
        PL_FAIL(err, PL_UNSUPPORTED, "%s: %u channels: 1 to %d are read", name, f->channels, PL_WAV_CHANNELS_MAX);
    }
    if (f->rate < 1 || f->rate > PL_WAV_RATE_MAX) {
        PL_FAIL(err, PL_FORMAT, "%s: %u samples a second: 1 to %d are possible", name, f->rate, PL_WAV_RATE_MAX);
    }
    if (f->align != f->channels * f->bits / 8) {
        PL_FAIL(err, PL_FORMAT, "%s: %u bytes a frame, but %u channel%s of %u bits are %u", name, f->align, f->channels,
                f->channels == 1 ? "" : "s", f->bits, f->channels * f->bits / 8);
    }
    if (c->data_size % f->align != 0) {
        PL_FAIL(err, PL_FORMAT, "%s: %zu bytes of samples are no whole number of frames of %u: it is cut off", name,
                c->data_size, f->align);
    }
    return PL_OK;
}

static double sample_at(const uint8_t *p, const struct format *f) {
    if (f->tag == TAG_FLOAT && f->bits == 32) {
        float v;
        memcpy(&v, p, sizeof v);
        return (double)v;
    }
    if (f->tag == TAG_FLOAT) {
        double v;
        memcpy(&v, p, sizeof v);
        return v;
    }
    if (f->bits == 8) return (p[0] - 128) / 128.0;
    if (f->bits == 16) return (int16_t)u16_at(p) / 32768.0;
    if (f->bits == 24) return (int32_t)(u16_at(p) << 8 | (uint32_t)p[2] << 24) / 2147483648.0;
    return (int32_t)u32_at(p) / 2147483648.0;
}

static enum pl_status mix(const char *name, const struct chunks *c, const struct format *f, struct pl_wav *w,
                          struct pl_err *err) {
    for (size_t i = 0; i < w->count; i++) {
        const uint8_t *p = c->data + i * f->align;
        double sum = 0;
        for (uint32_t k = 0; k < f->channels; k++) {
            double v = sample_at(p + k * (f->bits / 8), f);
            if (!(fabs(v) <= SAMPLE_MAX)) {
                PL_FAIL(err, PL_INVALID, "%s: sample %zu of channel %u is %g: finite values within +-%d are taken", name, i,
                        k, v, SAMPLE_MAX);
            }
            sum += v;
        }
        w->samples[i] = (float)(sum / f->channels);
    }
    return PL_OK;
}

enum pl_status pl_wav_parse(const char *name, const void *data, size_t size, size_t limit, struct pl_wav *out,
                            struct pl_err *err) {
    struct chunks c = {0};
    struct format f = {0};
    PL_TRY(find_chunks(name, data, size, &c, err));
    PL_TRY(read_format(name, &c, &f, err));
    struct pl_wav w = {.rate = f.rate, .channels = f.channels, .bits = f.bits, .is_float = f.tag == TAG_FLOAT};
    w.frames = c.data_size / f.align;
    w.count = PL_MIN(w.frames, limit);
    w.samples = pl_alloc(PL_MAX(w.count, 1), sizeof(float));
    if (w.samples == NULL) PL_FAIL(err, PL_NO_MEMORY, "%s: no memory for %zu samples", name, w.count);
    enum pl_status st = mix(name, &c, &f, &w, err);
    if (st != PL_OK) {
        pl_wav_deinit(&w);
        return st;
    }
    *out = w;
    return PL_OK;
}

enum pl_status pl_wav_open(const char *path, size_t limit, struct pl_wav *out, struct pl_err *err) {
    struct pl_part part = {0};
    PL_TRY(pl_part_map(path, &part, err));
    enum pl_status st = pl_wav_parse(path, part.data, part.len, limit, out, err);
    pl_part_unmap(&part);
    return st;
}

void pl_wav_deinit(struct pl_wav *w) {
    pl_free(w->samples);
    *w = (struct pl_wav){0};
}
