#include "jit/jit.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "jit/store.h"

/* Raised when the meaning of an argument struct or of the launch convention changes without a change in any source. */
#define ABI_VERSION "plumb kernel ABI 1"

struct loaded {
    struct pl_buf key;
    struct pl_device_module module;
    struct pl_jit_kernel kernel;
};

struct pl_jit {
    struct pl_device *device;
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
    enum pl_status st = pl_device_compiler(d, pl_device_info(d)->kind, j->compiler, sizeof j->compiler, err);
    if (st != PL_OK) {
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

void pl_jit_destroy(struct pl_jit *j) {
    if (j == NULL) return;
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

/* --- the key --- */

static void add_field(const struct pl_jit *j, struct pl_buf *key, enum pl_jit_field field, const char *text, size_t len) {
    static const char *const names[PL_JIT_FIELD_COUNT] = {
#define PL_JIT_FIELD_NAME(name) #name,
        PL_JIT_FIELD_LIST(PL_JIT_FIELD_NAME)};
    if (j->weak == field) return;
    const char *suffix = j->mutated == field ? j->suffix : "";
    pl_buf_printf(key, "%s %zu:", names[field], len + strlen(suffix));
    pl_buf_add(key, text, len);
    pl_buf_add_c(key, suffix);
    pl_buf_add_char(key, '\n');
}

/* Weakened keys leave the values out, so they must not come in again at the head of the source. */
static size_t values_len(const struct pl_jit_spec *spec) {
    size_t n = 0;
    for (size_t i = 0; i < spec->value_count; i++) n += 10 + strlen(spec->values[i].name) + strlen(spec->values[i].text);
    return n;
}

static void make_key(const struct pl_jit *j, const struct pl_jit_spec *spec, const struct pl_device_source *src,
                     const struct pl_buf *source, struct pl_buf *key) {
    const struct pl_device_info *info = pl_device_info(j->device);
    const char *kind = pl_device_kind_name(info->kind);
    struct pl_buf options = {0};
    for (size_t i = 0; i < src->option_count; i++)
        pl_buf_printf(&options, "%zu:%s", strlen(src->options[i]), src->options[i]);
    size_t head = values_len(spec);
    PL_ASSERT(head <= source->len);
    add_field(j, key, PL_JIT_FIELD_ABI, ABI_VERSION, strlen(ABI_VERSION));
    add_field(j, key, PL_JIT_FIELD_KIND, kind, strlen(kind));
    add_field(j, key, PL_JIT_FIELD_TARGET, info->target, strlen(info->target));
    add_field(j, key, PL_JIT_FIELD_COMPILER, j->compiler, strlen(j->compiler));
    add_field(j, key, PL_JIT_FIELD_OPTIONS, pl_buf_cstr(&options), options.len);
    add_field(j, key, PL_JIT_FIELD_ENTRY, spec->entry, strlen(spec->entry));
    add_field(j, key, PL_JIT_FIELD_VALUES, source->data, head);
    add_field(j, key, PL_JIT_FIELD_SOURCE, source->data + head, source->len - head);
    if (options.failed) key->failed = true;
    pl_buf_deinit(&options);
}

/* --- one kernel --- */

static enum pl_status compile(struct pl_jit *j, const struct pl_device_source *src, struct pl_buf *image,
                              struct pl_err *err) {
    struct pl_buf log = {0};
    enum pl_status st = pl_device_compile(j->device, pl_device_info(j->device)->kind, NULL, src, image, &log, err);
    if (st == PL_OK && log.len > 0) pl_log(PL_LOG_DEBUG, "compiling %s: %.500s", src->name, pl_buf_cstr(&log));
    pl_buf_deinit(&log);
    if (st == PL_OK) j->stats.compiled++;
    return st;
}

static enum pl_status verify(struct pl_jit *j, const struct pl_device_source *src, const struct pl_buf *stored,
                             struct pl_err *err) {
    struct pl_buf fresh = {0};
    enum pl_status st = compile(j, src, &fresh, err);
    bool equal = st == PL_OK && fresh.len == stored->len && memcmp(fresh.data, stored->data, fresh.len) == 0;
    size_t fresh_len = fresh.len;
    pl_buf_deinit(&fresh);
    if (st != PL_OK) return st;
    if (equal) return PL_OK;
    PL_FAIL(err, PL_INTERNAL, "kernel cache: the stored code of %s (%zu bytes) differs from a fresh compilation (%zu bytes)",
            src->name, stored->len, fresh_len);
}

static enum pl_status obtain_image(struct pl_jit *j, const struct pl_device_source *src, const struct pl_buf *key,
                                   const char *hash, struct pl_buf *image, enum pl_jit_origin *origin, struct pl_err *err) {
    *origin = PL_JIT_COMPILED;
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

static enum pl_status load(struct pl_jit *j, const struct pl_jit_spec *spec, const struct pl_buf *image, struct loaded *l,
                           struct pl_err *err) {
    PL_TRY(pl_device_module_load(j->device, image->data, image->len, &l->module, err));
    return pl_device_function(j->device, l->module, spec->entry, &l->kernel.function, err);
}

/* Takes the key's memory on success. */
static enum pl_status add(struct pl_jit *j, const struct pl_jit_spec *spec, const struct pl_device_source *src,
                          struct pl_buf *key, const char *hash, struct loaded **out, struct pl_err *err) {
    struct pl_buf image = {0};
    struct loaded *l = pl_calloc(1, sizeof *l);
    enum pl_status st = l == NULL || pl_grow(&j->loaded, &j->cap, j->count + 1, sizeof *j->loaded) != PL_OK
                            ? pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory to load %s", spec->entry)
                            : obtain_image(j, src, key, hash, &image, &l->kernel.origin, err);
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
    *out = l;
    return PL_OK;
}

static struct loaded *find_loaded(struct pl_jit *j, const struct pl_buf *key, const char *hash) {
    for (size_t i = 0; i < j->count; i++) {
        struct loaded *l = j->loaded[i];
        if (strcmp(l->kernel.hash, hash) != 0) continue;
        if (l->key.len == key->len && memcmp(l->key.data, key->data, key->len) == 0) return l;
    }
    return NULL;
}

enum pl_status pl_jit_get(struct pl_jit *j, const struct pl_jit_spec *spec, const struct pl_jit_kernel **out,
                          struct pl_err *err) {
    struct pl_buf source = {0}, key = {0};
    char hash[33];
    struct loaded *l = NULL;
    struct pl_device_source src = {.name = spec->file != NULL ? spec->file : spec->entry};
    enum pl_status st = pl_jit_source(spec, &source, err);
    if (st == PL_OK) {
        src.text = pl_buf_cstr(&source);
        pl_jit_compile_options(pl_device_info(j->device)->kind, &src);
        make_key(j, spec, &src, &source, &key);
        if (!pl_buf_ok(&key)) st = pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for a kernel's key");
    }
    if (st == PL_OK) {
        pl_hash128_hex(key.data, key.len, hash);
        l = find_loaded(j, &key, hash);
        if (l != NULL) {
            j->stats.memory_hits++;
        } else {
            st = add(j, spec, &src, &key, hash, &l, err);
        }
    }
    pl_buf_deinit(&source);
    pl_buf_deinit(&key);
    if (st != PL_OK) return pl_err_note(err, "preparing the kernel %s", spec->entry), st;
    *out = &l->kernel;
    return PL_OK;
}
