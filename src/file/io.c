#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "file/mapped.h"
#include "file/reader.h"

static _Atomic uint64_t io_calls;
static _Atomic uint64_t io_fail_at; /* absolute call number, 0 = never */

static bool io_refused(void) {
    uint64_t n = atomic_fetch_add_explicit(&io_calls, 1, memory_order_relaxed) + 1;
    if (n != atomic_load_explicit(&io_fail_at, memory_order_relaxed)) return false;
    errno = EIO;
    return true;
}

void pl_io_fail_at(uint64_t nth) { atomic_store(&io_fail_at, nth == 0 ? 0 : atomic_load(&io_calls) + nth); }
uint64_t pl_io_calls(void) { return atomic_load(&io_calls); }

static const char *kind_name(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a FIFO";
    if (S_ISSOCK(mode)) return "a socket";
    if (S_ISCHR(mode)) return "a character device";
    if (S_ISBLK(mode)) return "a block device";
    return "something else";
}

/* Opens a regular file for reading; *out says what it is. The descriptor is the caller's. */
static enum pl_status open_regular(const char *path, int *fd_out, struct stat *out, struct pl_err *err) {
    /* O_NONBLOCK: a FIFO without a writer must not hang the open; it has no effect on regular files. */
    int fd = io_refused() ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        enum pl_status status = errno == ENOENT || errno == ENOTDIR ? PL_NOT_FOUND : PL_IO;
        PL_FAIL(err, status, "%s: cannot open: %s", PL_SHOWN_C(path), strerror(errno));
    }
    struct stat st;
    if (io_refused() || fstat(fd, &st) != 0) {
        int error = errno;
        close(fd);
        PL_FAIL(err, PL_IO, "%s: cannot read its size: %s", PL_SHOWN_C(path), strerror(error));
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        PL_FAIL(err, PL_INVALID, "%s is %s; expected a regular file", PL_SHOWN_C(path), kind_name(st.st_mode));
    }
    *fd_out = fd;
    *out = st;
    return PL_OK;
}

/* The path, or "..." and its end. */
static void set_label(struct pl_part *part, const char *path) {
    size_t len = strlen(path), room = sizeof part->label - 4;
    bool cut = len > room;
    if (cut) path += len - room;
    while (cut && ((unsigned char)*path & 0xC0) == 0x80) path++; /* not in the middle of a character */
    memcpy(part->label, "...", 4);
    pl_show_into(pl_str_from(path), part->label + (cut ? 3 : 0), sizeof part->label - (cut ? 3 : 0));
}

enum pl_status pl_part_map(const char *path, struct pl_part *out, struct pl_err *err) {
    struct pl_part part = {.mapped = true};
    set_label(&part, path);
    int fd;
    struct stat st;
    PL_TRY(open_regular(path, &fd, &st, err));
    part.len = (uint64_t)st.st_size;
    part.opened = st;
    if (part.len == 0) {
        close(fd);
        PL_FAIL(err, PL_FORMAT,
                "%s is empty (0 bytes): its download or copy is incomplete; fetch it again (a model: 'plumb pull')",
                part.label);
    }
    void *map = MAP_FAILED;
    if (part.len > SIZE_MAX) {
        errno = EOVERFLOW;
    } else if (!io_refused()) {
        map = mmap(NULL, (size_t)part.len, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    int error = errno;
    close(fd);
    if (map == MAP_FAILED) {
        PL_FAIL(err, PL_IO, "%s: cannot map %s bytes: %s", part.label, pl_num(part.len).s, strerror(error));
    }
    part.data = map;
    part.path = pl_strdup(path);
    if (part.path == NULL) {
        munmap(map, (size_t)part.len);
        return pl_no_memory(&part, "its path", err);
    }
    pl_mapped_note(part.data, part.len, part.path, part.label);
    *out = part;
    return PL_OK;
}

enum pl_status pl_part_borrow(const char *label, const void *data, size_t len, struct pl_part *out, struct pl_err *err) {
    struct pl_part part = {.data = data, .len = len};
    set_label(&part, label);
    if (len == 0) PL_FAIL(err, PL_FORMAT, "%s is empty (0 bytes)", label);
    part.path = pl_strdup(label);
    if (part.path == NULL) return pl_no_memory(&part, "its label", err);
    *out = part;
    return PL_OK;
}

void pl_part_unmap(struct pl_part *part) {
    if (part->mapped && part->data != NULL) {
        pl_mapped_forget(part->data);
        munmap((void *)(uintptr_t)part->data, (size_t)part->len);
    }
    pl_free(part->path);
    *part = (struct pl_part){0};
}

enum pl_status pl_part_check_unchanged(const struct pl_part *part, struct pl_err *err) {
    const struct stat *then = &part->opened;
    struct stat now;
    if (!part->mapped || stat(part->path, &now) != 0) return PL_OK;
    if (now.st_dev != then->st_dev || now.st_ino != then->st_ino) return PL_OK;
    if (now.st_size == then->st_size && now.st_mtim.tv_sec == then->st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == then->st_mtim.tv_nsec)
        return PL_OK;
    PL_FAIL(err, PL_IO,
            "%s was written to while it was in use (%s bytes when it was opened, %s now), so its weights may be of two "
            "files: start again when its copy or download is complete",
            part->label, pl_num((uint64_t)then->st_size).s, pl_num((uint64_t)now.st_size).s);
}

/* Appends up to want bytes of fd; fewer when the file ends early. */
static enum pl_status read_all(int fd, const char *path, size_t want, struct pl_buf *out, struct pl_err *err) {
    char chunk[16384];
    while (want > 0) {
        ssize_t n = io_refused() ? -1 : read(fd, chunk, PL_MIN(want, sizeof chunk));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) PL_FAIL(err, PL_IO, "%s: cannot read: %s", PL_SHOWN_C(path), strerror(errno));
        if (n == 0) break;
        pl_buf_add(out, chunk, (size_t)n);
        if (!pl_buf_ok(out)) PL_FAIL(err, PL_NO_MEMORY, "%s: no memory to read it", PL_SHOWN_C(path));
        want -= (size_t)n;
    }
    return PL_OK;
}

enum pl_status pl_read_file(const char *path, size_t max_bytes, struct pl_buf *out, struct pl_err *err) {
    int fd;
    struct stat st;
    PL_TRY(open_regular(path, &fd, &st, err));
    uint64_t size = (uint64_t)st.st_size;
    enum pl_status status = PL_OK;
    if (size > max_bytes) {
        status = pl_err_set(err, __FILE__, __LINE__, PL_LIMIT, "%s has %s bytes; at most %s are read", PL_SHOWN_C(path),
                            pl_num(size).s, pl_num(max_bytes).s);
    } else {
        status = read_all(fd, path, (size_t)size, out, err);
    }
    close(fd);
    return status;
}
