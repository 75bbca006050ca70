#include "jit/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

static const char magic[8] = "PLJIT01\n";
enum { PATH_SIZE = 1200 };
#define FILE_BYTES_MAX (UINT64_C(256) << 20)

struct header {
    char magic[8];
    uint64_t key_bytes, image_bytes, sum;
};

static void warn_once(struct pl_jit_store *s, const char *what, const char *path) {
    if (!s->warned) {
        pl_log("kernel cache: %s %s: %s; kernels are compiled and not stored", what, path, strerror(errno));
    }
    s->warned = true;
}

static bool make_folders(char *path) {
    for (char *p = path + 1; *p != 0; p++) {
        if (*p != '/') continue;
        *p = 0;
        int rc = mkdir(path, 0700);
        *p = '/';
        if (rc != 0 && errno != EEXIST && errno != EROFS && errno != EACCES) return false;
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

static bool default_dir(char *out, size_t size) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (xdg != NULL && xdg[0] == '/') {
        n = snprintf(out, size, "%s/plumb/jit", xdg);
    } else if (home != NULL && home[0] == '/') {
        n = snprintf(out, size, "%s/.cache/plumb/jit", home);
    }
    return n > 0 && (size_t)n < size;
}

static bool is_ours(const char *dir) {
    struct stat st;
    if (lstat(dir, &st) != 0) return false;
    errno = EPERM;
    return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 077) == 0;
}

static bool name_dir(const struct pl_jit_options *opt, char *out, size_t size) {
    if (opt->dir == NULL) return default_dir(out, size);
    int n = snprintf(out, size, "%s", opt->dir);
    return n > 0 && (size_t)n < size;
}

void pl_jit_store_look(struct pl_jit_store *s, const struct pl_jit_options *opt, struct pl_jit_stats *stats) {
    *s = (struct pl_jit_store){.stats = stats};
    if (!name_dir(opt, s->dir, sizeof s->dir) || !is_ours(s->dir)) s->dir[0] = 0;
}

void pl_jit_store_open(struct pl_jit_store *s, const struct pl_jit_options *opt, struct pl_jit_stats *stats) {
    *s = (struct pl_jit_store){.max_bytes = opt->max_bytes != 0 ? opt->max_bytes : UINT64_C(512) << 20, .stats = stats};
    if (opt->mode == PL_JIT_OFF) return;
    char dir[sizeof s->dir];
    if (!name_dir(opt, dir, sizeof dir)) {
        pl_log("kernel cache: no usable folder name; kernels are compiled and not stored");
        return;
    }
    if (!make_folders(dir)) {
        warn_once(s, "cannot create", dir);
        return;
    }
    if (!is_ours(dir)) {
        warn_once(s, "must belong to this user alone (mode 0700):", dir);
        return;
    }
    memcpy(s->dir, dir, sizeof dir);
}

static void path_of(const struct pl_jit_store *s, const char *hash, const char *suffix, char out[PATH_SIZE]) {
    snprintf(out, PATH_SIZE, "%s/%s%s", s->dir, hash, suffix);
}

static bool read_all(int fd, void *to, size_t n) {
    for (size_t got = 0; got < n;) {
        ssize_t k = read(fd, (char *)to + got, n - got);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        got += (size_t)k;
    }
    return true;
}
static bool write_all(int fd, const void *from, size_t n) {
    for (size_t put = 0; put < n;) {
        ssize_t k = write(fd, (const char *)from + put, n - put);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        put += (size_t)k;
    }
    return true;
}

/* A sound file's bytes: the key, then the image. 1: sound; 0: no memory; -1: damaged. */
static int read_sound(int fd, struct header *h, char **out) {
    struct stat st;
    if (fstat(fd, &st) != 0 || !read_all(fd, h, sizeof *h) || memcmp(h->magic, magic, sizeof magic) != 0) return -1;
    if (h->key_bytes > FILE_BYTES_MAX || h->image_bytes > FILE_BYTES_MAX || h->image_bytes == 0 ||
        (uint64_t)st.st_size != sizeof *h + h->key_bytes + h->image_bytes) {
        return -1;
    }
    char *bytes = pl_alloc(h->key_bytes + h->image_bytes, 1);
    if (bytes == NULL) return 0;
    if (read_all(fd, bytes, h->key_bytes + h->image_bytes) && pl_hash64(bytes, h->key_bytes + h->image_bytes, 0) == h->sum) {
        *out = bytes;
        return 1;
    }
    pl_free(bytes);
    return -1;
}

/* 1: the key's artefact; 0: another key under the same hash, a plain miss; -1: damaged. */
static int read_entry(int fd, const struct pl_buf *key, struct pl_buf *image) {
    struct header h;
    char *bytes = NULL;
    int verdict = read_sound(fd, &h, &bytes);
    if (verdict != 1) return verdict;
    verdict = h.key_bytes == key->len && memcmp(bytes, key->data, key->len) == 0;
    if (verdict == 1) pl_buf_add(image, bytes + h.key_bytes, h.image_bytes);
    pl_free(bytes);
    return verdict == 1 && !pl_buf_ok(image) ? 0 : verdict;
}

bool pl_jit_store_key(const struct pl_jit_store *s, const char *file, struct pl_buf *key) {
    char path[PATH_SIZE], *bytes = NULL;
    struct header h;
    path_of(s, file, "", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    bool sound = read_sound(fd, &h, &bytes) == 1;
    close(fd);
    if (sound) pl_buf_add(key, bytes, h.key_bytes);
    pl_free(bytes);
    return sound && pl_buf_ok(key);
}

bool pl_jit_store_find(struct pl_jit_store *s, const struct pl_buf *key, const char *hash, struct pl_buf *image) {
    if (s->dir[0] == 0) return false;
    char path[PATH_SIZE];
    path_of(s, hash, ".pljit", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    int verdict = read_entry(fd, key, image);
    if (verdict == 1) (void)futimens(fd, NULL); /* least recently used goes first */
    close(fd);
    if (verdict < 0) {
        s->stats->damaged++;
        pl_log("kernel cache: %s is damaged: compiling again", path);
        unlink(path);
    }
    return verdict == 1;
}

static int by_age(const void *a, const void *b) {
    const struct pl_jit_file_info *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    if (x->used.tv_nsec != y->used.tv_nsec) return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    return strcmp(x->name, y->name); /* a total order: the victim is always the same */
}

static bool wanted(const char *name, const char *suffix) {
    size_t len = strlen(name), n = strlen(suffix);
    if (len >= sizeof(((struct pl_jit_file_info *)0)->name)) return false;
    return suffix[0] == '.' && suffix[n - 1] == '.' ? strstr(name, suffix) != NULL /* ".tmp." stands inside */
                                                    : len > n && strcmp(name + len - n, suffix) == 0;
}

size_t pl_jit_store_files(const struct pl_jit_store *s, const char *suffix, struct pl_jit_file_info **out) {
    size_t n = 0, cap = 0;
    DIR *d = opendir(s->dir);
    *out = NULL;
    if (d == NULL) return 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        struct stat st;
        if (!wanted(e->d_name, suffix) || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (pl_grow(out, &cap, n + 1, sizeof **out) != PL_OK) break;
        memcpy((*out)[n].name, e->d_name, strlen(e->d_name) + 1);
        (*out)[n].bytes = (uint64_t)st.st_size;
        (*out)[n].used = st.st_mtim;
        n++;
    }
    closedir(d);
    if (n > 1) qsort(*out, n, sizeof **out, by_age);
    return n;
}

bool pl_jit_store_remove(const struct pl_jit_store *s, const char *file) {
    char path[PATH_SIZE];
    path_of(s, file, "", path);
    return unlink(path) == 0;
}

/* What a killed process left half written; nobody writes for so long. */
static void sweep(struct pl_jit_store *s) {
    enum { STALE_S = 600 };
    struct pl_jit_file_info *files = NULL;
    size_t n = pl_jit_store_files(s, ".tmp.", &files);
    for (size_t i = 0; i < n; i++) {
        if (files[i].used.tv_sec + STALE_S < time(NULL)) pl_jit_store_remove(s, files[i].name);
    }
    pl_free(files);
}

static void evict(struct pl_jit_store *s) {
    struct pl_jit_file_info *entries = NULL;
    uint64_t total = 0;
    size_t n = pl_jit_store_files(s, ".pljit", &entries);
    for (size_t i = 0; i < n; i++) total += entries[i].bytes;
    for (size_t i = 0; i < n && total > s->max_bytes; i++) {
        if (pl_jit_store_remove(s, entries[i].name)) s->stats->evicted++;
        total -= entries[i].bytes;
    }
    pl_free(entries);
    sweep(s);
}

static bool write_entry(const char *path, const struct pl_buf *key, const struct pl_buf *image) {
    struct header h = {.key_bytes = key->len, .image_bytes = image->len};
    struct pl_buf both = {0};
    memcpy(h.magic, magic, sizeof magic);
    pl_buf_add(&both, key->data, key->len);
    pl_buf_add(&both, image->data, image->len);
    bool ok = pl_buf_ok(&both);
    int fd = ok ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (fd >= 0) {
        h.sum = pl_hash64(both.data, both.len, 0);
        ok = write_all(fd, &h, sizeof h) && write_all(fd, both.data, both.len);
        ok = close(fd) == 0 && ok;
    } else {
        ok = false;
    }
    pl_buf_deinit(&both);
    return ok;
}

void pl_jit_store_put(struct pl_jit_store *s, const struct pl_buf *key, const char *hash, const struct pl_buf *image) {
    if (s->dir[0] == 0) return;
    char lock[PATH_SIZE], temporary[PATH_SIZE], path[PATH_SIZE], suffix[48];
    static _Thread_local unsigned serial;
    snprintf(suffix, sizeof suffix, ".tmp.%ld.%u", (long)getpid(), serial++);
    path_of(s, "lock", "", lock);
    path_of(s, hash, suffix, temporary);
    path_of(s, hash, ".pljit", path);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == ENOENT && make_folders(s->dir)) { /* somebody removed the folder meanwhile */
        fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    }
    if (fd < 0 || flock(fd, LOCK_EX) != 0) {
        warn_once(s, "cannot lock", lock);
    } else if (!write_entry(temporary, key, image) || rename(temporary, path) != 0) {
        warn_once(s, "cannot write", path);
        unlink(temporary);
    } else {
        s->stats->stored++;
        evict(s);
    }
    if (fd >= 0) close(fd);
}
