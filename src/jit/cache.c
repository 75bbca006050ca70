/* The folder of compiled kernels, for people: what is in it, and emptying it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "jit/store.h"

/* The field `name` of a key: "NAME length:text". */
static void take_field(const struct pl_buf *key, const char *name, char *out, size_t size) {
    size_t at = 0, n = strlen(name);
    while (at < key->len) {
        const char *p = key->data + at;
        const char *space = memchr(p, ' ', key->len - at), *colon = NULL;
        if (space != NULL) colon = memchr(space, ':', key->len - (size_t)(space - key->data));
        if (colon == NULL) return;
        size_t len = strtoul(space + 1, NULL, 10), begin = (size_t)(colon + 1 - key->data);
        if (len > key->len - begin) return;
        if ((size_t)(space - p) == n && memcmp(p, name, n) == 0) {
            snprintf(out, size, "%.*s", (int)PL_MIN(len, size - 1), colon + 1);
            return;
        }
        at = begin + len + 1; /* and the newline */
    }
}

/* "#define A 1" lines to "A=1 ...". */
static void short_values(char *text) {
    char *to = text;
    for (char *line = text; *line != 0;) {
        size_t len = strcspn(line, "\n");
        bool more = line[len] != 0;
        if (strncmp(line, "#define ", 8) == 0 && len > 8) {
            if (to != text) *to++ = ' ';
            memmove(to, line + 8, len - 8);
            for (char *c = to, *end = to + len - 8; c < end; c++) *c = *c == ' ' ? '=' : *c;
            to += len - 8;
        }
        line += len + more;
    }
    *to = 0;
}

static void describe(const struct pl_jit_store *s, const struct pl_jit_file_info *f, struct pl_jit_entry *e) {
    struct pl_buf key = {0};
    *e = (struct pl_jit_entry){.bytes = f->bytes, .used_s = (int64_t)f->used.tv_sec};
    memcpy(e->file, f->name, sizeof e->file);
    e->sound = pl_jit_store_key(s, f->name, &key);
    if (e->sound) {
        take_field(&key, "KIND", e->kind, sizeof e->kind);
        take_field(&key, "TARGET", e->target, sizeof e->target);
        take_field(&key, "COMPILER", e->compiler, sizeof e->compiler);
        take_field(&key, "ENTRY", e->entry, sizeof e->entry);
        take_field(&key, "VALUES", e->values, sizeof e->values);
        short_values(e->values);
    }
    pl_buf_deinit(&key);
}

enum pl_status pl_jit_cache_list(const struct pl_jit_options *opt, char *dir, size_t dir_size, struct pl_jit_entry **out,
                                 size_t *count, struct pl_err *err) {
    struct pl_jit_stats stats = {0};
    struct pl_jit_store s;
    struct pl_jit_file_info *files = NULL;
    pl_jit_store_look(&s, opt, &stats);
    size_t n = s.dir[0] != 0 ? pl_jit_store_files(&s, ".pljit", &files) : 0;
    struct pl_jit_entry *list = pl_calloc(n + 1, sizeof *list);
    if (list == NULL) {
        pl_free(files);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for a list of %zu kernels", n);
    }
    for (size_t i = 0; i < n; i++) describe(&s, &files[n - 1 - i], &list[i]);
    pl_free(files);
    snprintf(dir, dir_size, "%s", s.dir);
    *out = list;
    *count = n;
    return PL_OK;
}

static enum pl_status clear(const struct pl_jit_store *s, const char *suffix, size_t *removed, uint64_t *bytes,
                            struct pl_err *err) {
    struct pl_jit_file_info *files = NULL;
    size_t n = pl_jit_store_files(s, suffix, &files);
    enum pl_status st = PL_OK;
    for (size_t i = 0; i < n && st == PL_OK; i++) {
        if (pl_jit_store_remove(s, files[i].name)) {
            *bytes += files[i].bytes;
            (*removed)++;
        } else if (errno != ENOENT) {
            st = pl_err_set(err, __FILE__, __LINE__, PL_IO, "%.300s/%s cannot be removed: %s", s->dir, files[i].name,
                            strerror(errno));
        }
    }
    pl_free(files);
    return st;
}

enum pl_status pl_jit_cache_clear(const struct pl_jit_options *opt, size_t *removed, uint64_t *bytes, struct pl_err *err) {
    struct pl_jit_stats stats = {0};
    struct pl_jit_store s;
    *removed = 0;
    *bytes = 0;
    pl_jit_store_look(&s, opt, &stats);
    if (s.dir[0] == 0) return PL_OK;
    PL_TRY(clear(&s, ".pljit", removed, bytes, err));
    return clear(&s, ".tmp.", removed, bytes, err);
}
