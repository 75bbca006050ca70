#include "cmd/common.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/interrupt.h"
#include "cmd/out.h"
#include "cmd/store.h"

/* Option and environment may both name some: they add up. */
static enum pl_status append_choice(char *list, size_t size, const char *value, struct pl_err *err) {
    size_t len = strlen(list);
    int n = snprintf(list + len, size - len, "%s%s", len > 0 ? "," : "", value);
    if (n < 0 || (size_t)n >= size - len)
        PL_FAIL(err, PL_USAGE, "the list of implementations is longer than %zu bytes", size);
    return PL_OK;
}
static enum pl_status add_forced(void *out, const char *value, struct pl_err *err) {
    struct pl_model_opts *o = out;
    return append_choice(o->force, sizeof o->force, value, err);
}
static enum pl_status add_disabled(void *out, const char *value, struct pl_err *err) {
    struct pl_model_opts *o = out;
    return append_choice(o->disable, sizeof o->disable, value, err);
}

void pl_model_args(struct pl_model_opts *o, struct pl_arg rows[PL_MODEL_ARG_ROWS]) {
    struct plumb_engine_options *e = &o->engine;
    e->size = sizeof *e;
    const struct pl_arg list[PL_MODEL_ARG_ROWS] = {
        {'m', "model", "MODEL", PL_ARG_STR, &o->model, "file, directory, stored name or hf:owner/repo[:file]", 0, 0, NULL},
        {'t', "threads", "N", PL_ARG_I32, &e->threads, "CPU threads (0 = one a core)", 0, 512, NULL},
        {0, "pin", NULL, PL_ARG_FLAG, &e->pin, "each CPU thread stays on one CPU", 0, 0, NULL},
        {0, "isa", "NAME", PL_ARG_STR, &e->isa,
         "CPU instruction set: scalar, avx2, avx-vnni, avx512-vnni, avx512-amx, neon-dotprod, neon-i8mm (best)", 0, 0, NULL},
        {0, "backend", "NAME", PL_ARG_STR, &e->backend, "auto, cpu, cuda, rocm, opencl", 0, 0, NULL},
        {0, "device", "N", PL_ARG_I32, &e->device, "index of the device on that backend", 0, 1024, NULL},
        {'c', "context", "N", PL_ARG_U32, &e->context, "tokens a sequence may hold (0 = the model's own, at most 4096)", 0,
         0, NULL},
        {0, "batch-rows", "N", PL_ARG_U32, &e->batch_rows, "rows of one prefill step (0 = 512)", 0, 65536, NULL},
        {0, "kv-dtype", "TYPE", PL_ARG_STR, &e->kv_dtype,
         "f16, bf16, f32; int8 or fp8: half the memory; k8v4: values in 4 bits", 0, 0, NULL},
        {0, "kv", "LAYOUT", PL_ARG_STR, &e->kv_layout, "KV memory: paged, dense (nothing shared), auto", 0, 0, NULL},
        {0, "page-tokens", "N", PL_ARG_U32, &e->page_tokens, "tokens of a KV page: 16, 32 or 64 (0 = 32)", 0, 64, NULL},
        {0, "memory-limit", "BYTES", PL_ARG_U64, &e->memory_limit, "refuse to use more (0 = what the machine has)", 0, 0,
         NULL},
        {0, "strict", NULL, PL_ARG_FLAG, &e->strict, "any kernel that is not the planned one is an error", 0, 0, NULL},
        {0, "force-kernel", "OP=IMPL,...", PL_ARG_EACH, o, "this implementation or an error (also PLUMB_KERNEL)", 0, 0,
         add_forced},
        {0, "disable-kernel", "OP=IMPL,...", PL_ARG_EACH, o, "pass this implementation over", 0, 0, add_disabled},
        {0, "attn", "FORM", PL_ARG_STR, &e->attention, "decode attention: auto, v1, v2, cascade, gather", 0, 0, NULL},
        {0, "sparse-v", "WEIGHT", PL_ARG_F32, &e->sparse_values,
         "attention does not read values whose weight is below this, as 0.001 (0 = it reads all)", 0, 0.999999, NULL},
        {0, "invariant", NULL, PL_ARG_FLAG, &e->invariant, "a text does not depend on what runs beside it; slower", 0, 0,
         NULL},
        {0, "jit-cache", "MODE", PL_ARG_STR, &e->jit_cache, "compiled kernels: on, off, verify (also PLUMB_JIT_CACHE)", 0, 0,
         NULL},
        {0, "uncounted", NULL, PL_ARG_FLAG, &e->uncounted, "kernels do not count their launches: what that costs", 0, 0,
         NULL},
        {0, "no-graphs", NULL, PL_ARG_FLAG, &e->no_graphs, "kernels are launched one by one, never as a graph", 0, 0, NULL},
        {0, "no-ahead", NULL, PL_ARG_FLAG, &e->no_ahead, "a step waits for the last one's tokens: what that costs", 0, 0,
         NULL},
        {0},
    };
    memcpy(rows, list, sizeof list);
}

/* A server holds signals back for a loop that does not run yet: while it loads there is nothing to drain. */
static void show_loading(void *user, uint64_t done, uint64_t total) {
    (void)user;
    sigset_t held;
    if (sigpending(&held) == 0 && (sigismember(&held, SIGINT) == 1 || sigismember(&held, SIGTERM) == 1))
        _exit(PL_EXIT_INTERRUPTED);
    pl_progress("loading", done, total, true);
}

static enum pl_status need_model(const struct pl_model_opts *o, struct pl_err *err) {
    if (o->model != NULL) return PL_OK;
    PL_FAIL(err, PL_USAGE, "-m MODEL is missing: a file, a directory, a stored name or hf:owner/repo[:file]");
}

static const char *const jit_caches[] = {"on", "off", "verify", NULL};

static enum pl_status check_name(const char *option, const char *value, const char *const *known, struct pl_err *err) {
    char list[128] = "";
    if (value == NULL) return PL_OK;
    for (size_t i = 0; known[i] != NULL; i++) {
        if (strcmp(value, known[i]) == 0) return PL_OK;
        size_t len = strlen(list);
        snprintf(list + len, sizeof list - len, "%s%s", i == 0 ? "" : ", ", known[i]);
    }
    PL_FAIL(err, PL_USAGE, "%s is '%.40s' but must be one of %s", option, value, list);
}

/* Values that no model could make right are wrong usage, said before anything is opened. */
static enum pl_status check_values(const struct plumb_engine_options *e, struct pl_err *err) {
    static const char *const isas[] = {"auto",       "scalar",       "avx2",      "avx-vnni", "avx512-vnni",
                                       "avx512-amx", "neon-dotprod", "neon-i8mm", NULL};
    static const char *const backends[] = {"auto", "cpu", "cuda", "rocm", "opencl", NULL};
    static const char *const kv_dtypes[] = {"f16", "bf16", "f32", "int8", "fp8", "k8v4", NULL};
    static const char *const layouts[] = {"auto", "paged", "dense", NULL};
    static const char *const forms[] = {"auto", "v1", "v2", "cascade", "gather", NULL};
    PL_TRY(check_name("--isa", e->isa, isas, err));
    if (e->backend != NULL && strcmp(e->backend, "metal") == 0)
        PL_FAIL(err, PL_USAGE,
                "--backend metal: plumb's kernels have no port to Metal; there are auto, cpu, cuda, rocm, opencl");
    PL_TRY(check_name("--backend", e->backend, backends, err));
    PL_TRY(check_name("--kv-dtype", e->kv_dtype, kv_dtypes, err));
    PL_TRY(check_name("--jit-cache", e->jit_cache, jit_caches, err));
    PL_TRY(check_name("--attn", e->attention, forms, err));
    PL_TRY(check_name("--kv", e->kv_layout, layouts, err));
    if (e->page_tokens != 0 && e->page_tokens != 16 && e->page_tokens != 32 && e->page_tokens != 64)
        PL_FAIL(err, PL_USAGE, "--page-tokens is %u but must be 16, 32 or 64", e->page_tokens);
    return PL_OK;
}

enum pl_status pl_cmd_check_model(const struct pl_model_opts *o, struct pl_err *err) {
    PL_TRY(need_model(o, err));
    return check_values(&o->engine, err);
}

enum pl_status pl_cmd_read_environment(struct pl_model_opts *o, struct pl_err *err) {
    const char *kernel = getenv("PLUMB_KERNEL"), *cache = getenv("PLUMB_JIT_CACHE"), *off = getenv("PLUMB_ATTN_OFF");
    if (kernel != NULL && kernel[0] != 0) PL_TRY(add_forced(o, kernel, err));
    if (o->engine.jit_cache == NULL && cache != NULL && cache[0] != 0) {
        PL_TRY(check_name("the environment variable PLUMB_JIT_CACHE", cache, jit_caches, err));
        o->engine.jit_cache = cache;
    }
    if (o->engine.attention_off == NULL && off != NULL && off[0] != 0) o->engine.attention_off = off;
    o->engine.force_kernels = o->force;
    o->engine.disable_kernels = o->disable;
    return PL_OK;
}

struct plumb_engine *pl_cmd_open_engine(const char *command, struct pl_model_opts *o, const struct pl_cmd_need *need,
                                        int *code) {
    struct pl_err err = {0};
    struct plumb_engine *e = NULL;
    char *path = NULL;
    enum pl_status s = pl_cmd_read_environment(o, &err);
    if (s == PL_OK) s = pl_cmd_check_model(o, &err);
    if (s == PL_OK) s = pl_store_resolve(o->model, &path, &err);
    if (s == PL_OK) {
        o->engine.model = path;
        o->engine.progress = show_loading;
        s = pl_engine_open(&o->engine, &e, &err);
        if (s == PL_OK && need != NULL) s = need->check(need->user, e, &err);
        if (s == PL_OK) s = pl_engine_load(e, &err);
        pl_progress_end();
    }
    pl_free(path);
    if (s == PL_OK) return e;
    plumb_engine_destroy(e);
    err.status = s;
    *code = pl_cmd_fail(command, &err);
    return NULL;
}

enum pl_status pl_cmd_open_file(const struct pl_model_opts *o, struct pl_file **out, struct pl_err *err) {
    char *path = NULL;
    PL_TRY(need_model(o, err));
    PL_TRY(pl_store_resolve(o->model, &path, err));
    enum pl_status s = pl_file_open(path, out, err);
    pl_free(path);
    return s;
}

/* ID=BIAS[,ID=BIAS...] */
static enum pl_status add_bias(void *out, const char *value, struct pl_err *err) {
    struct pl_sampling_opts *o = out;
    for (const char *p = value;;) {
        char item[64];
        size_t len = strcspn(p, ",");
        uint64_t id;
        double bias = 0.0;
        snprintf(item, sizeof item, "%.*s", (int)PL_MIN(len, sizeof item - 1), p);
        char *eq = strchr(item, '=');
        if (eq != NULL) *eq = '\0';
        bool ban = eq != NULL && strcmp(eq + 1, "-inf") == 0;
        if (eq == NULL || len >= sizeof item || !pl_parse_u64(item, UINT32_MAX, &id) ||
            (!ban && !pl_parse_f64(eq + 1, -1000.0, 1000.0, &bias)))
            PL_FAIL(err, PL_USAGE, "'%.60s' is not ID=BIAS with BIAS from -1000 to 1000 or -inf", p);
        if (pl_grow(&o->bias, &o->bias_cap, o->s.bias_count + 1, sizeof *o->bias) != PL_OK)
            PL_FAIL(err, PL_NO_MEMORY, "out of memory");
        o->bias[o->s.bias_count++] = (struct plumb_logit_bias){(uint32_t)id, ban ? -__builtin_inff() : (float)bias};
        o->s.bias = o->bias;
        if (p[len] == '\0') return PL_OK;
        p += len + 1;
    }
}

static enum pl_status set_seed(void *out, const char *value, struct pl_err *err) {
    struct pl_sampling_opts *o = out;
    if (!pl_parse_u64(value, UINT64_MAX, &o->s.seed))
        PL_FAIL(err, PL_USAGE, "'%.60s' must be a whole number from 0 to 18446744073709551615", value);
    o->seed_given = true;
    return PL_OK;
}

void pl_sampling_args(struct pl_sampling_opts *o, struct pl_arg rows[PL_SAMPLING_ARG_ROWS]) {
    struct plumb_sampling *s = &o->s;
    const struct pl_arg list[PL_SAMPLING_ARG_ROWS] = {
        {0, "temp", "T", PL_ARG_F32, &s->temperature, "temperature, 0 = greedy, to 100", 0, 100, NULL},
        {0, "top-k", "K", PL_ARG_U32, &s->top_k, "keep the K most likely (0 = off)", 0, 0, NULL},
        {0, "top-p", "P", PL_ARG_F32, &s->top_p, "keep the most likely up to this mass (1 = off)", 0, 1, NULL},
        {0, "min-p", "P", PL_ARG_F32, &s->min_p, "keep those at least P times as likely as the best (0 = off)", 0, 1, NULL},
        {0, "typical-p", "P", PL_ARG_F32, &s->typical_p, "keep the locally typical up to this mass (1 = off)", 0, 1, NULL},
        {0, "repeat-penalty", "X", PL_ARG_F32, &s->repetition_penalty, "divide logits of seen tokens (1 = off)", 0, 100,
         NULL},
        {0, "presence-penalty", "X", PL_ARG_F32, &s->presence_penalty, "subtract from tokens seen, -2 to 2", -2, 2, NULL},
        {0, "frequency-penalty", "X", PL_ARG_F32, &s->frequency_penalty, "subtract per time seen, -2 to 2", -2, 2, NULL},
        {0, "repeat-last-n", "N", PL_ARG_I32, &s->penalty_last_n, "tokens the penalties look back on (-1 = all)", -1,
         1 << 24, NULL},
        {'s', "seed", "N", PL_ARG_EACH, o, "same seed, same text (default: from the clock, printed)", 0, 0, set_seed},
        {0, "logit-bias", "ID=B,...", PL_ARG_EACH, o, "add B to a token's logit; -inf bans it", 0, 0, add_bias},
        {0},
    };
    memcpy(rows, list, sizeof list);
}

void pl_sampling_opts_deinit(struct pl_sampling_opts *o) {
    pl_free(o->bias);
    o->bias = NULL;
}

/* The sampler's sentences begin with the field's name; here the user typed an option. */
void pl_sampling_opts_name(struct pl_err *err) {
    static const char *const names[][2] = {{"temperature", "temp"},
                                           {"top_k", "top-k"},
                                           {"top_p", "top-p"},
                                           {"min_p", "min-p"},
                                           {"typical_p", "typical-p"},
                                           {"repetition_penalty", "repeat-penalty"},
                                           {"presence_penalty", "presence-penalty"},
                                           {"frequency_penalty", "frequency-penalty"},
                                           {"penalty_last_n", "repeat-last-n"},
                                           {"logit_bias", "logit-bias"}};
    char said[sizeof err->text];
    for (size_t i = 0; i < PL_COUNT_OF(names); i++) {
        size_t len = strlen(names[i][0]);
        if (strncmp(err->text, names[i][0], len) != 0 || err->text[len] != ' ') continue;
        memcpy(said, err->text, sizeof said);
        snprintf(err->text, sizeof err->text, "--%s%.*s", names[i][1], (int)(sizeof said - 32), said + len);
        return;
    }
}

enum pl_status pl_sampling_opts_check(const struct pl_sampling_opts *o, struct pl_err *err) {
    struct pl_sampling s = pl_sampling_from_api(&o->s);
    enum pl_status status = pl_sampling_check(&s, UINT32_MAX, err);
    if (status != PL_INVALID) return status;
    pl_sampling_opts_name(err);
    return PL_USAGE;
}

void pl_sampling_opts_seed(struct pl_sampling_opts *o) {
    if (!o->seed_given) o->s.seed = pl_clock_ns() % 1000000007u;
}

enum pl_status pl_cmd_read_file(const char *path, size_t max_bytes, struct pl_buf *out, struct pl_err *err) {
    bool in = strcmp(path, "-") == 0;
    FILE *f = in ? stdin : fopen(path, "rbe");
    if (f == NULL) PL_FAIL(err, PL_IO, "%.400s: %s", path, strerror(errno));
    char block[65536];
    enum pl_status s = PL_OK;
    size_t n;
    while (s == PL_OK && (n = fread(block, 1, sizeof block, f)) > 0) {
        pl_buf_add(out, block, n);
        if (!pl_buf_ok(out)) s = pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "%.400s: out of memory", path);
        if (s == PL_OK && out->len > max_bytes)
            s = pl_err_set(err, __FILE__, __LINE__, PL_LIMIT, "%.400s is larger than the %zu MB that are read",
                           in ? "standard input" : path, max_bytes >> 20);
    }
    if (s == PL_OK && ferror(f))
        s = pl_err_set(err, __FILE__, __LINE__, PL_IO, "%.400s: %s", in ? "standard input" : path,
                       in && errno == EBADF ? "it is closed" : strerror(errno));
    if (!in) fclose(f);
    return s;
}

enum pl_status pl_cmd_read_text(const char *text, const char *file, struct pl_buf *out, struct pl_err *err) {
    if (text != NULL && file != NULL) PL_FAIL(err, PL_USAGE, "-p and -f exclude each other");
    if (text == NULL && file == NULL) PL_FAIL(err, PL_USAGE, "-p TEXT or -f FILE is missing ('-f -' reads standard input)");
    if (file != NULL) return pl_cmd_read_file(file, PL_TEXT_BYTES_MAX, out, err);
    pl_buf_add_c(out, text);
    if (!pl_buf_ok(out)) PL_FAIL(err, PL_NO_MEMORY, "out of memory for the text");
    return PL_OK;
}

static size_t skip_space(const char *text, size_t i) { return i + strspn(text + i, " \t\r\n"); }

static enum pl_status one_id(const char *text, size_t *i, struct pl_ids *out, struct pl_err *err) {
    size_t span = strspn(text + *i, "0123456789");
    char digits[16];
    uint64_t id;
    if (span == 0)
        PL_FAIL(err, PL_INVALID, "the id list has %s at byte %zu: expected numbers such as [1,2,3]",
                text[*i] == '\0' ? "its end or a zero byte" : "an unexpected character", *i);
    snprintf(digits, sizeof digits, "%.*s", (int)PL_MIN(span, sizeof digits - 1), text + *i);
    if (span >= sizeof digits || !pl_parse_u64(digits, UINT32_MAX, &id))
        PL_FAIL(err, PL_INVALID, "the id at byte %zu of the list is larger than any token id", *i);
    if (pl_grow(&out->data, &out->cap, out->len + 1, sizeof *out->data) != PL_OK)
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for the id list");
    out->data[out->len++] = (uint32_t)id;
    *i += span;
    return PL_OK;
}

/* A JSON array, whole; or bare numbers with spaces, commas or both between them. */
enum pl_status pl_cmd_parse_ids(const char *text, size_t len, struct pl_ids *out, struct pl_err *err) {
    size_t i = skip_space(text, 0);
    bool array = text[i] == '[', closed = false;
    if (array) i = skip_space(text, i + 1);
    for (bool first = true; i < len; first = false) {
        if (array && text[i] == ']') {
            closed = true;
            i = skip_space(text, i + 1);
            break;
        }
        if (!first && text[i] == ',') {
            i = skip_space(text, i + 1);
            if (array && i >= len) break;
        } else if (!first && array)
            PL_FAIL(err, PL_INVALID, "the id list has an unexpected character at byte %zu: expected , or ]", i);
        PL_TRY(one_id(text, &i, out, err));
        i = skip_space(text, i);
    }
    if (array && !closed) PL_FAIL(err, PL_INVALID, "the id list ends at byte %zu without its ]: is the file whole?", len);
    if (i < len) PL_FAIL(err, PL_INVALID, "the id list has more after its ] at byte %zu", i);
    return PL_OK;
}

void pl_cmd_print_ids(const uint32_t *ids, size_t count) {
    pl_out_str("[");
    for (size_t i = 0; i < count; i++) pl_out_printf(i == 0 ? "%u" : ",%u", ids[i]);
    pl_out_str("]\n");
}

enum pl_status pl_cmd_print_json(json_t *value, struct pl_err *err) {
    char *text = value == NULL ? NULL : json_dumps(value, JSON_INDENT(2));
    json_decref(value);
    if (text == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for the JSON output");
    pl_out_str(text);
    pl_out_str("\n");
    free(text);
    return PL_OK;
}

enum pl_status pl_cmd_can_write(const char *path, const char *what, struct pl_err *err) {
    struct stat st;
    int code = 0;
    if (path == NULL) return PL_OK;
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode)) code = EISDIR;
        if (code == 0 && access(path, W_OK) != 0) code = errno;
    } else if (errno == ENOENT) { /* it will be made: its folder decides */
        const char *slash = strrchr(path, '/');
        struct pl_buf folder = {0};
        if (slash != NULL) pl_buf_add(&folder, path, PL_MAX((size_t)(slash - path), 1u));
        if (access(slash == NULL ? "." : pl_buf_cstr(&folder), W_OK | X_OK) != 0) code = errno;
        pl_buf_deinit(&folder);
    } else {
        code = errno;
    }
    if (code != 0) PL_FAIL(err, PL_IO, "%.400s: cannot write the %s: %s", path, what, strerror(code));
    return PL_OK;
}

enum pl_status pl_cmd_can_record(const char *witness, const char *counters, struct pl_err *err) {
    PL_TRY(pl_cmd_can_write(witness, "witness", err));
    return pl_cmd_can_write(counters, "counters", err);
}

/* Takes the reference. */
static enum pl_status write_json(json_t *o, const char *path, const char *what, struct pl_err *err) {
    int rc = json_dump_file(o, path, JSON_INDENT(2));
    int code = errno;
    json_decref(o);
    if (rc != 0) PL_FAIL(err, PL_IO, "%.400s: cannot write the %s: %s", path, what, strerror(code));
    return PL_OK;
}

enum pl_status pl_cmd_write_witness(struct plumb_engine *e, const char *path, struct pl_err *err) {
    json_t *o = pl_engine_witness_full(e, err);
    if (o == NULL) return err->status;
    PL_TRY(write_json(o, path, "witness", err));
    return pl_ops_kernels_agree(e->ops, err);
}

enum pl_status pl_cmd_write_counters(struct plumb_engine *e, const char *path, struct pl_err *err) {
    json_t *o = pl_engine_counters(e);
    if (o == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for the counters");
    PL_TRY(write_json(o, path, "counters", err));
    if (pl_ops_decisions_add_up(e->ops)) return PL_OK;
    PL_FAIL(err, PL_INTERNAL, "the counted outcomes of choices do not add up to the choices: see %.400s", path);
}

struct pl_cmd_made pl_cmd_made(const struct plumb_engine *e, struct pl_cmd_made since) {
    struct pl_ops_cache c = {0};
    if (!pl_ops_cache_state(e->ops, &c)) return (struct pl_cmd_made){0};
    return (struct pl_cmd_made){c.loaded - since.loaded, c.compiled - since.compiled};
}

void pl_cmd_print_kernels(struct plumb_engine *e) {
    struct pl_ops_launches list[128];
    size_t count = PL_MIN(pl_ops_witness(e->ops, list, PL_COUNT_OF(list)), PL_COUNT_OF(list));
    for (size_t i = 0; i < count; i++) {
        if (list[i].launches == 0) continue;
        fprintf(stderr, "plumb: kernel %-44s %10llu launches (%s)\n", list[i].kernel, (unsigned long long)list[i].launches,
                list[i].op);
    }
}
