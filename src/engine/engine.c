/* engine - opening, planning, loading and closing. */
#include "engine/engine.h"

#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "tensor/kv8.h"
#include "tune/table.h"

/* Options of an older or newer caller: what it does not know is zero, what we do not know must be. */
static enum pl_status read_options(const struct plumb_engine_options *opt, struct plumb_engine_options *out,
                                   struct pl_err *err) {
    size_t least = offsetof(struct plumb_engine_options, model) + sizeof opt->model;
    if (opt == NULL || opt->size < least || opt->size > 4096)
        PL_FAIL(err, PL_INVALID,
                "plumb_engine_options.size is %zu but must be sizeof(struct plumb_engine_options), %zu here",
                opt == NULL ? (size_t)0 : opt->size, sizeof *opt);
    const unsigned char *bytes = (const unsigned char *)opt;
    for (size_t i = sizeof *opt; i < opt->size; i++) {
        if (bytes[i] != 0) PL_FAIL(err, PL_INVALID, "plumb_engine_options sets a field that this version does not know");
    }
    memset(out, 0, sizeof *out);
    memcpy(out, opt, PL_MIN(opt->size, sizeof *out));
    if (out->model == NULL || out->model[0] == '\0')
        PL_FAIL(err, PL_INVALID, "model is empty: expected a file or directory");
    if (!(out->sparse_values >= 0 && out->sparse_values < 1))
        PL_FAIL(err, PL_INVALID, "sparse_values is %g but must be at least 0 and below 1", (double)out->sparse_values);
    return PL_OK;
}

static enum pl_status name_backend(const struct plumb_engine_options *o, enum pl_backend *out, struct pl_err *err) {
    if (o->backend == NULL || strcmp(o->backend, "auto") == 0) {
        char why[400];
        *out = o->isa != NULL ? PL_BACKEND_CPU : pl_ops_auto(why, sizeof why); /* an instruction set asks for the CPU */
        return PL_OK;
    }
    if (!pl_backend_from_name(o->backend, out))
        PL_FAIL(err, PL_INVALID, "backend is '%.40s' but must be auto, cpu, cuda, rocm or opencl", o->backend);
    return PL_OK;
}

static enum pl_status choose_backend(const struct plumb_engine_options *o, enum pl_backend *out, struct pl_err *err) {
    PL_TRY(name_backend(o, out, err));
    if (*out == PL_BACKEND_CPU && o->device != 0)
        PL_FAIL(err, PL_INVALID,
                "device is %d, but the model runs on the CPU, which is one: name a backend that has devices", o->device);
    return PL_OK;
}

/* What `plumb tune` measured for this device, or built in. */
static bool has_table(enum pl_backend backend, int index, struct pl_attn_table *out) {
    static const enum pl_device_kind kinds[PL_BACKEND_COUNT] = {
        [PL_BACKEND_CUDA] = PL_DEVICE_CUDA, [PL_BACKEND_ROCM] = PL_DEVICE_ROCM, [PL_BACKEND_OPENCL] = PL_DEVICE_OPENCL};
    struct pl_device_info info;
    struct pl_err err = {0};
    if (backend == PL_BACKEND_CPU || backend == PL_BACKEND_METAL) return false;
    if (pl_device_describe(kinds[backend], index, &info, &err) != PL_OK) return false; /* opening it says why */
    pl_tune_or_built_in(&info, out);
    return true;
}

enum pl_status pl_engine_ops_options(const struct plumb_engine_options *o, struct pl_ops_options *out, struct pl_err *err) {
    *out = (struct pl_ops_options){.device = o->device,
                                   .threads = o->threads,
                                   .pin = o->pin,
                                   .isa = o->isa,
                                   .strict = o->strict,
                                   .force = o->force_kernels,
                                   .disable = o->disable_kernels,
                                   .jit_cache = o->jit_cache,
                                   .uncounted = o->uncounted,
                                   .attn = o->attention,
                                   .attn_off = o->attention_off,
                                   .invariant = o->invariant,
                                   .sparse_values = o->sparse_values,
                                   .no_graphs = o->no_graphs};
    return choose_backend(o, &out->backend, err);
}

static enum pl_status open_ops(struct plumb_engine *e, struct pl_err *err) {
    struct pl_ops_options oo;
    struct pl_attn_table table;
    PL_TRY(pl_engine_ops_options(&e->opt, &oo, err));
    oo.isa = e->isa;
    if (has_table(oo.backend, e->opt.device, &table)) oo.attn_table = &table;
    PL_TRY(pl_ops_create(&oo, &e->ops, err));
    if (!pl_fault("no-backend-line")) pl_log("kernel backend: %s", pl_ops_describe(e->ops));
    if (pl_ops_forced(e->ops)[0] != 0) pl_log("kernels: %s", pl_ops_forced(e->ops));
    return PL_OK;
}

static enum pl_status allocate_step(struct plumb_engine *e, struct pl_err *err) {
    e->step.tokens = pl_alloc(e->batch_rows, sizeof *e->step.tokens);
    e->step.logit_rows = pl_alloc(e->logit_rows, sizeof *e->step.logit_rows);
    e->step.pages = pl_alloc(e->kv_shape.page_count, sizeof *e->step.pages);
    e->step.window_pages = pl_alloc(e->kv_shape.page_count, sizeof *e->step.window_pages);
    e->step.seqs = pl_alloc(e->max_sessions, sizeof *e->step.seqs);
    e->step.who = pl_alloc(e->logit_rows, sizeof *e->step.who); /* a service may run so many requests */
    PL_TRY(pl_grow(&e->last.parts, &e->last.cap, e->logit_rows, sizeof *e->last.parts));
    e->sample_logits = pl_alloc(e->config.vocab, sizeof *e->sample_logits);
    if (pl_engine_is_recurrent(e)) e->state_used = pl_calloc(e->max_sessions, sizeof *e->state_used);
    if (e->step.tokens == NULL || e->step.logit_rows == NULL || e->step.pages == NULL || e->step.window_pages == NULL ||
        e->step.seqs == NULL || e->step.who == NULL || e->sample_logits == NULL ||
        (pl_engine_is_recurrent(e) && e->state_used == NULL))
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for the working space of a step");
    uint32_t pages = (uint32_t)e->kv_shape.page_count, size = (uint32_t)e->kv_shape.page_tokens;
    enum pl_status s = e->dense ? pl_page_pool_init_dense(&e->pages, e->max_sessions, pages / e->max_sessions, size)
                                : pl_page_pool_init(&e->pages, pages, size);
    e->pools.of[PL_PAGES_FULL] = &e->pages;
    if (s == PL_OK && e->kv_shape.window_page_count > 0) {
        s = pl_page_pool_init(&e->window_pages, (uint32_t)e->kv_shape.window_page_count, size);
        e->pools.of[PL_PAGES_WINDOWED] = &e->window_pages;
        e->pools.window = e->config.window;
    }
    if (s != PL_OK) PL_FAIL(err, PL_NO_MEMORY, "out of memory for %zu page entries", e->kv_shape.page_count);
    return PL_OK;
}

/* One step that computes nothing, so that its kernels are known. One row a sequence, or all rows to one. */
static enum pl_status plan_step(struct plumb_engine *e, uint32_t rows, uint32_t seq_count, struct pl_err *err) {
    struct pl_batch b = {.rows = rows,
                         .tokens = e->step.tokens,
                         .seq_count = seq_count,
                         .seqs = e->step.seqs,
                         .pages = e->step.pages,
                         .window_pages = e->pools.of[PL_PAGES_WINDOWED] != NULL ? e->step.window_pages : NULL,
                         .logit_count = PL_MIN(seq_count, e->logit_rows),
                         .logit_rows = e->step.logit_rows};
    uint32_t each = rows / seq_count, size = (uint32_t)e->kv_shape.page_tokens, pages = (each + size - 1) / size;
    memset(e->step.tokens, 0, rows * sizeof *e->step.tokens);
    for (uint32_t i = 0; i < seq_count; i++) e->step.seqs[i] = (struct pl_batch_seq){.first_row = i * each, .rows = each};
    for (uint32_t i = 0; i < pages; i++) {
        e->step.pages[i] = i;
        e->step.window_pages[i] = (uint32_t)(i % PL_MAX(e->kv_shape.window_page_count, (size_t)1));
    }
    b.page_entries = pages;
    for (uint32_t i = 0; i < b.logit_count; i++) e->step.logit_rows[i] = (i + 1) * each - 1;
    const struct pl_activation *logits = NULL;
    enum pl_status s = pl_model_forward(e->model, &b, e->kv, &logits);
    uint32_t slot;
    const struct pl_draw any = {.temperature = 1, .top_p = 1};
    if (s == PL_OK && pl_ops_chooses(e->ops)) s = pl_ops_choose(e->ops, logits, b.logit_count, NULL, &slot);
    if (s == PL_OK && pl_ops_chooses(e->ops)) s = pl_ops_choose(e->ops, logits, 1, &any, &slot);
    if (s == PL_UNSUPPORTED && pl_ops_refusal(e->ops)[0] != 0) PL_FAIL(err, s, "%s", pl_ops_refusal(e->ops));
    if (s != PL_OK)
        PL_FAIL(err, s, "planning a step of %u rows on %s: %s", rows, pl_ops_describe(e->ops), pl_status_text(s));
    return PL_OK;
}

/* The kernels of chunks and of sequences decoding together, as many as kernels are made for (each number up to 8, then
 * powers of two; products that are taken eight rows at a time have each remainder behind 8): compiled together, before
 * anybody waits for a token. */
static enum pl_status plan_kernels(struct plumb_engine *e, struct pl_err *err) {
    if (!pl_ops_plan_begin(e->ops)) return PL_OK;
    uint32_t chunk = PL_MIN(e->batch_rows, e->context), together = PL_MIN(e->max_sessions, chunk);
    enum pl_status s = plan_step(e, 1, 1, err);
    for (uint32_t n = 2; n < together && s == PL_OK; n = n < 16 ? n + 1 : 2 * n) s = plan_step(e, n, n, err);
    if (s == PL_OK && together > 1) s = plan_step(e, together, together, err);
    for (uint32_t n = 2; n < chunk && s == PL_OK; n = n < 16 ? n + 1 : 2 * n) s = plan_step(e, n, 1, err);
    if (s == PL_OK && chunk > 1) s = plan_step(e, chunk, 1, err);
    if (s == PL_OK) s = plan_step(e, 1, 1, err); /* again: the first found out which layers are no chains */
    struct pl_err late = {0};
    enum pl_status end = pl_ops_plan_end(e->ops, s == PL_OK ? err : &late);
    return s != PL_OK ? s : end;
}

/* What is asked of KV pages (--kv, --kv-dtype) has nothing to act on where no layer has attention: said, not ignored. */
static void announce_state(const struct plumb_engine *e) {
    const struct pl_kv_shape *s = &e->kv_shape;
    if (s->state_layers == 0) return;
    pl_log("recurrent state: f32, %zu slot%s of %.3f MB (%u for prefixes), %zu layer%s", s->state_slots,
           s->state_slots == 1 ? "" : "s", (double)pl_kv_state_bytes(s) / (double)s->state_slots * 1e-6, e->kept_states,
           s->state_layers, s->state_layers == 1 ? "" : "s");
    if (s->layers == 0) pl_log("KV cache: none (no layer has attention): its layout and type do not matter");
}

static void announce_sparse(const struct plumb_engine *e) {
    const bool cuda = pl_ops_backend(e->ops) == PL_BACKEND_CUDA;
    if (e->opt.sparse_values > 0 && e->kv_shape.layers > 0)
        pl_log("attention: values whose weight is below %g are not read%s", (double)e->opt.sparse_values,
               cuda ? ", in decode, by kernels without tensor cores: slower than reading all" : ": slower than reading all");
}

static void announce_pages(const struct plumb_engine *e) {
    const struct pl_kv_shape *s = &e->kv_shape;
    bool chosen = e->opt.kv_layout == NULL || strcmp(e->opt.kv_layout, "auto") == 0;
    pl_log("KV cache: %s%s, %s, %zu page%s of %zu tokens", e->dense ? "dense" : "paged", chosen ? " (auto)" : "",
           pl_kv_type_name(s->dtype), s->page_count, s->page_count == 1 ? "" : "s", s->page_tokens);
    if (s->window_page_count > 0)
        pl_log("KV cache: %zu of %zu layers see %u tokens back and give pages back: %zu pages of their own",
               pl_kv_windowed_layers(s), s->layers, e->config.window, s->window_page_count);
}

/* The time since *mark, which moves here. */
static uint64_t lap(uint64_t *mark) {
    uint64_t before = *mark;
    *mark = pl_clock_ns();
    return *mark - before;
}

static enum pl_status load(struct plumb_engine *e, uint64_t *mark, struct pl_err *err) {
    struct pl_model_options mo = {.max_context = e->context,
                                  .max_rows = e->batch_rows,
                                  .max_logits = e->logit_rows,
                                  .progress = e->opt.progress,
                                  .progress_user = e->opt.progress_user,
                                  .config = &e->config};
    pl_file_will_need(e->file);
    PL_TRY(pl_model_create(e->file, e->ops, &mo, &e->model, err));
    e->start.weights = lap(mark);
    PL_TRY(pl_ops_kv_create(e->ops, &e->kv_shape, &e->kv, err));
    announce_state(e);
    if (e->kv_shape.layers > 0) announce_pages(e);
    if (pl_is_kv8(e->kv_shape.dtype) && pl_ops_backend(e->ops) == PL_BACKEND_CUDA)
        pl_log("KV cache: %s decodes more slowly than f16 here: its codes are widened first (docs/perf/kv.md)",
               pl_kv_type_name(e->kv_shape.dtype));
    announce_sparse(e);
    PL_TRY(allocate_step(e, err));
    e->start.memory = lap(mark);
    PL_TRY(plan_kernels(e, err));
    e->start.kernels = lap(mark);
    return pl_file_check_unchanged(e->file, err);
}

/* A file without any tokenizer still serves ids (evaluation, tests); a tokenizer that cannot be read is an error. */
static enum pl_status open_tokenizer(struct plumb_engine *e, struct pl_err *err) {
    enum pl_status s = pl_tokenizer_create(e->file, &e->tok, err);
    if (s != PL_NOT_FOUND) return s;
    if (err != NULL) err->text[0] = '\0';
    return PL_OK;
}

static enum pl_status open_model(struct plumb_engine *e, const struct plumb_engine_options *opt, struct pl_err *err) {
    PL_TRY(read_options(opt, &e->opt, err));
    e->model_path = pl_strdup(e->opt.model);
    e->isa = e->opt.isa == NULL ? NULL : pl_strdup(e->opt.isa);
    if (e->model_path == NULL || (e->opt.isa != NULL && e->isa == NULL))
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for an engine");
    e->opt.model = e->model_path;
    PL_TRY(pl_file_open(e->model_path, &e->file, err));
    PL_TRY(pl_file_check_readable(e->file, err));
    PL_TRY(pl_engine_plan(e, err));
    return open_tokenizer(e, err);
}

static enum pl_status told(enum pl_status s, const char *model, struct pl_err *err) {
    if (s != PL_OK && err != NULL && err->text[0] == '\0')
        pl_err_set(err, __FILE__, __LINE__, s, "%.300s could not be opened: %s", model, pl_status_text(s));
    return s;
}

enum pl_status pl_engine_open(const struct plumb_engine_options *opt, struct plumb_engine **out, struct pl_err *err) {
    struct plumb_engine *e = pl_calloc(1, sizeof *e);
    if (e == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for an engine");
    uint64_t mark = pl_clock_ns();
    enum pl_status s = told(open_model(e, opt, err), opt == NULL ? "the model" : opt->model, err);
    e->start.file = lap(&mark);
    if (s == PL_OK)
        *out = e;
    else
        plumb_engine_destroy(e);
    return s;
}

enum pl_status pl_engine_load(struct plumb_engine *e, struct pl_err *err) {
    PL_ASSERT(e->ops == NULL); /* once */
    uint64_t mark = pl_clock_ns();
    enum pl_status s = pl_engine_check_budget(e, err);
    e->start.file += lap(&mark);
    if (s == PL_OK) s = open_ops(e, err);
    e->start.backend = lap(&mark);
    if (s == PL_OK) s = load(e, &mark, err);
    if (told(s, e->model_path, err) != PL_OK) return s;
    e->opt.kv_dtype = pl_kv_type_name(e->kv_shape.dtype); /* the caller's strings may go away now */
    e->opt.backend = NULL;
    e->opt.isa = e->isa;
    e->opt.force_kernels = e->opt.disable_kernels = e->opt.jit_cache = NULL; /* read; the caller's */
    e->opt.attention = e->opt.attention_off = e->opt.kv_layout = NULL;
    return PL_OK;
}

enum pl_status pl_engine_create(const struct plumb_engine_options *opt, struct plumb_engine **out, struct pl_err *err) {
    struct plumb_engine *e;
    PL_TRY(pl_engine_open(opt, &e, err));
    enum pl_status s = pl_engine_load(e, err);
    if (s == PL_OK)
        *out = e;
    else
        plumb_engine_destroy(e);
    return s;
}

void pl_engine_tell_written(struct plumb_engine *e) {
    struct pl_err err = {0};
    if (pl_file_check_unchanged(e->file, &err) != PL_OK && !atomic_exchange(&e->written_told, true)) pl_log("%s", err.text);
}

void plumb_engine_destroy(struct plumb_engine *e) {
    if (e == NULL) return;
    PL_ASSERT(e->session_count == 0); /* sessions first */
    pl_free(e->step.tokens);
    pl_free(e->step.logit_rows);
    pl_free(e->step.pages);
    pl_free(e->step.window_pages);
    pl_free(e->step.seqs);
    pl_free(e->step.who);
    pl_free(e->last.parts);
    pl_free(e->sample_logits);
    pl_free(e->state_used);
    pl_page_pool_deinit(&e->pages);
    pl_page_pool_deinit(&e->window_pages);
    if (e->kv != NULL) pl_ops_kv_destroy(e->ops, e->kv);
    if (e->model != NULL) pl_model_destroy(e->model);
    if (e->ops != NULL) pl_ops_destroy(e->ops);
    if (e->tmpl != NULL) pl_template_destroy(e->tmpl);
    if (e->tmpl_tools != NULL) pl_template_destroy(e->tmpl_tools);
    if (e->tok != NULL) pl_tokenizer_destroy(e->tok);
    if (e->file != NULL) pl_file_close(e->file);
    pl_free(e->model_path);
    pl_free(e->isa);
    pl_free(e);
}
