#include "cmd/png.h"

#ifdef PL_HAVE_ZLIB
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "base/mem.h"

static void put_u32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* Length, name, bytes, checksum of name and bytes. */
static bool put_chunk(FILE *f, const char *name, const uint8_t *data, uint32_t bytes) {
    uint8_t head[8], tail[4];
    put_u32(head, bytes);
    memcpy(head + 4, name, 4);
    uLong sum = crc32(crc32(0, head + 4, 4), data, bytes);
    put_u32(tail, (uint32_t)sum);
    return fwrite(head, 1, 8, f) == 8 && fwrite(data, 1, bytes, f) == bytes && fwrite(tail, 1, 4, f) == 4;
}

/* Each row begins with the number of its filter; 0 is none. */
static uint8_t *pack(const uint8_t *pixels, uint32_t width, uint32_t height, uLongf *bytes) {
    size_t row = (size_t)width + 1, size = row * height;
    uint8_t *plain = pl_calloc(height, row), *packed = pl_alloc(compressBound(size), 1);
    *bytes = compressBound(size);
    for (uint32_t y = 0; plain != NULL && y < height; y++) memcpy(plain + y * row + 1, pixels + (size_t)y * width, width);
    bool ok = plain != NULL && packed != NULL && compress2(packed, bytes, plain, size, 9) == Z_OK;
    pl_free(plain);
    if (ok) return packed;
    pl_free(packed);
    return NULL;
}

enum pl_status pl_png_write(const char *path, const uint8_t *pixels, uint32_t width, uint32_t height, struct pl_err *err) {
    static const uint8_t magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    uint8_t head[13] = {[8] = 8}; /* 8 bits, grey, the one packing, the one set of filters, not interlaced */
    uLongf bytes = 0;
    uint8_t *packed = pack(pixels, width, height, &bytes);
    if (packed == NULL || bytes > INT32_MAX) {
        pl_free(packed);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for a picture of %u x %u", width, height);
    }
    put_u32(head, width);
    put_u32(head + 4, height);
    FILE *f = fopen(path, "wb");
    bool ok = f != NULL && fwrite(magic, 1, 8, f) == 8 && put_chunk(f, "IHDR", head, 13) &&
              put_chunk(f, "IDAT", packed, (uint32_t)bytes) && put_chunk(f, "IEND", magic, 0);
    int why = errno;
    if (f != NULL && fclose(f) != 0 && ok) ok = false, why = errno;
    pl_free(packed);
    if (!ok) PL_FAIL(err, PL_IO, "%s: cannot write the picture: %s", path, strerror(why));
    return PL_OK;
}
#else
enum pl_status pl_png_write(const char *path, const uint8_t *pixels, uint32_t width, uint32_t height, struct pl_err *err) {
    (void)pixels, (void)width, (void)height;
    PL_FAIL(err, PL_UNSUPPORTED, "%s: this build writes no pictures: install zlib1g-dev and build again", path);
}
#endif
