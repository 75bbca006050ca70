/* Source text: specialisation values as #define lines, then the kernel file with its own includes pasted in. An include of a
 * word (#include WTYPE_FILE) stands for the file that the value of that name says, or for nothing: few need long tables. */
#include <stdio.h>
#include <string.h>

#include "jit/jit.h"

static void add_value(struct pl_jit_spec *s, const char *name) {
    PL_ASSERT(s->value_count < PL_JIT_VALUES_MAX);
    s->values[s->value_count].name = name;
}
void pl_jit_set(struct pl_jit_spec *s, const char *name, const char *text) {
    add_value(s, name);
    size_t n = strlen(text);
    PL_ASSERT(n < sizeof s->values[0].text);
    memcpy(s->values[s->value_count++].text, text, n + 1);
}
void pl_jit_set_u32(struct pl_jit_spec *s, const char *name, uint32_t v) {
    char text[16];
    snprintf(text, sizeof text, "%uu", v);
    pl_jit_set(s, name, text);
}

static bool find(const char *name, size_t len, size_t *index) {
    for (size_t i = 0; i < pl_jit_file_count(); i++) {
        struct pl_jit_file f = pl_jit_file_at(i);
        if (strlen(f.name) != len || memcmp(f.name, name, len) != 0) continue;
        *index = i;
        return true;
    }
    return false;
}

enum { FILES_MAX = 96, DEPTH_MAX = 8 };

struct pasting {
    const struct pl_jit_spec *spec;
    bool seen[FILES_MAX];
    struct pl_buf *out;
    struct pl_err *err;
};

static enum pl_status paste(struct pasting *p, struct pl_str text, const char *who, int depth);

#define INCLUDE "#include "
static bool is_include(struct pl_str line) { return pl_str_starts(line, INCLUDE) && !pl_str_starts(line, INCLUDE "<"); }

/* What stands behind #include: a file in quotes, or the value of a word; empty: no such value. */
static struct pl_str included(const struct pl_jit_spec *spec, struct pl_str line) {
    struct pl_str what = {line.data + strlen(INCLUDE), line.len - strlen(INCLUDE)};
    if (what.len > 0 && what.data[0] == '"') return what;
    for (size_t i = 0; i < spec->value_count; i++)
        if (pl_str_eq(what, pl_str_from(spec->values[i].name))) return pl_str_from(spec->values[i].text);
    return (struct pl_str){0};
}

static enum pl_status include_line(struct pasting *p, struct pl_str line, const char *who, int depth) {
    struct pl_str file = included(p->spec, line);
    if (file.len == 0) return PL_OK;
    const char *close = memchr(file.data + 1, '"', file.len - 1);
    size_t index = 0;
    if (close == NULL || !find(file.data + 1, (size_t)(close - file.data - 1), &index)) {
        PL_FAIL(p->err, PL_INTERNAL, "%s: an include that is no kernel file: %.*s", who, (int)line.len, line.data);
    }
    if (p->seen[index]) return PL_OK;
    p->seen[index] = true;
    struct pl_jit_file f = pl_jit_file_at(index);
    return paste(p, (struct pl_str){f.text, f.len}, f.name, depth + 1);
}

static enum pl_status paste(struct pasting *p, struct pl_str text, const char *who, int depth) {
    if (depth > DEPTH_MAX) PL_FAIL(p->err, PL_INTERNAL, "%s: includes are nested too deeply", who);
    for (size_t at = 0; at < text.len;) {
        const char *eol = memchr(text.data + at, '\n', text.len - at);
        size_t len = eol != NULL ? (size_t)(eol - text.data) - at : text.len - at;
        struct pl_str line = {text.data + at, len};
        if (is_include(line)) {
            PL_TRY(include_line(p, line, who, depth));
        } else {
            pl_buf_add(p->out, line.data, line.len);
            pl_buf_add_char(p->out, '\n');
        }
        at += len + 1;
    }
    return PL_OK;
}

enum pl_status pl_jit_source(const struct pl_jit_spec *spec, struct pl_buf *out, struct pl_err *err) {
    struct pasting p = {.spec = spec, .out = out, .err = err};
    PL_ASSERT(pl_jit_file_count() <= FILES_MAX);
    struct pl_str text;
    if (spec->text != NULL) {
        text = pl_str_from(spec->text);
    } else {
        size_t index = 0;
        if (!find(spec->file, strlen(spec->file), &index)) {
            PL_FAIL(err, PL_INTERNAL, "there is no kernel file %s in this build", spec->file);
        }
        struct pl_jit_file f = pl_jit_file_at(index);
        text = (struct pl_str){f.text, f.len};
    }
    for (size_t i = 0; i < spec->value_count; i++) {
        pl_buf_printf(out, "#define %s %s\n", spec->values[i].name, spec->values[i].text);
    }
    PL_TRY(paste(&p, text, spec->file != NULL ? spec->file : spec->entry, 0));
    if (!pl_buf_ok(out)) PL_FAIL(err, PL_NO_MEMORY, "no memory for the source of %s", spec->entry);
    return PL_OK;
}
