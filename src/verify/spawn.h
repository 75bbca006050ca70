/* spawn - runs a program without a shell, collects what it prints, bounded in bytes and time. */
#ifndef PL_VERIFY_SPAWN_H
#define PL_VERIFY_SPAWN_H

#include "base/str.h"

struct pl_spawned {
    struct pl_buf out, err;
    int exit_code; /* 128 + signal when killed */
    bool timed_out, overflowed;
    double seconds;
};
void pl_spawned_deinit(struct pl_spawned *s);
/* argv is NULL-terminated; env holds extra NAME=VALUE for the child. PL_NOT_FOUND when the program cannot be started. */
enum pl_status pl_spawn(char *const *argv, const char *const *env, size_t env_count, uint32_t timeout_s,
                        struct pl_spawned *out, struct pl_err *err) PL_MUST_CHECK;
/* The file that exec would run for this name; false: none. */
bool pl_find_program(const char *name, char *path, size_t cap);

#endif
