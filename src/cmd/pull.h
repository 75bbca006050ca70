/* pull - carries out a plan: every file into the model's folder, checked, then the manifest. One pull of a model at a
 * time; an interrupted one goes on where it stopped. */
#ifndef PL_CMD_PULL_H
#define PL_CMD_PULL_H

#include "cmd/sources.h"

/* *path (pl_free it) is what -m would open. */
enum pl_status pl_pull_run(const struct pl_http *h, const struct pl_pull_plan *plan, char **path,
                           struct pl_err *err) PL_MUST_CHECK;

#endif
