#include "cmd/serve_flags.h"

#include <string.h>

#include "base/mem.h"
#include "base/str.h"

static const struct {
    const char *from;
    char *to;
} same[] = {{"-np", "--parallel"},
            {"-ngl", "--gpu-layers"},
            {"--n-gpu-layers", "--gpu-layers"},
            {"--ctx-size", "--context"},
            {"-b", "--batch-rows"},
            {"--batch-size", "--batch-rows"},
            {"-to", "--timeout"},
            {"-ctk", "--kv-dtype"},
            {"-ctv", "--kv-dtype"},
            {"--cache-type-k", "--kv-dtype"},
            {"--cache-type-v", "--kv-dtype"}};

/* What they ask for is always so here. */
static const char *const always[] = {"-cb", "--cont-batching", "--jinja", "--slots", "--props", "--no-context-shift"};

static const struct {
    const char *name, *instead;
} other[] = {
    {"-fa", "the form of attention is chosen by itself, --attn forces one"},
    {"--flash-attn", "the form of attention is chosen by itself, --attn forces one"},
    {"-ub", "use --batch-rows"},
    {"--ubatch-size", "use --batch-rows"},
    {"-tb", "use --threads"},
    {"--threads-batch", "use --threads"},
    {"-sm", "use --device"},
    {"--split-mode", "use --device"},
    {"-mg", "use --device"},
    {"--main-gpu", "use --device"},
    {"-n", "use max_tokens of a request"},
    {"--predict", "use max_tokens of a request"},
    {"--n-predict", "use max_tokens of a request"},
    {"--temp", "use temperature of a request"},
    {"-s", "use seed of a request"},
    {"--seed", "use seed of a request"},
    {"--grammar", "use grammar of a request"},
    {"--reasoning-format", "use reasoning_format of a request"},
    {"--chat-template", "the model's own template is used"},
    {"--chat-template-file", "the model's own template is used"},
    {"--ssl-key-file", "TLS comes through a reverse proxy, see docs/server.md"},
    {"--ssl-cert-file", "TLS comes through a reverse proxy, see docs/server.md"},
    {"--log-file", "use --access-log"},
    {"--log-disable", "there is no log but --access-log"},
    {"-v", "use --access-log and --log-bodies"},
    {"--verbose", "use --access-log and --log-bodies"},
    {"-lv", "use --access-log and --log-bodies"},
    {"--no-webui", "the page at / cannot be switched off"},
    {"--mlock", "weights are mapped, see --memory-limit"},
    {"--no-mmap", "weights are mapped, see --memory-limit"},
    {"--embedding", "embeddings are not served"},
    {"--embeddings", "embeddings are not served"},
};

static bool is_always(const char *arg) {
    for (size_t i = 0; i < PL_COUNT_OF(always); i++)
        if (strcmp(arg, always[i]) == 0) return true;
    return false;
}

/* Both sides of the cache have one type here. */
static enum pl_status same_cache_types(int argc, char **argv, struct pl_err *err) {
    const char *type[2] = {NULL, NULL};
    for (int i = 1; i + 1 < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "-ctk") == 0 || strcmp(argv[i], "--cache-type-k") == 0) type[0] = argv[i + 1];
        if (strcmp(argv[i], "-ctv") == 0 || strcmp(argv[i], "--cache-type-v") == 0) type[1] = argv[i + 1];
    }
    if (type[0] != NULL && type[1] != NULL && strcmp(type[0], type[1]) != 0)
        PL_FAIL(err, PL_USAGE, "keys are cached as '%.40s' and values as '%.40s', but here both have one type (--kv-dtype)",
                type[0], type[1]);
    return PL_OK;
}

/* -hf OWNER/REPO is -m hf:OWNER/REPO. */
static enum pl_status hub_name(char **arg, char **value, char **made, struct pl_err *err) {
    struct pl_buf b = {0};
    pl_buf_printf(&b, "hf:%s", *value);
    if (*made != NULL || !pl_buf_ok(&b)) {
        pl_buf_deinit(&b);
        PL_FAIL(err, PL_USAGE, "-hf is given twice");
    }
    *arg = "--model";
    *value = *made = b.data;
    return PL_OK;
}

enum pl_status pl_serve_flags_translate(int *argc, char **argv, char **made, struct pl_err *err) {
    int kept = 1;
    PL_TRY(same_cache_types(*argc, argv, err));
    bool options = true;
    for (int i = 1; i < *argc; i++) {
        options = options && strcmp(argv[i], "--") != 0;
        for (size_t k = 0; options && k < PL_COUNT_OF(other); k++)
            if (strcmp(argv[i], other[k].name) == 0)
                PL_FAIL(err, PL_USAGE, "%s is llama-server's: %s", argv[i], other[k].instead);
        if (options && is_always(argv[i])) continue;
        for (size_t k = 0; options && k < PL_COUNT_OF(same); k++)
            if (strcmp(argv[i], same[k].from) == 0) argv[i] = same[k].to;
        bool hub =
            options && (strcmp(argv[i], "-hf") == 0 || strcmp(argv[i], "-hfr") == 0 || strcmp(argv[i], "--hf-repo") == 0);
        if (hub && i + 1 < *argc) PL_TRY(hub_name(&argv[i], &argv[i + 1], made, err));
        argv[kept++] = argv[i];
    }
    *argc = kept;
    argv[kept] = NULL;
    return PL_OK;
}
