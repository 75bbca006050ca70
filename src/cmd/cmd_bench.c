/* bench - prompt and decode speed with a receipt: bytes, GB/s, share of the read bandwidth measured in the same run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "base/pool.h"
#include "cmd/bench_op.h"
#include "cmd/bench_parallel.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "tune/host_bandwidth.h"

enum { REPEATS_MAX = 100 };

struct bench {
    struct pl_model_opts model;
    uint32_t prompt, generate, depth, repeats;
    bool json;
    struct plumb_engine *engine;
    struct plumb_session *session;
    uint32_t *ids;
    int threads;
    double prefill[REPEATS_MAX], decode[REPEATS_MAX]; /* tok/s */
    json_t *prefill_kernels, *decode_kernels;
    double bytes_per_token, ceiling; /* bytes, bytes/s */
    double load_s;                   /* until the first step may be asked for */
    struct pl_cmd_made made, within; /* kernels: in all, and within what is measured */
    const char *witness, *counters;  /* files */
    const char *parallel;            /* list of sequence counts: measures the service instead */
    uint32_t counts[PL_BENCH_PARALLEL_MAX];
    size_t count;
};

/* Any ids of the vocabulary do: the arithmetic is the same. The same ones every time. */
static void fill_ids(struct bench *b, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t c[4] = {i, 0, 0, 0}, k[2] = {1, 2};
        b->ids[i] = pl_philox4x32(c, k).v[0] % b->engine->config.vocab;
    }
}

static uint64_t witness_bytes(const json_t *kernels) {
    uint64_t total = 0;
    size_t i;
    json_t *k;
    json_array_foreach((json_t *)kernels, i, k) total += (uint64_t)json_integer_value(json_object_get(k, "bytes"));
    return total;
}

static enum pl_status time_prefill(struct bench *b, double *tok_s, struct pl_err *err) {
    PL_TRY(pl_session_truncate(b->session, 0, err));
    pl_ops_witness_reset(b->engine->ops);
    uint64_t start = pl_clock_ns();
    PL_TRY(pl_session_append(b->session, b->ids, b->prompt, NULL, NULL, err));
    *tok_s = (double)b->prompt * 1e9 / (double)(pl_clock_ns() - start);
    return PL_OK;
}

static enum pl_status time_decode(struct bench *b, double *tok_s, struct pl_err *err) {
    PL_TRY(pl_session_truncate(b->session, 0, err));
    PL_TRY(pl_session_append(b->session, b->ids, b->depth + 1, NULL, NULL, err));
    pl_ops_witness_reset(b->engine->ops);
    /* The choice is made where generate makes it, and read when generate reads it: behind the launch of the next step. */
    bool chooses = pl_engine_chooses(b->engine), ahead = !b->engine->opt.no_ahead;
    uint32_t choice, last = 0, id;
    const uint32_t chosen = PL_TOKEN_CHOSEN;
    uint64_t start = pl_clock_ns();
    for (uint32_t i = 0; i < b->generate; i++, last = choice) {
        struct pl_step_part part = {.session = b->session,
                                    .ids = chooses && i > 0 ? &chosen : &b->ids[i],
                                    .count = 1,
                                    .logits = 1,
                                    .choice = chooses ? &choice : NULL};
        PL_TRY(pl_engine_step(b->engine, &part, 1, NULL, err));
        if (chooses && !ahead) PL_TRY(pl_engine_chosen(b->engine, choice, &id, err));
        if (chooses && ahead && i > 0) PL_TRY(pl_engine_chosen(b->engine, last, &id, err));
    }
    if (chooses && ahead && b->generate > 0) PL_TRY(pl_engine_chosen(b->engine, last, &id, err));
    *tok_s = (double)b->generate * 1e9 / (double)(pl_clock_ns() - start);
    return PL_OK;
}

/* A repeat within which kernels were made is done again; should the last one have made some, too, b->within has them. */
static enum pl_status repeat(struct bench *b, enum pl_status (*time)(struct bench *, double *, struct pl_err *),
                             double *tok_s, struct pl_err *err) {
    struct pl_cmd_made made = {.loaded = 1};
    for (int i = 0; i < PL_CMD_MEASURE_MAX && made.loaded > 0; i++) {
        struct pl_cmd_made before = pl_cmd_made(b->engine, (struct pl_cmd_made){0});
        PL_TRY(time(b, tok_s, err));
        made = pl_cmd_made(b->engine, before);
    }
    b->within.loaded += made.loaded;
    b->within.compiled += made.compiled;
    return PL_OK;
}

/* Over as many bytes as one token reads, so that caches help both alike. */
static enum pl_status measure_ceiling(struct bench *b, struct pl_err *err) {
    static const enum pl_device_kind kinds[PL_BACKEND_COUNT] = {
        [PL_BACKEND_CUDA] = PL_DEVICE_CUDA, [PL_BACKEND_ROCM] = PL_DEVICE_ROCM, [PL_BACKEND_OPENCL] = PL_DEVICE_OPENCL};
    enum pl_backend backend = pl_ops_backend(b->engine->ops);
    if (backend != PL_BACKEND_CPU) return pl_cmd_read_bandwidth(kinds[backend], b->engine->opt.device, &b->ceiling, err);
    return pl_host_read_bandwidth(b->threads, (size_t)b->bytes_per_token, &b->ceiling, err);
}

/* Large weights are copied when they are used for the second time: outside every repeat. */
static enum pl_status settle(struct bench *b, struct pl_err *err) {
    struct plumb_session *s = NULL;
    enum pl_status st = pl_session_create(b->engine, &s, err);
    const uint32_t id = 0;
    for (int i = 0; i < 2 && st == PL_OK; i++) {
        st = pl_session_truncate(s, 0, err);
        if (st == PL_OK) st = pl_session_append(s, &id, 1, NULL, NULL, err);
    }
    plumb_session_destroy(s);
    return st;
}

static enum pl_status work(struct bench *b, struct pl_err *err) {
    PL_TRY(settle(b, err));
    uint32_t need = PL_MAX(b->prompt, b->generate);
    b->ids = pl_alloc(PL_MAX(need, b->depth + 1u), sizeof *b->ids);
    if (b->ids == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for %u ids", need);
    fill_ids(b, PL_MAX(need, b->depth + 1u));
    PL_TRY(pl_session_create(b->engine, &b->session, err));
    double ignored;
    if (b->prompt > 0) PL_TRY(time_prefill(b, &ignored, err)); /* warm-up: pages touched, caches filled */
    for (uint32_t r = 0; r < b->repeats && b->prompt > 0; r++) {
        PL_TRY(repeat(b, time_prefill, &b->prefill[r], err));
        pl_progress("prefill", r + 1, b->repeats, false);
    }
    b->prefill_kernels = b->prompt > 0 ? pl_engine_witness(b->engine) : json_array();
    for (uint32_t r = 0; r < b->repeats && b->generate > 0; r++) {
        PL_TRY(repeat(b, time_decode, &b->decode[r], err));
        pl_progress("decode", r + 1, b->repeats, false);
    }
    b->decode_kernels = b->generate > 0 ? pl_engine_witness(b->engine) : json_array();
    pl_progress_end();
    b->made = pl_cmd_made(b->engine, (struct pl_cmd_made){0});
    if (b->prefill_kernels == NULL || b->decode_kernels == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for the receipt");
    if (b->generate > 0) b->bytes_per_token = (double)witness_bytes(b->decode_kernels) / (double)b->generate;
    return measure_ceiling(b, err);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *v, uint32_t n) {
    double sorted[REPEATS_MAX];
    memcpy(sorted, v, n * sizeof *v);
    qsort(sorted, n, sizeof *sorted, by_value);
    return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0;
}

static json_t *all(const double *v, uint32_t n) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) json_array_append_new(list, json_real(v[i]));
    return list;
}

static void add_stage(json_t *to, json_t *from, const char *stage) {
    size_t i;
    json_t *k;
    json_array_foreach(from, i, k) {
        if (json_integer_value(json_object_get(k, "launches")) == 0) continue;
        json_object_set_new(k, "stage", json_string(stage));
        json_array_append(to, k);
    }
}

static json_t *made_json(struct pl_cmd_made m) {
    return json_pack("{s:I, s:I}", "loaded", (json_int_t)m.loaded, "compiled", (json_int_t)m.compiled);
}

/* Nothing on the CPU, whose kernels are made when plumb is. */
static void print_made(const char *indent, struct pl_cmd_made all, struct pl_cmd_made within) {
    if (all.loaded == 0) return;
    pl_out_printf("%s%llu kernels loaded, %llu compiled; of them %llu and %llu within the measured time%s\n", indent,
                  (unsigned long long)all.loaded, (unsigned long long)all.compiled, (unsigned long long)within.loaded,
                  (unsigned long long)within.compiled, within.loaded > 0 ? ": measure again" : "");
}

static json_t *result_json(struct bench *b) {
    double decode = median(b->decode, b->repeats), rate = decode * b->bytes_per_token;
    json_t *kernels = json_array();
    add_stage(kernels, b->prefill_kernels, "prefill");
    add_stage(kernels, b->decode_kernels, "decode");
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:I, s:I, s:I, s:I}", "model", b->engine->model_path, "architecture",
                  pl_arch_name(b->engine->config.arch), "backend", pl_ops_describe(b->engine->ops), "build_id",
                  plumb_build_id(), "threads", b->threads, "kv_dtype", pl_kv_type_name(b->engine->kv_shape.dtype),
                  "prompt_tokens", (json_int_t)b->prompt, "generated_tokens", (json_int_t)b->generate, "depth",
                  (json_int_t)b->depth, "repeats", (json_int_t)b->repeats);
    if (o == NULL) return NULL;
    json_object_set_new(o, "load_s", json_real(b->load_s));
    json_object_set_new(o, "start", pl_engine_start_json(b->engine));
    json_object_set_new(o, "file_bytes", json_integer((json_int_t)pl_file_bytes(b->engine->file)));
    json_object_set_new(o, "prefill_tok_s", json_real(b->prompt > 0 ? median(b->prefill, b->repeats) : 0.0));
    json_object_set_new(o, "prefill_tok_s_all", all(b->prefill, b->prompt > 0 ? b->repeats : 0));
    json_object_set_new(o, "decode_tok_s", json_real(b->generate > 0 ? decode : 0.0));
    json_object_set_new(o, "decode_tok_s_all", all(b->decode, b->generate > 0 ? b->repeats : 0));
    json_object_set_new(o, "bytes_per_token", json_real(b->bytes_per_token));
    json_object_set_new(o, "decode_gb_s", json_real(rate / 1e9));
    json_object_set_new(o, "read_ceiling_gb_s", json_real(b->ceiling / 1e9));
    json_object_set_new(o, "decode_percent_of_ceiling", json_real(b->ceiling > 0 ? 100.0 * rate / b->ceiling : 0.0));
    json_object_set_new(o, "kernels_made", made_json(b->made));
    json_object_set_new(o, "kernels_made_within", made_json(b->within));
    json_object_set_new(o, "kernels", kernels);
    return o;
}

static void print_text(struct bench *b) {
    double decode = median(b->decode, b->repeats), rate = decode * b->bytes_per_token;
    pl_out_printf("model    %s (%s), %s KV, %s\n", b->engine->model_path, pl_arch_name(b->engine->config.arch),
                  pl_kv_type_name(b->engine->kv_shape.dtype), pl_ops_describe(b->engine->ops));
    char start[PL_ENGINE_START_TEXT];
    pl_engine_start_text(b->engine, start);
    pl_out_printf("start    %s\n", start);
    if (b->prompt > 0)
        pl_out_printf("prefill  %10.1f tok/s  (%u token%s, median of %u)\n", median(b->prefill, b->repeats), b->prompt,
                      pl_cmd_s(b->prompt), b->repeats);
    if (b->generate > 0)
        pl_out_printf("decode   %10.1f tok/s  (%u token%s after %u, median of %u)\n"
                      "receipt  %.1f MB a token, %.1f GB/s, %.0f%% of the %.1f GB/s read here\n",
                      decode, b->generate, pl_cmd_s(b->generate), b->depth, b->repeats, b->bytes_per_token / 1e6, rate / 1e9,
                      b->ceiling > 0 ? 100.0 * rate / b->ceiling : 0.0, b->ceiling / 1e9);
    print_made("ready    ", b->made, b->within);
    json_t *kernels = json_array();
    add_stage(kernels, b->prefill_kernels, "prefill");
    add_stage(kernels, b->decode_kernels, "decode");
    size_t i;
    json_t *k;
    json_array_foreach(kernels, i, k) pl_out_printf(
        "kernel   %-8s %-44s %8lld launches (%s)\n", json_string_value(json_object_get(k, "stage")),
        json_string_value(json_object_get(k, "kernel")), (long long)json_integer_value(json_object_get(k, "launches")),
        json_string_value(json_object_get(k, "op")));
    json_decref(kernels);
}

/* --parallel: one row per sequence count. */
static enum pl_status work_parallel(struct bench *b, struct pl_err *err) {
    PL_TRY(settle(b, err));
    json_t *rows = json_array();
    for (size_t i = 0; i < b->count; i++) {
        struct pl_bench_parallel p = {.sequences = b->counts[i]};
        enum pl_status st = pl_bench_parallel_run(b->engine, b->prompt, b->generate, &p, err);
        if (st != PL_OK) {
            json_decref(rows);
            return st;
        }
        char full[40] = "never all at once, or too shortly";
        if (p.full_tok_s > 0) snprintf(full, sizeof full, "all running %10.1f", p.full_tok_s);
        if (!b->json && p.decode_tok_s > 0)
            pl_out_printf("%4u sequences  prefill %10.1f tok/s  decode %10.1f tok/s (%s)  gap p50 %.2f ms, "
                          "p99 %.2f ms\n",
                          p.sequences, p.prefill_tok_s, p.decode_tok_s, full, p.gap_ms_p50, p.gap_ms_p99);
        else if (!b->json)
            pl_out_printf("%4u sequences  prefill %10.1f tok/s  decode not measured: too few tokens (-n)\n", p.sequences,
                          p.prefill_tok_s);
        if (!b->json && p.steps_ahead > 0)
            pl_out_printf("                %llu steps, %llu launched ahead, %llu of them late\n",
                          (unsigned long long)p.steps, (unsigned long long)p.steps_ahead, (unsigned long long)p.steps_late);
        struct pl_cmd_made made = {p.before.loaded + p.within.loaded, p.before.compiled + p.within.compiled};
        if (!b->json) print_made("                ", made, p.within);
        pl_out_flush();
        json_array_append_new(
            rows, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:o, s:o, s:o}", "sequences", (int)p.sequences,
                            "prefill_tok_s", p.prefill_tok_s, "decode_tok_s", p.decode_tok_s, "full_tok_s", p.full_tok_s,
                            "gap_ms_p50", p.gap_ms_p50, "gap_ms_p99", p.gap_ms_p99, "steps", (json_int_t)p.steps,
                            "steps_ahead", (json_int_t)p.steps_ahead, "steps_late", (json_int_t)p.steps_late, "kernels_made",
                            made_json(made), "kernels_made_within", made_json(p.within), "kernels", p.kernels));
    }
    json_t *o = json_pack("{s:s, s:s, s:s, s:o, s:i, s:I, s:I, s:o}", "model", b->engine->model_path, "backend",
                          pl_ops_describe(b->engine->ops), "build_id", plumb_build_id(), "start",
                          pl_engine_start_json(b->engine), "threads", b->threads, "prompt_tokens", (json_int_t)b->prompt,
                          "generated_tokens", (json_int_t)b->generate, "parallel", rows);
    if (b->json) return pl_cmd_print_json(o, err);
    json_decref(o);
    return PL_OK;
}

static enum pl_status prepare_parallel(struct bench *b, struct pl_err *err) {
    PL_TRY(pl_bench_parallel_parse(b->parallel, b->counts, &b->count, err));
    if (b->prompt == 0 || b->generate < 2)
        PL_FAIL(err, PL_USAGE, "--parallel needs a prompt of at least 1 token and at least 2 to generate");
    for (size_t i = 0; i < b->count; i++) b->model.engine.max_sessions = PL_MAX(b->model.engine.max_sessions, b->counts[i]);
    return PL_OK;
}

static int run(struct bench *b) {
    struct pl_err err = {0};
    int code = PL_EXIT_OK;
    if (b->parallel != NULL && prepare_parallel(b, &err) != PL_OK) return pl_cmd_usage("bench", "%s", err.text);
    uint64_t need = b->parallel != NULL ? (uint64_t)b->prompt + b->generate
                                        : PL_MAX((uint64_t)b->prompt, (uint64_t)b->depth + 1 + b->generate);
    if (b->prompt == 0 && b->generate == 0)
        return pl_cmd_usage("bench", "-p and -n are both 0: there is nothing to measure");
    if (pl_cmd_can_record(b->witness, b->counters, &err) != PL_OK) return pl_cmd_fail("bench", &err);
    if (need > 1u << 24) return pl_cmd_usage("bench", "%llu tokens are more than any model holds", (unsigned long long)need);
    if (b->model.engine.context == 0) b->model.engine.context = (uint32_t)need;
    b->threads = b->model.engine.threads == 0 ? pl_cpu_count() : b->model.engine.threads;
    uint64_t start = pl_clock_ns();
    b->engine = pl_cmd_open_engine("bench", &b->model, NULL, &code);
    if (b->engine == NULL) return code;
    b->load_s = (double)(pl_clock_ns() - start) / 1e9;
    enum pl_status s = b->parallel != NULL ? work_parallel(b, &err) : work(b, &err);
    if (s == PL_OK && b->counters != NULL) s = pl_cmd_write_counters(b->engine, b->counters, &err);
    if (s == PL_OK && b->witness != NULL) s = pl_cmd_write_witness(b->engine, b->witness, &err);
    if (b->parallel != NULL && s == PL_OK) return pl_out_close();
    if (s == PL_OK && b->json) s = pl_cmd_print_json(result_json(b), &err);
    if (s == PL_OK && !b->json) print_text(b);
    if (s == PL_OK) return pl_out_close();
    err.status = s;
    return pl_cmd_fail("bench", &err);
}

/* --op: no model. */
static int run_op(const struct bench *b, struct pl_bench_op *o) {
    if (b->model.model != NULL) return pl_cmd_usage("bench", "-m and --op exclude each other");
    o->json = b->json;
    o->threads = b->model.engine.threads;
    o->pin = b->model.engine.pin;
    o->isa = b->model.engine.isa;
    o->force = b->model.force;
    o->disable = b->model.disable;
    o->backend = b->model.engine.backend;
    o->device = (uint32_t)b->model.engine.device;
    o->kv_dtype = b->model.engine.kv_dtype;
    return pl_bench_op_run(o);
}

/* The first option of --op that was given, or NULL: plain holds what they are when nothing is given. */
static const char *given_of(const struct pl_arg *given, const struct pl_arg *plain) {
    for (; given->name != NULL; given++, plain++) {
        bool same = true;
        if (given->kind == PL_ARG_STR) same = *(const char **)given->out == *(const char **)plain->out;
        if (given->kind == PL_ARG_U32) same = *(uint32_t *)given->out == *(uint32_t *)plain->out;
        if (given->kind == PL_ARG_FLAG) same = *(bool *)given->out == *(bool *)plain->out;
        if (!same) return given->name;
    }
    return NULL;
}

int pl_cmd_bench(int argc, char **argv) {
    struct bench b = {.prompt = 512, .generate = 128, .repeats = 3};
    struct pl_arg model[PL_MODEL_ARG_ROWS], op[PL_BENCH_OP_ARG_ROWS], plain_op[PL_BENCH_OP_ARG_ROWS];
    struct pl_bench_op one, plain;
    pl_model_args(&b.model, model);
    pl_bench_op_args(&one, op);
    pl_bench_op_args(&plain, plain_op);
    const struct pl_arg own[] = {
        {'p', "prompt", "N", PL_ARG_U32, &b.prompt, "tokens of the prompt (512; 0 = skip)", 0, 1 << 24, NULL},
        {'n', "generate", "N", PL_ARG_U32, &b.generate, "tokens to generate (128; 0 = skip)", 0, 1 << 24, NULL},
        {'d', "depth", "N", PL_ARG_U32, &b.depth, "tokens in the cache before decoding (0)", 0, 1 << 24, NULL},
        {'r', "repeats", "N", PL_ARG_U32, &b.repeats, "repeats after one warm-up (3)", 1, REPEATS_MAX, NULL},
        {0, "parallel", "N,N,...", PL_ARG_STR, &b.parallel, "measure so many sequences at once instead, a row for each", 0,
         0, NULL},
        {0, "witness", "FILE", PL_ARG_STR, &b.witness, "write every kernel that ran, with launches, as JSON", 0, 0, NULL},
        {0, "counters", "FILE", PL_ARG_STR, &b.counters, "write how every choice of a kernel ended, as JSON", 0, 0, NULL},
        {0, "json", NULL, PL_ARG_FLAG, &b.json, "print one JSON object", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "bench",
        .synopsis = "[-m] MODEL [-p N] [-n N] [-r N] [-t THREADS] [--json]",
        .about = "Measures prompt and decode speed (medians, and every repeat in the JSON) and names the kernels that ran.",
        .examples = "  plumb bench -m smollm2.gguf -p 512 -n 128 -r 5\n"
                    "  plumb bench -m smollm2.gguf -p 0 -n 64 --depth 2000 -t 1 --json\n"
                    "  plumb bench -m smollm2.gguf --parallel 1,2,4,8 -p 100 -n 64\n"
                    "  plumb bench --op paged-decode --batch 8 --len 8192 --sweep --svg decode.svg\n",
        .groups = (const struct pl_arg *const[]){own, op, model, NULL},
    };
    int code = pl_args_parse(&args, argc, argv);
    const char *lost = one.op == NULL ? given_of(op, plain_op) : NULL;
    if (code == -1 && lost != NULL) code = pl_cmd_usage("bench", "--%s measures one operation and needs --op", lost);
    if (code == -1) code = one.op != NULL ? run_op(&b, &one) : run(&b);
    plumb_session_destroy(b.session);
    plumb_engine_destroy(b.engine);
    json_decref(b.prefill_kernels);
    json_decref(b.decode_kernels);
    pl_free(b.ids);
    return code;
}
