/* inspect - what is in a model file, what it will cost, which kernels its tensors take. Loads no weights. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "cmd/store.h"
#include "file/show.h"

enum { SHOWN_ELEMS = 6, SHOWN_TEXT = 120 };

struct inspect {
    struct pl_model_opts model;
    bool json, tensors;
    const char *backend; /* whose kernels are shown */
    struct plumb_engine *engine;
    struct pl_file *alone; /* when there can be no engine for it */
    json_t *info, *dtypes, *metadata, *list;
};

/* The value of a metadata entry; long texts and arrays are cut and say so. */
static json_t *value_json(const struct pl_gguf_value *v) {
    if (v->type == PL_GGUF_STRING)
        return json_stringn(v->strings[0].data, v->strings[0].len); /* NULL when it is not UTF-8 */
    if (v->type != PL_GGUF_ARRAY) {
        double d = pl_gguf_elem_f64(v, 0);
        if (v->type == PL_GGUF_BOOL) return json_boolean(d != 0.0);
        if (v->type == PL_GGUF_F32 || v->type == PL_GGUF_F64) return json_real(d);
        return json_integer(pl_gguf_elem_i64(v, 0));
    }
    json_t *first = json_array();
    for (uint64_t i = 0; i < v->count && i < SHOWN_ELEMS; i++) {
        json_t *e = v->elem_type == PL_GGUF_STRING ? json_stringn(v->strings[i].data, v->strings[i].len)
                                                   : json_real(pl_gguf_elem_f64(v, i));
        json_array_append_new(first, e != NULL ? e : json_null());
    }
    return json_pack("{s:I, s:o}", "count", (json_int_t)v->count, "first", first);
}

static json_t *metadata_json(const struct pl_file *f) {
    json_t *o = json_object();
    for (size_t i = 0; i < pl_gguf_count(f); i++) {
        const struct pl_gguf_value *v = pl_gguf_at(f, i);
        char *key = pl_strndup(v->key.data, v->key.len);
        json_t *value = value_json(v);
        if (key != NULL) json_object_set_new(o, key, value != NULL ? value : json_null());
        pl_free(key);
    }
    if (pl_file_kind(f) == PL_FILE_HF) {
        const json_t *config = pl_file_json(f, PL_JSON_CONFIG);
        if (config != NULL) json_object_set(o, "config.json", (json_t *)config);
    }
    return o;
}

static json_t *tensor_json(const char *name, const char *dtype, uint32_t ndim, const uint64_t *shape, uint64_t bytes) {
    json_t *list = json_array();
    for (uint32_t d = 0; d < ndim; d++) json_array_append_new(list, json_integer((json_int_t)shape[d]));
    return json_pack("{s:s, s:s, s:o, s:I}", "name", name, "dtype", dtype, "shape", list, "bytes", (json_int_t)bytes);
}

static json_t *tensors_json(const struct pl_file *f) {
    json_t *list = json_array();
    for (size_t i = 0; i < pl_file_tensor_count(f); i++) {
        const struct pl_tensor *t = pl_file_tensor_at(f, i);
        json_array_append_new(list, tensor_json(t->name, pl_dtype_name(t->dtype), t->ndim, t->shape, t->bytes));
    }
    for (size_t i = 0; i < pl_file_unread_count(f); i++) {
        const struct pl_unread_tensor *t = pl_file_unread_at(f, i);
        json_array_append_new(list, tensor_json(t->name, t->dtype, t->ndim, t->shape, t->bytes));
    }
    return list;
}

/* Types without a reader: tensors and bytes of each, and that they are refused. */
static void add_unread(const struct pl_file *f, json_t *dtypes) {
    for (size_t i = 0; i < pl_file_unread_count(f); i++) {
        const struct pl_unread_tensor *t = pl_file_unread_at(f, i);
        json_t *row = json_object_get(dtypes, t->dtype);
        if (row == NULL) {
            row = json_pack("{s:I, s:I, s:{s:s}}", "tensors", (json_int_t)0, "bytes", (json_int_t)0, "kernels", "refused",
                            "not readable for inference");
            if (row == NULL || json_object_set_new(dtypes, t->dtype, row) != 0) return;
        }
        json_object_set_new(row, "tensors", json_integer(json_integer_value(json_object_get(row, "tensors")) + 1));
        json_object_set_new(row, "bytes",
                            json_integer(json_integer_value(json_object_get(row, "bytes")) + (json_int_t)t->bytes));
    }
}

/* BitNet's matrices are put into a form of their own when they are loaded. */
static bool becomes_ternary(const struct pl_model_config *c, const struct pl_tensor *t) {
    bool bitnet = c->arch == PL_ARCH_BITNET || c->arch == PL_ARCH_BITNET_SILU;
    return bitnet && (t->dtype == PL_U8 || t->dtype == PL_TQ1_0 || t->dtype == PL_TQ2_0 || t->dtype == PL_I2_S);
}

/* What is put into another form while it is loaded: a small matrix of that form. */
static const struct pl_tensor *stand_in(const struct pl_model_config *c, const struct pl_tensor *t) {
    static const uint8_t codes[16 * 17];
    static const float scale = 1;
    static const struct pl_tensor ternary = {.name = "a ternary matrix",
                                             .dtype = PL_TERNARY,
                                             .ndim = 2,
                                             .shape = {16, 32, 1, 1},
                                             .data = codes,
                                             .bytes = 16 * 8,
                                             .scales = &scale,
                                             .scale_dtype = PL_F32};
    static const struct pl_tensor mxfp4 = {
        .name = "a matrix in MXFP4", .dtype = PL_MXFP4, .ndim = 2, .shape = {16, 32, 1, 1}, .data = codes, .bytes = 16 * 17};
    return becomes_ternary(c, t) ? &ternary : t->dtype == PL_MLX_MXFP4 ? &mxfp4 : t;
}

/* The kernels that products with one tensor of this type would run, by making its weight. */
static json_t *kernels_json(struct pl_ops *ops, const struct pl_tensor *t) {
    struct pl_weight *w = NULL;
    struct pl_err err = {0};
    enum pl_weight_use use = t->dtype == PL_TERNARY ? PL_WEIGHT_TERNARY : PL_WEIGHT_MATRIX;
    if (pl_ops_weight_create(ops, t, use, &w, &err) != PL_OK) return json_pack("{s:s}", "refused", err.text);
    json_t *o =
        json_pack("{s:s, s:s}", "1_row", pl_ops_weight_kernel(ops, w, 1), "512_rows", pl_ops_weight_kernel(ops, w, 512));
    pl_ops_weight_destroy(ops, w);
    return o;
}

/* Per dtype: tensors, bytes, and (two dimensions and more) the kernels, asked of the smallest tensor; without ops no
 * kernels, and c may be NULL. */
static json_t *dtypes_json(const struct pl_file *f, const struct pl_model_config *c, struct pl_ops *ops) {
    json_t *o = json_object();
    for (int d = 0; d < PL_DTYPE_COUNT; d++) {
        uint64_t count = 0, bytes = 0;
        const struct pl_tensor *smallest = NULL;
        for (size_t i = 0; i < pl_file_tensor_count(f); i++) {
            const struct pl_tensor *t = pl_file_tensor_at(f, i);
            if (t->dtype != (enum pl_dtype)d) continue;
            count++;
            bytes += t->bytes;
            if (t->ndim == 2 && (smallest == NULL || t->bytes < smallest->bytes)) smallest = t;
        }
        if (count == 0) continue;
        json_t *row = json_pack("{s:I, s:I}", "tensors", (json_int_t)count, "bytes", (json_int_t)bytes);
        if (smallest != NULL && ops != NULL) json_object_set_new(row, "kernels", kernels_json(ops, stand_in(c, smallest)));
        json_object_set_new(o, pl_dtype_name((enum pl_dtype)d), row);
    }
    add_unread(f, o);
    return o;
}

/* As an engine would. A device that "auto" found and that does not open is told, and the table is the CPU's: the file is
 * shown all the same. */
static enum pl_status open_ops(struct inspect *in, struct pl_ops **out, struct pl_err *err) {
    const struct plumb_engine_options *e = &in->model.engine;
    struct pl_ops_options oo;
    PL_TRY(pl_engine_ops_options(e, &oo, err));
    enum pl_status s = pl_ops_create(&oo, out, err);
    bool chosen = e->backend == NULL || strcmp(e->backend, "auto") == 0;
    if (s == PL_OK || !chosen || oo.backend == PL_BACKEND_CPU || oo.device != 0) return s;
    pl_log("%s cannot be used, so these are the CPU's kernels, which --backend cpu takes: %s", pl_backend_name(oo.backend),
           err->text);
    *err = (struct pl_err){0};
    oo.backend = PL_BACKEND_CPU;
    return pl_ops_create(&oo, out, err);
}

static enum pl_status gather(struct inspect *in, struct pl_err *err) {
    struct pl_ops *ops = NULL;
    PL_TRY(open_ops(in, &ops, err));
    in->backend = pl_backend_name(pl_ops_backend(ops));
    pl_log("kernel backend: %s", pl_ops_describe(ops));
    if (pl_ops_forced(ops)[0] != 0) pl_log("kernels: %s", pl_ops_forced(ops));
    in->info = pl_engine_info(in->engine);
    in->metadata = metadata_json(in->engine->file);
    in->dtypes = dtypes_json(in->engine->file, &in->engine->config, ops);
    in->list = tensors_json(in->engine->file);
    bool ok = in->info != NULL && json_object_set_new(in->info, "backend", json_string(pl_ops_describe(ops))) == 0;
    pl_ops_destroy(ops);
    if (!ok || in->metadata == NULL || in->dtypes == NULL || in->list == NULL)
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for the description");
    return PL_OK;
}

static enum pl_status print_json(struct inspect *in, struct pl_err *err) {
    json_object_set(in->info, "metadata", in->metadata);
    json_object_set(in->info, "dtypes", in->dtypes);
    json_object_set(in->info, "tensors", in->list);
    return pl_cmd_print_json(json_incref(in->info), err);
}

/* One line, control characters shown as '?'. */
static void print_value(const json_t *v) {
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (text == NULL) return;
    size_t cut = strlen(text) > SHOWN_TEXT ? SHOWN_TEXT - pl_utf8_incomplete_tail(text, SHOWN_TEXT) : strlen(text);
    pl_out_printf("%.*s%s\n", (int)cut, text, text[cut] != '\0' ? " ..." : "");
    free(text);
}

static double mb(const json_t *o, const char *key) { return (double)json_integer_value(json_object_get(o, key)) / 1e6; }

static void print_head(struct inspect *in) {
    const json_t *memory = json_object_get(in->info, "memory");
    const char *const plain[] = {"model",   "architecture", "fingerprint", "file_bytes", "backend",
                                 "context", "kv_dtype",     "page_tokens", "pages",      "sizes"};
    for (size_t i = 0; i < PL_COUNT_OF(plain); i++) {
        const json_t *v = json_object_get(in->info, plain[i]);
        if (v == NULL) continue;
        pl_out_printf("%-14s ", plain[i]);
        print_value(v);
    }
    if (memory == NULL) return;
    pl_out_printf("memory         weights %.1f MB, in memory up to %.1f MB; KV cache %.1f MB; working space %.1f MB\n"
                  "               at most %.1f MB of %.1f MB allowed\n",
                  mb(memory, "weights_mapped_bytes"), mb(memory, "weights_resident_bytes_max"), mb(memory, "kv_bytes"),
                  mb(memory, "scratch_bytes"), mb(memory, "total_bytes_max"), mb(memory, "limit_bytes"));
}

static void print_text(struct inspect *in) {
    const char *key;
    json_t *v;
    print_head(in);
    pl_out_printf("\ntensor types%s%s\n", in->backend != NULL ? ", kernels on " : "",
                  in->backend != NULL ? in->backend : "");
    json_object_foreach(in->dtypes, key, v) {
        const json_t *k = json_object_get(v, "kernels");
        const char *one = json_string_value(json_object_get(k, "1_row")),
                   *many = json_string_value(json_object_get(k, "512_rows"));
        pl_out_printf("  %-8s %5lld tensors %10.1f MB", key, (long long)json_integer_value(json_object_get(v, "tensors")),
                      mb(v, "bytes"));
        if (one != NULL && many != NULL) pl_out_printf("   1 row: %s, 512 rows: %s", one, many);
        if (json_object_get(k, "refused") != NULL)
            pl_out_printf("   refused: %s", json_string_value(json_object_get(k, "refused")));
        pl_out_printf("\n");
    }
    pl_out_printf("\nmetadata\n");
    json_object_foreach(in->metadata, key, v) {
        pl_out_printf("  %-44s ", PL_SHOWN_C(key));
        print_value(v);
    }
    size_t i;
    pl_out_printf("\n%zu tensors%s\n", json_array_size(in->list), in->tensors ? "" : " (--tensors lists them)");
    if (!in->tensors) return;
    json_array_foreach(in->list, i, v) {
        char *shape = json_dumps(json_object_get(v, "shape"), JSON_COMPACT);
        pl_out_printf("  %-48s %-8s %-20s %lld\n", PL_SHOWN_C(json_string_value(json_object_get(v, "name"))),
                      json_string_value(json_object_get(v, "dtype")), shape != NULL ? shape : "",
                      (long long)json_integer_value(json_object_get(v, "bytes")));
        free(shape);
    }
}

/* A file whose weights cannot be computed with: what is in it, and why it cannot be run. */
static enum pl_status inspect_alone(struct inspect *in, const char *path, struct pl_err *err) {
    struct pl_err why = {0};
    if (pl_file_open(path, &in->alone, &why) != PL_OK || pl_file_check_readable(in->alone, &why) == PL_OK)
        return err->status; /* the first error is the one to tell */
    in->info = json_pack("{s:s, s:s, s:I, s:s}", "model", path, "fingerprint", pl_file_fingerprint(in->alone), "file_bytes",
                         (json_int_t)pl_file_bytes(in->alone), "refused", why.text);
    in->metadata = metadata_json(in->alone);
    in->dtypes = dtypes_json(in->alone, NULL, NULL);
    in->list = tensors_json(in->alone);
    if (in->info == NULL || in->metadata == NULL || in->dtypes == NULL || in->list == NULL)
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for the description");
    if (in->json) return print_json(in, err);
    print_text(in);
    pl_out_printf("\nplumb cannot run it: %s\n", why.text);
    return PL_OK;
}

static enum pl_status inspect(struct inspect *in, struct pl_err *err) {
    char *path = NULL;
    PL_TRY(pl_cmd_read_environment(&in->model, err));
    PL_TRY(pl_cmd_check_model(&in->model, err));
    PL_TRY(pl_store_resolve(in->model.model, &path, err));
    in->model.engine.model = path;
    enum pl_status s = pl_engine_open(&in->model.engine, &in->engine, err);
    if (s == PL_UNSUPPORTED) {
        err->status = s;
        s = inspect_alone(in, path, err);
        pl_free(path);
        return s;
    }
    pl_free(path);
    if (s == PL_OK) s = gather(in, err);
    if (s != PL_OK) return s;
    if (in->json) return print_json(in, err);
    print_text(in);
    struct pl_err over = {0};
    if (pl_engine_check_budget(in->engine, &over) != PL_OK) pl_out_printf("\nThis machine would refuse it: %s\n", over.text);
    return PL_OK;
}

int pl_cmd_inspect(int argc, char **argv) {
    struct inspect in = {0};
    struct pl_arg model[PL_MODEL_ARG_ROWS];
    const char *positional = NULL;
    pl_model_args(&in.model, model);
    const struct pl_arg own[] = {
        {0, "json", NULL, PL_ARG_FLAG, &in.json, "print one JSON object (with all tensors)", 0, 0, NULL},
        {0, "tensors", NULL, PL_ARG_FLAG, &in.tensors, "list every tensor", 0, 0, NULL},
        {0, "sessions", "N", PL_ARG_U32, &in.model.engine.max_sessions, "budget for this many sequences", 1, 4096, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "inspect",
        .synopsis = "[-m] MODEL [--json] [OPTIONS]",
        .about = "Shows metadata, tensor types, the memory budget for the given context, and which kernel each tensor type "
                 "takes\non the backend that 'run' would use.",
        .examples = "  plumb inspect smollm2.gguf\n"
                    "  plumb inspect -m smollm2.gguf --context 8192 --kv-dtype f32 --json\n",
        .groups = (const struct pl_arg *const[]){own, model, NULL},
        .positional_max = 1,
        .positional = &positional,
    };
    struct pl_err err = {0};
    int code = pl_args_parse(&args, argc, argv);
    if (code == -1 && positional != NULL && in.model.model != NULL)
        code = pl_cmd_usage("inspect", "MODEL and -m MODEL are both given: one is enough");
    if (code == -1) {
        if (positional != NULL) in.model.model = positional;
        err.status = inspect(&in, &err);
        code = err.status == PL_OK ? pl_out_close() : pl_cmd_fail("inspect", &err);
    }
    json_decref(in.info);
    json_decref(in.metadata);
    json_decref(in.dtypes);
    json_decref(in.list);
    plumb_engine_destroy(in.engine);
    pl_file_close(in.alone);
    return code;
}
