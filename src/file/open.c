/* What kind of model a path names. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "file/reader.h"

/* The directory part of path in buf ("." when there is none) and the name after it. */
static const char *split_path(const char *path, struct pl_buf *dir) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        pl_buf_add_c(dir, ".");
        return path;
    }
    pl_buf_add(dir, path, slash == path ? 1 : (size_t)(slash - path));
    return slash + 1;
}

static enum pl_status open_inside(const char *path, struct pl_file **out, struct pl_err *err) {
    struct pl_buf dir = {0};
    const char *name = split_path(path, &dir);
    enum pl_status status;
    if (pl_buf_ok(&dir)) {
        bool weights =
            pl_str_ends(pl_str_from(name), ".safetensors") || pl_str_ends(pl_str_from(name), ".safetensors.index.json");
        status = pl_hf_open(pl_buf_cstr(&dir), weights ? name : NULL, out, err);
    } else {
        status = pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "%s: no memory for its path", PL_SHOWN_C(path));
    }
    pl_buf_deinit(&dir);
    return status;
}

enum pl_status pl_file_open(const char *path, struct pl_file **out, struct pl_err *err) {
    struct stat st;
    struct pl_str p = pl_str_from(path);
    if (p.len == 0) PL_FAIL(err, PL_INVALID, "the path of the model is empty; expected a GGUF file or a directory");
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return pl_hf_open(path, NULL, out, err);
    if (pl_str_ends(p, ".safetensors") || pl_str_ends(p, ".safetensors.index.json") || pl_str_ends(p, "config.json")) {
        return open_inside(path, out, err);
    }
    return pl_gguf_open(path, out, err); /* whatever the name: the magic decides, and its message says what was found */
}
