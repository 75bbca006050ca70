/* ab - the output gate: the same prompts through a baseline (twice, as its own control) and an arm.
 *
 * Three verdicts. EQUAL needs equal output, enough of it, a baseline that reproduces itself, two builds that really are
 * two, a backend line and a witness from both sides. DIFFERS shows the first difference and, where known, how close the
 * two candidates were. Everything else is INCONCLUSIVE, with every reason named; a reason to doubt beats a difference,
 * because a difference that cannot be trusted proves nothing either. */
#ifndef PL_VERIFY_AB_H
#define PL_VERIFY_AB_H

#include <jansson.h>

#include "base/str.h"

enum pl_ab_verdict { PL_AB_EQUAL = 0, PL_AB_DIFFERS = 1, PL_AB_INCONCLUSIVE = 2 }; /* also the exit codes */

/* What tells two models apart; "": the side does not say. */
struct pl_ab_fingerprint {
    char vocabulary[20], chat_template[20], probe[20];
};

/* One answer of one side. */
struct pl_ab_answer {
    struct pl_buf text;
    uint32_t *ids;    /* NULL: the side gives none */
    uint64_t *pieces; /* hash of each token's text, where a server tells the texts; NULL: not known */
    double *margin;   /* [id_count] log-probability gap to the runner-up at each token, negative or NULL: not known */
    double *logprob;  /* [id_count] of each token; NaN or NULL: not known */
    size_t id_count;  /* of ids, pieces, margin and logprob */
    size_t tokens;    /* counted by the side where it counts, else estimated from the text */
    struct pl_ab_fingerprint fingerprint;
    json_t *kernels; /* witness: list of {op, kernel, launches}; NULL: none, or dropped after witness and missing were set */
    bool witness;    /* there was one */
    uint64_t missing;  /* bit e: expected kernel number e did not run */
    char backend[256]; /* "": the side said nothing */
    bool failed;
    char error[512];
    double seconds;
};
void pl_ab_answer_deinit(struct pl_ab_answer *a);
void pl_ab_fingerprint_read(const json_t *object, struct pl_ab_fingerprint *out); /* of generate --json and /props */

struct pl_ab_side {
    const char *name;    /* "base", "arm" */
    const char *command; /* or */
    const char *url;
    const char *const *env; /* extra NAME=VALUE */
    size_t env_count;
    const char *api_key;
    /* found out by pl_ab_identify */
    char program[1024]; /* resolved path; "" for a URL */
    char build_id[64], kernel_hash[64], description[256];
    bool is_plumb;
};

/* A baseline's answers and their control, kept for several arms: all of them with this base side, prompts and length. */
struct pl_ab_baseline {
    struct pl_ab_answer *base, *control; /* [prompt_count], owned; NULL: not asked yet, or asked in vain */
    size_t prompt_count;
};
void pl_ab_baseline_deinit(struct pl_ab_baseline *b);

struct pl_ab_options {
    struct pl_ab_side base, arm;
    const char *const *prompts;
    size_t prompt_count;
    uint32_t n, min_tokens, concurrency, timeout_s;
    double drift;    /* 0: off; else a log-probability of an equal token that moved by more is a difference */
    double near_tie; /* 0: off; else differences with a margin up to this are called near-ties */
    bool allow_identical, without_witness, allow_different_models;
    bool invariant;                  /* answers under concurrency must be those of single runs */
    uint32_t at_once;                /* prompts asked at the same time, by as many processes (0: one); not of servers */
    bool same_binary_meant;          /* the sides are configurations of one binary */
    struct pl_ab_baseline *baseline; /* NULL: asked anew; else taken from there, or kept there */
    const char *const *expect;       /* kernels that must have run, "base:NAME", "arm:NAME" or "NAME" for both */
    size_t expect_count;
    void (*progress)(void *user, const char *what, size_t done, size_t total);
    void *progress_user;
};

struct pl_ab_difference {
    size_t prompt, token; /* token index, or byte offset when ids are not known */
    bool by_ids, near_tie;
    double margin; /* of the baseline's token over its runner-up; negative: not known */
    char context[96], base_text[96], arm_text[96];
};

enum { PL_AB_REASONS_MAX = 32, PL_AB_EXPECT_MAX = 64, PL_AB_SHOWN_MAX = 64 };
struct pl_ab_report {
    enum pl_ab_verdict verdict;
    char reason[PL_AB_REASONS_MAX][400];
    size_t reason_count;
    struct pl_ab_difference *difference; /* [prompts_different], owned; reports show the first PL_AB_SHOWN_MAX */
    size_t prompts_different, near_ties;
    /* Largest change of the log-probability of a token that both sides chose: equal answers may hide it. */
    struct pl_ab_drift {
        bool known;
        double most;
        size_t prompt, token;
    } drift;
    size_t base_tokens, arm_tokens;
    size_t batch_mismatches, batch_answers;    /* with concurrency: answers that differ from their single run, of how many */
    size_t batch_near_ties;                    /* of the mismatches, when near ties are asked for */
    struct pl_ab_answer *base, *control, *arm; /* [prompt_count]; base and control are the baseline's where there is one */
    bool base_kept;
    size_t prompt_count;
    bool route_unknown; /* allowed, and said beside the verdict */
};

enum pl_status pl_ab_run(struct pl_ab_options *o, struct pl_ab_report *r, struct pl_err *err) PL_MUST_CHECK;
void pl_ab_report_deinit(struct pl_ab_report *r);
const char *pl_ab_verdict_name(enum pl_ab_verdict v);
/* The report in its three forms. */
json_t *pl_ab_report_json(const struct pl_ab_options *o, const struct pl_ab_report *r) PL_MUST_CHECK;
void pl_ab_report_markdown(const struct pl_ab_options *o, const struct pl_ab_report *r, struct pl_buf *out);
void pl_ab_report_junit(const struct pl_ab_options *o, const struct pl_ab_report *r, struct pl_buf *out);

/* --- pieces, for tests --- */
/* Splits a command into words: blanks separate, quotes and backslash work as in a shell, nothing else is special.
 * words[count] is NULL; one block, free with pl_free. */
enum pl_status pl_ab_split(const char *command, char ***words, size_t *count, struct pl_err *err) PL_MUST_CHECK;
/* Finds the program, and whether it is plumb and which build. */
enum pl_status pl_ab_identify(struct pl_ab_side *s, struct pl_err *err) PL_MUST_CHECK;
void pl_ab_ask_command(const struct pl_ab_side *s, const char *prompt, uint32_t n, uint32_t timeout_s,
                       struct pl_ab_answer *out);
void pl_ab_ask_url(const struct pl_ab_side *s, const char *prompt, uint32_t n, uint32_t timeout_s, struct pl_ab_answer *out);
void pl_ab_probe_url(const struct pl_ab_side *s, uint32_t timeout_s, struct pl_ab_fingerprint *out);
/* Equal outputs? Otherwise *d says where. */
bool pl_ab_compare(const struct pl_ab_answer *a, const struct pl_ab_answer *b, struct pl_ab_difference *d);

#endif
