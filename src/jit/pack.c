#include "jit/pack.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "jit/key.h"

static const char magic[8] = "PLPACK1\n";
#define PACK_BYTES_MAX (UINT64_C(1) << 30)

struct head {
    char magic[8];
    uint64_t count;
    char compiler[64], target[32];
};
struct entry_head {
    uint64_t key_bytes, image_bytes, sum;
};

/* --- reading --- */

static char *read_file(const char *path, size_t *len) {
    FILE *f = fopen(path, "rbe");
    if (f == NULL) return NULL;
    char *bytes = NULL;
    long size = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    if (size > 0 && (uint64_t)size <= PACK_BYTES_MAX && fseek(f, 0, SEEK_SET) == 0) bytes = pl_alloc((size_t)size, 1);
    if (bytes != NULL && fread(bytes, 1, (size_t)size, f) != (size_t)size) {
        pl_free(bytes);
        bytes = NULL;
    }
    fclose(f);
    if (bytes != NULL) *len = (size_t)size;
    return bytes;
}

/* The entry at *at, which is moved on; false at the end or where the file is damaged. */
static bool next_entry(const struct pl_jit_pack *p, size_t *at, struct entry_head *h, const char **key) {
    if (p->len - *at < sizeof *h) return false;
    memcpy(h, p->bytes + *at, sizeof *h);
    size_t left = p->len - *at - sizeof *h;
    if (h->key_bytes > left || h->image_bytes > left - h->key_bytes) return false;
    *key = p->bytes + *at + sizeof *h;
    *at += sizeof *h + h->key_bytes + h->image_bytes;
    return true;
}

static bool is_whole(struct pl_jit_pack *p) {
    struct head h;
    struct entry_head e;
    const char *key = NULL;
    size_t at = sizeof h, n = 0;
    if (p->len < sizeof h) return false;
    memcpy(&h, p->bytes, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0 || h.compiler[sizeof h.compiler - 1] != 0 ||
        h.target[sizeof h.target - 1] != 0)
        return false;
    while (next_entry(p, &at, &e, &key)) n++;
    p->count = n;
    snprintf(p->compiler, sizeof p->compiler, "%s", h.compiler);
    snprintf(p->target, sizeof p->target, "%s", h.target);
    return n == h.count && n > 0 && at == p->len;
}

/* "compute_80" serves "sm_80" and everything above. */
static bool serves(const char *target, const struct pl_device_info *info) {
    int least = 0, have = 0;
    return info->kind == PL_DEVICE_CUDA && sscanf(target, "compute_%d", &least) == 1 &&
           sscanf(info->target, "sm_%d", &have) == 1 && have >= least;
}

static bool open_at(struct pl_jit_pack *p, const char *path, const struct pl_device_info *info) {
    *p = (struct pl_jit_pack){0};
    p->bytes = read_file(path, &p->len);
    if (p->bytes == NULL) return false;
    if (!is_whole(p)) {
        pl_log("shipped kernels: %s is damaged and not used", path);
    } else if (!serves(p->target, info)) {
        pl_log("shipped kernels: %s is for %s, which %s does not run", path, p->target, info->target);
    } else {
        return true;
    }
    pl_jit_pack_close(p);
    return false;
}

bool pl_jit_pack_open(struct pl_jit_pack *p, const struct pl_device_info *info) {
    static const char *const places[] = {"../lib/plumb-kernels.pack", "plumb-kernels.pack"};
    const char *named = getenv("PLUMB_KERNEL_PACK");
    char self[PATH_MAX], path[PATH_MAX + 40];
    if (named != NULL && named[0] != 0) return open_at(p, named, info);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return false;
    self[n] = 0;
    char *slash = strrchr(self, '/');
    if (slash == NULL) return false;
    *slash = 0;
    for (size_t i = 0; i < PL_COUNT_OF(places); i++) {
        snprintf(path, sizeof path, "%s/%s", self, places[i]);
        if (open_at(p, path, info)) return true;
    }
    return false;
}

void pl_jit_pack_close(struct pl_jit_pack *p) {
    pl_free(p->bytes);
    *p = (struct pl_jit_pack){0};
}

bool pl_jit_pack_find(const struct pl_jit_pack *p, const struct pl_buf *key, struct pl_buf *image) {
    struct entry_head h;
    const char *k = NULL;
    for (size_t at = sizeof(struct head); next_entry(p, &at, &h, &k);) {
        if (h.key_bytes != key->len || memcmp(k, key->data, key->len) != 0) continue;
        if (pl_hash64(k, h.key_bytes + h.image_bytes, 0) != h.sum) {
            pl_log("shipped kernels: an entry is damaged and not used");
            return false;
        }
        pl_buf_add(image, k + h.key_bytes, h.image_bytes);
        return pl_buf_ok(image);
    }
    return false;
}

/* --- writing --- */

struct job {
    const struct pl_jit_spec *specs;
    struct pl_device *device;
    struct pl_buf *keys, *images;
    struct pl_err *errs;
    enum pl_status *status;
    size_t count;
    _Atomic size_t next, done;
    pl_jit_pack_progress progress;
};

static enum pl_status make_one(const struct job *j, size_t i) {
    const struct pl_device_info *info = pl_device_info(j->device);
    struct pl_buf source = {0}, log = {0};
    const struct pl_jit_spec *spec = &j->specs[i];
    struct pl_device_source src = {.name = spec->file};
    struct pl_jit_key_of k = {info->kind, info->target, PL_JIT_SHIPPED_BY, PL_JIT_FIELD_COUNT, PL_JIT_FIELD_COUNT, ""};
    enum pl_status st = pl_jit_source(spec, &source, &j->errs[i]);
    if (st == PL_OK) {
        src.text = pl_buf_cstr(&source);
        pl_jit_compile_options(info->kind, &src);
        pl_jit_key_make(&k, spec, &src, &source, &j->keys[i]);
        st = pl_device_compile(j->device, info->kind, NULL, &src, &j->images[i], &log, &j->errs[i]);
    }
    pl_buf_deinit(&source);
    pl_buf_deinit(&log);
    return st;
}
static void make_worker(void *arg, int index, int count) {
    (void)count;
    struct job *j = arg;
    for (size_t i; (i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->count;) {
        j->status[i] = make_one(j, i);
        size_t done = atomic_fetch_add_explicit(&j->done, 1, memory_order_relaxed) + 1;
        if (index == 0 && j->progress != NULL) j->progress(done, j->count);
    }
}

static enum pl_status write_pack(const struct job *j, const char *path, struct pl_err *err) {
    struct head h = {.count = j->count};
    struct pl_buf all = {0};
    memcpy(h.magic, magic, sizeof magic);
    PL_TRY(pl_device_compiler(NULL, pl_device_info(j->device)->kind, h.compiler, sizeof h.compiler, err));
    snprintf(h.target, sizeof h.target, "%.31s", pl_device_info(j->device)->target);
    pl_buf_add(&all, &h, sizeof h);
    for (size_t i = 0; i < j->count; i++) {
        struct pl_buf both = {0};
        pl_buf_add(&both, j->keys[i].data, j->keys[i].len);
        pl_buf_add(&both, j->images[i].data, j->images[i].len);
        struct entry_head e = {j->keys[i].len, j->images[i].len, pl_buf_ok(&both) ? pl_hash64(both.data, both.len, 0) : 0};
        pl_buf_add(&all, &e, sizeof e);
        pl_buf_add(&all, both.data, both.len);
        if (!pl_buf_ok(&both)) all.failed = true;
        pl_buf_deinit(&both);
    }
    enum pl_status st = PL_OK;
    FILE *f = pl_buf_ok(&all) ? fopen(path, "wbe") : NULL;
    bool written = f != NULL && fwrite(all.data, 1, all.len, f) == all.len;
    if (f == NULL || fclose(f) != 0 || !written)
        st = pl_err_set(err, __FILE__, __LINE__, PL_IO, "%.400s: cannot write the kernels: %s", path, strerror(errno));
    pl_buf_deinit(&all);
    return st;
}

enum pl_status pl_jit_pack_write(struct pl_device *d, const struct pl_jit_spec *specs, size_t count, const char *path,
                                 pl_jit_pack_progress progress, struct pl_err *err) {
    struct job j = {.specs = specs,
                    .device = d,
                    .keys = pl_calloc(count, sizeof *j.keys),
                    .images = pl_calloc(count, sizeof *j.images),
                    .errs = pl_calloc(count, sizeof *j.errs),
                    .status = pl_calloc(count, sizeof *j.status),
                    .count = count,
                    .progress = progress};
    struct pl_pool *pool = NULL;
    bool room = j.keys != NULL && j.images != NULL && j.errs != NULL && j.status != NULL;
    enum pl_status st = room ? pl_pool_create(0, &pool, err)
                             : pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for %zu kernels", count);
    if (st == PL_OK) {
        char version[64];
        st = pl_device_compiler(NULL, pl_device_info(d)->kind, version, sizeof version, err); /* opens it, on one thread */
    }
    if (st == PL_OK) pl_pool_run(pool, make_worker, &j);
    for (size_t i = 0; i < count && st == PL_OK; i++) {
        if (j.status[i] == PL_OK) continue;
        st = j.status[i];
        if (err != NULL) *err = j.errs[i];
    }
    if (st == PL_OK) st = write_pack(&j, path, err);
    for (size_t i = 0; room && i < count; i++) {
        pl_buf_deinit(&j.keys[i]);
        pl_buf_deinit(&j.images[i]);
    }
    pl_pool_destroy(pool);
    pl_free(j.keys);
    pl_free(j.images);
    pl_free(j.errs);
    pl_free(j.status);
    return st;
}
