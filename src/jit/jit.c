#include "jit/jit.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/progress.h"
#include "jit/key.h"
#include "jit/pack.h"
#include "jit/store.h"

struct loaded {
    struct pl_buf key;
    struct pl_device_module module;
    struct pl_jit_kernel kernel;
};

/* Compiled ahead of being asked for. */
struct prepared {
    struct prepared *next;
    struct pl_buf source, key, image;
    char hash[33];
    const struct pl_jit_spec *spec; /* only while it is compiled */
    enum pl_status status;
    struct pl_err err;
};

struct pl_jit {
    struct pl_device *device;
    struct prepared *prepared;
    struct pl_jit_pack pack; /* open: there is no compiler, shipped code serves */
    char why_not[400];       /* what is missing then */
    enum pl_jit_mode mode;
    char compiler[192];
    struct pl_jit_store store;
    struct pl_jit_stats stats;
    struct loaded **loaded; /* pointers: handed-out kernels must not move */
    size_t count, cap;
    enum pl_jit_field weak, mutated;
    char suffix[32];
};

static const char *const mode_names[] = {[PL_JIT_OFF] = "off", [PL_JIT_ON] = "on", [PL_JIT_VERIFY] = "verify"};

const char *pl_jit_mode_name(enum pl_jit_mode m) { return m < PL_COUNT_OF(mode_names) ? mode_names[m] : "?"; }
const char *pl_jit_origin_name(enum pl_jit_origin o) {
    static const char *const names[] = {"compiled", "cache", "shipped"};
    return o < PL_COUNT_OF(names) ? names[o] : "?";
}

bool pl_jit_mode_from_name(const char *name, enum pl_jit_mode *out) {
    for (size_t i = 0; i < PL_COUNT_OF(mode_names); i++) {
        if (strcmp(mode_names[i], name) != 0) continue;
        *out = (enum pl_jit_mode)i;
        return true;
    }
    return false;
}

enum pl_status pl_jit_create(struct pl_device *d, const struct pl_jit_options *opt, struct pl_jit **out,
                             struct pl_err *err) {
    struct pl_jit *j = pl_calloc(1, sizeof *j);
    if (j == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the kernel cache");
    j->device = d;
    j->mode = opt->mode;
    j->weak = j->mutated = PL_JIT_FIELD_COUNT;
    if (pl_fault("weak-key")) j->weak = PL_JIT_FIELD_VALUES;
    struct pl_err missing = {0};
    enum pl_status st = pl_device_compiler(d, pl_device_info(d)->kind, j->compiler, sizeof j->compiler, &missing);
    if (st == PL_NOT_FOUND && pl_jit_pack_open(&j->pack, pl_device_info(d))) {
        snprintf(j->compiler, sizeof j->compiler, "none; shipped code by %s", j->pack.compiler);
        snprintf(j->why_not, sizeof j->why_not, "%.390s", missing.text);
        pl_log("kernels: no compiler here; shipped code serves: %zu kernels for %s. The faster forms of %s are compiled "
               "where NVRTC is: the CUDA toolkit, or pip install nvidia-cuda-nvrtc",
               j->pack.count, j->pack.target, pl_device_info(d)->target);
        st = PL_OK;
    }
    if (st != PL_OK) {
        if (err != NULL) *err = missing;
        pl_free(j);
        return st;
    }
    pl_jit_store_open(&j->store, opt, &j->stats);
    *out = j;
    return PL_OK;
}

static void unload(struct pl_jit *j, struct loaded *l) {
    pl_device_function_release(j->device, &l->kernel.function);
    pl_device_module_unload(j->device, &l->module);
    pl_buf_deinit(&l->key);
    pl_free(l);
}

static void free_prepared(struct prepared *p) {
    pl_buf_deinit(&p->source);
    pl_buf_deinit(&p->key);
    pl_buf_deinit(&p->image);
    pl_free(p);
}

void pl_jit_destroy(struct pl_jit *j) {
    if (j == NULL) return;
    while (j->prepared != NULL) {
        struct prepared *p = j->prepared;
        j->prepared = p->next;
        free_prepared(p);
    }
    pl_jit_pack_close(&j->pack);
    for (size_t i = 0; i < j->count; i++) unload(j, j->loaded[i]);
    pl_free(j->loaded);
    pl_free(j);
}

struct pl_jit_stats pl_jit_stats(const struct pl_jit *j) {
    return j->stats;
}
const char *pl_jit_dir(const struct pl_jit *j) { return j->store.dir; }
enum pl_jit_mode pl_jit_mode(const struct pl_jit *j) { return j->mode; }
const char *pl_jit_compiler(const struct pl_jit *j) { return j->compiler; }
bool pl_jit_shipped(const struct pl_jit *j) { return j->pack.count > 0; }
void pl_jit_test_weaken(struct pl_jit *j, enum pl_jit_field field) { j->weak = field; }
void pl_jit_test_mutate(struct pl_jit *j, enum pl_jit_field field, const char *suffix) {
    j->mutated = field;
    snprintf(j->suffix, sizeof j->suffix, "%s", suffix != NULL ? suffix : "");
}

/* --- options per kind --- */

static const char *const cuda_options[] = {"--std=c++17", "--fmad=true", "-default-device", "--diag-suppress=177",
                                           "-DPL_TARGET_CUDA=1"};
static const char *const rocm_options[] = {"-std=c++17", "-O3", "-DPL_TARGET_HIP=1"};
static const char *const opencl_options[] = {"-cl-std=CL1.2", "-DPL_TARGET_OPENCL=1"};

void pl_jit_compile_options(enum pl_device_kind kind, struct pl_device_source *src) {
    switch (kind) {
    case PL_DEVICE_CUDA:
        src->options = cuda_options;
        src->option_count = PL_COUNT_OF(cuda_options);
        return;
    case PL_DEVICE_ROCM:
        src->options = rocm_options;
        src->option_count = PL_COUNT_OF(rocm_options);
        return;
    case PL_DEVICE_OPENCL:
        src->options = opencl_options;
        src->option_count = PL_COUNT_OF(opencl_options);
        return;
    case PL_DEVICE_KIND_COUNT: break;
    }
    PL_ASSERT(kind < PL_DEVICE_KIND_COUNT);
}

static void make_key(const struct pl_jit *j, const struct pl_jit_spec *spec, const struct pl_device_source *src,
                     const struct pl_buf *source, struct pl_buf *key) {
    const struct pl_device_info *info = pl_device_info(j->device);
    struct pl_jit_key_of k = {info->kind, info->target, j->compiler, j->weak, j->mutated, j->suffix};
    pl_jit_key_make(&k, spec, src, source, key);
}

/* --- one kernel --- */

/* Touches nothing of j that changes, so several threads may be here. */
static enum pl_status compile_only(const struct pl_jit *j, const struct pl_device_source *src, struct pl_buf *image,
                                   struct pl_err *err) {
    struct pl_buf log = {0};
    enum pl_status st = pl_device_compile(j->device, pl_device_info(j->device)->kind, NULL, src, image, &log, err);
    pl_buf_deinit(&log);
    return st;
}
static enum pl_status compile(struct pl_jit *j, const struct pl_device_source *src, struct pl_buf *image,
                              struct pl_err *err) {
    PL_TRY(compile_only(j, src, image, err));
    j->stats.compiled++;
    return PL_OK;
}

/* Machine code is reproducible where the compiler is NVRTC or hipRTC. An OpenCL driver's binaries need not be (PoCL's hold
 * its own cache and paths): there the fresh code is what runs, and the difference is counted. */
static enum pl_status verify(struct pl_jit *j, const struct pl_device_source *src, struct pl_buf *stored,
                             struct pl_err *err) {
    struct pl_buf fresh = {0};
    bool exact = pl_device_info(j->device)->kind != PL_DEVICE_OPENCL;
    PL_TRY(compile(j, src, &fresh, err));
    if (fresh.len == stored->len && memcmp(fresh.data, stored->data, fresh.len) == 0) {
        pl_buf_deinit(&fresh);
        return PL_OK;
    }
    char text[300];
    snprintf(text, sizeof text,
             "kernel cache: the stored code of %.100s (%zu bytes) differs from a fresh compilation (%zu bytes)", src->name,
             stored->len, fresh.len);
    j->stats.differed++;
    pl_buf_deinit(exact ? &fresh : stored);
    if (exact) PL_FAIL(err, PL_INTERNAL, "%s", text);
    *stored = fresh;
    if (j->stats.differed == 1) {
        pl_log("%s; code of OpenCL drivers is not reproducible: the fresh code runs", text);
    }
    return PL_OK;
}

static bool same_key(const struct pl_buf *a, const struct pl_buf *b) {
    return a->len == b->len && memcmp(a->data, b->data, a->len) == 0;
}

static bool take_prepared(struct pl_jit *j, const struct pl_buf *key, const char *hash, struct pl_buf *image) {
    for (struct prepared **at = &j->prepared; *at != NULL; at = &(*at)->next) {
        struct prepared *p = *at;
        if (strcmp(p->hash, hash) != 0 || !same_key(&p->key, key)) continue;
        *at = p->next;
        *image = p->image;
        p->image = (struct pl_buf){0};
        free_prepared(p);
        return true;
    }
    return false;
}

static enum pl_status obtain_image(struct pl_jit *j, const struct pl_device_source *src, const struct pl_buf *key,
                                   const char *hash, struct pl_buf *image, enum pl_jit_origin *origin, struct pl_err *err) {
    *origin = PL_JIT_COMPILED;
    if (take_prepared(j, key, hash, image)) return PL_OK;
    if (pl_jit_store_find(&j->store, key, hash, image)) {
        j->stats.disk_hits++;
        *origin = PL_JIT_CACHED;
        return j->mode == PL_JIT_VERIFY ? verify(j, src, image, err) : PL_OK;
    }
    pl_buf_clear(image);
    PL_TRY(compile(j, src, image, err));
    pl_jit_store_put(&j->store, key, hash, image);
    return PL_OK;
}

/* Without a compiler: code whose key, text by text, is this kernel's for a target this device runs. */
static enum pl_status take_shipped(struct pl_jit *j, const struct pl_jit_spec *spec, const struct pl_device_source *src,
                                   const struct pl_buf *source, struct pl_buf *image, struct pl_err *err) {
    struct pl_buf key = {0};
    enum pl_status st = PL_OK;
    struct pl_jit_key_of k = {
        pl_device_info(j->device)->kind, j->pack.target, PL_JIT_SHIPPED_BY, j->weak, j->mutated, j->suffix};
    pl_jit_key_make(&k, spec, src, source, &key);
    if (pl_jit_pack_find(&j->pack, &key, image)) {
        j->stats.shipped++;
    } else {
        char values[300] = "";
        for (size_t i = 0, n = 0; i < spec->value_count && n < sizeof values; i++)
            n += (size_t)snprintf(values + n, sizeof values - n, " %s=%s", spec->values[i].name, spec->values[i].text);
        st = pl_err_set(err, __FILE__, __LINE__, PL_NOT_FOUND,
                        "the kernel %s (%.200s) is not among the shipped ones, and to compile it: %s", spec->entry,
                        values + 1, j->why_not);
    }
    pl_buf_deinit(&key);
    return st;
}

static enum pl_status load(struct pl_jit *j, const struct pl_jit_spec *spec, const struct pl_buf *image, struct loaded *l,
                           struct pl_err *err) {
    PL_TRY(pl_device_module_load(j->device, image->data, image->len, &l->module, err));
    return pl_device_function(j->device, l->module, spec->entry, &l->kernel.function, err);
}

/* Takes the key's memory on success. */
static enum pl_status add(struct pl_jit *j, const struct pl_jit_spec *spec, const struct pl_device_source *src,
                          const struct pl_buf *source, struct pl_buf *key, const char *hash, struct loaded **out,
                          struct pl_err *err) {
    struct pl_buf image = {0};
    bool shipped = j->pack.count > 0;
    struct loaded *l = pl_calloc(1, sizeof *l);
    enum pl_status st = l == NULL || pl_grow(&j->loaded, &j->cap, j->count + 1, sizeof *j->loaded) != PL_OK
                            ? pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory to load %s", spec->entry)
                        : shipped ? take_shipped(j, spec, src, source, &image, err)
                                  : obtain_image(j, src, key, hash, &image, &l->kernel.origin, err);
    if (l != NULL && shipped) l->kernel.origin = PL_JIT_SHIPPED;
    if (st == PL_OK) st = load(j, spec, &image, l, err);
    pl_buf_deinit(&image);
    if (st != PL_OK) {
        if (l != NULL) unload(j, l);
        return st;
    }
    l->key = *key;
    *key = (struct pl_buf){0};
    memcpy(l->kernel.hash, hash, sizeof l->kernel.hash);
    j->loaded[j->count++] = l;
    j->stats.loaded++;
    *out = l;
    return PL_OK;
}

static struct loaded *find_loaded(struct pl_jit *j, const struct pl_buf *key, const char *hash) {
    for (size_t i = 0; i < j->count; i++) {
        struct loaded *l = j->loaded[i];
        if (strcmp(l->kernel.hash, hash) != 0) continue;
        if (same_key(&l->key, key)) return l;
    }
    return NULL;
}

/* The source of spec, its key and the hash of that. src->text points into source. */
static enum pl_status identify(const struct pl_jit *j, const struct pl_jit_spec *spec, struct pl_device_source *src,
                               struct pl_buf *source, struct pl_buf *key, char hash[33], struct pl_err *err) {
    *src = (struct pl_device_source){.name = spec->file != NULL ? spec->file : spec->entry};
    PL_TRY(pl_jit_source(spec, source, err));
    src->text = pl_buf_cstr(source);
    pl_jit_compile_options(pl_device_info(j->device)->kind, src);
    make_key(j, spec, src, source, key);
    if (!pl_buf_ok(key)) PL_FAIL(err, PL_NO_MEMORY, "no memory for a kernel's key");
    pl_hash128_hex(key->data, key->len, hash);
    return PL_OK;
}

enum pl_status pl_jit_get(struct pl_jit *j, const struct pl_jit_spec *spec, const struct pl_jit_kernel **out,
                          struct pl_err *err) {
    struct pl_buf source = {0}, key = {0};
    char hash[33];
    struct loaded *l = NULL;
    struct pl_device_source src;
    enum pl_status st = identify(j, spec, &src, &source, &key, hash, err);
    if (st == PL_OK) {
        l = find_loaded(j, &key, hash);
        if (l != NULL) {
            j->stats.memory_hits++;
        } else {
            st = add(j, spec, &src, &source, &key, hash, &l, err);
        }
    }
    pl_buf_deinit(&source);
    pl_buf_deinit(&key);
    if (st != PL_OK) return pl_err_note(err, "preparing the kernel %s", spec->entry), st;
    *out = &l->kernel;
    return PL_OK;
}

/* --- many kernels at once --- */

static bool is_known(struct pl_jit *j, const struct prepared *n) {
    for (const struct prepared *p = j->prepared; p != NULL; p = p->next) {
        if (strcmp(p->hash, n->hash) == 0 && same_key(&p->key, &n->key)) return true;
    }
    if (find_loaded(j, &n->key, n->hash) != NULL) return true;
    struct pl_buf stored = {0};
    bool found = pl_jit_store_find(&j->store, &n->key, n->hash, &stored);
    pl_buf_deinit(&stored);
    return found;
}

static enum pl_status add_job(struct pl_jit *j, const struct pl_jit_spec *spec, size_t *jobs, struct pl_err *err) {
    struct pl_device_source src;
    struct prepared *n = pl_calloc(1, sizeof *n);
    if (n == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory to compile %s", spec->entry);
    enum pl_status st = identify(j, spec, &src, &n->source, &n->key, n->hash, err);
    if (st != PL_OK || is_known(j, n)) {
        free_prepared(n);
        return st;
    }
    n->spec = spec;
    n->next = j->prepared;
    j->prepared = n;
    (*jobs)++;
    return PL_OK;
}

struct prepare_job {
    struct pl_jit *j;
    struct prepared **list;
    size_t count;
    _Atomic size_t next, done;
};
static void prepare_one(const struct prepare_job *job, size_t i) {
    struct prepared *p = job->list[i];
    struct pl_device_source src = {.name = p->spec->file != NULL ? p->spec->file : p->spec->entry,
                                   .text = pl_buf_cstr(&p->source)};
    pl_jit_compile_options(pl_device_info(job->j->device)->kind, &src);
    p->status = compile_only(job->j, &src, &p->image, &p->err);
}
static void prepare_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    struct prepare_job *job = arg;
    for (size_t i; (i = atomic_fetch_add(&job->next, 1)) < job->count;) {
        prepare_one(job, i);
        pl_log_progress("compiling kernels", atomic_fetch_add(&job->done, 1) + 1, job->count);
    }
}

static enum pl_status run_jobs(struct pl_jit *j, size_t jobs, struct pl_err *err) {
    struct prepare_job job = {.j = j, .list = pl_calloc(jobs, sizeof *job.list)};
    struct pl_pool *pool = NULL;
    if (job.list == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory to compile %zu kernels", jobs);
    for (struct prepared *p = j->prepared; p != NULL; p = p->next) {
        if (p->spec != NULL && job.count < jobs) job.list[job.count++] = p;
    }
    size_t threads = PL_MIN((size_t)pl_cpu_count(), jobs);
    if (pl_device_info(j->device)->kind == PL_DEVICE_ROCM) threads = 1; /* hipRTC 5.2 dies when two compile at once */
    enum pl_status st = pl_pool_create((int)threads, &pool, err);
    if (st == PL_OK) {
        pl_log_progress("compiling kernels", 0, job.count);
        pl_pool_run(pool, prepare_worker, &job);
        pl_pool_destroy(pool);
        pl_log_progress_end();
    }
    for (size_t i = 0; i < job.count && st == PL_OK; i++) {
        struct prepared *p = job.list[i];
        if (p->status != PL_OK) {
            if (err != NULL) *err = p->err;
            st = p->status;
            continue;
        }
        j->stats.compiled++;
        pl_jit_store_put(&j->store, &p->key, p->hash, &p->image);
    }
    pl_free(job.list);
    return st;
}

static void drop_unfinished(struct pl_jit *j) {
    for (struct prepared **at = &j->prepared; *at != NULL;) {
        struct prepared *p = *at;
        p->spec = NULL;
        if (p->image.len > 0 && p->status == PL_OK) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        free_prepared(p);
    }
}

/* Without a compiler: what is not shipped is told now, before any of it is needed. */
static enum pl_status check_shipped(struct pl_jit *j, const struct pl_jit_spec *specs, size_t count, struct pl_err *err) {
    enum pl_status st = PL_OK;
    for (size_t i = 0; i < count && st == PL_OK; i++) {
        struct pl_buf source = {0}, key = {0}, image = {0};
        struct pl_device_source src;
        char hash[33];
        uint64_t before = j->stats.shipped;
        st = identify(j, &specs[i], &src, &source, &key, hash, err);
        if (st == PL_OK) st = take_shipped(j, &specs[i], &src, &source, &image, err);
        j->stats.shipped = before; /* only asked */
        pl_buf_deinit(&source);
        pl_buf_deinit(&key);
        pl_buf_deinit(&image);
    }
    return st;
}

enum pl_status pl_jit_prepare(struct pl_jit *j, const struct pl_jit_spec *specs, size_t count, size_t *compiled,
                              struct pl_err *err) {
    size_t jobs = 0;
    enum pl_status st = PL_OK;
    *compiled = 0;
    if (j->pack.count > 0) return check_shipped(j, specs, count, err);
    if (j->mode == PL_JIT_VERIFY) return PL_OK;
    for (size_t i = 0; i < count && st == PL_OK; i++) st = add_job(j, &specs[i], &jobs, err);
    if (st == PL_OK && jobs > 0) {
        uint64_t start = pl_clock_ns();
        pl_log("compiling %zu kernel%s for %.80s", jobs, jobs == 1 ? "" : "s", pl_device_info(j->device)->target);
        st = run_jobs(j, jobs, err);
        if (st == PL_OK) pl_log("compiled in %.1f s", (double)(pl_clock_ns() - start) / 1e9);
    }
    drop_unfinished(j);
    if (st == PL_OK) *compiled = jobs;
    return st;
}
