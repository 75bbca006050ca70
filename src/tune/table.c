#include "tune/table.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "jit/jit.h"

#define SCHEMA "plumb-tune-1"

static const char *sources(char hash[33]) {
    pl_jit_sources_hash(hash);
    return hash;
}

enum pl_status pl_tune_path(const struct pl_device_info *d, char *path, size_t size, struct pl_err *err) {
    const char *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    char key[400], name[33];
    bool has_xdg = xdg != NULL && xdg[0] == '/';
    if (!has_xdg && (home == NULL || home[0] != '/'))
        PL_FAIL(err, PL_NOT_FOUND, "neither XDG_DATA_HOME nor HOME names a directory for tuning tables");
    snprintf(key, sizeof key, "%s\n%s\n%s", pl_device_kind_name(d->kind), d->name, d->target);
    pl_hash128_hex(key, strlen(key), name);
    int n = snprintf(path, size, "%s%s/plumb/tune/%s.json", has_xdg ? xdg : home, has_xdg ? "" : "/.local/share", name);
    if (n < 0 || (size_t)n >= size) PL_FAIL(err, PL_LIMIT, "the path of the tuning table is too long");
    return PL_OK;
}

static enum pl_status same(const json_t *o, const char *field, const char *here, const char *path, struct pl_err *err) {
    const char *there = json_string_value(json_object_get(o, field));
    if (there != NULL && strcmp(there, here) == 0) return PL_OK;
    PL_FAIL(err, PL_INVALID, "%.300s: was measured for %s '%.100s' but here it is '%.100s': run 'plumb tune' again", path,
            field, there == NULL ? "(missing)" : there, here);
}

static enum pl_status number(const json_t *o, const char *name, double least, double most, double *out, const char *path,
                             struct pl_err *err) {
    const json_t *v = json_object_get(o, name);
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= least && x <= most))
        PL_FAIL(err, PL_INVALID, "%.300s: %s is missing or not from %g to %g: run 'plumb tune' again", path, name, least,
                most);
    *out = x;
    return PL_OK;
}

static enum pl_status read_values(const json_t *o, const char *path, struct pl_attn_table *out, struct pl_err *err) {
    double slots = 0, chunk = 0, merge = 0, member = 0, span = 0, members = 0, v1 = 0;
    PL_TRY(number(o, "slots", 1, 1 << 20, &slots, path, err));
    PL_TRY(number(o, "chunk_cost", 0, 1e6, &chunk, path, err));
    PL_TRY(number(o, "merge_cost", 0, 1e6, &merge, path, err));
    PL_TRY(number(o, "member_cost", 0, 1, &member, path, err));
    PL_TRY(number(o, "span_min", 1, UINT32_MAX, &span, path, err));
    PL_TRY(number(o, "members_min", 2, UINT32_MAX, &members, path, err));
    PL_TRY(number(o, "v1_tokens_max", 0, UINT32_MAX, &v1, path, err));
    struct pl_attn_table t = {.slots = (uint32_t)slots,
                              .chunk_cost = (float)chunk,
                              .merge_cost = (float)merge,
                              .member_cost = (float)member,
                              .span_min = (uint32_t)span,
                              .members_min = (uint32_t)members,
                              .v1_tokens_max = (uint32_t)v1};
    snprintf(t.source, sizeof t.source, "measured");
    *out = t;
    return PL_OK;
}

static enum pl_status read_table(const json_t *o, const struct pl_device_info *d, const char *path,
                                 struct pl_attn_table *out, struct pl_err *err) {
    char hash[33];
    PL_TRY(same(o, "schema", SCHEMA, path, err));
    PL_TRY(same(o, "kind", pl_device_kind_name(d->kind), path, err));
    PL_TRY(same(o, "device", d->name, path, err));
    PL_TRY(same(o, "target", d->target, path, err));
    PL_TRY(same(o, "driver", d->driver, path, err));
    PL_TRY(same(o, "kernel_sources", sources(hash), path, err));
    return read_values(json_object_get(o, "attention"), path, out, err);
}

enum pl_status pl_tune_load(const struct pl_device_info *d, const char *path, struct pl_attn_table *out,
                            struct pl_err *err) {
    json_error_t why;
    struct stat s;
    if (stat(path, &s) != 0) PL_FAIL(err, PL_NOT_FOUND, "%.300s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode) || s.st_size > 1 << 20) PL_FAIL(err, PL_INVALID, "%.300s is no tuning table", path);
    json_t *o = json_load_file(path, 0, &why);
    if (o == NULL) PL_FAIL(err, PL_INVALID, "%.300s: line %d: %.100s", path, why.line, why.text);
    enum pl_status st = read_table(o, d, path, out, err);
    json_decref(o);
    return st;
}

void pl_tune_or_built_in(const struct pl_device_info *d, struct pl_attn_table *out) {
    struct pl_err err = {0};
    char path[1024];
    bool cuda = d->kind == PL_DEVICE_CUDA && strncmp(d->target, "sm_", 3) == 0;
    *out = pl_attn_built_in(d->units, d->is_cpu, cuda ? (uint32_t)atoi(d->target + 3) : 0);
    if (pl_tune_path(d, path, sizeof path, &err) != PL_OK) return;
    if (pl_tune_load(d, path, out, &err) == PL_INVALID) pl_log("tuning table not used: %s", err.text);
}

static enum pl_status make_dirs(const char *path, struct pl_err *err) {
    char dir[1024];
    snprintf(dir, sizeof dir, "%s", path);
    for (char *p = dir + 1; *p != 0; p++) {
        if (*p != '/') continue;
        *p = 0;
        if (mkdir(dir, 0700) != 0 && errno != EEXIST) PL_FAIL(err, PL_IO, "%.300s: %s", dir, strerror(errno));
        *p = '/';
    }
    return PL_OK;
}

enum pl_status pl_tune_store(const struct pl_device_info *d, const char *path, const struct pl_attn_table *t, json_t *report,
                             struct pl_err *err) {
    char hash[33], beside[1100];
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:{s:I, s:f, s:f, s:f, s:I, s:I, s:I}}", "schema", SCHEMA, "kind",
                          pl_device_kind_name(d->kind), "device", d->name, "target", d->target, "driver", d->driver,
                          "kernel_sources", sources(hash), "attention", "slots", (json_int_t)t->slots, "chunk_cost",
                          (double)t->chunk_cost, "merge_cost", (double)t->merge_cost, "member_cost", (double)t->member_cost,
                          "span_min", (json_int_t)t->span_min, "members_min", (json_int_t)t->members_min, "v1_tokens_max",
                          (json_int_t)t->v1_tokens_max);
    if (o == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a tuning table");
    if (report != NULL) json_object_set(o, "report", report);
    snprintf(beside, sizeof beside, "%.1000s.%ld", path, (long)getpid());
    enum pl_status st = make_dirs(path, err);
    if (st == PL_OK && (json_dump_file(o, beside, JSON_INDENT(2)) != 0 || rename(beside, path) != 0)) {
        st = pl_err_set(err, __FILE__, __LINE__, PL_IO, "%.300s: cannot be written: %s", path, strerror(errno));
        (void)unlink(beside);
    }
    json_decref(o);
    return st;
}
