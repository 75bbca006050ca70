#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

static const struct {
    const char *name, *text;
    int http, code;
} status_table[PL_STATUS_COUNT] = {
#define ROW(name, text, http, code) [name] = {#name, text, http, code},
    PL_STATUS_LIST(ROW)
#undef ROW
};

static bool known(enum pl_status s) { return (unsigned)s < PL_STATUS_COUNT; }

const char *pl_status_name(enum pl_status s) { return known(s) ? status_table[s].name : "PL_?"; }
const char *pl_status_text(enum pl_status s) { return known(s) ? status_table[s].text : "unknown status"; }
int pl_status_http(enum pl_status s) { return known(s) ? status_table[s].http : 500; }
int pl_status_exit(enum pl_status s) { return known(s) ? status_table[s].code : 1; }

enum pl_status pl_err_set(struct pl_err *err, const char *file, int line, enum pl_status status, const char *fmt, ...) {
    if (err == NULL) return status;
    err->status = status;
    err->file = file;
    err->line = line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    pl_text_clean(err->text);
    return status;
}

enum pl_status pl_err_note(struct pl_err *err, const char *fmt, ...) {
    if (err == NULL) return PL_INTERNAL;
    size_t used = strlen(err->text);
    int lead = snprintf(err->text + used, sizeof err->text - used, "\n  while ");
    if (lead < 0 || (size_t)lead >= sizeof err->text - used) return err->status;
    used += (size_t)lead;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text + used, sizeof err->text - used, fmt, ap);
    va_end(ap);
    pl_text_clean(err->text + used);
    return err->status;
}

_Noreturn void pl_panic(const char *file, int line, const char *what) {
    fprintf(stderr, "plumb: internal error at %s:%d: %s does not hold\n", file, line, what);
    abort();
}
