/* ab.c - runs both sides and decides. */
#include "verify/ab.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

const char *pl_ab_verdict_name(enum pl_ab_verdict v) {
    switch (v) {
    case PL_AB_EQUAL: return "EQUAL";
    case PL_AB_DIFFERS: return "DIFFERS";
    case PL_AB_INCONCLUSIVE: break;
    }
    return "INCONCLUSIVE";
}

static void doubt(struct pl_ab_report *r, const char *fmt, ...) PL_PRINTF(2, 3);
static void doubt(struct pl_ab_report *r, const char *fmt, ...) {
    if (r->reason_count == PL_AB_REASONS_MAX) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->reason[r->reason_count++], sizeof r->reason[0], fmt, ap);
    va_end(ap);
}

/* ---------- comparing two answers ---------- */

/* Text around a place as one readable line: characters that the place cuts, and bytes that are none, become '?'. */
static void excerpt(const char *text, size_t len, size_t from, size_t to, char *out, size_t cap) {
    size_t used = 0;
    for (size_t i = from; i < to && i < len && used + 5 < cap;) {
        size_t n = pl_utf8_len(text + i, len - i);
        unsigned char c = (unsigned char)text[i];
        if (c == '\n') {
            out[used++] = '\\';
            out[used++] = 'n';
        } else if (n > 0 && c >= 0x20) {
            memcpy(out + used, text + i, n);
            used += n;
        } else if (n > 0) {
            out[used++] = ' ';
        } else if ((c & 0xC0) != 0x80 || used == 0 || out[used - 1] != '?') {
            out[used++] = '?';
        }
        i += n > 0 ? n : 1;
    }
    out[used] = '\0';
}

static size_t first_byte(const struct pl_buf *a, const struct pl_buf *b) {
    size_t i = 0, n = PL_MIN(a->len, b->len);
    while (i < n && a->data[i] == b->data[i]) i++;
    return i;
}

bool pl_ab_compare(const struct pl_ab_answer *a, const struct pl_ab_answer *b, struct pl_ab_difference *d) {
    bool ids = a->ids != NULL && b->ids != NULL;
    size_t at = 0;
    if (ids) {
        size_t n = PL_MIN(a->id_count, b->id_count);
        while (at < n && a->ids[at] == b->ids[at]) at++;
        if (at == a->id_count && at == b->id_count) return true;
    }
    size_t byte = first_byte(&a->text, &b->text);
    if (!ids && byte == a->text.len && byte == b->text.len) return true;
    bool pieces = !ids && a->pieces != NULL && b->pieces != NULL; /* texts of tokens: they say where, not whether */
    if (pieces)
        for (at = 0; at < PL_MIN(a->id_count, b->id_count) && a->pieces[at] == b->pieces[at];) at++;
    *d = (struct pl_ab_difference){.token = ids || pieces ? at : byte, .by_ids = ids || pieces, .margin = -1};
    if (d->by_ids && a->margin != NULL && at < a->id_count) d->margin = a->margin[at];
    excerpt(pl_buf_cstr(&a->text), a->text.len, byte > 60 ? byte - 60 : 0, byte, d->context, sizeof d->context);
    excerpt(pl_buf_cstr(&a->text), a->text.len, byte, byte + 40, d->base_text, sizeof d->base_text);
    excerpt(pl_buf_cstr(&b->text), b->text.len, byte, byte + 40, d->arm_text, sizeof d->arm_text);
    return false;
}

/* ---------- asking ---------- */

/* want: a part of a kernel's name, or OPERATION=PART. */
static bool ran(const struct pl_ab_answer *a, const char *want) {
    const char *part = strchr(want, '=');
    for (size_t i = 0; i < json_array_size(a->kernels); i++) {
        const json_t *k = json_array_get(a->kernels, i);
        const char *name = json_string_value(json_object_get(k, "kernel")),
                   *op = json_string_value(json_object_get(k, "op"));
        if (name == NULL || op == NULL || json_integer_value(json_object_get(k, "launches")) <= 0) continue;
        if (strncmp(name, "declined", 8) == 0) continue; /* a row that says what did not run */
        if (part != NULL && (strncmp(op, want, (size_t)(part - want)) != 0 || op[part - want] != '\0')) continue;
        if (strstr(name, part != NULL ? part + 1 : want) != NULL) return true;
    }
    return false;
}

/* The kernel an expectation names for this side; NULL: it is about the other one. */
static const char *expected_of(const char *want, const char *side) {
    const char *other = strcmp(side, "base") == 0 ? "arm:" : "base:";
    size_t len = strlen(side);
    if (strncmp(want, other, strlen(other)) == 0) return NULL;
    return strncmp(want, side, len) == 0 && want[len] == ':' ? want + len + 1 : want;
}

enum { THREADS_MAX = 256, GIVE_UP_AFTER = 5 };

struct pass {
    const struct pl_ab_options *o;
    const struct pl_ab_side *side;
    struct pl_ab_answer *out;
    const char *label;
    _Atomic size_t next, done, failures_in_row;
};

/* What the verdict needs of the witness is taken at once: ten thousand lists of kernels would fill the memory. */
static void digest(const struct pass *p, size_t i, struct pl_ab_answer *a) {
    a->witness = a->kernels != NULL;
    for (size_t e = 0; e < p->o->expect_count; e++) {
        const char *want = expected_of(p->o->expect[e], p->side->name);
        if (want != NULL && !ran(a, want)) a->missing |= (uint64_t)1 << e;
    }
    if (i == 0) return;
    json_decref(a->kernels);
    a->kernels = NULL;
}

static void ask_one(struct pass *p, size_t i) {
    struct pl_ab_answer *a = &p->out[i];
    if (atomic_load(&p->failures_in_row) >= GIVE_UP_AFTER) {
        a->failed = true;
        snprintf(a->error, sizeof a->error, "not asked: %d answers in a row had failed", GIVE_UP_AFTER);
        return;
    }
    if (p->side->url != NULL)
        pl_ab_ask_url(p->side, p->o->prompts[i], p->o->n, p->o->timeout_s, a);
    else
        pl_ab_ask_command(p->side, p->o->prompts[i], p->o->n, p->o->timeout_s, a);
    if (a->failed)
        atomic_fetch_add(&p->failures_in_row, 1);
    else
        atomic_store(&p->failures_in_row, 0);
    digest(p, i, a);
}

static void *pass_worker(void *arg) {
    struct pass *p = arg;
    for (;;) {
        size_t i = atomic_fetch_add(&p->next, 1);
        if (i >= p->o->prompt_count) return NULL;
        ask_one(p, i);
        size_t done = atomic_fetch_add(&p->done, 1) + 1;
        if (p->o->progress != NULL) p->o->progress(p->o->progress_user, p->label, done, p->o->prompt_count);
    }
}

/* All prompts from number `from` on. */
static void ask_from(const struct pl_ab_options *o, const struct pl_ab_side *side, const char *label, size_t from,
                     uint32_t threads, struct pl_ab_answer *out) {
    struct pass p = {.o = o, .side = side, .label = label, .out = out, .next = from, .done = from};
    pthread_t thread[THREADS_MAX];
    uint32_t started = 0;
    for (; started + 1 < threads && started < THREADS_MAX; started++)
        if (pthread_create(&thread[started], NULL, pass_worker, &p) != 0) break;
    pass_worker(&p);
    for (uint32_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
}

static void ask_first(const struct pl_ab_options *o, const struct pl_ab_side *side, struct pl_ab_answer *out) {
    struct pass p = {.o = o, .side = side, .out = out};
    ask_one(&p, 0);
    if (side->url != NULL && !out->failed) pl_ab_probe_url(side, o->timeout_s, &out->fingerprint);
}

/* ---------- reasons to doubt ---------- */

/* Two paths, one content: a no-op rebuild, or a copy. */
static bool same_content(const char *x, const char *y) {
    FILE *f = fopen(x, "re"), *g = fopen(y, "re");
    bool same = f != NULL && g != NULL;
    char p[16384], q[16384];
    for (size_t n = 1; same && n > 0;) {
        n = fread(p, 1, sizeof p, f);
        same = fread(q, 1, sizeof q, g) == n && memcmp(p, q, n) == 0;
    }
    if (f != NULL) fclose(f);
    if (g != NULL) fclose(g);
    return same;
}

static void check_identity(const struct pl_ab_options *o, struct pl_ab_report *r) {
    const struct pl_ab_side *a = &o->base, *b = &o->arm;
    if (o->allow_identical || o->same_binary_meant || (a->url != NULL) != (b->url != NULL)) return;
    if (a->url != NULL) {
        if (strcmp(a->url, b->url) == 0)
            doubt(r, "both sides are the same server (%s); --allow-identical if that is meant", a->url);
    } else if (a->is_plumb && b->is_plumb && strcmp(a->build_id, b->build_id) == 0 &&
               strcmp(a->kernel_hash, b->kernel_hash) == 0) {
        doubt(r,
              "both sides are one build (build id %s, kernel hash %s): a comparison with itself proves nothing; "
              "--allow-identical if that is meant",
              a->build_id, a->kernel_hash);
    } else if (strcmp(a->program, b->program) == 0 || same_content(a->program, b->program)) {
        doubt(r, "the programs of both sides are byte-identical (%s, %s); --allow-identical if that is meant", a->program,
              b->program);
    }
}

static size_t count_failures(struct pl_ab_report *r, const char *name, const struct pl_ab_answer *a) {
    size_t failed = 0;
    for (size_t i = 0; i < r->prompt_count; i++) failed += a[i].failed;
    for (size_t i = 0; i < r->prompt_count; i++) {
        if (!a[i].failed) continue;
        doubt(r, "%s failed on %zu of %zu prompts, first on prompt %zu: %s", name, failed, r->prompt_count, i + 1,
              a[i].error);
        break;
    }
    return failed;
}

static void check_reproducible(struct pl_ab_report *r) {
    struct pl_ab_difference d;
    for (size_t i = 0; i < r->prompt_count; i++) {
        if (r->base[i].failed || r->control[i].failed || pl_ab_compare(&r->base[i], &r->control[i], &d)) continue;
        doubt(r, "the baseline does not reproduce itself: prompt %zu differs at %s %zu after \"%s\": \"%s\" then \"%s\"",
              i + 1, d.by_ids ? "token" : "byte", d.token, d.context, d.base_text, d.arm_text);
        return;
    }
}

static size_t check_amount(const struct pl_ab_options *o, struct pl_ab_report *r, const char *name,
                           const struct pl_ab_answer *a) {
    size_t sum = 0, empty = 0;
    for (size_t i = 0; i < r->prompt_count; i++) {
        sum += a[i].tokens;
        empty += !a[i].failed && a[i].tokens == 0;
    }
    if (sum < o->min_tokens)
        doubt(r, "%s generated %zu token%s, at least %u are needed (--min-tokens)", name, sum, sum == 1 ? "" : "s",
              o->min_tokens);
    else if (empty > 0)
        doubt(r, "%s generated nothing for %zu of %zu prompts", name, empty, r->prompt_count);
    return sum;
}

static void check_route(const struct pl_ab_options *o, struct pl_ab_report *r, const char *name,
                        const struct pl_ab_answer *a) {
    size_t silent = 0, unseen = 0;
    for (size_t i = 0; i < r->prompt_count; i++) {
        silent += !a[i].failed && a[i].backend[0] == '\0';
        unseen += !a[i].failed && !a[i].witness;
    }
    if (silent == 0 && unseen == 0) return;
    if (o->without_witness) {
        r->route_unknown = true;
        return;
    }
    if (silent > 0) doubt(r, "%s printed no backend line for %zu of %zu answers", name, silent, r->prompt_count);
    if (unseen > 0)
        doubt(r, "%s gave no witness of its kernels for %zu of %zu answers (--without-witness accepts an unknown route)",
              name, unseen, r->prompt_count);
}

static void check_expected(const struct pl_ab_options *o, struct pl_ab_report *r, const char *name,
                           const struct pl_ab_answer *a) {
    for (size_t e = 0; e < o->expect_count; e++) {
        const char *want = expected_of(o->expect[e], name);
        size_t missing = 0;
        for (size_t i = 0; want != NULL && i < r->prompt_count; i++) missing += !a[i].failed && (a[i].missing >> e & 1) != 0;
        if (missing > 0)
            doubt(r, "%s fell back: kernel '%s' did not run in %zu of %zu answers", name, want, missing, r->prompt_count);
    }
}

/* Two models compared by mistake differ everywhere, which says nothing about builds. */
static bool same_model(const struct pl_ab_options *o, struct pl_ab_report *r) {
    const struct pl_ab_fingerprint *a = &r->base[0].fingerprint, *b = &r->arm[0].fingerprint;
    const char *what[] = {"vocabularies", "chat templates", "tokenizers (ids of a test sentence)"};
    const char *x[] = {a->vocabulary, a->chat_template, a->probe}, *y[] = {b->vocabulary, b->chat_template, b->probe};
    if (o->allow_different_models) return true;
    for (size_t i = 0; i < PL_COUNT_OF(what); i++) {
        if (x[i][0] == '\0' || y[i][0] == '\0' || strcmp(x[i], y[i]) == 0) continue;
        doubt(r, "the sides run two different models: their %s differ (%s, %s); --allow-different-models if that is meant",
              what[i], x[i], y[i]);
        return false;
    }
    return true;
}

/* ---------- differences ---------- */

/* How far log-probabilities moved where both sides chose the same tokens. */
static void find_drift(struct pl_ab_report *r) {
    for (size_t i = 0; i < r->prompt_count; i++) {
        const struct pl_ab_answer *a = &r->base[i], *b = &r->arm[i];
        if (a->failed || b->failed || a->logprob == NULL || b->logprob == NULL) continue;
        bool ids = a->ids != NULL && b->ids != NULL, pieces = a->pieces != NULL && b->pieces != NULL;
        for (size_t t = 0; (ids || pieces) && t < PL_MIN(a->id_count, b->id_count); t++) {
            if (ids ? a->ids[t] != b->ids[t] : a->pieces[t] != b->pieces[t]) break;
            double moved = fabs(a->logprob[t] - b->logprob[t]);
            if (!isfinite(moved)) continue;
            if (!r->drift.known || moved > r->drift.most) r->drift = (struct pl_ab_drift){true, moved, i, t};
        }
    }
}

static void find_differences(const struct pl_ab_options *o, struct pl_ab_report *r) {
    for (size_t i = 0; i < r->prompt_count; i++) {
        struct pl_ab_difference d;
        if (r->base[i].failed || r->arm[i].failed || pl_ab_compare(&r->base[i], &r->arm[i], &d)) continue;
        d.prompt = i;
        d.near_tie = o->near_tie > 0 && d.margin >= 0 && d.margin <= o->near_tie;
        r->difference[r->prompts_different++] = d;
        r->near_ties += d.near_tie;
    }
}

/* The arm's prompts once more, together: each answer should be that of its single run. */
static enum pl_status check_concurrency(const struct pl_ab_options *o, struct pl_ab_report *r, struct pl_err *err) {
    struct pl_ab_difference d;
    if (o->concurrency < 2) return PL_OK;
    struct pl_ab_answer *together = pl_calloc(r->prompt_count, sizeof *together);
    if (together == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the answers");
    ask_from(o, &o->arm, "arm, together", 0, o->concurrency, together);
    count_failures(r, "arm under concurrency", together);
    for (size_t i = 0; i < r->prompt_count; i++) {
        bool both = !together[i].failed && !r->arm[i].failed;
        r->batch_answers += both;
        if (both && !pl_ab_compare(&r->arm[i], &together[i], &d)) {
            r->batch_mismatches++;
            r->batch_near_ties += o->near_tie > 0 && d.margin >= 0 && d.margin <= o->near_tie;
        }
        pl_ab_answer_deinit(&together[i]);
    }
    pl_free(together);
    return PL_OK;
}

static void decide(const struct pl_ab_options *o, struct pl_ab_report *r) {
    if (r->reason_count > 0)
        r->verdict = PL_AB_INCONCLUSIVE;
    else
        r->verdict = r->prompts_different > 0 || (o->drift > 0 && r->drift.most > o->drift) ||
                             (o->invariant && r->batch_mismatches > 0)
                         ? PL_AB_DIFFERS
                         : PL_AB_EQUAL;
}

static void check_sides(const struct pl_ab_options *o, struct pl_ab_report *r) {
    count_failures(r, "base", r->base);
    count_failures(r, "base (second run)", r->control);
    count_failures(r, "arm", r->arm);
    check_reproducible(r);
    r->base_tokens = check_amount(o, r, "base", r->base);
    r->arm_tokens = check_amount(o, r, "arm", r->arm);
    check_route(o, r, "base", r->base);
    check_route(o, r, "arm", r->arm);
    check_expected(o, r, "base", r->base);
    check_expected(o, r, "arm", r->arm);
}

static enum pl_status room(const struct pl_ab_options *o, struct pl_ab_report *r, struct pl_err *err) {
    size_t n = r->prompt_count;
    r->base_kept = o->baseline != NULL && o->baseline->base != NULL && o->baseline->prompt_count == n;
    r->base = r->base_kept ? o->baseline->base : pl_calloc(n, sizeof *r->base);
    r->control = r->base_kept ? o->baseline->control : pl_calloc(n, sizeof *r->control);
    r->arm = pl_calloc(n, sizeof *r->arm);
    r->difference = pl_calloc(n, sizeof *r->difference);
    if (r->base == NULL || r->control == NULL || r->arm == NULL || r->difference == NULL)
        PL_FAIL(err, PL_NO_MEMORY, "no memory for %zu answers of each side", n);
    return PL_OK;
}

static bool gave_up(const struct pl_ab_answer *a, size_t n) {
    size_t failed = 0;
    while (failed < n && a[n - 1 - failed].failed) failed++;
    return failed >= GIVE_UP_AFTER;
}

/* Ten thousand answers of one side say nothing when the other one has died. */
static void not_asked(struct pl_ab_answer *a, size_t from, size_t n, const char *why) {
    for (size_t i = from; i < n; i++) {
        a[i].failed = true;
        snprintf(a[i].error, sizeof a[i].error, "not asked: %s", why);
    }
}

/* Answers that failed are asked again the next time. */
static void keep_baseline(const struct pl_ab_options *o, struct pl_ab_report *r) {
    if (o->baseline == NULL || r->base_kept || o->baseline->base != NULL) return;
    for (size_t i = 0; i < r->prompt_count; i++)
        if (r->base[i].failed || r->control[i].failed) return;
    *o->baseline = (struct pl_ab_baseline){r->base, r->control, r->prompt_count};
    r->base_kept = true;
}

enum pl_status pl_ab_run(struct pl_ab_options *o, struct pl_ab_report *r, struct pl_err *err) {
    *r = (struct pl_ab_report){.prompt_count = o->prompt_count};
    PL_TRY(pl_ab_identify(&o->base, err));
    PL_TRY(pl_ab_identify(&o->arm, err));
    if (o->prompt_count == 0) {
        doubt(r, "the prompt set is empty");
        decide(o, r);
        return PL_OK;
    }
    PL_TRY(room(o, r, err));
    check_identity(o, r);
    if (!r->base_kept) ask_first(o, &o->base, &r->base[0]);
    ask_first(o, &o->arm, &r->arm[0]);
    if (same_model(o, r)) {
        uint32_t b = o->base.url != NULL ? 1 : PL_MAX(o->at_once, 1u), a = o->arm.url != NULL ? 1 : PL_MAX(o->at_once, 1u);
        if (!r->base_kept) ask_from(o, &o->base, "base", 1, b, r->base);
        bool gone = gave_up(r->base, r->prompt_count);
        if (gone)
            not_asked(r->arm, 1, r->prompt_count, "the baseline was gone");
        else
            ask_from(o, &o->arm, "arm", 1, a, r->arm);
        gone = gone || gave_up(r->arm, r->prompt_count);
        /* last, so that a slow drift would be seen too */
        if (gone && !r->base_kept)
            not_asked(r->control, 0, r->prompt_count, "a side was gone");
        else if (!r->base_kept)
            ask_from(o, &o->base, "base again", 0, b, r->control);
        check_sides(o, r);
        find_differences(o, r);
        find_drift(r);
        if (o->drift > 0 && !r->drift.known)
            doubt(r, "the sides tell no log-probabilities, so --tolerance logprob=%g cannot be judged", o->drift);
        PL_TRY(check_concurrency(o, r, err));
        keep_baseline(o, r);
    }
    decide(o, r);
    return PL_OK;
}

static void free_answers(struct pl_ab_answer *list, size_t n) {
    for (size_t i = 0; list != NULL && i < n; i++) pl_ab_answer_deinit(&list[i]);
    pl_free(list);
}

void pl_ab_baseline_deinit(struct pl_ab_baseline *b) {
    free_answers(b->base, b->prompt_count);
    free_answers(b->control, b->prompt_count);
    *b = (struct pl_ab_baseline){0};
}

void pl_ab_report_deinit(struct pl_ab_report *r) {
    if (!r->base_kept) {
        free_answers(r->base, r->prompt_count);
        free_answers(r->control, r->prompt_count);
    }
    free_answers(r->arm, r->prompt_count);
    pl_free(r->difference);
    *r = (struct pl_ab_report){0};
}
