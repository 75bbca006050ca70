/* service_draw.c - where the tokens of a step are chosen, and the choices themselves. */
#include <string.h>

#include "base/mem.h"
#include "engine/service_internal.h"

const char *pl_choice_place_name(enum pl_choice_place p) {
    static const char *const names[PL_CHOICE_PLACES] = {
        [PL_CHOICE_DEVICE] = "device",        [PL_CHOICE_HOST_MEMORY] = "logits in host memory",
        [PL_CHOICE_TYPICAL_P] = "typical_p",  [PL_CHOICE_GRAMMAR] = "grammar",
        [PL_CHOICE_LOGPROBS] = "logprobs",    [PL_CHOICE_LOGIT_BIAS] = "logit_bias",
        [PL_CHOICE_PENALTIES] = "penalties",  [PL_CHOICE_PROMPT_SCORES] = "prompt scores",
        [PL_CHOICE_BY_REQUEST] = "by request"};
    return names[p];
}

bool service_row_is_new(const struct flight *f, size_t row) {
    uint32_t i = f->row_item[row];
    return f->item[i].wants_token && row + 1 == f->item_logit[i + 1];
}

/* What is wanted of a row decides where it is chosen: on the device unless the host has to see its logits. */
static enum pl_choice_place place_of(const struct pl_service *s, const struct flight *f, size_t row) {
    const struct request *r = f->request[f->row_item[row]];
    if (!service_row_is_new(f, row)) return PL_CHOICE_PROMPT_SCORES;
    if (!pl_engine_chooses(s->engine)) return PL_CHOICE_HOST_MEMORY;
    if (r->no_answer) return PL_CHOICE_DEVICE; /* and nobody looks at it */
    if (r->constraint != NULL) return PL_CHOICE_GRAMMAR;
    if (r->want_logprobs) return PL_CHOICE_LOGPROBS;
    static const enum pl_choice_place needs[] = {[PL_SAMPLER_NEEDS_ROW] = PL_CHOICE_DEVICE,
                                                 [PL_SAMPLER_NEEDS_BIAS] = PL_CHOICE_LOGIT_BIAS,
                                                 [PL_SAMPLER_NEEDS_COUNTS] = PL_CHOICE_PENALTIES,
                                                 [PL_SAMPLER_NEEDS_TYPICAL] = PL_CHOICE_TYPICAL_P};
    return needs[pl_sampler_needs(r->sampler)];
}

/* The token's position is the row's and one more. True: with noise. */
static bool describe_draw(struct pl_service *s, const struct flight *f, size_t row) {
    const struct request *r = f->request[f->row_item[row]];
    const struct pl_sched_item *it = &f->item[f->row_item[row]];
    if (r->no_answer) return false;
    return pl_sampler_draw_of(r->sampler, it->first + it->count, &s->draws[row]) && s->draws[row].temperature > 0;
}

void service_place_rows(struct pl_service *s, struct flight *f) {
    f->has_choices = f->drawn = false;
    f->wait = PL_CHOICE_DEVICE;
    if (s->engine->opt.no_ahead) f->wait = PL_CHOICE_BY_REQUEST;
    if (!pl_engine_chooses(s->engine)) f->wait = PL_CHOICE_HOST_MEMORY;
    for (size_t row = 0; row < f->item_logit[f->items]; row++) {
        enum pl_choice_place p = place_of(s, f, row);
        f->place[row] = (uint8_t)p;
        s->draws[row] = (struct pl_draw){0};
        f->has_choices |= p == PL_CHOICE_DEVICE;
        f->drawn |= p == PL_CHOICE_DEVICE && describe_draw(s, f, row);
        if (f->wait == PL_CHOICE_DEVICE) f->wait = p;
    }
}

/* Logits of the rows that the host chooses from, in runs, and the choices of the others. Waits for the step. */
enum pl_status service_read_rows(struct pl_service *s, struct flight *f) {
    const struct plumb_engine *e = s->engine;
    size_t rows = f->item_logit[f->items], vocab = e->config.vocab;
    for (size_t row = 0, n; row < rows; row += n) {
        bool host = f->place[row] != PL_CHOICE_DEVICE;
        for (n = 1; row + n < rows && (f->place[row + n] != PL_CHOICE_DEVICE) == host; n++) continue;
        if (host) PL_TRY(pl_ops_activation_read(e->ops, f->logits, row, n, s->logits + row * vocab));
    }
    return f->has_choices ? pl_ops_chosen(e->ops, f->slot, s->picks, rows) : PL_OK;
}

static bool needs_copy(const struct request *r) { return r->want_logprobs || r->constraint != NULL; }

static void read_logprobs(const struct request *r, const float *logits, uint32_t vocab, struct draw *d) {
    d->logprob = pl_logprob(logits, vocab, d->id);
    if (r->top_logprobs == 0) return;
    d->top = pl_calloc(1, sizeof *d->top); /* none: the token goes out without alternatives */
    if (d->top != NULL)
        d->top->count = (uint32_t)pl_top_logprobs(logits, vocab, r->top_logprobs, d->top->ids, d->top->logprobs);
}

/* What the noise and the sampler choose among all tokens is, when it is allowed, what they would choose among the allowed
 * ones, so the mask is only made when it is not. copy holds the model's own logits. */
static enum pl_status draw_constrained(struct request *r, float *logits, const float *copy, uint32_t vocab, uint32_t *id) {
    bool allowed = false;
    PL_TRY(pl_sampler_draw(r->sampler, logits, r->known, id));
    PL_TRY(pl_constraint_allows(r->constraint, *id, &allowed));
    if (!allowed) {
        memcpy(logits, copy, vocab * sizeof *logits);
        PL_TRY(pl_constraint_mask(r->constraint, logits, vocab));
        PL_TRY(pl_sampler_draw(r->sampler, logits, r->known, id));
    }
    return pl_constraint_accept(r->constraint, *id);
}

static struct draw finish_draw(const struct pl_service *s, struct request *r, enum pl_status st, uint32_t id) {
    struct draw d = {.id = id};
    if (st != PL_OK) {
        const char *why = st == PL_NO_MEMORY      ? "no memory for the choice"
                          : st == PL_LIMIT        ? "the grammar allows too many ways at once"
                          : r->constraint != NULL ? "the grammar allows none of the model's tokens"
                                                  : "the model gave no usable logits";
        (void)pl_err_set(&r->err, __FILE__, __LINE__, st, "%s at token %u", why, r->known);
        return d;
    }
    d.ok = true;
    bool may_end = !r->ignore_eos || r->constraint != NULL; /* where a grammar ends nothing else can follow */
    d.is_end = may_end && s->engine->tok != NULL && pl_tokenizer_is_eog(s->engine->tok, d.id);
    return d;
}

static struct draw draw_picked(const struct pl_service *s, struct request *r, uint32_t id) {
    enum pl_status st = id == (uint32_t)PL_OPS_PICK_NONE     ? PL_INVALID
                        : id == (uint32_t)PL_OPS_PICK_BROKEN ? PL_DEVICE
                                                             : PL_OK;
    return finish_draw(s, r, st, id);
}

/* Log-probabilities are of the model's own distribution, so they are read before the sampler changes the logits; which
 * token they are of is known only after it. Hence the copy, and only for requests that ask. */
static struct draw draw_one(struct pl_service *s, struct request *r, float *logits, float *copy) {
    uint32_t vocab = s->engine->config.vocab;
    struct draw d = {0};
    if (needs_copy(r) && copy != NULL) memcpy(copy, logits, vocab * sizeof *logits);
    enum pl_status st = PL_NO_MEMORY;
    if (r->constraint == NULL)
        st = pl_sampler_draw(r->sampler, logits, r->known, &d.id);
    else if (copy != NULL)
        st = draw_constrained(r, logits, copy, vocab, &d.id);
    d = finish_draw(s, r, st, d.id);
    if (!d.ok) return d;
    if (r->want_logprobs && copy != NULL) read_logprobs(r, copy, vocab, &d);
    return d;
}

struct sampling {
    struct pl_service *s;
    const struct flight *f;
};

static void score_row(struct pl_service *s, const struct flight *f, size_t row) {
    uint32_t i = f->row_item[row], vocab = s->engine->config.vocab;
    const struct request *r = f->request[i];
    uint32_t next = f->item[i].first + (f->logit_row[row] - f->item[i].row) + 1;
    struct draw *d = &s->drawn[row];
    *d = (struct draw){.id = r->tokens[next], .ok = true, .is_prompt = true};
    read_logprobs(r, s->logits + row * vocab, vocab, d);
}

static void sample_row(void *arg, size_t row) {
    const struct sampling *a = arg;
    struct pl_service *s = a->s;
    struct request *r = a->f->request[a->f->row_item[row]];
    if (r == NULL) return;
    if (!service_row_is_new(a->f, row))
        score_row(s, a->f, row);
    else if (r->no_answer)
        return;
    else if (a->f->place[row] == PL_CHOICE_DEVICE)
        s->drawn[row] = draw_picked(s, r, s->picks[row]);
    else if (!needs_copy(r))
        s->drawn[row] = draw_one(s, r, s->logits + row * s->engine->config.vocab, NULL);
}

/* Requests share nothing but the tokenizer, which is only read, so they are drawn on the backend's threads; those that
 * want log-probabilities or are constrained share `copy` and come one after the other. */
void service_draw_rows(struct pl_service *s, struct flight *f, float *copy) {
    struct sampling a = {s, f};
    size_t vocab = s->engine->config.vocab, rows = f->item_logit[f->items];
    for (size_t row = 0; row < rows; row++) s->drawn[row] = (struct draw){0};
    if (f->wait == PL_CHOICE_DEVICE)
        for (size_t row = 0; row < rows; row++) sample_row(&a, row);
    else
        pl_ops_share(s->engine->ops, rows, sample_row, &a);
    for (size_t row = 0; row < rows; row++) {
        struct request *r = f->request[f->row_item[row]];
        if (r != NULL && service_row_is_new(f, row) && needs_copy(r) && !r->no_answer)
            s->drawn[row] = draw_one(s, r, s->logits + row * vocab, copy);
    }
}
