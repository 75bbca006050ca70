/* Where vendors' libraries are looked for, in order: a folder the user named, the loader's own places, known install
 * folders, beside this program, and Python's site-packages (pip's nvidia-* packages). */
#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "device/driver.h"

static void *open_in(const char *folder, const char *const *names) {
    static const char *const sub[] = {"", "/lib64", "/lib", "/lib/x64", "/nvvm/lib64"};
    for (size_t i = 0; names[i] != NULL; i++) {
        for (size_t k = 0; k < PL_COUNT_OF(sub); k++) {
            char path[PATH_MAX];
            int n = snprintf(path, sizeof path, "%s%s/%s", folder, sub[k], names[i]);
            if (n < 0 || (size_t)n >= sizeof path || access(path, R_OK) != 0) continue;
            void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (h != NULL) return h;
            pl_log("%s was found but does not load: %s", path, dlerror());
        }
    }
    return NULL;
}

static void *open_beside_program(const char *const *names) {
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return NULL;
    path[n] = 0;
    char *slash = strrchr(path, '/');
    if (slash == NULL) return NULL;
    *slash = 0;
    return open_in(path, names);
}

static void *open_in_matches(const char *pattern, const char *const *names) {
    glob_t g = {0};
    void *h = NULL;
    if (glob(pattern, GLOB_NOSORT, NULL, &g) == 0) {
        for (size_t i = 0; i < g.gl_pathc && h == NULL; i++) h = open_in(g.gl_pathv[i], names);
    }
    globfree(&g);
    return h;
}

static void *open_in_python(const char *sub, const char *const *names) {
    static const char *const roots[] = {"/usr/lib/python3*/site-packages", "/usr/lib/python3/dist-packages",
                                        "/usr/local/lib/python3*/dist-packages", "/usr/local/lib/python3*/site-packages"};
    char pattern[PATH_MAX];
    const char *venv = getenv("VIRTUAL_ENV"), *home = getenv("HOME");
    void *h = NULL;
    if (venv != NULL && snprintf(pattern, sizeof pattern, "%s/lib/python3*/site-packages/%s", venv, sub) < PATH_MAX) {
        h = open_in_matches(pattern, names);
    }
    if (h == NULL && home != NULL &&
        snprintf(pattern, sizeof pattern, "%s/.local/lib/python3*/site-packages/%s", home, sub) < PATH_MAX) {
        h = open_in_matches(pattern, names);
    }
    for (size_t i = 0; i < PL_COUNT_OF(roots) && h == NULL; i++) {
        if (snprintf(pattern, sizeof pattern, "%s/%s", roots[i], sub) < PATH_MAX) h = open_in_matches(pattern, names);
    }
    return h;
}

static void *find(const struct pl_library *lib) {
    const char *user = lib->env != NULL ? getenv(lib->env) : NULL;
    void *h = user != NULL && *user != 0 ? open_in(user, lib->names) : NULL;
    for (size_t i = 0; lib->names[i] != NULL && h == NULL; i++) h = dlopen(lib->names[i], RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; lib->folders != NULL && lib->folders[i] != NULL && h == NULL; i++) {
        h = open_in_matches(lib->folders[i], lib->names);
    }
    if (h == NULL) h = open_beside_program(lib->names);
    if (h == NULL && lib->pip != NULL) h = open_in_python(lib->pip, lib->names);
    return h;
}

enum pl_status pl_library_open(const struct pl_library *lib, const struct pl_library_symbol *symbols, size_t count,
                               void **handle, struct pl_err *err) {
    const char *off = lib->off != NULL ? getenv(lib->off) : NULL; /* to try what happens without it */
    if (off != NULL && strcmp(off, "off") == 0) {
        PL_FAIL(err, PL_NOT_FOUND, "%s is switched off by %s: %s", lib->what, lib->off, lib->help);
    }
    void *h = find(lib);
    if (h == NULL) PL_FAIL(err, PL_NOT_FOUND, "%s (%s) was not found: %s", lib->what, lib->names[0], lib->help);
    for (size_t i = 0; i < count; i++) {
        *symbols[i].slot = dlsym(h, symbols[i].name);
        if (*symbols[i].slot == NULL && !symbols[i].optional) {
            dlclose(h);
            PL_FAIL(err, PL_UNSUPPORTED, "%s (%s) has no function %s: it is too old or not what its name says; %s",
                    lib->what, lib->names[0], symbols[i].name, lib->help);
        }
    }
    *handle = h;
    return PL_OK;
}
