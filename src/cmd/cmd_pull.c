/* plumb pull - fetches a model into the store. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/out.h"
#include "cmd/pull.h"
#include "cmd/store.h"

/* Known models have several sources: the next is tried when one cannot be reached, and every reason is shown. */
static enum pl_status pull(const struct pl_pull_env *env, const char *spec, char **path, struct pl_err *err) {
    for (uint32_t which = 0;; which++) {
        struct pl_pull_plan plan;
        struct pl_err why = {0};
        enum pl_status st = pl_pull_plan_make(env, spec, which, &plan, &why);
        if (st != PL_OK && which > 0 && !(pl_pull_known(spec) && which < PL_PULL_SOURCES_MAX)) return err->status;
        if (st == PL_OK) {
            struct pl_http http = env->http;
            if (plan.join) http.token = NULL; /* that source is not the token's */
            st = pl_pull_run(&http, &plan, path, &why);
            pl_pull_plan_deinit(&plan);
        }
        if (st == PL_OK) return st;
        *err = why;
        if (!pl_pull_known(spec) || st == PL_BUSY || st == PL_NO_MEMORY) return st;
        fprintf(stderr, "plumb pull: %s\n", why.text);
        pl_err_set(err, __FILE__, __LINE__, st, "no source of %s could be used", spec);
    }
}

static const char *endpoint(void) {
    const char *e = getenv("HF_ENDPOINT");
    return e != NULL && e[0] != '\0' ? e : "https://huggingface.co";
}

static char *without_slash(const char *url) {
    size_t len = strlen(url);
    while (len > 0 && url[len - 1] == '/') len--;
    return pl_strndup(url, len);
}

static int run(struct pl_pull_env *env, const char *spec) {
    struct pl_err err = {0};
    if (env->name != NULL && pl_store_check_name(env->name, &err) != PL_OK)
        return pl_cmd_usage("pull", "--name: %s", err.text);
    char *path = NULL, *hf = without_slash(endpoint());
    const char *token = getenv("HF_TOKEN");
    if (hf == NULL) return pl_cmd_usage("pull", "out of memory");
    env->hf_endpoint = env->http.token_origin = hf;
    env->http.token = token != NULL && token[0] != '\0' ? token : NULL;
    if (token != NULL && strpbrk(token, "\r\n") != NULL) {
        pl_free(hf);
        return pl_cmd_usage("pull", "HF_TOKEN has a line break in it");
    }
    enum pl_status st = pull(env, spec, &path, &err);
    pl_free(hf);
    if (st != PL_OK) return pl_cmd_fail("pull", &err);
    pl_out_printf("%s\n", path);
    pl_free(path);
    return pl_out_close();
}

int pl_cmd_pull(int argc, char **argv) {
    struct pl_pull_env env = {.http = {.retries = 4}};
    const char *spec = NULL;
    const struct pl_arg options[] = {
        {0, "name", "NAME", PL_ARG_STR, &env.name, "store it under this name", 0, 0, NULL},
        {0, "sha256", "HEX", PL_ARG_STR, &env.sha256, "what the file of an address must hash to", 0, 0, NULL},
        {0, "retries", "N", PL_ARG_U32, &env.http.retries, "tries after a broken connection (default 4)", 0, 100, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "pull",
        .synopsis = "MODEL [--name NAME]",
        .about =
            "Fetches a model into the store and prints where it is. MODEL is hf:owner/repo[@revision][:file], the address\n"
            "of a .gguf file, or a name that plumb knows (see 'plumb list --known'). An interrupted pull goes on where it\n"
            "stopped. Environment: HF_TOKEN (sent to the Hugging Face host only), HF_ENDPOINT, PLUMB_HOME, PIP_INDEX_URL.",
        .examples = "  plumb pull smollm2-135m-instruct\n  plumb pull hf:bartowski/SmolLM2-360M-Instruct-GGUF:Q8_0\n"
                    "  plumb pull https://example.org/model.gguf --sha256 0123...\n",
        .groups = (const struct pl_arg *const[]){options, NULL},
        .positional_max = 1,
        .positional = &spec,
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code != -1) return code;
    if (args.positional_count != 1) return pl_cmd_usage("pull", "which model?");
    signal(SIGXFSZ, SIG_IGN); /* a file size limit becomes an error that is reported */
    return run(&env, spec);
}
