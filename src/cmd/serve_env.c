#include "cmd/serve_env.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/str.h"
#include "cmd/args.h"

static const struct {
    const char *env, *flag;
    bool is_flag;
} names[] = {
    {"MODEL", "model", false},
    {"HOST", "host", false},
    {"PORT", "port", false},
    {"CTX_SIZE", "context", false},
    {"CONTEXT", "context", false},
    {"N_PARALLEL", "parallel", false},
    {"PARALLEL", "parallel", false},
    {"THREADS", "threads", false},
    {"PIN", "pin", true},
    {"THREADS_HTTP", "threads-http", false},
    {"ALIAS", "alias", false},
    {"N_GPU_LAYERS", "gpu-layers", false},
    {"BATCH", "batch-rows", false},
    {"BATCH_ROWS", "batch-rows", false},
    {"TIMEOUT", "timeout", false},
    {"API_KEY_FILE", "api-key-file", false},
    {"API_KEY", "api-key", false},
    {"ALLOW_HOST", "allow-host", false},
    {"ENDPOINT_METRICS", "metrics", true},
    {"METRICS", "metrics", true},
    {"BACKEND", "backend", false},
    {"DEVICE", "device", false},
    {"KV_DTYPE", "kv-dtype", false},
    {"CACHE_TYPE_K", "kv-dtype", false},
    {"CACHE_TYPE_V", "kv-dtype", false},
    {"PAGE_TOKENS", "page-tokens", false},
    {"MEMORY_LIMIT", "memory-limit", false},
    {"STRICT", "strict", true},
    {"FORCE_KERNEL", "force-kernel", false},
    {"DISABLE_KERNEL", "disable-kernel", false},
    {"JIT_CACHE", "jit-cache", false},
    {"ATTN", "attn", false},
    {"KV", "kv", false},
    {"INVARIANT", "invariant", true},
    {"QUEUE", "queue", false},
    {"KV_MEMORY", "kv-memory", false},
    {"GAP_MS", "gap-ms", false},
    {"UNPACKED_MEMORY", "unpacked-memory", false},
    {"CEILING_GBS", "ceiling-gbs", false},
    {"BODY_TIMEOUT", "body-timeout", false},
    {"CONNECTIONS_PER_ADDRESS", "connections-per-address", false},
    {"LOG_BODIES", "log-bodies", true},
    {"ON_DEVICE_FAILURE", "on-device-failure", false},
    {"MAX_TOKENS_PER_STEP", "max-tokens-per-step", false},
    {"NO_PREFIX_CACHE", "no-prefix-cache", true},
    {"PER_KEY", "per-key", false},
    {"PRIORITIES", "priorities", true},
    {"CORS", "cors", true},
    {"CONNECTIONS", "connections", false},
    {"BODY_LIMIT", "body-limit", false},
    {"DRAIN", "drain", false},
    {"ACCESS_LOG", "access-log", false},
    {"ISA", "isa", false},
};

static enum pl_status unknown(const char *prefix, const char *name, struct pl_err *err) {
    const char *candidates[PL_COUNT_OF(names)];
    for (size_t i = 0; i < PL_COUNT_OF(names); i++) candidates[i] = names[i].env;
    const char *near = pl_args_nearest(name, candidates, PL_COUNT_OF(names));
    PL_FAIL(err, PL_USAGE, "the environment variable %s%.60s is not known%s%s%s", prefix, name,
            near != NULL ? ": did you mean " : "", near != NULL ? prefix : "", near != NULL ? near : "");
}

/* "--flag=value", "--flag", or nothing for a switch that is off. */
static enum pl_status entry(size_t i, const char *prefix, const char *value, char **out, struct pl_err *err) {
    static const char *const on[] = {"1", "true", "on", "yes"}, *const off[] = {"0", "false", "off", "no", ""};
    struct pl_buf b = {0};
    bool yes = false, no = false;
    for (size_t k = 0; k < PL_COUNT_OF(on); k++) yes |= strcasecmp(value, on[k]) == 0;
    for (size_t k = 0; k < PL_COUNT_OF(off); k++) no |= strcasecmp(value, off[k]) == 0;
    *out = NULL;
    if (names[i].is_flag && !yes && !no)
        PL_FAIL(err, PL_USAGE, "%s%s is '%.40s', expected 1 or 0", prefix, names[i].env, value);
    if (names[i].is_flag && no) return PL_OK;
    pl_buf_printf(&b, names[i].is_flag ? "--%s" : "--%s=%s", names[i].flag, value);
    if (!pl_buf_ok(&b)) PL_FAIL(err, PL_NO_MEMORY, "no memory for the environment");
    *out = b.data;
    return PL_OK;
}

static enum pl_status add_variable(const char *variable, struct pl_serve_argv *a, struct pl_err *err) {
    static const char *const prefixes[] = {"LLAMA_ARG_", "PLUMB_ARG_"};
    for (size_t p = 0; p < PL_COUNT_OF(prefixes); p++) {
        size_t n = strlen(prefixes[p]);
        const char *equals = strchr(variable, '=');
        if (equals == NULL || strncmp(variable, prefixes[p], n) != 0) continue;
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)PL_MIN((size_t)(equals - variable) - n, sizeof name - 1), variable + n);
        for (size_t i = 0; i < PL_COUNT_OF(names); i++) {
            if (strcmp(names[i].env, name) != 0) continue;
            char *text = NULL;
            PL_TRY(entry(i, prefixes[p], equals + 1, &text, err));
            if (text != NULL) a->argv[1 + a->added++] = text;
            return PL_OK;
        }
        return unknown(prefixes[p], name, err);
    }
    return PL_OK;
}

enum pl_status pl_serve_env_read(int argc, char **argv, char *const *env, struct pl_serve_argv *out, struct pl_err *err) {
    size_t count = 0;
    while (env != NULL && env[count] != NULL) count++;
    struct pl_serve_argv a = {.argc = argc, .argv = pl_calloc((size_t)argc + count + 2, sizeof *a.argv)};
    if (a.argv == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the environment");
    enum pl_status st = PL_OK;
    for (size_t i = 0; i < count && st == PL_OK; i++) st = add_variable(env[i], &a, err);
    if (st != PL_OK) {
        pl_serve_env_free(&a);
        return st;
    }
    a.argv[0] = argv[0];
    for (int i = 1; i < argc; i++) a.argv[a.added + i] = argv[i];
    a.argc = argc + a.added;
    *out = a;
    return PL_OK;
}

void pl_serve_env_free(struct pl_serve_argv *a) {
    for (int i = 0; a->argv != NULL && i < a->added; i++) pl_free(a->argv[1 + i]);
    pl_free((void *)a->argv);
    *a = (struct pl_serve_argv){0};
}
