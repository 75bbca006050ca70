/* store - where models live on this machine, and what the value of -m means.
 *
 * The store is $PLUMB_HOME/models, else $XDG_DATA_HOME/plumb/models, else ~/.local/share/plumb/models. Each model is
 * one folder with a manifest (plumb.json) that is written last: a folder without one is an unfinished download and is
 * never resolved. */
#ifndef PL_CMD_STORE_H
#define PL_CMD_STORE_H

#include <stdint.h>

#include "base/status.h"

/* What -m means, in this order: a file or directory that exists; a stored name; hf:owner/repo[:file] that has been
 * pulled. *path is what pl_file_open takes; the caller frees it with pl_free. Nothing is ever downloaded here: a model
 * that is known but absent is PL_NOT_FOUND with the 'plumb pull' line to type. */
enum pl_status pl_store_resolve(const char *spec, char **path, struct pl_err *err) PL_MUST_CHECK;

/* The store's folder; it may not exist yet. pl_free it. */
enum pl_status pl_store_dir(char **dir, struct pl_err *err) PL_MUST_CHECK;

/* PL_INVALID: it is no name of a model. */
enum pl_status pl_store_check_name(const char *name, struct pl_err *err) PL_MUST_CHECK;
/* The folder of one model, whether it exists or not; refuses names that are no names. pl_free it. */
enum pl_status pl_store_model_dir(const char *name, char **dir, struct pl_err *err) PL_MUST_CHECK;

struct pl_stored {
    char *name;   /* the folder's name when there is no manifest */
    char *source; /* "" when there is no manifest */
    char *dir, *main;
    uint64_t bytes; /* on disk */
    bool complete;
};
void pl_stored_deinit(struct pl_stored *s);

/* Reads one model's folder. PL_NOT_FOUND when there is none; a damaged manifest counts as unfinished. */
enum pl_status pl_stored_read(const char *dir, struct pl_stored *out, struct pl_err *err) PL_MUST_CHECK;

/* Calls each model's folder in order of name; visit returns false to stop. */
enum pl_status pl_store_each(bool (*visit)(void *user, const struct pl_stored *s), void *user,
                             struct pl_err *err) PL_MUST_CHECK;

/* Removes a model: the manifest first, then the files in its folder, then the folder. Leaves anything that is not a
 * plain file alone, and says so. */
enum pl_status pl_stored_remove(const struct pl_stored *s, struct pl_err *err) PL_MUST_CHECK;

#endif
