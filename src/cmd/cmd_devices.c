/* plumb devices - what this machine can compute on: every kind, every device, its limits, and its measured bandwidth. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "jit/jit.h"
#include "ops/bandwidth.h"
#include "verify/spawn.h"

static enum pl_status measure(enum pl_device_kind kind, int index, struct pl_bandwidth *out, struct pl_err *err) {
    struct pl_kernels ks = {0};
    struct pl_jit_options jit = {.mode = PL_JIT_ON};
    PL_TRY(pl_kernels_open(kind, index, &jit, &ks, err));
    enum pl_status st = pl_bandwidth_measure(&ks, out, err);
    pl_kernels_close(&ks);
    return st;
}

enum pl_status pl_cmd_read_bandwidth(enum pl_device_kind kind, int index, double *bytes_per_s, struct pl_err *err) {
    struct pl_bandwidth b = {0};
    PL_TRY(measure(kind, index, &b, err));
    *bytes_per_s = b.read_gbs * 1e9;
    return PL_OK;
}

struct wish {
    bool measured;
    const char *only; /* "cuda" or "cuda:0"; NULL: everything */
    uint32_t limit_s;
};

static bool kind_wanted(const struct wish *w, enum pl_device_kind kind) {
    const char *name = pl_device_kind_name(kind);
    return w->only == NULL || (strncmp(w->only, name, strlen(name)) == 0 && strchr(":", w->only[strlen(name)]) != NULL);
}
static bool index_wanted(const struct wish *w, int index) {
    const char *number = w->only != NULL ? strchr(w->only, ':') : NULL;
    return number == NULL || strtol(number + 1, NULL, 10) == index;
}

static void add_here(json_t *row, const struct pl_device_info *d) {
    struct pl_bandwidth b = {0};
    struct pl_err err = {0};
    if (measure(d->kind, d->index, &b, &err) != PL_OK) {
        json_object_set_new(row, "measure_error", json_string(err.text));
        return;
    }
    json_object_set_new(row, "copy_gb_per_s", json_real(b.copy_gbs));
    json_object_set_new(row, "read_gb_per_s", json_real(b.read_gbs));
    json_object_set_new(row, "read_kernel", json_string(b.kernel));
    json_object_set_new(row, "measured_bytes", json_integer((json_int_t)b.bytes));
}

/* A process of its own, and only so long: one driver may stand still, the next device is listed all the same. */
static void add_apart(json_t *row, const struct pl_device_info *d, const struct wish *w) {
    char self[4096], only[48];
    char *argv[] = {self, "devices", "--measure", "--json", "--only", only, NULL};
    struct pl_spawned s = {0};
    struct pl_err err = {0};
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    snprintf(only, sizeof only, "%s:%d", pl_device_kind_name(d->kind), d->index);
    enum pl_status st = pl_spawn(argv, NULL, 0, w->limit_s, &s, &err);
    json_t *kinds = st == PL_OK && s.exit_code == 0 ? json_loads(pl_buf_cstr(&s.out), 0, NULL) : NULL;
    json_t *there = json_array_get(json_object_get(json_array_get(kinds, 0), "devices"), 0);
    if (there != NULL) {
        json_object_update(row, there);
    } else {
        char text[200];
        snprintf(text, sizeof text, s.timed_out ? "not finished after %u s" : "its process ended without a result",
                 w->limit_s);
        json_object_set_new(row, "measure_error", json_string(st != PL_OK ? err.text : text));
    }
    json_decref(kinds);
    if (st == PL_OK) pl_spawned_deinit(&s);
}

static json_t *device_json(const struct pl_device_info *d, const struct wish *w) {
    json_t *row = json_pack("{s:s, s:i, s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:b}", "kind",
                            pl_device_kind_name(d->kind), "index", d->index, "name", d->name, "target", d->target, "driver",
                            d->driver, "memory_bytes", (json_int_t)d->memory_bytes, "alloc_max_bytes",
                            (json_int_t)d->alloc_max_bytes, "units", (int)d->units, "lanes", (int)d->lanes, "group_max",
                            (int)d->group_max, "shared_bytes", (int)d->shared_optin_bytes, "graphs", d->graphs);
    if (!w->measured || row == NULL) return row;
    if (w->only != NULL && strchr(w->only, ':') != NULL)
        add_here(row, d);
    else
        add_apart(row, d, w);
    return row;
}

static void print_device(const json_t *d) {
    const char *name = json_string_value(json_object_get(d, "name")),
               *target = json_string_value(json_object_get(d, "target"));
    bool named = strncmp(target, name, strlen(name)) == 0; /* OpenCL's targets begin with the name */
    pl_out_printf("%-7s %d  %s%s%s\n", json_string_value(json_object_get(d, "kind")),
                  (int)json_integer_value(json_object_get(d, "index")), named ? "" : name, named ? "" : ", ", target);
    pl_out_printf("           driver %s; %.1f GB, %lld units, groups of %lld, %lld KB shared%s\n",
                  json_string_value(json_object_get(d, "driver")),
                  (double)json_integer_value(json_object_get(d, "memory_bytes")) / 1e9,
                  (long long)json_integer_value(json_object_get(d, "units")),
                  (long long)json_integer_value(json_object_get(d, "group_max")),
                  (long long)json_integer_value(json_object_get(d, "shared_bytes")) / 1024,
                  json_is_true(json_object_get(d, "graphs")) ? ", graphs" : "");
    const json_t *copy = json_object_get(d, "copy_gb_per_s"), *error = json_object_get(d, "measure_error");
    if (copy != NULL) {
        pl_out_printf("           measured: copy %.1f GB/s (read plus written), read %.1f GB/s (%s)\n",
                      json_real_value(copy), json_real_value(json_object_get(d, "read_gb_per_s")),
                      json_string_value(json_object_get(d, "read_kernel")));
    }
    if (error != NULL) pl_out_printf("           not measured: %s\n", json_string_value(error));
}

/* Each device is printed as soon as it is known, unless it all becomes one JSON text. */
static json_t *kind_json(enum pl_device_kind kind, const struct wish *w, bool print) {
    int n = 0;
    struct pl_err err = {0};
    json_t *devices = json_array();
    const char *name = pl_device_kind_name(kind);
    json_t *row = json_pack("{s:s, s:o}", "kind", name, "devices", devices);
    bool here = pl_device_count(kind, &n, &err) == PL_OK;
    if (here && w->only != NULL && strchr(w->only, ':') != NULL) { /* an index that is not there is said */
        struct pl_device_info info;
        here = pl_device_describe(kind, (int)strtol(strchr(w->only, ':') + 1, NULL, 10), &info, &err) == PL_OK;
        if (!here) n = 0;
    }
    if (!here) json_object_set_new(row, "missing", json_string(err.text));
    for (int i = 0; i < n; i++) {
        struct pl_device_info info;
        if (!index_wanted(w, i) || pl_device_describe(kind, i, &info, &err) != PL_OK) continue;
        json_array_append_new(devices, device_json(&info, w));
        if (print) print_device(json_array_get(devices, json_array_size(devices) - 1));
        if (print) pl_out_flush();
    }
    if (print && (!here || n == 0)) pl_out_printf("%-7s -  %s\n", name, here ? "no device" : err.text);
    return row;
}

/* The backend that has no port at all, told as such and not left out. */
static json_t *metal_json(bool print) {
    const char *name = pl_backend_name(PL_BACKEND_METAL), *why = "no port: plumb has no Metal kernels";
    if (print) pl_out_printf("%-7s -  %s\n", name, why);
    return json_pack("{s:s, s:[], s:s}", "kind", name, "devices", "missing", why);
}

int pl_cmd_devices(int argc, char **argv) {
    bool json = false;
    struct wish w = {.limit_s = 60};
    const struct pl_arg options[] = {
        {0, "measure", NULL, PL_ARG_FLAG, &w.measured, "measure the copy and read bandwidth of each", 0, 0, NULL},
        {0, "only", "KIND[:N]", PL_ARG_STR, &w.only, "only this backend, or its N-th device", 0, 0, NULL},
        {0, "limit", "SECONDS", PL_ARG_U32, &w.limit_s, "give up on a measurement after so long", 1, 3600, NULL},
        {0, "json", NULL, PL_ARG_FLAG, &json, "as a JSON array", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "devices",
        .synopsis = "[--measure] [--only KIND[:N]] [--json]",
        .about = "Lists the devices of each backend, and what is missing where a backend has none.",
        .examples = "  plumb devices\n  plumb devices --measure --json\n",
        .groups = (const struct pl_arg *const[]){options, NULL},
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code != -1) return code;
    bool any = false;
    json_t *kinds = json_array();
    for (int k = 0; k < PL_DEVICE_KIND_COUNT; k++) {
        if (!kind_wanted(&w, (enum pl_device_kind)k)) continue;
        any = true;
        json_array_append_new(kinds, kind_json((enum pl_device_kind)k, &w, !json));
    }
    if (w.only == NULL || strcmp(w.only, pl_backend_name(PL_BACKEND_METAL)) == 0) {
        any = true;
        json_array_append_new(kinds, metal_json(!json));
    }
    char *text = json && any ? json_dumps(kinds, JSON_INDENT(2)) : NULL;
    if (text != NULL) pl_out_printf("%s\n", text);
    free(text);
    json_decref(kinds);
    if (!any) return pl_cmd_usage("devices", "--only: '%.40s' is no backend with devices: cuda, rocm, opencl", w.only);
    return pl_out_close();
}
