/* store - where models live on this machine, and what the value of -m means.
 *
 * The store is $PLUMB_HOME/models, else $XDG_DATA_HOME/plumb/models, else ~/.local/share/plumb/models. Each model is
 * one folder with a manifest (plumb.json) that is written last: a folder without one is an unfinished download and is
 * never resolved. */
#ifndef PL_CMD_STORE_H
#define PL_CMD_STORE_H

#include "base/status.h"

/* What -m means, in this order: a file or directory that exists; a stored name; hf:owner/repo[:file] that has been
 * pulled. *path is what pl_file_open takes; the caller frees it with pl_free. Nothing is ever downloaded here: a model
 * that is known but absent is PL_NOT_FOUND with the 'plumb pull' line to type. */
enum pl_status pl_store_resolve(const char *spec, char **path, struct pl_err *err) PL_MUST_CHECK;

/* The store's folder; it may not exist yet. pl_free it. */
enum pl_status pl_store_dir(char **dir, struct pl_err *err) PL_MUST_CHECK;

#endif
