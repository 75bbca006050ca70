/* download - one address into one file: continued, counted, hashed, and renamed only when all of it is right. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmd/http_call.h"
#include "cmd/out.h"

struct sink {
    struct pl_http_file *file;
    char *part, *tag; /* path.part and path.part.tag, the ETag it belongs to */
    int fd;
    uint64_t offset; /* bytes in the part */
    bool started;    /* this response has been placed */
    struct pl_digest sha256, sha1;
};

static enum pl_status io_failed(const char *path, uint64_t more, struct pl_err *err) {
    int e = errno;
    if (e == ENOSPC || e == EDQUOT || e == EFBIG)
        PL_FAIL(
            err, PL_IO,
            "%.300s: the disk is full (%s; %.1f MB were still to come): make room and pull again, what has arrived is kept",
            path, strerror(e), (double)more / 1e6);
    PL_FAIL(err, PL_IO, "%.300s: %s", path, strerror(e));
}

static void digests_restart(struct sink *s) {
    pl_digest_init(&s->sha256, PL_SHA256);
    pl_digest_init(&s->sha1, PL_SHA1);
    if (s->file->git_sha1[0] != '\0') { /* git hashes a header in front of the content */
        char head[40];
        int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)s->file->bytes);
        pl_digest_add(&s->sha1, head, (size_t)n + 1);
    }
}

static void digests_add(struct sink *s, const void *data, size_t len) {
    pl_digest_add(&s->sha256, data, len);
    if (s->file->git_sha1[0] != '\0') pl_digest_add(&s->sha1, data, len);
}

static enum pl_status restart(struct sink *s, struct pl_err *err) {
    if (ftruncate(s->fd, 0) != 0 || lseek(s->fd, 0, SEEK_SET) < 0) return io_failed(s->part, 0, err);
    s->offset = 0;
    digests_restart(s);
    return PL_OK;
}

/* Hashes what an earlier pull left, so that the file can be continued. */
static enum pl_status adopt(struct sink *s, struct pl_err *err) {
    enum { CHUNK = 1 << 18 };
    unsigned char *chunk = pl_alloc(CHUNK, 1);
    if (chunk == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a %d byte buffer", CHUNK);
    digests_restart(s);
    s->offset = 0;
    ssize_t n;
    while ((n = read(s->fd, chunk, CHUNK)) > 0) {
        digests_add(s, chunk, (size_t)n);
        s->offset += (uint64_t)n;
    }
    pl_free(chunk);
    return n == 0 ? PL_OK : io_failed(s->part, 0, err);
}

static void read_tag(const struct sink *s, char *tag, size_t cap) {
    FILE *f = fopen(s->tag, "r");
    tag[0] = '\0';
    if (f == NULL) return;
    size_t n = fread(tag, 1, cap - 1, f);
    fclose(f);
    tag[n] = '\0';
    for (size_t i = 0; i < n; i++)
        if (tag[i] < ' ' || tag[i] > '~') tag[0] = '\0';
}

static void write_tag(const struct sink *s, const char *tag) {
    if (tag[0] == '\0') {
        unlink(s->tag);
        return;
    }
    FILE *f = fopen(s->tag, "w"); /* losing it only means starting over */
    if (f == NULL) return;
    bool ok = fputs(tag, f) >= 0;
    if (fclose(f) != 0 || !ok) unlink(s->tag);
}

/* The first bytes of a response: the rest of what is there, or the whole again. */
static enum pl_status place(struct sink *s, struct pl_http_call *c, struct pl_err *err) {
    s->started = true;
    if (c->code == 206) {
        if (c->range_start != s->offset)
            PL_FAIL(err, PL_IO, "%.300s: asked for bytes from %llu on, the server sends them from %llu", s->file->label,
                    (unsigned long long)s->offset, (unsigned long long)c->range_start);
    } else if (s->offset > 0) {
        PL_TRY(restart(s, err));
    }
    if (s->file->sha256[0] == '\0' && c->linked_sha256[0] != '\0') memcpy(s->file->sha256, c->linked_sha256, 65);
    write_tag(s, c->etag);
    if (c->length != UINT64_MAX && s->file->bytes == 0) s->file->bytes = s->offset + c->length;
    struct statvfs fs;
    if (s->file->bytes > s->offset && fstatvfs(s->fd, &fs) == 0) {
        uint64_t need = s->file->bytes - s->offset, have = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (need > have)
            PL_FAIL(err, PL_IO,
                    "%.300s: the disk is full: %.1f MB are needed and %.1f MB are free: make room and pull again", s->part,
                    (double)need / 1e6, (double)have / 1e6);
    }
    return PL_OK;
}

static enum pl_status keep(struct pl_http_call *c, const void *data, size_t len, struct pl_err *err) {
    struct sink *s = c->user;
    if (!s->started) PL_TRY(place(s, c, err));
    uint64_t total = s->file->bytes;
    if (total > 0 && len > total - PL_MIN(total, s->offset))
        PL_FAIL(err, PL_FORMAT, "%.300s: the server sends more than the %llu bytes expected", s->file->label,
                (unsigned long long)total);
    const char *p = data;
    while (len > 0) {
        ssize_t n = write(s->fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return io_failed(s->part, total - PL_MIN(total, s->offset), err);
        digests_add(s, p, (size_t)n);
        p += n, len -= (size_t)n, s->offset += (uint64_t)n;
    }
    pl_progress(s->file->label, s->offset, total, true);
    return PL_OK;
}

static enum pl_status fetch(struct sink *s, const struct pl_http *h, struct pl_err *err) {
    struct pl_http_file *f = s->file;
    char tag[256];
    uint32_t idle = 0; /* tries in a row that brought nothing */
    enum pl_status st = PL_OK;
    struct pl_http_call c = {.http = h, .body = keep, .user = s};
    for (;;) {
        uint64_t before = s->offset;
        read_tag(s, tag, sizeof tag);
        if (s->offset > 0 && tag[0] == '\0' && f->sha256[0] == '\0' && f->git_sha1[0] == '\0') {
            st = restart(s, err); /* nothing tells whether the rest belongs to this beginning */
            if (st != PL_OK) break;
        }
        if (f->bytes > 0 && s->offset == f->bytes) break;
        c.resume_from = s->offset;
        c.validator = tag[0] != '\0' ? tag : NULL;
        s->started = false;
        st = pl_http_call_run(&c, f->url, err);
        if (st == PL_OK) break;
        if (c.code == 416 && s->offset > 0) { /* what is there is no beginning of what the server has */
            if ((st = restart(s, err)) != PL_OK) break;
            continue;
        }
        idle = s->offset > before ? 0 : idle + 1;
        if (!c.temporary || idle > h->retries) break;
        pl_http_call_wait(&c, idle + 1);
    }
    if (st == PL_OK && !s->started && c.code == 200) st = restart(s, err); /* an empty file */
    pl_http_call_deinit(&c);
    return st;
}

static enum pl_status verify(struct sink *s, struct pl_err *err) {
    struct pl_http_file *f = s->file;
    char got[65], git[65];
    if (f->bytes > 0 && s->offset != f->bytes)
        PL_FAIL(err, PL_FORMAT, "%.300s: %llu bytes arrived, %llu were expected", f->label, (unsigned long long)s->offset,
                (unsigned long long)f->bytes);
    f->bytes = s->offset;
    pl_digest_hex(&s->sha256, got);
    pl_digest_hex(&s->sha1, git);
    bool sha256_bad = f->sha256[0] != '\0' && strcmp(got, f->sha256) != 0;
    if (sha256_bad || (f->git_sha1[0] != '\0' && strcmp(git, f->git_sha1) != 0))
        PL_FAIL(err, PL_FORMAT, "%.300s: its checksum is %s, expected %s: it was damaged or changed, and is not kept",
                f->label, sha256_bad ? got : git, sha256_bad ? f->sha256 : f->git_sha1);
    memcpy(f->sha256, got, sizeof got);
    return PL_OK;
}

static enum pl_status finish(struct sink *s, struct pl_err *err) {
    if (fsync(s->fd) != 0) return io_failed(s->part, 0, err);
    if (rename(s->part, s->file->path) != 0) return io_failed(s->file->path, 0, err);
    unlink(s->tag);
    return PL_OK;
}

static enum pl_status download(struct sink *s, const struct pl_http *h, struct pl_err *err) {
    PL_TRY(adopt(s, err));
    if (s->file->bytes > 0 && s->offset > s->file->bytes) PL_TRY(restart(s, err));
    bool resumed = s->offset > 0;
    PL_TRY(fetch(s, h, err));
    enum pl_status st = verify(s, err);
    if (st != PL_OK && resumed) { /* the old beginning may be at fault: once more, all of it */
        PL_TRY(restart(s, err));
        unlink(s->tag);
        PL_TRY(fetch(s, h, err));
        st = verify(s, err);
    }
    if (st != PL_OK) {
        unlink(s->part);
        unlink(s->tag);
        return st;
    }
    return finish(s, err);
}

enum pl_status pl_http_download(const struct pl_http *h, struct pl_http_file *f, struct pl_err *err) {
    struct pl_buf part = {0}, tag = {0};
    pl_buf_printf(&part, "%s.part", f->path);
    pl_buf_printf(&tag, "%s.part.tag", f->path);
    enum pl_status st = PL_NO_MEMORY;
    if (pl_buf_ok(&part) && pl_buf_ok(&tag)) {
        struct sink s = {.file = f, .part = part.data, .tag = tag.data};
        s.fd = open(s.part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        st = s.fd < 0 ? io_failed(s.part, f->bytes, err) : download(&s, h, err);
        if (s.fd >= 0) close(s.fd);
    } else {
        pl_err_set(err, __FILE__, __LINE__, st, "out of memory for a path");
    }
    pl_progress_end();
    pl_buf_deinit(&part);
    pl_buf_deinit(&tag);
    return st;
}
