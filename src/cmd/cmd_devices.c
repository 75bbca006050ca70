/* plumb devices - what this machine can compute on: every kind, every device, its limits, and its measured bandwidth. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "jit/jit.h"
#include "ops/bandwidth.h"

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

static json_t *device_json(const struct pl_device_info *d, bool measured) {
    struct pl_bandwidth b = {0};
    struct pl_err err = {0};
    json_t *row = json_pack("{s:s, s:i, s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:b}", "kind",
                            pl_device_kind_name(d->kind), "index", d->index, "name", d->name, "target", d->target, "driver",
                            d->driver, "memory_bytes", (json_int_t)d->memory_bytes, "alloc_max_bytes",
                            (json_int_t)d->alloc_max_bytes, "units", (int)d->units, "lanes", (int)d->lanes, "group_max",
                            (int)d->group_max, "shared_bytes", (int)d->shared_optin_bytes, "graphs", d->graphs);
    if (!measured || row == NULL) return row;
    if (measure(d->kind, d->index, &b, &err) != PL_OK) {
        json_object_set_new(row, "measure_error", json_string(err.text));
        return row;
    }
    json_object_set_new(row, "copy_gb_per_s", json_real(b.copy_gbs));
    json_object_set_new(row, "read_gb_per_s", json_real(b.read_gbs));
    json_object_set_new(row, "read_kernel", json_string(b.kernel));
    json_object_set_new(row, "measured_bytes", json_integer((json_int_t)b.bytes));
    return row;
}

static json_t *kind_json(enum pl_device_kind kind, bool measured) {
    int n = 0;
    struct pl_err err = {0};
    json_t *devices = json_array();
    json_t *row = json_pack("{s:s, s:o}", "kind", pl_device_kind_name(kind), "devices", devices);
    if (pl_device_count(kind, &n, &err) != PL_OK) json_object_set_new(row, "missing", json_string(err.text));
    for (int i = 0; i < n; i++) {
        struct pl_device_info info;
        if (pl_device_describe(kind, i, &info, &err) == PL_OK) json_array_append_new(devices, device_json(&info, measured));
    }
    return row;
}

static void print_device(const json_t *d) {
    pl_out_printf("%-7s %d  %s, %s\n", json_string_value(json_object_get(d, "kind")),
                  (int)json_integer_value(json_object_get(d, "index")), json_string_value(json_object_get(d, "name")),
                  json_string_value(json_object_get(d, "target")));
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

static void print_kind(const json_t *k) {
    size_t i;
    json_t *d;
    const json_t *missing = json_object_get(k, "missing");
    json_array_foreach(json_object_get(k, "devices"), i, d) print_device(d);
    if (missing != NULL) {
        pl_out_printf("%-7s -  %s\n", json_string_value(json_object_get(k, "kind")), json_string_value(missing));
    } else if (json_array_size(json_object_get(k, "devices")) == 0) {
        pl_out_printf("%-7s -  no device\n", json_string_value(json_object_get(k, "kind")));
    }
}

int pl_cmd_devices(int argc, char **argv) {
    bool json = false, measured = false;
    const struct pl_arg options[] = {
        {0, "measure", NULL, PL_ARG_FLAG, &measured, "measure the copy and read bandwidth of each", 0, 0, NULL},
        {0, "json", NULL, PL_ARG_FLAG, &json, "as a JSON array", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "devices",
        .synopsis = "[--measure] [--json]",
        .about = "Lists the devices of each backend, and what is missing where a backend has none.",
        .examples = "  plumb devices\n  plumb devices --measure --json\n",
        .groups = (const struct pl_arg *const[]){options, NULL},
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code != -1) return code;
    json_t *kinds = json_array();
    for (int k = 0; k < PL_DEVICE_KIND_COUNT; k++) json_array_append_new(kinds, kind_json((enum pl_device_kind)k, measured));
    if (json) {
        char *text = json_dumps(kinds, JSON_INDENT(2));
        if (text != NULL) pl_out_printf("%s\n", text);
        free(text);
    } else {
        size_t i;
        json_t *k;
        json_array_foreach(kinds, i, k) print_kind(k);
    }
    json_decref(kinds);
    return pl_out_close();
}
