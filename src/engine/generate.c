/* generate - sample, report, append, repeat. */
#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "engine/engine.h"

enum { LOGPROBS_MAX = 20 };

struct run {
    struct plumb_session *session;
    struct plumb_generate_options opt;
    struct pl_sampler *sampler;
    struct pl_decoder decoder;
    struct pl_buf text;
    double logprob, top_logprobs[LOGPROBS_MAX];
    uint32_t top_ids[LOGPROBS_MAX];
    size_t top_count;
    bool ends_here; /* nobody wants what comes after the last token */
};

struct pl_sampling pl_sampling_from_api(const struct plumb_sampling *s) {
    _Static_assert(sizeof(struct plumb_logit_bias) == sizeof(struct pl_logit_bias), "same layout");
    struct pl_sampling r;
    pl_sampling_default(&r);
    if (s->size == 0) return r;
    return (struct pl_sampling){
        .temperature = s->temperature,
        .top_k = s->top_k,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .typical_p = s->typical_p,
        .repetition_penalty = s->repetition_penalty,
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .penalty_last_n = s->penalty_last_n,
        .seed = s->seed,
        .bias = (const struct pl_logit_bias *)s->bias,
        .bias_count = s->bias_count,
    };
}

static enum pl_status check_options(const struct plumb_session *s, const struct plumb_generate_options *opt,
                                    struct pl_err *err) {
    if (opt->size != sizeof *opt)
        PL_FAIL(err, PL_INVALID, "plumb_generate_options.size is %zu but must be %zu", opt->size, sizeof *opt);
    if (opt->sampling.size != 0 && opt->sampling.size != sizeof opt->sampling)
        PL_FAIL(err, PL_INVALID, "plumb_sampling.size is %zu but must be %zu", opt->sampling.size, sizeof opt->sampling);
    if (opt->sampling.size != 0 && opt->sampling.bias_count > 0 && opt->sampling.bias == NULL)
        PL_FAIL(err, PL_INVALID, "bias_count is %zu but bias is NULL", opt->sampling.bias_count);
    if (opt->logprobs > LOGPROBS_MAX)
        PL_FAIL(err, PL_INVALID, "logprobs is %u but must be at most %d", opt->logprobs, LOGPROBS_MAX);
    if (opt->max_tokens > 0 && !s->has_logits)
        PL_FAIL(err, PL_INVALID, "there is nothing to continue: append at least one token first");
    return PL_OK;
}

static bool ends(const struct run *r, uint32_t id) {
    const struct pl_tokenizer *t = r->session->engine->tok;
    return !r->opt.ignore_eos && t != NULL && pl_tokenizer_is_eog(t, id);
}

static enum pl_status draw(struct run *r, uint32_t *id, struct pl_err *err) {
    struct plumb_session *s = r->session;
    struct plumb_engine *e = s->engine;
    uint32_t vocab = e->config.vocab;
    memcpy(e->sample_logits, s->logits, vocab * sizeof *s->logits);
    enum pl_status st = pl_sampler_draw(r->sampler, e->sample_logits, pl_session_held(s), id);
    if (st == PL_INVALID) PL_FAIL(err, st, "no token can be drawn at position %u: all are banned", pl_session_held(s));
    if (st != PL_OK)
        PL_FAIL(err, st, "the logits at position %u are not numbers: the weights or a kernel are broken",
                pl_session_held(s));
    r->logprob = NAN;
    r->top_count = 0;
    if (r->opt.logprob || r->opt.logprobs > 0) {
        r->logprob = pl_logprob(s->logits, vocab, *id);
        r->top_count = pl_top_logprobs(s->logits, vocab, r->opt.logprobs, r->top_ids, r->top_logprobs);
    }
    return PL_OK;
}

/* The device's choice as a draw's result. */
static enum pl_status picked(const struct run *r, uint32_t id, struct pl_err *err) {
    if (id == (uint32_t)PL_OPS_PICK_NONE)
        PL_FAIL(err, PL_INVALID, "no token can be drawn at position %u: all are banned", pl_session_held(r->session));
    if (id == (uint32_t)PL_OPS_PICK_BROKEN)
        PL_FAIL(err, PL_DEVICE, "the logits at position %u are not numbers: the weights or a kernel are broken",
                pl_session_held(r->session));
    return PL_OK;
}

static enum pl_status report(struct run *r, uint32_t id, bool last, bool *go_on, struct pl_err *err) {
    pl_buf_clear(&r->text);
    if (r->session->engine->tok != NULL) {
        enum pl_status st = pl_decoder_push(&r->decoder, id, &r->text);
        if (last) pl_decoder_flush(&r->decoder, &r->text);
        if (st != PL_OK || !pl_buf_ok(&r->text))
            PL_FAIL(err, st == PL_OK ? PL_NO_MEMORY : st, "token %u could not be turned into text: %s", id,
                    pl_status_text(st == PL_OK ? PL_NO_MEMORY : st));
    }
    *go_on = r->opt.on_token == NULL || r->opt.on_token(r->opt.user, id, pl_buf_cstr(&r->text), r->text.len, r->logprob,
                                                        r->top_ids, r->top_logprobs, r->top_count);
    return PL_OK;
}

/* Bytes of a character that never completed, when an end token ends the text. */
static void report_rest(struct run *r) {
    if (r->session->engine->tok == NULL || r->opt.on_token == NULL) return;
    pl_buf_clear(&r->text);
    pl_decoder_flush(&r->decoder, &r->text);
    if (r->text.len > 0 && pl_buf_ok(&r->text))
        r->opt.on_token(r->opt.user, UINT32_MAX, r->text.data, r->text.len, NAN, NULL, NULL, 0);
}

bool pl_sampler_draw_of(const struct pl_sampler *s, uint64_t position, struct pl_draw *out) {
    const struct pl_sampling *p = pl_sampler_params(s);
    if (pl_sampler_needs(s) != PL_SAMPLER_NEEDS_ROW) return false;
    *out = (struct pl_draw){p->temperature, p->top_k, p->top_p, p->min_p, p->seed, position};
    return true;
}

/* Nothing but the choice is wanted of the logits: the device makes it, and they stay there. */
static bool can_choose(const struct run *r) {
    struct pl_draw how;
    return pl_engine_chooses(r->session->engine) && pl_sampler_draw_of(r->sampler, 0, &how) && !r->opt.logprob &&
           r->opt.logprobs == 0;
}

/* One step with the token `id` after what the session holds. */
static enum pl_status take_step(struct run *r, uint32_t id, uint32_t *choice, struct pl_err *err) {
    struct pl_draw how = {0};
    bool drawn =
        choice != NULL && pl_sampler_draw_of(r->sampler, pl_session_held(r->session) + 1, &how) && how.temperature > 0;
    struct pl_step_part part = {
        .session = r->session, .ids = &id, .count = 1, .logits = 1, .choice = choice, .draw = drawn ? &how : NULL};
    return pl_engine_step(r->session->engine, &part, 1, NULL, err);
}

/* The step was launched with a token that nobody had read: what does it turn out to be? When it cannot stand, the session
 * is as before that step, and its logits are computed once more. */
static enum pl_status read_ahead(struct run *r, uint32_t choice, uint32_t *id, bool *ended, struct pl_err *err) {
    struct plumb_session *s = r->session;
    uint32_t held = pl_session_held(s) - 1;
    enum pl_status st = pl_engine_chosen(s->engine, choice, id, err);
    s->engine->ahead.steps++;
    if (st == PL_OK) s->ids[held] = *id;
    if (st == PL_OK) st = picked(r, *id, err);
    *ended = st == PL_OK && ends(r, *id);
    if (st == PL_OK && !*ended) return PL_OK;
    s->engine->ahead.surplus_rows++;
    struct pl_err ignored = {0};
    PL_ASSERT(pl_session_truncate(s, held - 1, &ignored) == PL_OK);
    if (st != PL_OK) return st;
    return take_step(r, s->ids[held - 1], NULL, err);
}

enum turn { TURN_ON, TURN_STOP, TURN_CALLBACK };

static bool is_last(const struct run *r, uint32_t generated) { return generated + 1 == r->opt.max_tokens; }

static enum pl_status hand_over(struct run *r, uint32_t id, uint32_t held, uint32_t generated, enum turn *turn,
                                struct pl_err *err) {
    bool go_on = true, last = is_last(r, generated) || held + 1 == r->session->engine->context;
    PL_TRY(report(r, id, last, &go_on, err));
    *turn = go_on ? TURN_ON : TURN_CALLBACK;
    return PL_OK;
}

/* The token is known, is reported, and then computed. */
static enum pl_status turn_known(struct run *r, uint32_t generated, uint32_t *choice, enum turn *turn, struct pl_err *err) {
    struct plumb_session *s = r->session;
    uint32_t id = 0;
    if (s->has_logits) {
        PL_TRY(draw(r, &id, err));
    } else {
        PL_TRY(pl_engine_chosen(s->engine, *choice, &id, err));
        PL_TRY(picked(r, id, err));
    }
    if (ends(r, id)) {
        report_rest(r);
        *turn = TURN_STOP;
        return PL_OK;
    }
    PL_TRY(hand_over(r, id, pl_session_held(s), generated, turn, err));
    if (r->ends_here && (*turn == TURN_CALLBACK || is_last(r, generated))) return PL_OK;
    PL_TRY(take_step(r, id, choice, err));
    pl_sampler_accept(r->sampler, id);
    return PL_OK;
}

/* The token was chosen on the device: it is computed at once, and reported while that runs. */
static enum pl_status turn_ahead(struct run *r, uint32_t generated, uint32_t *choice, enum turn *turn, struct pl_err *err) {
    struct plumb_session *s = r->session;
    uint32_t id = 0, last = *choice, held = pl_session_held(s);
    bool ended = false;
    PL_TRY(take_step(r, PL_TOKEN_CHOSEN, choice, err));
    PL_TRY(read_ahead(r, last, &id, &ended, err));
    if (ended) {
        report_rest(r);
        *turn = TURN_STOP;
        return PL_OK;
    }
    return hand_over(r, id, held, generated, turn, err);
}

static enum pl_status loop(struct run *r, uint32_t *generated, enum plumb_finish *finish, struct pl_err *err) {
    struct plumb_session *s = r->session;
    uint32_t choice = 0, *wanted = can_choose(r) ? &choice : NULL;
    *finish = PLUMB_FINISH_LENGTH;
    while (*generated < r->opt.max_tokens && !pl_fault("empty")) {
        enum turn turn = TURN_ON;
        if (pl_session_held(s) == s->engine->context) {
            *finish = PLUMB_FINISH_CONTEXT;
            return PL_OK;
        }
        bool known = s->has_logits || s->engine->opt.no_ahead || (r->ends_here && is_last(r, *generated));
        PL_TRY(known ? turn_known(r, *generated, wanted, &turn, err) : turn_ahead(r, *generated, wanted, &turn, err));
        if (turn == TURN_STOP) {
            *finish = PLUMB_FINISH_STOP;
            return PL_OK;
        }
        ++*generated;
        if (turn == TURN_CALLBACK) {
            *finish = PLUMB_FINISH_CALLBACK;
            return PL_OK;
        }
    }
    return PL_OK;
}

static enum pl_status run_session(struct plumb_session *s, const struct plumb_generate_options *opt, bool ends_here,
                                  uint32_t *generated, enum plumb_finish *finish, struct pl_err *err) {
    uint32_t count = 0;
    enum plumb_finish why = PLUMB_FINISH_LENGTH;
    PL_TRY(check_options(s, opt, err));
    struct run r = {.session = s, .opt = *opt, .ends_here = ends_here};
    struct pl_sampling sampling = pl_sampling_from_api(&opt->sampling);
    PL_TRY(pl_sampler_create(&sampling, s->engine->config.vocab, &r.sampler, err));
    for (uint32_t i = 0; i < pl_session_held(s); i++) pl_sampler_accept(r.sampler, s->ids[i]);
    if (s->engine->tok != NULL) pl_decoder_init(&r.decoder, s->engine->tok, opt->show_special);
    r.decoder.started = true; /* a continuation: the space before its first word is part of the text */
    enum pl_status st = loop(&r, &count, &why, err);
    if (st == PL_OK && !ends_here && !s->has_logits && count > 0 && can_choose(&r))
        st = pl_engine_fetch_logits(s, err); /* for who goes on */
    pl_sampler_destroy(r.sampler);
    pl_buf_deinit(&r.text);
    if (generated != NULL) *generated = count; /* also on failure: what the session holds */
    if (st == PL_OK && finish != NULL) *finish = why;
    return st;
}

enum pl_status pl_session_generate(struct plumb_session *s, const struct plumb_generate_options *opt, uint32_t *generated,
                                   enum plumb_finish *finish, struct pl_err *err) {
    return run_session(s, opt, false, generated, finish, err);
}

enum pl_status pl_session_generate_last(struct plumb_session *s, const struct plumb_generate_options *opt,
                                        uint32_t *generated, enum plumb_finish *finish, struct pl_err *err) {
    return run_session(s, opt, true, generated, finish, err);
}
