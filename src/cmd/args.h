/* args - one table per command describes its options; parsing, checking and the help text come from it.
 *
 * Accepted: --name VALUE, --name=VALUE, -x VALUE, -xVALUE, grouped flags (-vq), "--" ends the options. A value may begin
 * with '-'. Numbers are strict: whole string, in range, finite. Anything unknown is an error that suggests the nearest
 * option and ends with exit code 64. A command that has --model and takes no words without a name takes the first one as its
 * model. Values are views into argv. */
#ifndef PL_CMD_ARGS_H
#define PL_CMD_ARGS_H

#include <stdint.h>

#include "base/status.h"

enum pl_arg_kind {
    PL_ARG_FLAG,   /* bool *: true when given */
    PL_ARG_NOFLAG, /* bool *: false when given */
    PL_ARG_STR,    /* const char ** */
    PL_ARG_U32,    /* uint32_t *, in [min, max] */
    PL_ARG_I32,    /* int32_t *, in [min, max] */
    PL_ARG_U64,    /* uint64_t *, any */
    PL_ARG_F32,    /* float *, in [min, max] */
    PL_ARG_EACH    /* calls each(out, value, err) for every use */
};

struct pl_arg {
    char short_name; /* 0: none */
    const char *name;
    const char *value; /* what the help calls the value; NULL for flags */
    enum pl_arg_kind kind;
    void *out;
    const char *help;
    double min, max; /* numbers; both 0: what the type holds */
    enum pl_status (*each)(void *out, const char *value, struct pl_err *err);
};

struct pl_args {
    const char *command;  /* "generate" */
    const char *synopsis; /* "-m MODEL -p TEXT [-n N]" */
    const char *about;
    const char *examples;               /* lines, indented by the printer */
    const struct pl_arg *const *groups; /* NULL-terminated list of tables, each ended by a row without name */
    size_t positional_max;
    const char **positional; /* [positional_max], filled */
    size_t positional_count; /* out */
};

/* Returns -1 to go on, or the exit code: 0 after --help, 64 after an error that was printed. */
int pl_args_parse(struct pl_args *a, int argc, char **argv) PL_MUST_CHECK;

/* Checks and stores one value, as parsing does. */
enum pl_status pl_arg_store(const struct pl_arg *o, const char *value, struct pl_err *err) PL_MUST_CHECK;

/* The candidate nearest to what was typed, or NULL when none is near enough to be worth suggesting. */
const char *pl_args_nearest(const char *typed, const char *const *candidates, size_t count);

#endif
