/* score - what an evaluation found out about each token, and what follows from all of them.
 *
 * A scorer gets one row per token in the order of the text. It may save the rows (a reference), compare them with a saved
 * reference, and keep a file of scores, one JSON line per token. Both files let an interrupted run go on: pl_scorer_begin
 * takes back what they hold. */
#ifndef PL_VERIFY_SCORE_H
#define PL_VERIFY_SCORE_H

#include "base/str.h"
#include "verify/reference.h"
#include "verify/stats.h"

/* In nats. Activations in 8 bits move log-probabilities by some hundredths: two ways of summing swap tokens nearer than
 * this. */
#define PL_NEAR_TIE 0.25

struct pl_score {
    double logprob, kl, reference_logprob; /* the last two only when there is a reference */
    uint32_t id;
    bool agrees; /* both have the same most likely token */
    bool almost; /* they do, or the reference finds this run's less likely by PL_NEAR_TIE at most */
};

struct pl_scorer {
    const uint32_t *ids;             /* [about.id_count] borrowed */
    struct pl_reference_about about; /* of this run; form and top_count say what is saved */
    const char *save_path, *against_path, *scores_path;
    json_t *origin; /* borrowed: who made the rows */
    bool resume;
    /* own */
    struct pl_reference *save, *against;
    FILE *scores;
    struct pl_score *score; /* [count] for positions 1.. */
    size_t count, cap;
    bool bound; /* some distribution was not whole: KL values are lower bounds */
};

/* Opens the files and takes back what was done; count tells how many tokens are scored already. */
enum pl_status pl_scorer_begin(struct pl_scorer *s, struct pl_err *err) PL_MUST_CHECK;
/* The row for position count + 1. */
enum pl_status pl_scorer_take(struct pl_scorer *s, const struct pl_row *row, struct pl_err *err) PL_MUST_CHECK;
/* Closes the files, reporting what could not be written. deinit also frees; call it in any case. */
enum pl_status pl_scorer_end(struct pl_scorer *s, struct pl_err *err) PL_MUST_CHECK;
void pl_scorer_deinit(struct pl_scorer *s);

enum { PL_KL_MEDIAN, PL_KL_90, PL_KL_99, PL_KL_QUANTILES };
struct pl_score_summary {
    size_t scored;
    struct pl_interval mean_logprob, perplexity;
    bool against, bound;
    struct pl_interval kl, kl_quantile[PL_KL_QUANTILES], agreement, almost, perplexity_ratio, reference_perplexity;
    double kl_max;
    size_t kl_max_position;
};
enum pl_status pl_scorer_summary(const struct pl_scorer *s, struct pl_score_summary *out, struct pl_err *err) PL_MUST_CHECK;
/* {"value", "low", "high"} */
json_t *pl_interval_json(struct pl_interval v);
/* The part about the reference: NULL without one. */
json_t *pl_score_against_json(const struct pl_score_summary *m);
void pl_score_print(const struct pl_score_summary *m, struct pl_buf *out);

#endif
