#include "cmd/zip.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"
#include "cmd/out.h"

#ifdef PL_HAVE_ZLIB
#include <zlib.h>

struct archive {
    const char *path;
    const uint8_t *data;
    uint64_t size;
};

struct member {
    uint32_t crc;
    uint16_t method, flags;
    uint64_t packed, bytes, header; /* header: offset of its local header */
};

static uint16_t u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static uint32_t u32(const uint8_t *p) { return (uint32_t)u16(p) | (uint32_t)u16(p + 2) << 16; }

enum { END_BYTES = 22, ENTRY_BYTES = 46, LOCAL_BYTES = 30, COMMENT_MAX = 65535 };

/* The end record sits within the last 64 KiB. */
static bool find_end(const struct archive *a, uint64_t *at) {
    for (uint64_t back = END_BYTES; back <= a->size && back <= END_BYTES + COMMENT_MAX; back++) {
        if (u32(a->data + a->size - back) != 0x06054b50) continue;
        *at = a->size - back;
        return true;
    }
    return false;
}

static enum pl_status find_member(const struct archive *a, const char *suffix, struct member *m, struct pl_err *err) {
    uint64_t end, found = 0;
    if (!find_end(a, &end)) PL_FAIL(err, PL_FORMAT, "%.300s: no zip archive (no end record)", a->path);
    uint64_t at = u32(a->data + end + 16), count = u16(a->data + end + 10);
    for (uint64_t i = 0; i < count; i++) {
        if (at > end || end - at < ENTRY_BYTES || u32(a->data + at) != 0x02014b50)
            PL_FAIL(err, PL_FORMAT, "%.300s: directory entry %llu at byte %llu is damaged", a->path, (unsigned long long)i,
                    (unsigned long long)at);
        const uint8_t *e = a->data + at;
        uint64_t name_len = u16(e + 28), whole = ENTRY_BYTES + name_len + u16(e + 30) + u16(e + 32);
        if (end - at < whole) PL_FAIL(err, PL_FORMAT, "%.300s: directory entry %llu is cut", a->path, (unsigned long long)i);
        struct pl_str name = {(const char *)e + ENTRY_BYTES, name_len};
        if (pl_str_ends(name, suffix)) {
            *m = (struct member){.flags = u16(e + 8),
                                 .method = u16(e + 10),
                                 .crc = u32(e + 16),
                                 .packed = u32(e + 20),
                                 .bytes = u32(e + 24),
                                 .header = u32(e + 42)};
            found++;
        }
        at += whole;
    }
    if (found != 1)
        PL_FAIL(err, PL_FORMAT, "%.300s: %llu members end with '%s', expected one", a->path, (unsigned long long)found,
                suffix);
    if ((m->flags & 1) != 0 || (m->method != 0 && m->method != 8) || m->bytes == UINT32_MAX || m->packed == UINT32_MAX)
        PL_FAIL(err, PL_UNSUPPORTED, "%.300s: '%s' is encrypted, over 4 GiB, or packed by method %u (0 and 8 are known)",
                a->path, suffix, m->method);
    return PL_OK;
}

static enum pl_status write_all(int fd, const uint8_t *p, size_t len, struct pl_err *err) {
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) PL_FAIL(err, PL_IO, "writing the unpacked model: %s", strerror(errno));
        p += n, len -= (size_t)n;
    }
    return PL_OK;
}

/* Stored members go through the same loop: their "inflated" bytes are the packed ones. */
static enum pl_status unpack(const struct archive *a, const struct member *m, const uint8_t *packed, int fd, uint64_t *bytes,
                             uint32_t *crc, struct pl_err *err) {
    enum { CHUNK = 1 << 16 };
    uint8_t chunk[CHUNK];
    z_stream z = {.next_in = (Bytef *)packed, .avail_in = (uInt)m->packed};
    if (m->method == 0) {
        *bytes = m->packed;
        *crc = (uint32_t)crc32(0, packed, (uInt)m->packed);
        return write_all(fd, packed, m->packed, err);
    }
    if (inflateInit2(&z, -MAX_WBITS) != Z_OK) PL_FAIL(err, PL_NO_MEMORY, "out of memory for unpacking");
    int rc = Z_OK;
    enum pl_status st = PL_OK;
    *bytes = 0;
    *crc = 0;
    while (rc == Z_OK && st == PL_OK && *bytes <= m->bytes) {
        z.next_out = chunk;
        z.avail_out = CHUNK;
        rc = inflate(&z, Z_NO_FLUSH);
        size_t got = CHUNK - z.avail_out;
        *crc = (uint32_t)crc32(*crc, chunk, (uInt)got);
        *bytes += got;
        st = write_all(fd, chunk, got, err);
        pl_progress("unpacking", *bytes, m->bytes, true);
    }
    inflateEnd(&z);
    if (st == PL_OK && rc != Z_STREAM_END)
        st = pl_err_set(err, __FILE__, __LINE__, PL_FORMAT, "%.300s: packed data is damaged (%s)", a->path,
                        z.msg != NULL ? z.msg : "it does not end");
    return st;
}

static enum pl_status extract(const struct archive *a, const char *suffix, int fd, struct pl_err *err) {
    struct member m;
    PL_TRY(find_member(a, suffix, &m, err));
    if (m.header > a->size || a->size - m.header < LOCAL_BYTES || u32(a->data + m.header) != 0x04034b50)
        PL_FAIL(err, PL_FORMAT, "%.300s: no local header at byte %llu", a->path, (unsigned long long)m.header);
    const uint8_t *local = a->data + m.header;
    uint64_t skip = LOCAL_BYTES + (uint64_t)u16(local + 26) + u16(local + 28), room = a->size - m.header;
    if (skip > room || m.packed > room - skip)
        PL_FAIL(err, PL_FORMAT, "%.300s: '%s' ends past the end of the archive", a->path, suffix);
    uint64_t bytes;
    uint32_t crc;
    PL_TRY(unpack(a, &m, local + skip, fd, &bytes, &crc, err));
    if (bytes != m.bytes || crc != m.crc)
        PL_FAIL(err, PL_FORMAT, "%.300s: '%s' unpacks to %llu bytes with CRC %08x, expected %llu with %08x", a->path, suffix,
                (unsigned long long)bytes, crc, (unsigned long long)m.bytes, m.crc);
    return PL_OK;
}

enum pl_status pl_zip_extract(const char *archive, const char *suffix, int fd, struct pl_err *err) {
    struct stat st;
    int in = open(archive, O_RDONLY | O_CLOEXEC);
    if (in < 0 || fstat(in, &st) != 0 || st.st_size < END_BYTES) {
        if (in >= 0) close(in);
        PL_FAIL(err, PL_IO, "%.300s: cannot be read as a zip archive", archive);
    }
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, in, 0);
    close(in);
    if (data == MAP_FAILED) PL_FAIL(err, PL_IO, "%.300s: %s", archive, strerror(errno));
    struct archive a = {archive, data, (uint64_t)st.st_size};
    enum pl_status status = extract(&a, suffix, fd, err);
    munmap(data, (size_t)st.st_size);
    pl_progress_end();
    return status;
}

#else
enum pl_status pl_zip_extract(const char *archive, const char *suffix, int fd, struct pl_err *err) {
    (void)suffix, (void)fd;
    PL_FAIL(err, PL_UNSUPPORTED, "%.300s: this plumb was built without zlib, so it cannot unpack it", archive);
}
#endif
