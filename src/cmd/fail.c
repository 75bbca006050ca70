#include <stdio.h>

#include "base/str.h"
#include "cmd/cmd.h"
#include "cmd/out.h"

int pl_cmd_fail(const char *command, const struct pl_err *err) {
    pl_progress_end();
    fflush(stdout);
    const char *text = err->text[0] != '\0' ? err->text : pl_status_text(err->status);
    if (err->status == PL_USAGE)
        fprintf(stderr, "plumb %s: %s (see 'plumb %s --help')\n", command, text, command);
    else
        fprintf(stderr, "plumb %s: %s\n", command, text);
    int code = pl_status_exit(err->status);
    return code == 0 ? PL_EXIT_FAILED : code;
}

int pl_cmd_usage(const char *command, const char *fmt, ...) {
    char text[1024]; /* it may quote what was typed, and that any bytes */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pl_text_clean(text);
    fprintf(stderr, "plumb %s: %s (see 'plumb %s --help')\n", command, text, command);
    return PL_EXIT_USAGE;
}
