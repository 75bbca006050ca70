#include "cmd/pull.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmd/out.h"
#include "cmd/store.h"
#include "cmd/zip.h"

static enum pl_status path_in(const char *dir, const char *name, const char *suffix, char **out, struct pl_err *err) {
    struct pl_buf b = {0};
    pl_buf_printf(&b, "%s/%s%s", dir, name, suffix);
    if (!pl_buf_ok(&b)) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a path");
    *out = b.data;
    return PL_OK;
}

static enum pl_status make_dirs(const char *path, struct pl_err *err) {
    char *copy = pl_strdup(path);
    if (copy == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a path");
    enum pl_status st = PL_OK;
    for (char *p = copy + 1; st == PL_OK; p++) {
        if (*p != '/' && *p != '\0') continue;
        char was = *p;
        *p = '\0';
        if (mkdir(copy, 0755) != 0 && errno != EEXIST)
            st = pl_err_set(err, __FILE__, __LINE__, PL_IO, "cannot make the folder %.300s: %s", copy, strerror(errno));
        *p = was;
        if (was == '\0') break;
    }
    pl_free(copy);
    return st;
}

static enum pl_status hash_file(int fd, enum pl_digest_kind kind, const char *head, size_t head_len, char out[65],
                                struct pl_err *err) {
    enum { CHUNK = 1 << 18 };
    unsigned char *chunk = pl_alloc(CHUNK, 1);
    if (chunk == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a %d byte buffer", CHUNK);
    struct pl_digest d;
    pl_digest_init(&d, kind);
    pl_digest_add(&d, head, head_len);
    ssize_t n = lseek(fd, 0, SEEK_SET) < 0 ? -1 : 0;
    while (n == 0 && (n = read(fd, chunk, CHUNK)) > 0) {
        pl_digest_add(&d, chunk, (size_t)n);
        n = 0;
    }
    pl_free(chunk);
    if (n < 0) PL_FAIL(err, PL_IO, "reading back what was written: %s", strerror(errno));
    pl_digest_hex(&d, out);
    return PL_OK;
}

/* Is this very file there already? Only when its size and a checksum say so; otherwise it is fetched again. */
static bool have(const char *path, uint64_t bytes, const char *sha256, const char *git_sha1) {
    struct stat st;
    char got[65] = "", head[40];
    bool git = sha256[0] == '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    int head_len = git ? snprintf(head, sizeof head, "blob %llu", (unsigned long long)bytes) + 1 : 0;
    bool same = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == bytes &&
                hash_file(fd, git ? PL_SHA1 : PL_SHA256, head, (size_t)head_len, got, NULL) == PL_OK &&
                strcmp(got, git ? git_sha1 : sha256) == 0;
    close(fd);
    return same;
}

static void add_to_list(json_t *list, const char *name, uint64_t bytes, const char *sha256) {
    json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "name", name, "bytes", (json_int_t)bytes, "sha256", sha256));
}

static enum pl_status fetch_one(const struct pl_http *h, const struct pl_pull_file *f, const char *dir, json_t *list,
                                struct pl_err *err) {
    char *path = NULL;
    PL_TRY(path_in(dir, f->name, "", &path, err));
    struct pl_http_file d = {.url = f->url, .path = path, .label = f->name, .bytes = f->bytes};
    memcpy(d.sha256, f->sha256, sizeof d.sha256);
    memcpy(d.git_sha1, f->git_sha1, sizeof d.git_sha1);
    bool there = have(path, f->bytes, f->sha256, f->git_sha1);
    enum pl_status st = there ? PL_OK : pl_http_download(h, &d, err);
    if (st == PL_OK && list != NULL) add_to_list(list, f->name, d.bytes, d.sha256);
    pl_free(path);
    return st;
}

static enum pl_status unpack_all(const struct pl_pull_plan *plan, const char *dir, int fd, struct pl_err *err) {
    char got[65], suffix[128];
    for (size_t i = 0; i < plan->count; i++) {
        char *archive = NULL;
        snprintf(suffix, sizeof suffix, "%s", plan->joined.suffix);
        char *place = strchr(suffix, '?');
        if (place != NULL) *place = (char)('0' + i);
        PL_TRY(path_in(dir, plan->files[i].name, "", &archive, err));
        enum pl_status st = pl_zip_extract(archive, suffix, fd, err);
        pl_free(archive);
        PL_TRY(st);
    }
    PL_TRY(hash_file(fd, PL_SHA256, NULL, 0, got, err));
    if (strcmp(got, plan->joined.sha256) != 0)
        PL_FAIL(err, PL_FORMAT, "%s: unpacked, its SHA-256 is %s, expected %s", plan->main, got, plan->joined.sha256);
    if (fsync(fd) != 0) PL_FAIL(err, PL_IO, "writing the unpacked model: %s", strerror(errno));
    return PL_OK;
}

/* Archives -> the one file; the archives are removed once it is right. */
static enum pl_status join(const struct pl_pull_plan *plan, const char *dir, struct pl_err *err) {
    char *final = NULL, *part = NULL;
    PL_TRY(path_in(dir, plan->main, "", &final, err));
    enum pl_status st = path_in(dir, plan->main, ".part", &part, err);
    int fd = st == PL_OK ? open(part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644) : -1;
    if (st == PL_OK && fd < 0) st = pl_err_set(err, __FILE__, __LINE__, PL_IO, "%.300s: %s", part, strerror(errno));
    if (st == PL_OK) st = unpack_all(plan, dir, fd, err);
    if (fd >= 0) close(fd);
    if (st == PL_OK && rename(part, final) != 0)
        st = pl_err_set(err, __FILE__, __LINE__, PL_IO, "%.300s: %s", final, strerror(errno));
    if (st != PL_OK && part != NULL) unlink(part);
    for (size_t i = 0; st == PL_OK && i < plan->count; i++) {
        char *archive = NULL;
        if (path_in(dir, plan->files[i].name, "", &archive, err) != PL_OK) break;
        unlink(archive);
        pl_free(archive);
    }
    pl_free(final);
    pl_free(part);
    return st;
}

/* What was fetched under the name of a model is one: a page that says "not found" with status 200 is none. */
static enum pl_status check_model(const char *dir, const char *name, struct pl_err *err) {
    unsigned char head[4] = {0};
    char *path = NULL;
    if (!pl_str_ends(pl_str_from(name), ".gguf")) return PL_OK;
    PL_TRY(path_in(dir, name, "", &path, err));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, head, sizeof head) : -1;
    if (fd >= 0) close(fd);
    bool good = n == (ssize_t)sizeof head && memcmp(head, "GGUF", 4) == 0;
    if (!good) unlink(path);
    pl_free(path);
    if (!good)
        PL_FAIL(err, PL_FORMAT, "%s is no GGUF file: it begins with %02x %02x %02x %02x (%zd bytes read), expected \"GGUF\"",
                name, head[0], head[1], head[2], head[3], n);
    return PL_OK;
}

static enum pl_status write_manifest(const struct pl_pull_plan *plan, const char *dir, json_t *list, struct pl_err *err) {
    char *path = NULL, *tmp = NULL, when[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *root = json_pack("{s:s, s:s, s:s, s:s, s:O}", "name", plan->name, "source", plan->source, "main", plan->main,
                             "pulled", when, "files", list);
    enum pl_status st =
        root == NULL ? pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "out of memory for the manifest") : PL_OK;
    if (st == PL_OK) st = path_in(dir, "plumb.json", "", &path, err);
    if (st == PL_OK) st = path_in(dir, "plumb.json", ".part", &tmp, err);
    if (st == PL_OK && (json_dump_file(root, tmp, JSON_INDENT(2)) != 0 || rename(tmp, path) != 0)) {
        st = pl_err_set(err, __FILE__, __LINE__, PL_IO, "%.300s: cannot be written: %s", path, strerror(errno));
        unlink(tmp);
    }
    json_decref(root);
    pl_free(path);
    pl_free(tmp);
    return st;
}

static enum pl_status run_locked(const struct pl_http *h, const struct pl_pull_plan *plan, const char *dir, char **path,
                                 struct pl_err *err) {
    char *final = NULL;
    PL_TRY(path_in(dir, plan->main, "", &final, err));
    json_t *list = json_array();
    enum pl_status st = list == NULL ? PL_NO_MEMORY : PL_OK;
    const struct pl_pull_join *j = &plan->joined;
    bool joined = plan->join && have(final, j->bytes, j->sha256, "");
    if (plan->notice != NULL && !joined) fprintf(stderr, "plumb: %s\n", plan->notice);
    for (size_t i = 0; st == PL_OK && !joined && i < plan->count; i++) {
        st = fetch_one(h, &plan->files[i], dir, plan->join ? NULL : list, err);
        if (st == PL_OK) st = check_model(dir, plan->files[i].name, err);
    }
    if (st == PL_OK && plan->join && !joined) st = join(plan, dir, err);
    if (st == PL_OK && plan->join) add_to_list(list, plan->main, j->bytes, j->sha256);
    if (st == PL_OK) st = write_manifest(plan, dir, list, err);
    json_decref(list);
    if (st == PL_OK && strcmp(plan->main, ".") == 0) final[strlen(final) - 2] = '\0';
    if (st == PL_OK)
        *path = final;
    else
        pl_free(final);
    return st;
}

enum pl_status pl_pull_run(const struct pl_http *h, const struct pl_pull_plan *plan, char **path, struct pl_err *err) {
    char *dir = NULL, *lock = NULL;
    PL_TRY(pl_store_model_dir(plan->name, &dir, err));
    enum pl_status st = make_dirs(dir, err);
    if (st == PL_OK) st = path_in(dir, ".lock", "", &lock, err);
    int fd = st == PL_OK ? open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644) : -1;
    if (st == PL_OK && fd < 0) st = pl_err_set(err, __FILE__, __LINE__, PL_IO, "%.300s: %s", lock, strerror(errno));
    if (st == PL_OK && flock(fd, LOCK_EX | LOCK_NB) != 0)
        st = pl_err_set(err, __FILE__, __LINE__, PL_BUSY,
                        "%.200s is being pulled by another process: wait for it and try again", plan->name);
    if (st == PL_OK) st = run_locked(h, plan, dir, path, err);
    if (fd >= 0) close(fd);
    pl_progress_end();
    pl_free(lock);
    pl_free(dir);
    return st;
}
