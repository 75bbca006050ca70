/* eval - what the two ways of evaluating share: a model loaded here, or a server asked over HTTP. Both hand rows to a
 * scorer in the order of the text. */
#ifndef PL_CMD_EVAL_H
#define PL_CMD_EVAL_H

#include "cmd/common.h"
#include "cmd/store.h"
#include "verify/peer.h"
#include "verify/score.h"

enum { EVAL_LOGIT_ROWS = 64, EVAL_TOP = 5 };

struct eval {
    struct pl_model_opts model;
    const char *text_file, *tokens_file, *dump_file, *reference_dtype, *witness, *counters;
    uint32_t window, stride, limit, top;
    bool json;
    struct pl_peer peer; /* url NULL: a model loaded here */
    struct plumb_engine *engine;
    struct plumb_session *session;
    struct pl_buf text; /* of text_file */
    struct pl_ids ids;
    struct pl_scorer scorer;
    json_t *origin;
    float *logits; /* [EVAL_LOGIT_ROWS, V] */
    float *row;    /* [V] normalised */
    FILE *dump;
    const char *how; /* over HTTP: what was asked */
    char backend[256];
};

/* What a model must have for it: asked of an engine that is open and not loaded. Fills ids; user is the struct eval. */
enum pl_status eval_local_need(void *user, struct plumb_engine *e, struct pl_err *err) PL_MUST_CHECK;
/* Fills window, stride and the scorer's about; of a server also ids, which it asks for. */
enum pl_status eval_local_prepare(struct eval *v, struct pl_err *err) PL_MUST_CHECK;
enum pl_status eval_local_run(struct eval *v, struct pl_err *err) PL_MUST_CHECK;
enum pl_status eval_url_prepare(struct eval *v, struct pl_err *err) PL_MUST_CHECK;
enum pl_status eval_url_run(struct eval *v, struct pl_err *err) PL_MUST_CHECK;

enum pl_status eval_read_ids(struct eval *v, struct pl_err *err) PL_MUST_CHECK;
enum pl_status eval_windows(struct eval *v, uint32_t context, struct pl_err *err) PL_MUST_CHECK;
/* Windows of `window` ids that advance by `stride`: run scores ids first..end of one that begins at begin. Each scores only
 * what no window before it did, and only what an interrupted run has not. */
enum pl_status eval_each_window(struct eval *v,
                                enum pl_status (*run)(struct eval *v, size_t begin, size_t end, size_t first,
                                                      struct pl_err *err),
                                struct pl_err *err) PL_MUST_CHECK;

#endif
