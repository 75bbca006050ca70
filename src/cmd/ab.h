/* ab - what the two gates of `plumb ab` share. */
#ifndef PL_CMD_AB_H
#define PL_CMD_AB_H

#include "verify/ab.h"

struct list {
    char **item; /* owned */
    size_t count, cap;
};

struct ab {
    struct pl_ab_options o;
    struct list prompts, base_env, arm_env, expect, allow_declined;
    const char *prompts_file, *report_dir, *model, *base_flags, *arm_flags;
    uint32_t min_tokens, rounds;
    bool min_given, counters, require_merge;
    struct pl_buf base_command, arm_command; /* of the configuration form */
};

/* The counter gate; returns the exit code. */
int ab_counters(struct ab *a);

enum pl_status ab_write_file(const char *dir, const char *name, const char *data, size_t len,
                             struct pl_err *err) PL_MUST_CHECK;
int ab_fail(const struct pl_err *err);
int ab_print(const struct pl_buf *markdown, int verdict);
void ab_progress(void *user, const char *what, size_t done, size_t total);

#endif
