#include "verify/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { SERIES_MAX = 100000, KEY_MAX = 1000 };

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct pl_series *)a)->key, ((const struct pl_series *)b)->key);
}

/* Bytes of name{labels}; blanks inside quotes belong to it. */
static size_t key_length(const char *line) {
    bool quoted = false;
    size_t i = 0;
    for (; line[i] != '\0' && line[i] != '\n'; i++) {
        if (quoted && line[i] == '\\' && line[i + 1] != '\0')
            i++;
        else if (line[i] == '"')
            quoted = !quoted;
        else if (!quoted && (line[i] == ' ' || line[i] == '\t'))
            break;
    }
    return i;
}

static enum pl_status take_line(struct pl_metrics *m, const char *line, struct pl_err *err) {
    size_t len = key_length(line);
    char *end;
    double value = strtod(line + len, &end);
    bool sample =
        len > 0 && len < KEY_MAX && end != line + len && (*end == '\0' || *end == '\n' || *end == ' ' || *end == '\r');
    if (!sample || !isfinite(value)) {
        m->bad_lines++;
        return PL_OK;
    }
    if (m->count == SERIES_MAX) PL_FAIL(err, PL_LIMIT, "more than %d series", SERIES_MAX);
    char *key = pl_strndup(line, len);
    if (key == NULL || pl_grow(&m->series, &m->cap, m->count + 1, sizeof *m->series) != PL_OK) {
        pl_free(key);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for metrics");
    }
    m->series[m->count++] = (struct pl_series){.key = key, .value = value};
    return PL_OK;
}

enum pl_status pl_metrics_parse(const char *text, struct pl_metrics *out, struct pl_err *err) {
    *out = (struct pl_metrics){0};
    for (const char *line = text; *line != '\0';) {
        size_t len = strcspn(line, "\n");
        if (len > 0 && line[0] != '#' && line[0] != '\r') {
            enum pl_status st = take_line(out, line, err);
            if (st != PL_OK) {
                pl_metrics_deinit(out);
                return st;
            }
        }
        line += len + (line[len] == '\n');
    }
    if (out->count > 0) qsort(out->series, out->count, sizeof *out->series, by_key);
    return PL_OK;
}

void pl_metrics_deinit(struct pl_metrics *m) {
    for (size_t i = 0; i < m->count; i++) pl_free(m->series[i].key);
    pl_free(m->series);
    *m = (struct pl_metrics){0};
}

const double *pl_metrics_find(const struct pl_metrics *m, const char *key) {
    struct pl_series want = {.key = (char *)(uintptr_t)key};
    if (m->count == 0) return NULL;
    const struct pl_series *s = bsearch(&want, m->series, m->count, sizeof want, by_key);
    return s != NULL ? &s->value : NULL;
}

bool pl_metrics_delta(const struct pl_metrics *before, const struct pl_metrics *after, const char *key, double *out) {
    const double *a = pl_metrics_find(before, key), *b = pl_metrics_find(after, key);
    if (b == NULL || (a != NULL && *b < *a)) return false;
    *out = a != NULL ? *b - *a : *b;
    return true;
}

bool pl_series_named(const char *key, const char *name) {
    size_t len = strlen(name);
    return strncmp(key, name, len) == 0 && (key[len] == '\0' || key[len] == '{');
}

bool pl_series_label(const char *key, const char *label, char *out, size_t cap) {
    char want[80];
    snprintf(want, sizeof want, "%.70s=\"", label);
    for (const char *at = strpbrk(key, "{"); at != NULL && (at = strstr(at + 1, want)) != NULL;) {
        if (at[-1] != '{' && at[-1] != ',') continue;
        size_t used = 0;
        for (at += strlen(want); *at != '\0' && *at != '"' && used + 1 < cap; at++) {
            if (*at == '\\' && at[1] != '\0') at++;
            out[used++] = *at;
        }
        out[used] = '\0';
        return true;
    }
    return false;
}
