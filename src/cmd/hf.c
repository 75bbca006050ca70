/* hf - a Hugging Face repository's files and their checksums; which of them make up the model that was asked for. */
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "cmd/sources.h"

enum { API_MAX = 16 << 20, FILES_MAX = 4096 };

struct repo {
    char owner_repo[256], revision[128], wanted[512]; /* wanted: file, or a part of its name such as Q4_K_M; "" = choose */
    char commit[128];
    json_t *root; /* the API's answer */
};

static bool token_ok(const char *s, size_t len) {
    if (len == 0 || s[0] == '.' || s[0] == '-') return false;
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)s[i]) && strchr("._-", s[i]) == NULL) return false;
    return true;
}

static enum pl_status parse_spec(const char *spec, struct repo *r, struct pl_err *err) {
    const char *s = spec + 3, *slash = strchr(s, '/'), *end;
    if (slash == NULL) goto bad;
    end = slash + 1 + strcspn(slash + 1, "@:");
    if (!token_ok(s, (size_t)(slash - s)) || !token_ok(slash + 1, (size_t)(end - slash - 1))) goto bad;
    snprintf(r->owner_repo, sizeof r->owner_repo, "%.*s", (int)PL_MIN(end - s, 255), s);
    strcpy(r->revision, "main");
    if (*end == '@') {
        const char *rev = end + 1;
        end = rev + strcspn(rev, ":");
        if (!token_ok(rev, (size_t)(end - rev)) || end - rev >= (int)sizeof r->revision) goto bad;
        snprintf(r->revision, sizeof r->revision, "%.*s", (int)(end - rev), rev);
    }
    if (*end == ':') {
        if (end[1] == '\0' || strlen(end + 1) >= sizeof r->wanted || strstr(end, "..") != NULL) goto bad;
        strcpy(r->wanted, end + 1);
    }
    return PL_OK;
bad:
    PL_FAIL(err, PL_INVALID, "'%.200s' is no Hugging Face model: expected hf:owner/repo[@revision][:file]", spec);
}

enum pl_status pl_hf_check(const char *spec, struct pl_err *err) {
    struct repo r = {0};
    return parse_spec(spec, &r, err);
}

static enum pl_status ask(const struct pl_pull_env *env, struct repo *r, struct pl_err *err) {
    struct pl_buf url = {0}, body = {0};
    json_error_t why;
    pl_buf_printf(&url, "%s/api/models/%s/revision/%s?blobs=true", env->hf_endpoint, r->owner_repo, r->revision);
    enum pl_status st =
        pl_buf_ok(&url) ? pl_http_text(&env->http, url.data, "application/json", API_MAX, &body, NULL, err) : PL_NO_MEMORY;
    if (st == PL_OK) {
        r->root = json_loadb(pl_buf_cstr(&body), body.len, JSON_REJECT_DUPLICATES, &why);
        const char *sha = json_string_value(json_object_get(r->root, "sha"));
        if (r->root == NULL || !json_is_array(json_object_get(r->root, "siblings")))
            st =
                pl_err_set(err, __FILE__, __LINE__, PL_FORMAT, "%s: the answer about its files is not what was expected%s%s",
                           r->owner_repo, r->root == NULL ? ": " : "", r->root == NULL ? why.text : "");
        else
            snprintf(r->commit, sizeof r->commit, "%s", sha != NULL && token_ok(sha, strlen(sha)) ? sha : r->revision);
    }
    if (st == PL_NOT_FOUND) (void)pl_err_note(err, "looking for %s at revision %s", r->owner_repo, r->revision);
    pl_buf_deinit(&url);
    pl_buf_deinit(&body);
    return st;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static bool ends(const char *s, const char *suffix) { return pl_str_ends(pl_str_from(s), suffix); }

/* "-00001-of-00003.gguf": the place of the dash before the part number, NULL when it is no split. */
static const char *split_mark(const char *name) {
    size_t len = strlen(name);
    if (len < 20 || !ends(name, ".gguf")) return NULL;
    const char *m = name + len - 20; /* -ddddd-of-ddddd.gguf */
    for (int i = 0; i < 15; i++) {
        bool digit = (i >= 1 && i <= 5) || (i >= 10 && i <= 14);
        if (digit ? !isdigit((unsigned char)m[i]) : m[i] != "-     -of-     "[i]) return NULL;
    }
    return m;
}
static bool is_first_part(const char *name) {
    const char *m = split_mark(name);
    return m == NULL || strncmp(m, "-00001", 6) == 0;
}
static bool same_split(const char *a, const char *b) {
    const char *x = split_mark(a), *y = split_mark(b);
    return x != NULL && y != NULL && x - a == y - b && strncmp(a, b, (size_t)(x - a)) == 0 && strcmp(x + 6, y + 6) == 0;
}

static bool contains_nocase(const char *hay, const char *needle) { return strcasestr(hay, needle) != NULL; }

static const char *file_at(const struct repo *r, size_t i) {
    return json_string_value(json_object_get(json_array_get(json_object_get(r->root, "siblings"), i), "rfilename"));
}
static size_t file_count(const struct repo *r) { return json_array_size(json_object_get(r->root, "siblings")); }

static enum pl_status add(const struct pl_pull_env *env, const struct repo *r, size_t i, struct pl_pull_plan *p,
                          struct pl_err *err) {
    const json_t *file = json_array_get(json_object_get(r->root, "siblings"), i), *lfs = json_object_get(file, "lfs");
    const char *path = file_at(r, i), *sha = json_string_value(json_object_get(lfs, "sha256"));
    const char *blob = json_string_value(json_object_get(file, "blobId"));
    json_int_t size = json_integer_value(json_object_get(lfs != NULL ? lfs : file, "size"));
    if (sha == NULL) sha = json_string_value(json_object_get(lfs, "oid"));
    struct pl_buf url = {0};
    pl_buf_printf(&url, "%s/%s/resolve/%s/", env->hf_endpoint, r->owner_repo, r->commit);
    for (const char *c = path; *c != '\0'; c++) {
        if (isalnum((unsigned char)*c) || strchr("/._-~", *c) != NULL)
            pl_buf_add_char(&url, *c);
        else
            pl_buf_printf(&url, "%%%02X", (unsigned char)*c);
    }
    enum pl_status st = PL_NO_MEMORY;
    if (pl_buf_ok(&url))
        st = pl_pull_plan_add(p, url.data, base_name(path), size > 0 ? (uint64_t)size : 0, sha,
                              lfs == NULL && size > 0 ? blob : NULL, err);
    pl_buf_deinit(&url);
    return st;
}

/* The list of files one could name, for the error. */
static enum pl_status must_choose(const struct repo *r, const char *why, struct pl_err *err) {
    struct pl_buf list = {0};
    for (size_t i = 0, shown = 0; i < file_count(r) && shown < 12; i++) {
        const char *f = file_at(r, i);
        if (f == NULL || !ends(f, ".gguf") || !is_first_part(f)) continue;
        pl_buf_printf(&list, "\n  hf:%s:%.100s", r->owner_repo, f);
        shown++;
    }
    enum pl_status st = pl_err_set(err, __FILE__, __LINE__, PL_NOT_FOUND, "%s: %s%s%s", r->owner_repo, why,
                                   list.len > 0 ? "; there are" : "", pl_buf_cstr(&list));
    pl_buf_deinit(&list);
    return st;
}

/* The one GGUF that is meant: by full path, by name, by a part of its name, or because there is only one. */
static enum pl_status choose_gguf(const struct repo *r, size_t *chosen, struct pl_err *err) {
    size_t found = 0;
    for (size_t i = 0; i < file_count(r); i++) {
        const char *f = file_at(r, i);
        if (f == NULL) continue;
        if (r->wanted[0] != '\0' && (strcmp(f, r->wanted) == 0 || strcmp(base_name(f), r->wanted) == 0)) {
            *chosen = i;
            return PL_OK;
        }
        bool fits = ends(f, ".gguf") && is_first_part(f) && strncmp(base_name(f), "mmproj", 6) != 0 &&
                    (r->wanted[0] == '\0' || contains_nocase(base_name(f), r->wanted));
        if (fits) {
            *chosen = i;
            found++;
        }
    }
    if (found == 1) return PL_OK;
    if (found == 0 && r->wanted[0] == '\0') return must_choose(r, "has neither safetensors nor GGUF files", err);
    return must_choose(r, found == 0 ? "no file has that name" : "more than one file fits: name one", err);
}

static enum pl_status plan_gguf(const struct pl_pull_env *env, const struct repo *r, struct pl_pull_plan *p,
                                struct pl_err *err) {
    size_t chosen = 0;
    PL_TRY(choose_gguf(r, &chosen, err));
    const char *first = file_at(r, chosen);
    PL_TRY(add(env, r, chosen, p, err));
    for (size_t i = 0; i < file_count(r); i++) {
        const char *f = file_at(r, i);
        if (f != NULL && i != chosen && same_split(first, f)) PL_TRY(add(env, r, i, p, err));
    }
    const char *mark = split_mark(first);
    const size_t parts = mark != NULL ? strtoul(mark + 10, NULL, 10) : 1;
    if (p->count < parts)
        PL_FAIL(err, PL_NOT_FOUND, "%s is one of %zu parts, and the repository has %zu of them", first, parts, p->count);
    p->main = pl_strdup(p->files[0].name);
    return p->main != NULL ? PL_OK : PL_NO_MEMORY;
}

static bool belongs_to_model(const char *f) {
    return strchr(f, '/') == NULL && f[0] != '.' &&
           (ends(f, ".safetensors") || ends(f, ".json") || ends(f, ".jinja") || strcmp(f, "tokenizer.model") == 0 ||
            strcmp(f, "merges.txt") == 0 || strncasecmp(f, "LICENSE", 7) == 0);
}

static enum pl_status plan_folder(const struct pl_pull_env *env, const struct repo *r, struct pl_pull_plan *p,
                                  struct pl_err *err) {
    for (size_t i = 0; i < file_count(r); i++) {
        const char *f = file_at(r, i);
        if (f != NULL && belongs_to_model(f)) PL_TRY(add(env, r, i, p, err));
    }
    p->main = pl_strdup(".");
    return p->main != NULL ? PL_OK : PL_NO_MEMORY;
}

static bool has_safetensors(const struct repo *r) {
    bool weights = false, config = false;
    for (size_t i = 0; i < file_count(r); i++) {
        const char *f = file_at(r, i);
        weights |= f != NULL && ends(f, ".safetensors") && strchr(f, '/') == NULL;
        config |= f != NULL && strcmp(f, "config.json") == 0;
    }
    return weights && config;
}

enum pl_status pl_hf_plan(const struct pl_pull_env *env, const char *spec, struct pl_pull_plan *p, struct pl_err *err) {
    struct repo r = {0};
    PL_TRY(parse_spec(spec, &r, err));
    enum pl_status st = ask(env, &r, err);
    if (st == PL_OK && file_count(&r) > FILES_MAX)
        st = pl_err_set(err, __FILE__, __LINE__, PL_LIMIT, "%s has %zu files: more than %d", r.owner_repo, file_count(&r),
                        FILES_MAX);
    if (st == PL_OK)
        st = r.wanted[0] == '\0' && has_safetensors(&r) ? plan_folder(env, &r, p, err) : plan_gguf(env, &r, p, err);
    if (st == PL_OK && p->name == NULL) {
        struct pl_buf name = {0};
        pl_buf_add_c(&name, r.owner_repo);
        if (r.wanted[0] != '\0') pl_buf_printf(&name, ":%s", r.wanted);
        if (pl_buf_ok(&name)) p->name = name.data;
    }
    if (st == PL_OK && p->source == NULL) {
        struct pl_buf source = {0};
        pl_buf_printf(&source, "hf:%s@%s", r.owner_repo, r.commit);
        if (pl_buf_ok(&source)) p->source = source.data;
    }
    json_decref(r.root);
    return st;
}
