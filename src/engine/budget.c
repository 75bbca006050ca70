/* budget - how much memory a model will take, before any of it is taken. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/str.h"
#include "engine/engine.h"
#include "tensor/kv8.h"

static bool read_number(const char *path, uint64_t *out) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    unsigned long long v;
    bool ok = fscanf(f, "%llu", &v) == 1; /* "max" is no number: no limit */
    fclose(f);
    if (ok) *out = v;
    return ok;
}

static uint64_t machine_bytes(void) {
    FILE *f = fopen("/proc/meminfo", "re");
    if (f == NULL) return UINT64_MAX;
    char line[128];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "MemTotal: %llu kB", &kib) == 1) break;
    }
    fclose(f);
    return kib == 0 ? UINT64_MAX : kib * 1024u;
}

/* The smallest limit of this process's cgroup and its parents, v2 and v1. */
static uint64_t cgroup_bytes(void) {
    uint64_t least = UINT64_MAX, v;
    if (read_number("/sys/fs/cgroup/memory.max", &v)) least = PL_MIN(least, v);
    if (read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", &v)) least = PL_MIN(least, v);
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (f == NULL) return least;
    char line[512], path[640];
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        for (char *p = line + 3; p[0] != '\0' && p[1] != '\0';) {
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", p);
            if (read_number(path, &v)) least = PL_MIN(least, v);
            char *cut = strrchr(p, '/');
            if (cut == NULL || cut == p) break;
            *cut = '\0';
        }
    }
    fclose(f);
    return least;
}

uint64_t pl_engine_memory_limit(uint64_t wanted) {
    uint64_t have = PL_MIN(machine_bytes(), cgroup_bytes());
    return wanted == 0 ? have : PL_MIN(wanted, have);
}

static enum pl_status choose_context(struct plumb_engine *e, struct pl_err *err) {
    uint32_t trained = e->config.context_train == 0 ? 4096 : e->config.context_train;
    if (e->opt.context > trained)
        PL_FAIL(err, PL_LIMIT, "a context of %u tokens was asked for but the model was made for %u", e->opt.context,
                trained);
    e->context = e->opt.context != 0 ? e->opt.context : PL_MIN(trained, 4096u);
    return PL_OK;
}

/* Pages of windowed layers that n sequences need: each its window and what a session may be truncated by, one page more for
 * where its tokens begin, and the rows of one step, which they share. */
static uint64_t window_pages(const struct plumb_engine *e, uint64_t n) {
    uint32_t size = (uint32_t)e->kv_shape.page_tokens;
    return n * (pl_window_pages(e->config.window + PL_SESSION_BACK, size, 1) + 1) + (e->batch_rows + size - 1) / size;
}

/* Layers with a window get pages of their own where that saves at least a quarter of their pages. A service's prefix cache
 * keeps windows, too: room for two a sequence, but for one at least, or prefixes would be lost for little. */
static void choose_window_pages(struct plumb_engine *e) {
    struct pl_kv_shape *s = &e->kv_shape;
    if (e->dense || e->config.window == 0 || e->config.window > e->context) return;
    s->window_page_count = 1;
    uint64_t most = 3 * (uint64_t)s->page_count / 4, least = window_pages(e, e->max_sessions);
    bool any = pl_kv_windowed_layers(s) > 0, service = e->opt.logit_rows > e->max_sessions;
    uint64_t kept = service ? e->max_sessions * pl_window_pages(e->config.window, (uint32_t)s->page_tokens, 1) : 0;
    s->window_page_count = any && least + kept <= most ? (size_t)PL_MIN(least + 2 * kept, most) : 0;
}

/* Fewer pages than every session could use: enough for one of them, the others share what is left. Windowed layers take up
 * to half of the memory, and what the others leave. */
static enum pl_status limit_kv(struct plumb_engine *e, struct pl_err *err) {
    struct pl_kv_shape *s = &e->kv_shape;
    if (e->opt.kv_memory == 0) return PL_OK;
    uint64_t one = (uint64_t)pl_kv_token_bytes(s) * s->kv_heads * s->page_tokens, own = one * pl_kv_windowed_layers(s),
             page = one * s->layers - own, least = s->page_count / e->max_sessions,
             least_own = s->window_page_count > 0 ? window_pages(e, 1) : 0, memory = e->opt.kv_memory;
    uint64_t windowed = own > 0 ? PL_MAX(least_own, PL_MIN(s->window_page_count, memory / 2 / own)) : 0,
             rest = memory - PL_MIN(memory, windowed * own), most = page > 0 ? rest / page : s->page_count;
    if (most < least || windowed * own > memory)
        PL_FAIL(err, PL_LIMIT,
                "%llu bytes of KV memory hold %llu tokens, one sequence of this context needs %u (%llu bytes): raise "
                "--kv-memory or lower --context",
                (unsigned long long)memory, (unsigned long long)(windowed * own > memory ? 0 : most * s->page_tokens),
                e->context, (unsigned long long)(least * page + least_own * own));
    s->page_count = PL_MIN(s->page_count, most);
    if (own > 0) s->window_page_count = PL_MIN(s->window_page_count, (memory - s->page_count * page) / own);
    return PL_OK;
}

/* auto is paged: it shares prefixes and needs no room that nobody uses. */
static enum pl_status choose_layout(struct plumb_engine *e, struct pl_err *err) {
    const char *name = e->opt.kv_layout == NULL ? "auto" : e->opt.kv_layout;
    e->dense = strcmp(name, "dense") == 0;
    if (!e->dense && strcmp(name, "paged") != 0 && strcmp(name, "auto") != 0)
        PL_FAIL(err, PL_INVALID, "kv_layout is '%.40s' but must be auto, paged or dense", name);
    return PL_OK;
}

/* Copies of recurrent state for a service's prefix cache: three a sequence, but no more than a quarter of the weights' size
 * holds, or 64 MiB, or four. logit_rows: only services ask for more than one of a session. */
static void choose_kept_states(struct plumb_engine *e) {
    struct pl_kv_shape *s = &e->kv_shape;
    uint64_t slot = (uint64_t)s->state_layers * (s->state_conv + s->state_ssm) * sizeof(float);
    if (slot == 0 || e->opt.logit_rows <= e->max_sessions) return;
    uint64_t room = PL_MAX(pl_file_bytes(e->file) / 4, (uint64_t)64 << 20), most = PL_MAX(room / slot, (uint64_t)4);
    e->kept_states = (uint32_t)PL_MIN(most, 3 * (uint64_t)e->max_sessions);
    s->state_slots += e->kept_states;
}

static enum pl_status choose_kv(struct plumb_engine *e, struct pl_err *err) {
    const char *name = e->opt.kv_dtype == NULL ? "f16" : e->opt.kv_dtype;
    enum pl_dtype dtype;
    if (!pl_kv_type_from_name(name, &dtype))
        PL_FAIL(err, PL_INVALID, "kv_dtype is '%.40s' but must be f16, bf16, f32, int8, fp8 or k8v4", name);
    uint32_t page = e->opt.page_tokens == 0 ? 32 : e->opt.page_tokens;
    if (page != 16 && page != 32 && page != 64) PL_FAIL(err, PL_INVALID, "page_tokens is %u but must be 16, 32 or 64", page);
    uint64_t pages = ((uint64_t)e->context + page - 1) / page * e->max_sessions;
    if (pages > UINT32_MAX)
        PL_FAIL(err, PL_LIMIT, "%u sessions of %u tokens need more pages than can be counted", e->max_sessions, e->context);
    e->kv_shape =
        (struct pl_kv_shape){.page_count = pages, .page_tokens = page, .dtype = dtype, .state_slots = e->max_sessions};
    pl_model_cache_shape(&e->config, &e->kv_shape);
    if (pl_is_kv8(dtype) && e->kv_shape.value_dim > 0) { /* whose keys hold the values too: it stays whole */
        pl_log("KV cache: f16, not %s: a latent cache is kept in 16 bits", name);
        e->kv_shape.dtype = PL_F16;
    } else if (dtype == PL_K8V4 && e->kv_shape.head_dim % pl_kv_multiple(dtype) != 0) {
        pl_log("KV cache: int8, not k8v4: heads of %zu are no multiple of %zu", e->kv_shape.head_dim, pl_kv_multiple(dtype));
        e->kv_shape.dtype = PL_I8;
    }
    choose_kept_states(e);
    if (pl_kv_shape_bytes(&e->kv_shape) == 0) PL_FAIL(err, PL_LIMIT, "the KV cache is larger than any memory");
    PL_TRY(choose_layout(e, err));
    choose_window_pages(e);
    PL_TRY(limit_kv(e, err));
    if (e->dense && e->kv_shape.page_count < pages)
        PL_FAIL(err, PL_LIMIT,
                "dense KV memory holds every session at full context: leave --kv-memory out or take --kv paged");
    return PL_OK;
}

enum pl_status pl_engine_plan(struct plumb_engine *e, struct pl_err *err) {
    PL_TRY(pl_model_config_read(e->file, &e->config, err));
    PL_TRY(choose_context(e, err));
    e->max_sessions = e->opt.max_sessions == 0 ? 1 : e->opt.max_sessions;
    const uint32_t together = e->max_sessions > 1 ? e->max_sessions : 0;
    e->batch_rows = e->opt.batch_rows == 0 ? PL_MAX(512u, together + 256u) : e->opt.batch_rows;
    if (e->max_sessions > 4096) PL_FAIL(err, PL_INVALID, "max_sessions is %u but must be at most 4096", e->max_sessions);
    if (e->batch_rows > 65536) PL_FAIL(err, PL_INVALID, "batch_rows is %u but must be at most 65536", e->batch_rows);
    /* A decode step has one row for each; one more, so that a prompt gets on beside them. */
    e->batch_rows = PL_MAX(e->batch_rows, e->max_sessions + (together > 0));
    e->logit_rows = PL_MAX(e->max_sessions, PL_MIN(e->opt.logit_rows, e->batch_rows));
    PL_TRY(choose_kv(e, err));
    struct pl_model_options mo = {.max_context = e->context, .max_rows = e->batch_rows, .max_logits = e->logit_rows};
    PL_TRY(pl_model_budget(e->file, &e->config, &mo, &e->kv_shape, &e->budget, err));
    uint64_t logits_bytes = (uint64_t)e->config.vocab * sizeof(float) * (e->logit_rows + 1u);
    if (!pl_add_u64(e->budget.scratch_bytes, logits_bytes, &e->budget.scratch_bytes))
        PL_FAIL(err, PL_LIMIT, "the sizes of this model overflow");
    e->memory_limit = pl_engine_memory_limit(e->opt.memory_limit);
    return PL_OK;
}

static double mb(uint64_t bytes) { return (double)bytes / 1e6; }

enum pl_status pl_engine_check_budget(const struct plumb_engine *e, struct pl_err *err) {
    const struct pl_memory_budget *b = &e->budget;
    uint64_t total = 0;
    const uint64_t parts[] = {b->weight_bytes_resident, b->kv_bytes, b->scratch_bytes};
    for (size_t i = 0; i < PL_COUNT_OF(parts); i++) {
        if (!pl_add_u64(total, parts[i], &total)) PL_FAIL(err, PL_LIMIT, "the sizes of this model overflow");
    }
    if (total <= e->memory_limit) return PL_OK;
    int digits = total < 100000000u ? 2 : 0;
    bool asked = e->opt.memory_limit != 0 && e->opt.memory_limit == e->memory_limit; /* not what the machine has */
    PL_FAIL(err, PL_LIMIT,
            "%.300s needs up to %.*f MB (weights %.*f, KV cache of %zu tokens %.*f, working space %.*f) but "
            "%.*f MB may be used%s: lower --context%s, or take a smaller model",
            e->model_path, digits, mb(total), digits, mb(b->weight_bytes_resident),
            e->kv_shape.page_count * e->kv_shape.page_tokens, digits, mb(b->kv_bytes), digits, mb(b->scratch_bytes), digits,
            mb(e->memory_limit), asked ? " (--memory-limit)" : "", e->max_sessions > 1 ? " or --parallel" : "");
}
