/* serve_flags - llama-server's names of flags, as far as they mean the same; the others are errors that say what to use. */
#ifndef PL_CMD_SERVE_FLAGS_H
#define PL_CMD_SERVE_FLAGS_H

#include "base/status.h"

/* Rewrites argv in place (argv[0] stays, argv[*argc] is NULL). Texts it makes are owned by *made, at most one. */
enum pl_status pl_serve_flags_translate(int *argc, char **argv, char **made, struct pl_err *err) PL_MUST_CHECK;

#endif
