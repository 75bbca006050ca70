#include "verify/jitcheck.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "jit/jit.h"
#include "tensor/convert.h"

enum { N = 32 };

/* One geometry in three types: the shortest source that reads wrongly when a key forgets the type. */
static const char source[] = "#include \"kv.h\"\n"
                             "KERNEL(widen)(GLOBAL const KV_TYPE *p, GLOBAL f32 *out) {\n"
                             "    out[GROUP_X] = kv_load(p + GROUP_X);\n"
                             "}\n";

struct check {
    enum pl_device_kind kind;
    const char *dir;
    struct pl_device *d;
    struct pl_jit *j;
    struct pl_device_stream s;
    struct pl_err *err;
};

static enum pl_status begin(struct check *c, enum pl_jit_mode mode) {
    struct pl_jit_options opt = {.mode = mode, .dir = c->dir};
    PL_TRY(pl_device_open(c->kind, 0, &c->d, c->err));
    enum pl_status st = pl_jit_create(c->d, &opt, &c->j, c->err);
    if (st == PL_OK) st = pl_device_stream_create(c->d, &c->s, c->err);
    if (st == PL_OK) return PL_OK;
    pl_jit_destroy(c->j);
    pl_device_close(c->d);
    c->j = NULL;
    c->d = NULL;
    return st;
}
static void end(struct check *c) {
    if (c->d == NULL) return;
    pl_device_stream_destroy(c->d, &c->s);
    pl_jit_destroy(c->j);
    pl_device_close(c->d);
    c->j = NULL;
    c->d = NULL;
}

static enum pl_status launch(struct check *c, const struct pl_jit_kernel *k, const void *in, size_t in_bytes, float *out) {
    struct pl_device_buffer from = {0}, to = {0};
    enum pl_status st = pl_device_alloc(c->d, N * 4, &from, c->err);
    if (st == PL_OK) st = pl_device_alloc(c->d, N * 4, &to, c->err);
    if (st == PL_OK) st = pl_device_fill(c->d, c->s, &from, 0, c->err);
    if (st == PL_OK) st = pl_device_fill(c->d, c->s, &to, 0xFF, c->err);
    if (st == PL_OK) st = pl_device_upload(c->d, c->s, &from, 0, in, in_bytes, c->err);
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&from), PL_ARG_BUFFER(&to)};
    struct pl_device_launch l = {
        .function = k->function, .grid = {N, 1, 1}, .group = {1, 1, 1}, .args = args, .arg_count = 2};
    if (st == PL_OK) st = pl_device_launch(c->d, c->s, &l, c->err);
    if (st == PL_OK) st = pl_device_download(c->d, c->s, out, &to, 0, N * 4, c->err);
    if (st == PL_OK) st = pl_device_stream_wait(c->d, c->s, c->err);
    pl_device_free(c->d, &from);
    pl_device_free(c->d, &to);
    return st;
}

/* Is what the kernel of this type made right? */
static enum pl_status widens(struct check *c, const char *type, bool *right) {
    struct pl_jit_spec spec = {.entry = "pk_widen", .text = source};
    const struct pl_jit_kernel *k = NULL;
    bool plain = strcmp(type, "KV_F32") == 0, f16 = strcmp(type, "KV_F16") == 0;
    float in[N], out[N];
    uint16_t half[N];
    for (int i = 0; i < N; i++) {
        in[i] = (float)i - 7.25f; /* exact in all three types */
        half[i] = f16 ? pl_f32_to_f16(in[i]) : pl_f32_to_bf16(in[i]);
    }
    pl_jit_set(&spec, type, "1");
    pl_jit_set_u32(&spec, "HEAD_DIM", 64);
    pl_jit_set_u32(&spec, "PAGE_TOKENS", 16);
    PL_TRY(pl_jit_get(c->j, &spec, &k, c->err));
    PL_TRY(launch(c, k, plain ? (void *)in : (void *)half, plain ? sizeof in : sizeof half, out));
    *right = memcmp(in, out, sizeof in) == 0;
    return PL_OK;
}

static enum pl_status sequence(struct check *c, bool *right) {
    static const char *const order[] = {"KV_F32", "KV_F16", "KV_BF16", "KV_F32"};
    *right = true;
    for (size_t i = 0; i < PL_COUNT_OF(order); i++) {
        bool one = false;
        PL_TRY(widens(c, order[i], &one));
        *right = *right && one;
    }
    return PL_OK;
}

static void each_file(const char *dir, bool damage) {
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d != NULL && (e = readdir(d)) != NULL) {
        char path[1500];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] == '.') continue;
        if (!damage) {
            (void)unlink(path);
            continue;
        }
        FILE *f = fopen(path, "r+be");
        if (f == NULL) continue;
        int c = fseek(f, -3, SEEK_END) == 0 ? fgetc(f) : EOF;
        if (c != EOF && fseek(f, -3, SEEK_END) == 0) fputc(c ^ 0x40, f);
        fclose(f);
    }
    if (d != NULL) closedir(d);
}

static void row(json_t *rows, size_t *failed, const char *what, bool passed, bool right, struct pl_jit_stats s) {
    char detail[160];
    snprintf(detail, sizeof detail, "results %s; compiled %llu, from memory %llu, from disk %llu, damaged %llu",
             right ? "right" : "wrong", (unsigned long long)s.compiled, (unsigned long long)s.memory_hits,
             (unsigned long long)s.disk_hits, (unsigned long long)s.damaged);
    *failed += !passed;
    json_array_append_new(rows,
                          json_pack("{s:s, s:s, s:s}", "check", what, "status", passed ? "pass" : "fail", "detail", detail));
}

enum stage { FRESH, DISK, DAMAGED, VERIFIED, WEAK, STAGES };

static enum pl_status stage(struct check *c, enum stage which, json_t *rows, size_t *failed) {
    static const char *const what[STAGES] = {"one geometry as f32, f16, bf16, f32 in one process", "the same from disk",
                                             "damaged files are misses", "recompiled and compared (--jit-cache=verify)",
                                             "negative control: a key without the types must give wrong results"};
    bool right = false;
    if (which == DAMAGED) each_file(c->dir, true);
    if (which == WEAK) each_file(c->dir, false);
    PL_TRY(begin(c, which == VERIFIED ? PL_JIT_VERIFY : PL_JIT_ON));
    if (which == WEAK) pl_jit_test_weaken(c->j, PL_JIT_FIELD_VALUES);
    enum pl_status st = sequence(c, &right);
    struct pl_jit_stats s = pl_jit_stats(c->j);
    end(c);
    PL_TRY(st);
    bool passed = right;
    if (which == FRESH) passed = right && s.compiled == 3 && s.memory_hits == 1;
    if (which == DISK) passed = right && s.compiled == 0 && s.disk_hits == 3;
    if (which == DAMAGED) passed = right && s.damaged == 3 && s.compiled == 3;
    if (which == WEAK) passed = !right;
    row(rows, failed, what[which], passed, right, s);
    return PL_OK;
}

enum pl_status pl_jitcheck_run(enum pl_device_kind kind, const char *dir, json_t *rows, size_t *failed, struct pl_err *err) {
    char folder[1200];
    snprintf(folder, sizeof folder, "%.1100s/jit-XXXXXX", dir);
    if (mkdtemp(folder) == NULL) PL_FAIL(err, PL_IO, "no folder under %.300s", dir);
    struct check c = {.kind = kind, .dir = folder, .err = err};
    enum pl_status st = PL_OK;
    for (int i = 0; i < STAGES && st == PL_OK; i++) st = stage(&c, (enum stage)i, rows, failed);
    each_file(folder, false);
    (void)rmdir(folder);
    return st;
}
