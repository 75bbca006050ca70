/* Opening a device for kernels, and the two ways to launch: at once, or collected into a graph. */
#include "ops/launch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

/* Starting points; a CPU under OpenCL wants few threads a group and no sharing of one output. */
void pl_kernels_sizes(struct pl_kernels *ks) {
    const struct pl_device_info *info = pl_device_info(ks->device);
    bool cpu = info->is_cpu;
    ks->wide = cpu ? 64 : 256;
    ks->norm = cpu ? 16 : info->group_max >= 1024 ? 1024 : 256;
    ks->head = cpu ? 32 : 128;
    ks->team = cpu ? 1 : 32;
    ks->linear = cpu ? 16 : 128;
}

enum pl_status pl_kernels_open(enum pl_device_kind kind, int index, const struct pl_jit_options *jit, struct pl_kernels *out,
                               struct pl_err *err) {
    struct pl_kernels ks = {0};
    PL_TRY(pl_device_open(kind, index, &ks.device, err));
    enum pl_status st = pl_jit_create(ks.device, jit, &ks.jit, err);
    if (st == PL_OK) st = pl_device_stream_create(ks.device, &ks.stream, err);
    if (st != PL_OK) {
        pl_jit_destroy(ks.jit);
        pl_device_close(ks.device);
        return st;
    }
    const struct pl_device_info *info = pl_device_info(ks.device);
    ks.graphs = info->graphs;
    ks.overlap = info->kind == PL_DEVICE_CUDA && strncmp(info->target, "sm_", 3) == 0 && atoi(info->target + 3) >= 90 &&
                 !pl_jit_shipped(ks.jit); /* shipped code is of a target that cannot wait */
    pl_kernels_sizes(&ks);
    *out = ks;
    return PL_OK;
}

static void free_record(struct pl_kernels *ks, struct pl_kernel_record *r) {
    pl_device_free(ks->device, &r->counter);
    pl_device_host_free(ks->device, r->values);
    pl_buf_deinit(&r->variant);
    pl_free(r);
}

void pl_kernels_close(struct pl_kernels *ks) {
    if (ks->device == NULL) return;
    for (size_t i = 0; i < PL_GRAPHS_MAX; i++) {
        pl_device_graph_destroy(ks->device, &ks->cache[i].graph);
        pl_buf_deinit(&ks->cache[i].list);
    }
    pl_buf_deinit(&ks->list);
    while (ks->records != NULL) {
        struct pl_kernel_record *r = ks->records;
        ks->records = r->next;
        free_record(ks, r);
    }
    pl_free(ks->wanted);
    pl_gemm_close(ks->gemm);
    pl_device_stream_destroy(ks->device, &ks->stream);
    pl_jit_destroy(ks->jit);
    pl_device_close(ks->device);
    *ks = (struct pl_kernels){0};
}

/* --- records --- */

static struct pl_kernel_record *find_record(struct pl_kernels *ks, const struct pl_jit_kernel *jit, const char *name) {
    for (struct pl_kernel_record *r = ks->records; r != NULL; r = r->next) {
        if (r->jit == jit && strcmp(r->name, name) == 0) return r;
    }
    return NULL;
}

static enum pl_status fill_record(struct pl_kernels *ks, const struct pl_jit_spec *spec, struct pl_kernel_record *r,
                                  struct pl_err *err) {
    bool sparse = false;
    snprintf(r->symbol, sizeof r->symbol, "%s", spec->entry);
    for (size_t i = 0; i < spec->value_count; i++) {
        pl_buf_printf(&r->variant, "%s%s=%s", i > 0 ? " " : "", spec->values[i].name, spec->values[i].text);
        sparse |= strcmp(spec->values[i].name, "SPARSE_V") == 0;
    }
    if (!pl_buf_ok(&r->variant)) PL_FAIL(err, PL_NO_MEMORY, "no memory for the record of %s", r->name);
    r->counted = !ks->uncounted;
    uint64_t bytes = (sparse ? (uint64_t)PL_COUNT_WORDS : 1) * sizeof(uint32_t);
    PL_TRY(pl_device_alloc(ks->device, bytes, &r->counter, err));
    if (sparse) {
        PL_TRY(pl_device_host_alloc(ks->device, bytes, (void **)&r->values, err));
        memset(r->values, 0, bytes);
    }
    return pl_device_fill(ks->device, ks->stream, &r->counter, 0, err);
}

/* The same kernel made again goes on in its record. */
static enum pl_status take_record(struct pl_kernels *ks, const struct pl_jit_spec *spec, const struct pl_kernel *k,
                                  struct pl_kernel_record **out, struct pl_err *err) {
    struct pl_kernel_record *r = find_record(ks, k->jit, k->name);
    if (r == NULL) {
        r = pl_calloc(1, sizeof *r);
        if (r == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the record of %s", k->name);
        r->jit = k->jit;
        memcpy(r->name, k->name, sizeof r->name);
        enum pl_status st = fill_record(ks, spec, r, err);
        if (st != PL_OK) {
            free_record(ks, r);
            return st;
        }
        r->next = ks->records;
        ks->records = r;
    }
    *out = r;
    return PL_OK;
}

/* --- planning --- */

void pl_kernels_plan_begin(struct pl_kernels *ks) {
    ks->planning = true;
    ks->wanted_count = 0;
}

static bool same_spec(const struct pl_jit_spec *a, const struct pl_jit_spec *b) {
    if (strcmp(a->file, b->file) != 0 || strcmp(a->entry, b->entry) != 0 || a->value_count != b->value_count) return false;
    for (size_t i = 0; i < a->value_count; i++) {
        if (strcmp(a->values[i].name, b->values[i].name) != 0 || strcmp(a->values[i].text, b->values[i].text) != 0)
            return false;
    }
    return true;
}

static enum pl_status want(struct pl_kernels *ks, const struct pl_jit_spec *spec, struct pl_err *err) {
    for (size_t i = 0; i < ks->wanted_count; i++) {
        if (same_spec(&ks->wanted[i], spec)) return PL_OK;
    }
    if (pl_grow(&ks->wanted, &ks->wanted_cap, ks->wanted_count + 1, sizeof *ks->wanted) != PL_OK) {
        PL_FAIL(err, PL_NO_MEMORY, "no memory for a list of kernels");
    }
    ks->wanted[ks->wanted_count++] = *spec;
    return PL_OK;
}

enum pl_status pl_kernels_plan_end(struct pl_kernels *ks, struct pl_err *err) {
    size_t compiled = 0;
    ks->planning = ks->recording = false;
    enum pl_status st = pl_jit_prepare(ks->jit, ks->wanted, ks->wanted_count, &compiled, err);
    pl_free(ks->wanted);
    ks->wanted = NULL;
    ks->wanted_count = ks->wanted_cap = 0;
    return st;
}

enum pl_status pl_kernel_make(struct pl_kernels *ks, const struct pl_jit_spec *spec, uint32_t group, const char *name,
                              struct pl_kernel *out, struct pl_err *err) {
    struct pl_kernel k = {.group = group};
    struct pl_jit_spec s = *spec;
    snprintf(k.name, sizeof k.name, "%s/%s", pl_device_kind_name(pl_device_info(ks->device)->kind), name);
    if (ks->uncounted) pl_jit_set(&s, "PL_UNCOUNTED", "1");
    if (ks->every_lane) pl_jit_set(&s, "EVERY_LANE", "1");
    if (ks->planning) {
        PL_TRY(want(ks, &s, err));
        *out = k;
        return PL_OK;
    }
    PL_TRY(pl_jit_get(ks->jit, &s, &k.jit, err));
    PL_TRY(take_record(ks, &s, &k, &k.record, err));
    k.counter = k.record->counter;
    *out = k;
    return PL_OK;
}

void pl_kernel_free(struct pl_kernels *ks, struct pl_kernel *k) {
    (void)ks; /* the record and its counter stay: what ran stays known */
    *k = (struct pl_kernel){0};
}

enum pl_status pl_kernel_record_counted(struct pl_kernels *ks, const struct pl_kernel_record *r, uint64_t *launches,
                                        struct pl_err *err) {
    uint32_t n = 0;
    if (r->counter.handle != NULL) {
        PL_TRY(pl_device_download(ks->device, ks->stream, &n, &r->counter, 0, sizeof n, err));
        PL_TRY(pl_device_stream_wait(ks->device, ks->stream, err));
    }
    *launches = n;
    return PL_OK;
}
enum pl_status pl_kernel_counted(struct pl_kernels *ks, const struct pl_kernel *k, uint64_t *launches, struct pl_err *err) {
    *launches = 0;
    return k->record != NULL ? pl_kernel_record_counted(ks, k->record, launches, err) : PL_OK;
}

enum pl_status pl_kernels_fetch_values(struct pl_kernels *ks) {
    for (struct pl_kernel_record *r = ks->records; r != NULL; r = r->next) {
        if (r->values == NULL) continue;
        PL_TRY(pl_device_download(ks->device, ks->stream, r->values, &r->counter, 0, PL_COUNT_WORDS * sizeof(uint32_t),
                                  &ks->err));
    }
    return PL_OK;
}
void pl_kernels_values(const struct pl_kernels *ks, uint64_t *rows, uint64_t *skipped) {
    *rows = *skipped = 0;
    for (const struct pl_kernel_record *r = ks->records; r != NULL; r = r->next) {
        const volatile uint32_t *v = r->values; /* the device may be writing */
        if (v == NULL) continue;
        *rows += (uint64_t)v[PL_COUNT_VALUES + 1] << 32 | v[PL_COUNT_VALUES];
        *skipped += (uint64_t)v[PL_COUNT_SKIPPED + 1] << 32 | v[PL_COUNT_SKIPPED];
    }
}

void pl_kernels_reset_counts(struct pl_kernels *ks) {
    for (struct pl_kernel_record *r = ks->records; r != NULL; r = r->next) {
        struct pl_err err = {0};
        r->eager = r->graph = 0;
        if (r->values != NULL) memset(r->values, 0, PL_COUNT_WORDS * sizeof(uint32_t));
        if (r->counter.handle == NULL) continue;
        if (pl_device_fill(ks->device, ks->stream, &r->counter, 0, &err) != PL_OK) pl_log("%s", err.text);
    }
}

/* Tests make a launch disappear: the host counts it, the device cannot. */
static bool count_launch(struct pl_kernels *ks, struct pl_kernel_record *r) {
    if (r == NULL) return true;
    if (ks->recording) {
        r->graph++;
    } else {
        r->eager++;
    }
    return ks->skipped == NULL || strcmp(ks->skipped, r->name) != 0;
}

/* --- the collected list: records of fixed head and arguments padded to eight bytes; a product of the library has no
 * function and one argument, the call --- */

struct record {
    struct pl_device_function function;
    uint32_t grid[3], group[3], shared_bytes, arg_count, overlap, pad;
};
struct record_arg {
    uint64_t size; /* 0: a buffer's handle follows */
};

static void collect(struct pl_kernels *ks, const struct pl_device_launch *l) {
    struct record r = {.function = l->function,
                       .shared_bytes = l->shared_bytes,
                       .arg_count = (uint32_t)l->arg_count,
                       .overlap = l->overlap};
    memcpy(r.grid, l->grid, sizeof r.grid);
    memcpy(r.group, l->group, sizeof r.group);
    pl_buf_add(&ks->list, &r, sizeof r);
    for (size_t i = 0; i < l->arg_count; i++) {
        const struct pl_device_arg *a = &l->args[i];
        struct record_arg head = {a->value != NULL ? a->size : 0};
        uint64_t payload[16] = {0};
        PL_ASSERT(head.size <= sizeof payload);
        if (a->value != NULL) memcpy(payload, a->value, a->size);
        if (a->value == NULL && a->buffer != NULL) memcpy(payload, &a->buffer->handle, sizeof a->buffer->handle);
        pl_buf_add(&ks->list, &head, sizeof head);
        pl_buf_add(&ks->list, payload, PL_MAX((head.size + 7) / 8 * 8, (uint64_t)8));
    }
}

static enum pl_status replay_one(struct pl_kernels *ks, const char *at, size_t *used) {
    struct record r;
    memcpy(&r, at, sizeof r);
    size_t pos = sizeof r;
    struct pl_device_arg args[PL_DEVICE_ARGS_MAX];
    struct pl_device_buffer buffers[PL_DEVICE_ARGS_MAX];
    uint64_t values[PL_DEVICE_ARGS_MAX][16];
    for (uint32_t i = 0; i < r.arg_count; i++) {
        struct record_arg head;
        memcpy(&head, at + pos, sizeof head);
        size_t padded = PL_MAX((head.size + 7) / 8 * 8, (uint64_t)8);
        memcpy(values[i], at + pos + sizeof head, padded);
        pos += sizeof head + padded;
        buffers[i] = (struct pl_device_buffer){0};
        if (head.size == 0) memcpy(&buffers[i].handle, values[i], sizeof buffers[i].handle);
        args[i] = head.size == 0 ? (struct pl_device_arg){.buffer = &buffers[i]}
                                 : (struct pl_device_arg){.value = values[i], .size = head.size};
    }
    *used = pos;
    if (r.function.handle == NULL) {
        struct pl_gemm_call call;
        memcpy(&call, values[0], sizeof call);
        return pl_gemm_run(ks->gemm, ks->stream, &call, &ks->err);
    }
    struct pl_device_launch l = {.function = r.function,
                                 .shared_bytes = r.shared_bytes,
                                 .args = args,
                                 .arg_count = r.arg_count,
                                 .overlap = r.overlap != 0};
    memcpy(l.grid, r.grid, sizeof l.grid);
    memcpy(l.group, r.group, sizeof l.group);
    return pl_device_launch(ks->device, ks->stream, &l, &ks->err);
}

static enum pl_status replay(struct pl_kernels *ks) {
    for (size_t at = 0; at < ks->list.len;) {
        size_t used = 0;
        PL_TRY(replay_one(ks, ks->list.data + at, &used));
        at += used;
    }
    return PL_OK;
}

/* The list holds whole words of eight bytes. */
static uint64_t hash_of(const struct pl_buf *list) {
    uint64_t h = list->len;
    for (size_t at = 0; at + sizeof h <= list->len; at += sizeof h) {
        uint64_t word;
        memcpy(&word, list->data + at, sizeof word);
        h = (h ^ word) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h | 1; /* 0: never met */
}

static struct pl_kernel_graph *graph_of(struct pl_kernels *ks, uint64_t hash) {
    for (size_t i = 0; i < PL_GRAPHS_MAX; i++) {
        struct pl_kernel_graph *g = &ks->cache[i];
        if (g->graph.handle == NULL || g->hash != hash || g->list.len != ks->list.len) continue;
        if (memcmp(g->list.data, ks->list.data, ks->list.len) == 0) return g;
    }
    return NULL;
}

static enum pl_status make_graph(struct pl_kernels *ks, uint64_t hash, struct pl_kernel_graph **out) {
    enum { FLYING = 8 }; /* launches that may not have ended: those of two steps */
    struct pl_kernel_graph *g = &ks->cache[0];
    uint64_t began = pl_clock_ns();
    for (size_t i = 1; i < PL_GRAPHS_MAX; i++) {
        if (ks->cache[i].used < g->used) g = &ks->cache[i];
    }
    if (g->graph.handle != NULL && g->used + FLYING > ks->clock)
        PL_TRY(pl_device_stream_wait(ks->device, ks->stream, &ks->err));
    pl_device_graph_destroy(ks->device, &g->graph);
    pl_buf_clear(&g->list);
    pl_buf_add(&g->list, ks->list.data, ks->list.len);
    if (!pl_buf_ok(&g->list)) return PL_NO_MEMORY;
    PL_TRY(pl_device_capture_begin(ks->device, ks->stream, &ks->err));
    enum pl_status st = replay(ks);
    struct pl_device_graph graph = {0};
    if (st != PL_OK) { /* that failure is what is told */
        pl_device_capture_drop(ks->device, ks->stream);
        return st;
    }
    PL_TRY(pl_device_capture_end(ks->device, ks->stream, &graph, &ks->err));
    g->graph = graph;
    g->hash = hash;
    ks->graphs_made++;
    ks->graphs_ns += pl_clock_ns() - began;
    *out = g;
    return PL_OK;
}

void pl_kernels_record_begin(struct pl_kernels *ks) {
    PL_ASSERT(!ks->recording);
    ks->recording = ks->graphs;
    ks->collected = ks->part = 0;
    pl_buf_clear(&ks->list);
}

static const uint32_t lengths[] = {12, 72}; /* launches of a step's parts but the last */
void pl_kernels_record_whole(struct pl_kernels *ks) { ks->part = PL_COUNT_OF(lengths); }

/* What was collected runs now, so that the device is busy while the rest is collected: a short part first. */
static enum pl_status run_part(struct pl_kernels *ks) {
    if (ks->part >= PL_COUNT_OF(lengths) || ++ks->collected < lengths[ks->part]) return PL_OK;
    uint32_t next = ks->part + 1;
    PL_TRY(pl_kernels_record_end(ks));
    pl_kernels_record_begin(ks);
    ks->part = next;
    return PL_OK;
}

enum pl_status pl_kernels_record_end(struct pl_kernels *ks) {
    if (!ks->recording) return PL_OK;
    ks->recording = false;
    if (!pl_buf_ok(&ks->list)) {
        pl_buf_deinit(&ks->list);
        return PL_NO_MEMORY;
    }
    if (ks->list.len == 0) return PL_OK;
    uint64_t hash = hash_of(&ks->list), *met = &ks->met[hash / 2 % PL_GRAPHS_MET];
    struct pl_kernel_graph *g = graph_of(ks, hash);
    if (g == NULL &&
        *met != hash) { /* most of what a server meets once never comes again: a graph costs more than it saves */
        *met = hash;
        ks->launched_once++;
        return replay(ks);
    }
    if (g == NULL) PL_TRY(make_graph(ks, hash, &g));
    g->used = ++ks->clock;
    ks->graph_launches++;
    return pl_device_graph_launch(ks->device, ks->stream, g->graph, &ks->err);
}

enum pl_status pl_kernel_launch(struct pl_kernels *ks, struct pl_kernel *k, uint32_t gx, uint32_t gy, uint32_t shared_bytes,
                                const struct pl_device_arg *args, size_t count) {
    if (ks->planning) return PL_OK;
    struct pl_device_launch l = {.function = k->jit->function,
                                 .grid = {gx, gy, 1},
                                 .group = {k->group, 1, 1},
                                 .shared_bytes = shared_bytes,
                                 .args = args,
                                 .arg_count = count,
                                 .overlap = ks->overlap};
    if (!count_launch(ks, k->record)) return PL_OK;
    if (ks->recording) {
        collect(ks, &l);
        return run_part(ks);
    }
    return pl_device_launch(ks->device, ks->stream, &l, &ks->err);
}

/* Calls of the library stand in a record of their own, which no kernel counts. */
static struct pl_kernel_record *library_record(struct pl_kernels *ks) {
    struct pl_kernel_record *r = find_record(ks, NULL, "cuda/cublaslt/bf16");
    if (r != NULL || (r = pl_calloc(1, sizeof *r)) == NULL) return r;
    snprintf(r->name, sizeof r->name, "cuda/cublaslt/bf16");
    snprintf(r->symbol, sizeof r->symbol, "cublasLtMatmul");
    r->next = ks->records;
    ks->records = r;
    return r;
}

enum pl_status pl_kernel_gemm(struct pl_kernels *ks, const struct pl_gemm_call *c) {
    if (ks->planning || !count_launch(ks, library_record(ks))) return PL_OK;
    struct pl_device_arg arg = PL_ARG_VALUE(*c);
    struct pl_device_launch l = {.args = &arg, .arg_count = 1};
    if (!ks->recording) return pl_gemm_run(ks->gemm, ks->stream, c, &ks->err);
    collect(ks, &l);
    return run_part(ks);
}
