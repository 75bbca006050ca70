/* common - what several commands share: option groups, opening a model, reading texts and id lists. */
#ifndef PL_CMD_COMMON_H
#define PL_CMD_COMMON_H

#include <jansson.h>

#include "base/str.h"
#include "cmd/args.h"
#include "device/device.h"
#include "engine/engine.h"

enum { PL_TEXT_BYTES_MAX = 256 << 20 }; /* of a prompt or text file */

/* --- -m and how to run it --- */
struct pl_model_opts {
    const char *model;
    struct plumb_engine_options engine;
    char force[512], disable[512]; /* "op=impl,op=impl" gathered from options and environment */
};
#define PL_MODEL_ARG_ROWS 23
/* Fills rows (ended by a row without name) whose targets are in o. */
void pl_model_args(struct pl_model_opts *o, struct pl_arg rows[PL_MODEL_ARG_ROWS]);
/* -m is there and the named values are known: wrong usage is said before anything is read. */
enum pl_status pl_cmd_check_model(const struct pl_model_opts *o, struct pl_err *err) PL_MUST_CHECK;
/* PLUMB_KERNEL and its kin, once; options win where both name one value. Part of opening an engine as below. */
enum pl_status pl_cmd_read_environment(struct pl_model_opts *o, struct pl_err *err) PL_MUST_CHECK;
/* What a command needs of a model that was opened but not loaded: refused here, nobody has waited for weights and kernels.
 * It may keep e, which is destroyed when it fails. */
struct pl_cmd_need {
    enum pl_status (*check)(void *user, struct plumb_engine *e, struct pl_err *err); /* NULL: nothing */
    void *user;
};
/* Resolves -m, opens it, asks need (NULL: nothing), loads with a progress line, prints the backend line. NULL after an error
 * was printed; *code is set. */
struct plumb_engine *pl_cmd_open_engine(const char *command, struct pl_model_opts *o, const struct pl_cmd_need *need,
                                        int *code);
/* Only opens the file: no weights are loaded. */
enum pl_status pl_cmd_open_file(const struct pl_model_opts *o, struct pl_file **out, struct pl_err *err) PL_MUST_CHECK;

/* --- sampling --- */
struct pl_sampling_opts {
    struct plumb_sampling s;
    struct plumb_logit_bias *bias; /* owned */
    size_t bias_cap;
    bool seed_given;
};
#define PL_SAMPLING_ARG_ROWS 13
void pl_sampling_args(struct pl_sampling_opts *o, struct pl_arg rows[PL_SAMPLING_ARG_ROWS]);
void pl_sampling_opts_deinit(struct pl_sampling_opts *o);
/* Ranges, before anything is loaded. */
enum pl_status pl_sampling_opts_check(const struct pl_sampling_opts *o, struct pl_err *err) PL_MUST_CHECK;
/* An error of the sampler names the option that was typed, not the field. */
void pl_sampling_opts_name(struct pl_err *err);
/* A seed from the clock unless one was given. */
void pl_sampling_opts_seed(struct pl_sampling_opts *o);

/* The ending of a noun after its number. */
static inline const char *pl_cmd_s(uint64_t n) { return n == 1 ? "" : "s"; }

/* --- input --- */
/* The whole of a file ("-": standard input), bounded. */
enum pl_status pl_cmd_read_file(const char *path, size_t max_bytes, struct pl_buf *out, struct pl_err *err) PL_MUST_CHECK;
/* -p TEXT or -f FILE: exactly one of them. */
enum pl_status pl_cmd_read_text(const char *text, const char *file, struct pl_buf *out, struct pl_err *err) PL_MUST_CHECK;
/* "[1,2,3]" or "1 2 3" or "1,2,3". */
enum pl_status pl_cmd_parse_ids(const char *text, size_t len, struct pl_ids *out, struct pl_err *err) PL_MUST_CHECK;
void pl_cmd_print_ids(const uint32_t *ids, size_t count); /* "[1,2,3]\n" */
/* Can this file be written, as far as can be known without touching it? Asked before work that would be lost. NULL: yes. */
enum pl_status pl_cmd_can_write(const char *path, const char *what, struct pl_err *err) PL_MUST_CHECK;
/* The same of --witness and --counters. */
enum pl_status pl_cmd_can_record(const char *witness, const char *counters, struct pl_err *err) PL_MUST_CHECK;
/* Pretty JSON and a newline on stdout; takes the reference. NULL counts as out of memory. */
enum pl_status pl_cmd_print_json(json_t *value, struct pl_err *err) PL_MUST_CHECK;
/* Writes what ran to a file (schema plumb-witness-1). PL_INTERNAL, after writing, when host and device counted a kernel
 * differently. */
enum pl_status pl_cmd_write_witness(struct plumb_engine *e, const char *path, struct pl_err *err) PL_MUST_CHECK;
/* Writes how choices ended (schema plumb-counters-1). PL_INTERNAL, after writing, when they do not add up. */
enum pl_status pl_cmd_write_counters(struct plumb_engine *e, const char *path, struct pl_err *err) PL_MUST_CHECK;
/* What reading runs at on a device, best of a few passes over up to 2 GiB. */
enum pl_status pl_cmd_read_bandwidth(enum pl_device_kind kind, int index, double *bytes_per_s,
                                     struct pl_err *err) PL_MUST_CHECK;
/* Kernels made so far, none on the CPU: loaded onto the device, and how many of them a compiler made in this process. */
struct pl_cmd_made {
    uint64_t loaded, compiled;
};
struct pl_cmd_made pl_cmd_made(const struct plumb_engine *e, struct pl_cmd_made since);
enum { PL_CMD_MEASURE_MAX = 3 }; /* so often is something measured at most until no kernel is made within */
/* "kernels: a, b, c" on stderr. */
void pl_cmd_print_kernels(struct plumb_engine *e);

#endif
