/* index - where pip's package index is, and the address of a file on it (the simple API: JSON, or the older HTML). */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/sources.h"

enum { INDEX_PAGE_MAX = 32 << 20 };
static const char ACCEPT[] = "application/vnd.pypi.simple.v1+json, text/html;q=0.5";

static char *trim(char *s) {
    while (*s == ' ' || *s == '\t') s++;
    size_t len = strlen(s);
    while (len > 0 && (unsigned char)s[len - 1] <= ' ') s[--len] = '\0';
    return s;
}

/* index-url of the sections that pip reads for downloads. */
static char *from_config(const char *path) {
    FILE *f = fopen(path, "r");
    if (f == NULL) return NULL;
    char line[2048], *found = NULL;
    bool section = false;
    while (fgets(line, sizeof line, f) != NULL) {
        char *s = trim(line), *eq = strchr(s, '=');
        if (*s == '[') section = strcmp(s, "[global]") == 0 || strcmp(s, "[install]") == 0 || strcmp(s, "[download]") == 0;
        if (!section || eq == NULL || *s == '#' || *s == ';') continue;
        *eq = '\0';
        char *key = trim(s), *value = trim(eq + 1);
        if ((strcmp(key, "index-url") == 0 || strcmp(key, "index_url") == 0) && *value != '\0') {
            pl_free(found);
            found = pl_strdup(value);
        }
    }
    fclose(f);
    return found;
}

static char *from_home(const char *base, const char *tail) {
    if (base == NULL || base[0] != '/') return NULL;
    struct pl_buf path = {0};
    pl_buf_printf(&path, "%s%s", base, tail);
    char *found = pl_buf_ok(&path) ? from_config(pl_buf_cstr(&path)) : NULL;
    pl_buf_deinit(&path);
    return found;
}

/* Nothing configured: pip itself knows its default. */
static char *from_pip(void) {
    FILE *f = popen("python3 -c 'from pip._internal.models.index import PyPI; print(PyPI.simple_url)' 2>/dev/null", "r");
    if (f == NULL) return NULL;
    char line[1024] = "";
    bool got = fgets(line, sizeof line, f) != NULL;
    int rc = pclose(f);
    char *s = trim(line);
    return got && rc == 0 && strncmp(s, "https://", 8) == 0 ? pl_strdup(s) : NULL;
}

enum pl_status pl_index_url(char **url, struct pl_err *err) {
    const char *env = getenv("PIP_INDEX_URL"), *config = getenv("PIP_CONFIG_FILE");
    *url = NULL;
    if (env != NULL && env[0] != '\0') *url = pl_strdup(env);
    if (*url == NULL && config != NULL) *url = from_config(config);
    if (*url == NULL) *url = from_home(getenv("XDG_CONFIG_HOME"), "/pip/pip.conf");
    if (*url == NULL) *url = from_home(getenv("HOME"), "/.config/pip/pip.conf");
    if (*url == NULL) *url = from_home(getenv("HOME"), "/.pip/pip.conf");
    if (*url == NULL) *url = from_config("/etc/pip.conf");
    if (*url == NULL) *url = from_pip();
    if (*url == NULL)
        PL_FAIL(err, PL_NOT_FOUND, "no Python package index is known: set PIP_INDEX_URL to its simple API, or install pip");
    return PL_OK;
}

static enum pl_status in_json(const char *text, size_t len, const char *page, const char *filename, char **url,
                              struct pl_err *err) {
    json_error_t why;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        PL_FAIL(err, PL_FORMAT, "the package index answers with JSON that is wrong in line %d: %s", why.line, why.text);
    size_t i;
    json_t *file;
    enum pl_status st = PL_OK;
    json_array_foreach(json_object_get(root, "files"), i, file) {
        const char *name = json_string_value(json_object_get(file, "filename"));
        const char *address = json_string_value(json_object_get(file, "url"));
        if (name == NULL || address == NULL || strcmp(name, filename) != 0 || *url != NULL) continue;
        st = pl_http_join(page, address, url, err);
    }
    json_decref(root);
    return st;
}

/* Anchors whose address ends with the file name, before any fragment. */
static enum pl_status in_html(const char *text, const char *page, const char *filename, char **url, struct pl_err *err) {
    for (const char *p = text; (p = strstr(p, "href=\"")) != NULL;) {
        p += 6;
        size_t len = strcspn(p, "\"#"), want = strlen(filename);
        if (len < want || memcmp(p + len - want, filename, want) != 0 || (len > want && p[len - want - 1] != '/')) continue;
        char *rel = pl_strndup(p, len);
        if (rel == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for an address");
        enum pl_status st = pl_http_join(page, rel, url, err);
        pl_free(rel);
        return st;
    }
    return PL_OK;
}

enum pl_status pl_index_find(const struct pl_http *h, const char *index, const char *project, const char *filename,
                             char **url, struct pl_err *err) {
    struct pl_buf page = {0}, body = {0};
    char *final = NULL;
    *url = NULL;
    size_t len = strlen(index);
    pl_buf_printf(&page, "%s%s%s/", index, len > 0 && index[len - 1] == '/' ? "" : "/", project);
    enum pl_status st = PL_NO_MEMORY;
    if (pl_buf_ok(&page)) st = pl_http_text(h, pl_buf_cstr(&page), ACCEPT, INDEX_PAGE_MAX, &body, &final, err);
    if (st == PL_OK) {
        const char *text = pl_buf_cstr(&body);
        st = text[strspn(text, " \t\r\n")] == '{' ? in_json(text, body.len, final, filename, url, err)
                                                  : in_html(text, final, filename, url, err);
    }
    if (st == PL_OK && *url == NULL)
        st = pl_err_set(err, __FILE__, __LINE__, PL_NOT_FOUND, "the package index has no file %s of project %s", filename,
                        project);
    pl_free(final);
    pl_buf_deinit(&page);
    pl_buf_deinit(&body);
    return st;
}
