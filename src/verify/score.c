#include "verify/score.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"

static enum pl_status keep(struct pl_scorer *s, const struct pl_score *score, struct pl_err *err) {
    if (pl_grow(&s->score, &s->cap, s->count + 1, sizeof *s->score) != PL_OK)
        PL_FAIL(err, PL_NO_MEMORY, "no memory for the scores");
    s->score[s->count++] = *score;
    return PL_OK;
}

/* ---------- the file of scores ---------- */

static uint64_t origin_hash(const struct pl_reference *r) {
    char *text = r == NULL ? NULL : json_dumps(r->origin, JSON_COMPACT | JSON_SORT_KEYS);
    uint64_t h = text == NULL ? 0 : pl_hash64(text, strlen(text), 0);
    free(text);
    return h;
}

static void head_line(const struct pl_scorer *s, struct pl_buf *out) {
    pl_buf_printf(out,
                  "{\"schema\":\"plumb-eval-scores-1\",\"ids_hash\":\"%016" PRIx64 "\",\"ids\":%" PRIu64
                  ",\"window\":%u,\"stride\":%u,\"against\":\"%016" PRIx64 "\"}\n",
                  s->about.ids_hash, s->about.id_count, s->about.window, s->about.stride, origin_hash(s->against));
}

enum { DIFFERS, AGREES, ALMOST }; /* in a line */

static void score_line(FILE *f, size_t position, const struct pl_score *c) {
    fprintf(f, "[%zu,%u,%.9g,%.9g,%d,%.9g]\n", position, c->id, c->logprob, c->kl,
            c->agrees   ? AGREES
            : c->almost ? ALMOST
                        : DIFFERS,
            c->reference_logprob);
}

static bool parse_line(const char *line, size_t position, uint32_t id, struct pl_score *c) {
    size_t at;
    int agrees, used = 0;
    if (sscanf(line, "[%zu,%" SCNu32 ",%lf,%lf,%d,%lf]%n", &at, &c->id, &c->logprob, &c->kl, &agrees, &c->reference_logprob,
               &used) != 6)
        return false;
    c->agrees = agrees == AGREES;
    c->almost = agrees != DIFFERS;
    return used > 0 && strcmp(line + used, "\n") == 0 && at == position && c->id == id && isfinite(c->logprob);
}

/* Takes back whole lines, at most `most`, and cuts the file after them. */
static enum pl_status take_back_scores(struct pl_scorer *s, uint64_t most, struct pl_err *err) {
    struct pl_buf want = {0};
    char line[256];
    head_line(s, &want);
    bool same = fgets(line, sizeof line, s->scores) != NULL && strcmp(line, pl_buf_cstr(&want)) == 0;
    pl_buf_deinit(&want);
    if (!same)
        PL_FAIL(err, PL_INVALID,
                "%.300s holds the scores of another text, window or reference: remove it or leave --resume out",
                s->scores_path);
    off_t good = ftello(s->scores);
    while (s->count < most && fgets(line, sizeof line, s->scores) != NULL) {
        struct pl_score c = {0};
        if (!parse_line(line, s->count + 1, s->ids[s->count + 1], &c)) break;
        PL_TRY(keep(s, &c, err));
        good = ftello(s->scores);
    }
    if (ftruncate(fileno(s->scores), good) != 0 || fseeko(s->scores, good, SEEK_SET) != 0)
        PL_FAIL(err, PL_IO, "%.300s: %s", s->scores_path, strerror(errno));
    return PL_OK;
}

static enum pl_status begin_scores(struct pl_scorer *s, uint64_t most, struct pl_err *err) {
    if (s->scores_path == NULL) return PL_OK;
    if (s->resume && (s->scores = fopen(s->scores_path, "r+e")) != NULL) return take_back_scores(s, most, err);
    struct pl_buf head = {0};
    head_line(s, &head);
    s->scores = fopen(s->scores_path, "we");
    bool ok = s->scores != NULL && fputs(pl_buf_cstr(&head), s->scores) >= 0;
    pl_buf_deinit(&head);
    if (!ok) PL_FAIL(err, PL_IO, "%.300s: %s", s->scores_path, strerror(errno));
    return PL_OK;
}

/* ---------- the saved rows ---------- */

static enum pl_status begin_save(struct pl_scorer *s, struct pl_err *err) {
    if (s->save_path == NULL) return PL_OK;
    if (s->resume && access(s->save_path, F_OK) == 0) {
        PL_TRY(pl_reference_open(s->save_path, true, &s->save, err));
        PL_TRY(pl_reference_match(s->save, &s->about, err));
        if (s->save->about.form != s->about.form || s->save->about.top_count != s->about.top_count)
            PL_FAIL(err, PL_INVALID, "%.300s was begun in another form (f16, f32 or top): give the same --reference-dtype",
                    s->save_path);
        return PL_OK;
    }
    return pl_reference_create(s->save_path, &s->about, s->ids, s->origin, &s->save, err);
}

static enum pl_status judge(struct pl_scorer *s, const struct pl_row *row, struct pl_score *c, struct pl_err *err) {
    struct pl_row r;
    bool bound;
    size_t index = s->count;
    *c = (struct pl_score){.logprob = row->logprob, .id = s->ids[index + 1]};
    if (!isfinite(row->logprob)) PL_FAIL(err, PL_FORMAT, "the log-probability at position %zu is no number", index + 1);
    if (s->against == NULL) return PL_OK;
    PL_TRY(pl_reference_read(s->against, index, &r, err));
    c->reference_logprob = r.logprob;
    c->kl = pl_row_kl(&r, row, s->about.vocab, &bound);
    uint32_t then = pl_row_best(&r, s->about.vocab), now = pl_row_best(row, s->about.vocab);
    c->agrees = then == now;
    c->almost =
        c->agrees || pl_row_logprob(&r, then, s->about.vocab) - pl_row_logprob(&r, now, s->about.vocab) <= PL_NEAR_TIE;
    s->bound = s->bound || bound;
    return PL_OK;
}

/* Scores of rows that were saved before, without running the model again. */
static enum pl_status rescore(struct pl_scorer *s, struct pl_err *err) {
    while (s->count < s->save->rows) {
        struct pl_row row;
        struct pl_score c;
        PL_TRY(pl_reference_read(s->save, s->count, &row, err));
        PL_TRY(judge(s, &row, &c, err));
        PL_TRY(keep(s, &c, err));
        if (s->scores != NULL) score_line(s->scores, s->count, &c);
    }
    return PL_OK;
}

enum pl_status pl_scorer_begin(struct pl_scorer *s, struct pl_err *err) {
    if (s->against_path != NULL) {
        PL_TRY(pl_reference_open(s->against_path, false, &s->against, err));
        PL_TRY(pl_reference_match(s->against, &s->about, err));
        s->bound = s->against->about.form == PL_REFERENCE_TOP || s->about.form == PL_REFERENCE_TOP;
    }
    PL_TRY(begin_save(s, err));
    PL_TRY(begin_scores(s, s->save != NULL ? s->save->rows : UINT64_MAX, err));
    if (s->save != NULL) PL_TRY(rescore(s, err));
    return PL_OK;
}

enum pl_status pl_scorer_take(struct pl_scorer *s, const struct pl_row *row, struct pl_err *err) {
    struct pl_score c;
    PL_TRY(judge(s, row, &c, err));
    if (s->save != NULL) PL_TRY(pl_reference_append(s->save, row, err));
    PL_TRY(keep(s, &c, err));
    if (s->scores != NULL) {
        score_line(s->scores, s->count, &c);
        if (s->count % 64 == 0) fflush(s->scores);
    }
    return PL_OK;
}

enum pl_status pl_scorer_end(struct pl_scorer *s, struct pl_err *err) {
    struct pl_reference *save = s->save;
    bool bad = s->scores != NULL && (ferror(s->scores) || fflush(s->scores) != 0);
    if (s->scores != NULL && fclose(s->scores) != 0) bad = true;
    s->scores = NULL;
    s->save = NULL;
    PL_TRY(pl_reference_close(save, err));
    if (bad) PL_FAIL(err, PL_IO, "%.300s cannot be written", s->scores_path);
    return PL_OK;
}

void pl_scorer_deinit(struct pl_scorer *s) {
    (void)!pl_scorer_end(s, NULL);
    (void)!pl_reference_close(s->against, NULL);
    pl_free(s->score);
    s->against = NULL;
    s->score = NULL;
}

/* ---------- the summary ---------- */

static double of_nats(double mean_logprob) { return exp(-mean_logprob); }

static enum pl_status against_summary(const struct pl_scorer *s, double *x, struct pl_score_summary *m) {
    static const double p[PL_KL_QUANTILES] = {0.5, 0.9, 0.99};
    size_t n = s->count;
    struct pl_interval v;
    for (size_t i = 0; i < n; i++) x[i] = s->score[i].kl;
    PL_TRY(pl_stats_mean(x, n, &m->kl));
    PL_TRY(pl_stats_quantiles(x, n, p, PL_KL_QUANTILES, m->kl_quantile));
    for (size_t i = 0; i < n; i++)
        if (x[i] > m->kl_max) m->kl_max = x[i], m->kl_max_position = i + 1;
    for (size_t i = 0; i < n; i++) x[i] = s->score[i].agrees;
    PL_TRY(pl_stats_mean(x, n, &m->agreement));
    for (size_t i = 0; i < n; i++) x[i] = s->score[i].almost;
    PL_TRY(pl_stats_mean(x, n, &m->almost));
    for (size_t i = 0; i < n; i++) x[i] = s->score[i].reference_logprob;
    PL_TRY(pl_stats_mean(x, n, &v));
    m->reference_perplexity = pl_stats_map(v, of_nats);
    /* Token by token, so what both find hard does not widen the interval. */
    for (size_t i = 0; i < n; i++)
        x[i] = (double)(float)s->score[i].logprob - s->score[i].reference_logprob; /* saved as f32 */
    PL_TRY(pl_stats_mean(x, n, &v));
    m->perplexity_ratio = pl_stats_map(v, of_nats);
    return PL_OK;
}

enum pl_status pl_scorer_summary(const struct pl_scorer *s, struct pl_score_summary *m, struct pl_err *err) {
    double *x = pl_alloc(PL_MAX(s->count, (size_t)1), sizeof *x);
    enum pl_status st = x == NULL ? PL_NO_MEMORY : PL_OK;
    *m = (struct pl_score_summary){.scored = s->count, .against = s->against_path != NULL, .bound = s->bound};
    for (size_t i = 0; st == PL_OK && i < s->count; i++) x[i] = s->score[i].logprob;
    if (st == PL_OK) st = pl_stats_mean(x, s->count, &m->mean_logprob);
    if (st == PL_OK) m->perplexity = pl_stats_map(m->mean_logprob, of_nats);
    if (st == PL_OK && m->against) st = against_summary(s, x, m);
    pl_free(x);
    if (st != PL_OK) PL_FAIL(err, st, "no memory for the summary");
    return PL_OK;
}

static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

json_t *pl_interval_json(struct pl_interval v) {
    return json_pack("{s:o, s:o, s:o}", "value", number(v.value), "low", number(v.low), "high", number(v.high));
}

json_t *pl_score_against_json(const struct pl_score_summary *m) {
    if (!m->against) return json_null();
    return json_pack("{s:b, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o}", "kl_is_lower_bound", m->bound, "kl_mean",
                     pl_interval_json(m->kl), "kl_median", pl_interval_json(m->kl_quantile[PL_KL_MEDIAN]), "kl_p90",
                     pl_interval_json(m->kl_quantile[PL_KL_90]), "kl_p99", pl_interval_json(m->kl_quantile[PL_KL_99]),
                     "kl_max", number(m->kl_max), "kl_max_position", (json_int_t)m->kl_max_position, "top1_agreement",
                     pl_interval_json(m->agreement), "top1_or_near_tie", pl_interval_json(m->almost), "perplexity_ratio",
                     pl_interval_json(m->perplexity_ratio), "reference_perplexity",
                     pl_interval_json(m->reference_perplexity));
}

static void line(struct pl_buf *out, const char *name, struct pl_interval v) {
    pl_buf_printf(out, "%-22s %10.6g  [%.6g, %.6g]\n", name, v.value, v.low, v.high);
}

void pl_score_print(const struct pl_score_summary *m, struct pl_buf *out) {
    line(out, "perplexity", m->perplexity);
    if (!m->against) return;
    line(out, "reference perplexity", m->reference_perplexity);
    line(out, "perplexity ratio", m->perplexity_ratio);
    line(out, m->bound ? "KL mean (at least)" : "KL mean", m->kl);
    line(out, "KL median", m->kl_quantile[PL_KL_MEDIAN]);
    line(out, "KL 90th percentile", m->kl_quantile[PL_KL_90]);
    line(out, "KL 99th percentile", m->kl_quantile[PL_KL_99]);
    pl_buf_printf(out, "%-22s %10.6g  at token %zu\n", "KL largest", m->kl_max, m->kl_max_position);
    line(out, "top-1 agreement", m->agreement);
    line(out, "top-1 or near-tie", m->almost);
}
