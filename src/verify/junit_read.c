#include <string.h>

#include "verify/junit.h"

struct reader {
    const char *at, *end;
    pl_junit_each *each;
    void *user;
    struct pl_buf group, name; /* of the open case */
    enum pl_junit_verdict verdict;
    bool in_case;
    size_t open; /* elements */
};

static const char *find(const char *at, const char *end, const char *what) {
    size_t n = strlen(what);
    for (; (size_t)(end - at) >= n; at++) {
        at = memchr(at, what[0], (size_t)(end - at) - n + 1);
        if (at == NULL) return NULL;
        if (memcmp(at, what, n) == 0) return at;
    }
    return NULL;
}

static bool starts(const struct reader *r, const char *what) {
    size_t n = strlen(what);
    return (size_t)(r->end - r->at) >= n && memcmp(r->at, what, n) == 0;
}

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* One past the tag's '>', which may also stand within quotes; NULL: it has none. */
static const char *tag_end(const char *at, const char *end) {
    for (char quote = 0; at < end; at++) {
        if (quote != 0)
            quote = *at == quote ? 0 : quote;
        else if (*at == '"' || *at == '\'')
            quote = *at;
        else if (*at == '>')
            return at + 1;
    }
    return NULL;
}

/* The value of an attribute as it is written, "" where there is none. */
static void attribute(const char *at, const char *end, const char *name, struct pl_buf *out) {
    size_t n = strlen(name);
    pl_buf_clear(out);
    for (const char *from = at; at < end; at++) { /* from: behind the value before */
        if (*at != '"' && *at != '\'') continue;
        const char *close = memchr(at + 1, *at, (size_t)(end - at) - 1), *word = at;
        if (close == NULL) return;
        while (word > from && (blank(word[-1]) || word[-1] == '=')) word--; /* one past its name */
        if ((size_t)(word - from) > n && memcmp(word - n, name, n) == 0 && blank(*(word - n - 1))) {
            pl_buf_add(out, at + 1, (size_t)(close - at) - 1);
            return;
        }
        from = at = close;
    }
}

static void close_case(struct reader *r) {
    if (r->in_case) r->each(r->user, pl_buf_cstr(&r->group), pl_buf_cstr(&r->name), r->verdict);
    r->in_case = false;
}

static bool is(const char *tag, const char *end, const char *name) {
    size_t n = strlen(name);
    return (size_t)(end - tag) > n && memcmp(tag, name, n) == 0 && (blank(tag[n]) || tag[n] == '/' || tag[n] == '>');
}

/* The element whose tag is [tag, end), behind '<'. */
static void element(struct reader *r, const char *tag, const char *end) {
    bool empty = end - tag >= 2 && end[-2] == '/';
    if (*tag == '/') {
        if (r->open > 0) r->open--;
        if (is(tag + 1, end, "testcase")) close_case(r);
        return;
    }
    r->open += !empty;
    if (is(tag, end, "testcase")) {
        close_case(r);
        attribute(tag, end, "classname", &r->group);
        attribute(tag, end, "name", &r->name);
        r->verdict = PL_JUNIT_PASS;
        r->in_case = true;
        if (empty) close_case(r);
    } else if (is(tag, end, "failure") || is(tag, end, "error")) {
        r->verdict = PL_JUNIT_FAILURE;
    } else if (is(tag, end, "skipped") && r->verdict == PL_JUNIT_PASS) {
        r->verdict = PL_JUNIT_SKIPPED;
    }
}

/* What stands at '<'. False: it does not end. */
static bool step(struct reader *r) {
    const char *close = starts(r, "<!--")        ? find(r->at, r->end, "-->")
                        : starts(r, "<![CDATA[") ? find(r->at, r->end, "]]>")
                        : starts(r, "<?")        ? find(r->at, r->end, "?>")
                                                 : tag_end(r->at, r->end);
    if (close == NULL) return false;
    if (starts(r, "<!") || starts(r, "<?")) {
        r->at = close;
        return true;
    }
    element(r, r->at + 1, close);
    r->at = close;
    return true;
}

bool pl_junit_read(const char *text, size_t len, pl_junit_each *each, void *user) {
    struct reader r = {.at = text, .end = text + len, .each = each, .user = user};
    bool whole = true;
    while (whole && (r.at = len > 0 ? memchr(r.at, '<', (size_t)(r.end - r.at)) : NULL) != NULL) whole = step(&r);
    whole = whole && r.open == 0;
    pl_buf_deinit(&r.group);
    pl_buf_deinit(&r.name);
    return whole;
}
