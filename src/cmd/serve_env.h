/* serve_env - flags of `plumb serve` from the environment: LLAMA_ARG_<NAME> as llama-server has them, and PLUMB_ARG_<NAME>
 * for every flag. The command line wins. A name nobody knows is an error that suggests the nearest. */
#ifndef PL_CMD_SERVE_ENV_H
#define PL_CMD_SERVE_ENV_H

#include "base/status.h"

/* A new argv whose added entries come first; env is environ's form. Free with pl_serve_env_free; on failure out is empty. */
struct pl_serve_argv {
    int argc;
    char **argv;
    int added;
};
enum pl_status pl_serve_env_read(int argc, char **argv, char *const *env, struct pl_serve_argv *out,
                                 struct pl_err *err) PL_MUST_CHECK;
void pl_serve_env_free(struct pl_serve_argv *a);

#endif
