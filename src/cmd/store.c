#include "cmd/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/str.h"

static enum pl_status take(struct pl_buf *b, char **out, struct pl_err *err) {
    if (!pl_buf_ok(b) || b->data == NULL) {
        pl_buf_deinit(b);
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for a path");
    }
    *out = b->data;
    return PL_OK;
}

enum pl_status pl_store_dir(char **dir, struct pl_err *err) {
    const char *home = getenv("PLUMB_HOME"), *xdg = getenv("XDG_DATA_HOME"), *user = getenv("HOME");
    struct pl_buf b = {0};
    if (home != NULL && home[0] != '\0')
        pl_buf_printf(&b, "%s/models", home);
    else if (xdg != NULL && xdg[0] == '/')
        pl_buf_printf(&b, "%s/plumb/models", xdg);
    else if (user != NULL && user[0] == '/')
        pl_buf_printf(&b, "%s/.local/share/plumb/models", user);
    else
        PL_FAIL(err, PL_NOT_FOUND, "no place for models: neither PLUMB_HOME nor HOME is set to an absolute path");
    return take(&b, dir, err);
}

enum pl_status pl_store_resolve(const char *spec, char **path, struct pl_err *err) {
    if (spec == NULL || spec[0] == '\0')
        PL_FAIL(err, PL_INVALID, "the model is empty: expected a file, a directory, a stored name or hf:owner/repo[:file]");
    struct stat st;
    if (stat(spec, &st) == 0) {
        struct pl_buf b = {0};
        pl_buf_add_c(&b, spec);
        return take(&b, path, err);
    }
    if (errno == EACCES) PL_FAIL(err, PL_IO, "%.400s: %s", spec, strerror(errno));
    PL_FAIL(err, PL_NOT_FOUND, "%.400s: no such file, directory or stored model ('plumb list' shows what is stored)", spec);
}
