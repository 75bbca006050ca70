/* cmd - the commands. Each gets its own arguments (argv[0] is the command's name) and returns the exit code:
 * 0 fine, 1 failed, 2 inconclusive (comparisons only), 64 wrong usage. Results go to stdout through cmd/out.h, everything
 * else to stderr. A new command is a function here, a file cmd_NAME.c and a row in main.c. */
#ifndef PL_CMD_CMD_H
#define PL_CMD_CMD_H

#include "base/status.h"

enum { PL_EXIT_OK = 0, PL_EXIT_FAILED = 1, PL_EXIT_INCONCLUSIVE = 2, PL_EXIT_USAGE = 64 };

int pl_cmd_run(int argc, char **argv);
int pl_cmd_generate(int argc, char **argv);
int pl_cmd_tokenize(int argc, char **argv);
int pl_cmd_detokenize(int argc, char **argv);
int pl_cmd_render(int argc, char **argv);
int pl_cmd_eval(int argc, char **argv);
int pl_cmd_inspect(int argc, char **argv);
int pl_cmd_bench(int argc, char **argv);
int pl_cmd_tune(int argc, char **argv);
int pl_cmd_serve(int argc, char **argv); /* only with libmicrohttpd */
int pl_cmd_ab(int argc, char **argv);
int pl_cmd_verify(int argc, char **argv);
int pl_cmd_version(int argc, char **argv);
int pl_cmd_devices(int argc, char **argv);
int pl_cmd_cache(int argc, char **argv);
int pl_cmd_pull(int argc, char **argv);
int pl_cmd_list(int argc, char **argv);
int pl_cmd_rm(int argc, char **argv);
int pl_cmd_mel(int argc, char **argv);

/* Prints "plumb NAME: sentence" to stderr and returns the exit code that belongs to the status. */
int pl_cmd_fail(const char *command, const struct pl_err *err);
/* The same for a sentence made here; always PL_EXIT_USAGE. Adds where the help is. */
int pl_cmd_usage(const char *command, const char *fmt, ...) PL_PRINTF(2, 3);

#endif
