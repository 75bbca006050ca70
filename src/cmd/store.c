#include "cmd/store.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"
#include "cmd/args.h"
#include "cmd/sources.h"

enum { NAME_MAX_BYTES = 200, MANIFEST_MAX = 4 << 20 };

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

/* Names look like files, owner/repo or owner/repo:file. */
static bool name_ok(const char *name) {
    size_t len = strlen(name);
    if (len == 0 || len > NAME_MAX_BYTES || strstr(name, "..") != NULL) return false;
    for (size_t i = 0; i < len; i++) {
        bool start = i == 0 || name[i - 1] == '/' || name[i - 1] == ':';
        if (!isalnum((unsigned char)name[i]) && (start || strchr("._-+/:", name[i]) == NULL)) return false;
    }
    return isalnum((unsigned char)name[len - 1]) || strchr("._-+", name[len - 1]) != NULL;
}

enum pl_status pl_store_check_name(const char *name, struct pl_err *err) {
    if (!name_ok(name))
        PL_FAIL(err, PL_INVALID,
                "'%.200s' is no name of a model: expected letters, digits and . _ - + / : (at most %d bytes)", name,
                NAME_MAX_BYTES);
    return PL_OK;
}

enum pl_status pl_store_model_dir(const char *name, char **dir, struct pl_err *err) {
    PL_TRY(pl_store_check_name(name, err));
    char *store;
    PL_TRY(pl_store_dir(&store, err));
    struct pl_buf b = {0};
    pl_buf_printf(&b, "%s/", store);
    pl_free(store);
    for (const char *c = name; *c != '\0'; c++) { /* '=' and '@' are in no name, so different names differ */
        pl_buf_add_char(&b, *c == '/' ? '=' : *c == ':' ? '@' : *c);
    }
    return take(&b, dir, err);
}

void pl_stored_deinit(struct pl_stored *s) {
    pl_free(s->name);
    pl_free(s->source);
    pl_free(s->dir);
    pl_free(s->main);
    *s = (struct pl_stored){0};
}

static uint64_t folder_bytes(const char *dir) {
    uint64_t bytes = 0;
    DIR *d = opendir(dir);
    if (d == NULL) return 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        struct stat st;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_size;
    }
    closedir(d);
    return bytes;
}

static json_t *read_manifest(const char *dir) {
    struct pl_buf path = {0};
    struct stat st;
    pl_buf_printf(&path, "%s/plumb.json", dir);
    json_t *root = NULL;
    if (pl_buf_ok(&path) && stat(path.data, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= MANIFEST_MAX)
        root = json_load_file(path.data, JSON_REJECT_DUPLICATES, NULL);
    pl_buf_deinit(&path);
    return root;
}

static bool main_is_there(const char *dir, const char *main) {
    struct pl_buf path = {0};
    struct stat st;
    pl_buf_printf(&path, "%s/%s", dir, main);
    bool there = pl_buf_ok(&path) && stat(path.data, &st) == 0;
    pl_buf_deinit(&path);
    return there;
}

enum pl_status pl_stored_read(const char *dir, struct pl_stored *out, struct pl_err *err) {
    struct stat st;
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode)) PL_FAIL(err, PL_NOT_FOUND, "%.300s: no such stored model", dir);
    json_t *root = read_manifest(dir);
    const char *name = json_string_value(json_object_get(root, "name"));
    const char *source = json_string_value(json_object_get(root, "source"));
    const char *main = json_string_value(json_object_get(root, "main"));
    bool main_ok = main != NULL && (strcmp(main, ".") == 0 || pl_pull_name_ok(main));
    struct pl_stored s = {.complete = name != NULL && main_ok && main_is_there(dir, main), .bytes = folder_bytes(dir)};
    s.name = pl_strdup(name != NULL ? name : strrchr(dir, '/') + 1);
    s.source = pl_strdup(source != NULL ? source : "");
    s.main = pl_strdup(main_ok ? main : "");
    s.dir = pl_strdup(dir);
    json_decref(root);
    if (s.name == NULL || s.source == NULL || s.main == NULL || s.dir == NULL) {
        pl_stored_deinit(&s);
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for a manifest");
    }
    *out = s;
    return PL_OK;
}

static int visible(const struct dirent *e) { return e->d_name[0] != '.'; }

enum pl_status pl_store_each(bool (*visit)(void *user, const struct pl_stored *s), void *user, struct pl_err *err) {
    char *store;
    PL_TRY(pl_store_dir(&store, err));
    struct dirent **names = NULL;
    int n = scandir(store, &names, visible, alphasort);
    enum pl_status status = PL_OK;
    if (n < 0 && errno != ENOENT) status = pl_err_set(err, __FILE__, __LINE__, PL_IO, "%.300s: %s", store, strerror(errno));
    bool more = true;
    for (int i = 0; i < n; i++) {
        struct pl_buf dir = {0};
        struct pl_stored s;
        pl_buf_printf(&dir, "%s/%s", store, names[i]->d_name);
        free(names[i]);
        if (more && status == PL_OK && pl_buf_ok(&dir)) {
            enum pl_status one = pl_stored_read(dir.data, &s, err);
            if (one == PL_OK) {
                more = visit(user, &s);
                pl_stored_deinit(&s);
            } else if (one != PL_NOT_FOUND) {
                status = one;
            }
        }
        pl_buf_deinit(&dir);
    }
    free(names);
    pl_free(store);
    return status;
}

static enum pl_status remove_file(int dir, const char *name, struct pl_err *err) {
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT) return PL_OK;
    PL_FAIL(err, PL_IO, "%.200s: %s", name, strerror(errno));
}

enum pl_status pl_stored_remove(const struct pl_stored *s, struct pl_err *err) {
    DIR *d = opendir(s->dir);
    if (d == NULL) PL_FAIL(err, PL_IO, "%.300s: %s", s->dir, strerror(errno));
    enum pl_status status = remove_file(dirfd(d), "plumb.json", err);
    for (const struct dirent *e; status == PL_OK && (e = readdir(d)) != NULL;) {
        struct stat st;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || S_ISDIR(st.st_mode)) continue;
        status = remove_file(dirfd(d), e->d_name, err);
    }
    closedir(d);
    if (status == PL_OK && rmdir(s->dir) != 0)
        status = pl_err_set(err, __FILE__, __LINE__, PL_IO,
                            "%.300s: %s (the model is gone, something else is still in there)", s->dir, strerror(errno));
    return status;
}

/* A stored model's path, PL_NOT_FOUND without text when there is none. */
static enum pl_status resolve_name(const char *name, char **path, struct pl_err *err) {
    char *dir;
    struct pl_stored s;
    if (!name_ok(name)) return PL_NOT_FOUND;
    PL_TRY(pl_store_model_dir(name, &dir, err));
    enum pl_status status = pl_stored_read(dir, &s, err);
    pl_free(dir);
    PL_TRY(status);
    struct pl_buf b = {0};
    if (!s.complete)
        status =
            pl_err_set(err, __FILE__, __LINE__, PL_NOT_FOUND,
                       "%.200s: its download is not finished: 'plumb pull' it again, it goes on where it stopped", name);
    else if (strcmp(s.main, ".") == 0)
        pl_buf_add_c(&b, s.dir);
    else
        pl_buf_printf(&b, "%s/%s", s.dir, s.main);
    bool complete = s.complete;
    pl_stored_deinit(&s);
    if (status == PL_OK) return take(&b, path, err);
    return complete ? status : PL_BUSY; /* the text is set: the caller passes it on */
}

struct near {
    const char *typed;
    char name[NAME_MAX_BYTES + 1];
};
static bool look_near(void *user, const struct pl_stored *s) {
    struct near *n = user;
    const char *const name = s->name;
    if (pl_args_nearest(n->typed, &name, 1) != NULL) snprintf(n->name, sizeof n->name, "%s", name);
    return n->name[0] == '\0';
}

/* What was probably meant: a stored name, else one that plumb knows. False: nothing is near. */
static bool near_name(const char *typed, struct near *n) {
    struct pl_err ignored = {0};
    *n = (struct near){.typed = typed};
    (void)!pl_store_each(look_near, n, &ignored);
    const char *known;
    for (size_t i = 0; n->name[0] == '\0' && (known = pl_pull_known_at(i, NULL)) != NULL; i++)
        if (pl_args_nearest(typed, &known, 1) != NULL) snprintf(n->name, sizeof n->name, "%s", known);
    return n->name[0] != '\0';
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
    bool hf = strncmp(spec, "hf:", 3) == 0;
    enum pl_status status = resolve_name(hf ? spec + 3 : spec, path, err);
    if (status == PL_BUSY) return PL_NOT_FOUND;
    if (status != PL_NOT_FOUND) return status;
    if (hf) PL_TRY(pl_hf_check(spec, err));
    if (hf || pl_pull_known(spec))
        PL_FAIL(err, PL_NOT_FOUND, "%.300s is not here yet: 'plumb pull %.300s' fetches it", spec, spec);
    struct near n;
    if (name_ok(spec) && near_name(spec, &n))
        PL_FAIL(err, PL_NOT_FOUND, "%.400s: no such file, directory or stored model: did you mean %s?", spec, n.name);
    PL_FAIL(err, PL_NOT_FOUND, "%.400s: no such file, directory or stored model ('plumb list' shows what is stored)", spec);
}
