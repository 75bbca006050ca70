/* The service over a device that chooses tokens itself (fake_device.h): random programs of requests against each request's
 * run alone, cancelling, failing, and what is launched ahead. test-timeout: 300 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "engine/service.h"
#include "fake_device.h"
#include "tiny_model.h"

static const char *model = "llama", *kv_dtype = "f32";
static float sparse_values;
enum { CONTEXT = 96, TEXT_MAX = 96, REQUESTS = 150, RUNNING = 6 };

static uint64_t seed, draws, preempted; /* preempted: of the programs of a test */
static uint32_t below(uint32_t n) {
    uint32_t c[4] = {(uint32_t)draws++, 0, 0, 5}, k[2] = {(uint32_t)seed, 0};
    return pl_philox4x32(c, k).v[0] % n;
}

struct text {
    uint32_t ids[TEXT_MAX], count;
};
struct job {
    uint32_t prompt[CONTEXT], prompt_count, max_tokens;
    struct pl_sampling sampling;
    bool logprobs, ignore_eos, leaves;
    uint64_t number;
    uint32_t leave_at; /* tokens after which it is cancelled */
    struct text got;
    enum pl_event_kind ended; /* PROMPT: not yet */
    enum pl_end_reason reason;
    struct pl_err err;
    uint64_t step_cancelled;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void on_event(void *user, const struct pl_event *e) {
    struct job *j = user;
    pthread_mutex_lock(&lock);
    assert_true(j->ended == PL_EVENT_PROMPT); /* nothing comes after the end */
    if (e->kind == PL_EVENT_TOKEN) {
        assert_true(j->got.count < TEXT_MAX);
        j->got.ids[j->got.count++] = e->id;
        if (j->logprobs) assert_true(e->logprob <= 0);
    } else {
        j->ended = e->kind;
        if (e->kind == PL_EVENT_END) j->reason = e->reason;
        if (e->kind == PL_EVENT_END) assert_int_equal(e->generated, j->got.count);
        if (e->kind == PL_EVENT_ERROR) j->err = e->err;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_end(struct job *j) {
    pthread_mutex_lock(&lock);
    while (j->ended == PL_EVENT_PROMPT) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}
static void wait_tokens(struct job *j, uint32_t n) {
    pthread_mutex_lock(&lock);
    while (j->ended == PL_EVENT_PROMPT && j->got.count < n) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static struct plumb_engine *open_engine(bool no_ahead, uint64_t kv_memory) {
    struct plumb_engine_options o = {.size = sizeof o,
                                     .model = tiny_model(model),
                                     .backend = "cpu",
                                     .threads = 1,
                                     .context = CONTEXT,
                                     .max_sessions = RUNNING,
                                     .batch_rows = 48,
                                     .logit_rows = RUNNING + 8,
                                     .page_tokens = 16,
                                     .kv_dtype = kv_dtype,
                                     .sparse_values = sparse_values,
                                     .kv_memory = kv_memory,
                                     .invariant = true,
                                     .no_ahead = no_ahead};
    struct plumb_engine *e = NULL;
    struct pl_err err = {0};
    if (pl_engine_create(&o, &e, &err) != PL_OK) fail_msg("%s", err.text);
    assert_string_equal(pl_kv_type_name(e->kv_shape.dtype), kv_dtype);
    fake_install(e, 258);
    fake.end_token = 0;
    for (uint32_t id = 0; id < e->config.vocab && fake.end_token == 0; id++)
        if (pl_tokenizer_is_eog(e->tok, id)) fake.end_token = id;
    assert_true(fake.end_token != 0);
    return e;
}

static struct pl_service *serve(struct plumb_engine *e, const struct pl_service_options *more) {
    struct pl_service_options o = more != NULL ? *more : (struct pl_service_options){0};
    struct pl_service *s = NULL;
    struct pl_err err = {0};
    o.max_running = RUNNING;
    o.max_waiting = REQUESTS;
    if (pl_service_create(e, &o, &s, &err) != PL_OK) fail_msg("%s", err.text);
    return s;
}

static enum pl_status submit(struct pl_service *s, struct job *j, struct pl_err *err) {
    struct pl_service_request q = {.prompt = j->prompt,
                                   .prompt_count = j->prompt_count,
                                   .max_tokens = j->max_tokens,
                                   .sampling = j->sampling,
                                   .want_logprobs = j->logprobs,
                                   .ignore_eos = j->ignore_eos,
                                   .on_event = on_event,
                                   .user = j};
    return pl_service_submit(s, &q, &j->number, err);
}
static void must_submit(struct pl_service *s, struct job *j) {
    struct pl_err err = {0};
    if (submit(s, j, &err) != PL_OK) fail_msg("%s", err.text);
}

static struct job greedy(uint32_t prompt, uint32_t max_tokens) {
    struct job j = {.prompt_count = prompt, .max_tokens = max_tokens};
    pl_sampling_default(&j.sampling);
    j.sampling.temperature = 0;
    for (uint32_t i = 0; i < prompt; i++) j.prompt[i] = below(250);
    return j;
}

/* Those of a program that begin together: six pages each, more than there are. */
static struct job long_job(void) {
    struct job j = greedy(8, 80);
    j.ignore_eos = true;
    return j;
}

/* Families share beginnings; most are greedy, some need the host: noise, log-probabilities, penalties. */
static struct job random_job(void) {
    struct job j = greedy(1 + below(24), 1 + below(70));
    uint32_t family = below(4);
    for (uint32_t i = 0; i < PL_MIN(j.prompt_count, 40u); i++) j.prompt[i] = family * 11 + i % 7;
    if (below(3) == 0) j.sampling.temperature = 0.9f;
    if (below(8) == 0) j.sampling.presence_penalty = 0.5f;
    j.sampling.seed = below(1000);
    j.logprobs = below(8) == 0;
    j.ignore_eos = below(3) == 0;
    j.leaves = below(6) == 0;
    j.leave_at = below(12);
    return j;
}

/* Each alone, on an engine that never launches ahead. */
static void run_alone(struct job *jobs, struct text *want) {
    struct plumb_engine *e = open_engine(true, 0);
    struct pl_service *s = serve(e, &(struct pl_service_options){.no_prefix_cache = true});
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct job j = jobs[i];
        must_submit(s, &j);
        wait_end(&j);
        assert_int_equal(j.ended, PL_EVENT_END);
        want[i] = j.got;
    }
    struct pl_service_info n;
    pl_service_info(s, &n);
    assert_int_equal(n.steps_ahead, 0);
    pl_service_destroy(s);
    plumb_engine_destroy(e);
}

static void all_pages_are_back(struct pl_service *s) {
    struct pl_service_info n;
    pl_service_info(s, &n);
    assert_int_equal(n.running + n.waiting, 0);
    assert_int_equal(n.pages_free + n.pages_cached, n.page_count);
}

/* Returns how many texts differ from those of the runs alone. */
static uint32_t run_together(struct job *jobs, const struct text *want, struct pl_service_info *n, bool fault) {
    struct plumb_engine *e = open_engine(false, 0);
    uint64_t page = pl_kv_pages_bytes(&e->kv_shape) / e->kv_shape.page_count; /* 0: as many as all need */
    plumb_engine_destroy(e);
    e = open_engine(false, 14 * page); /* too few for all: some are preempted */
    fake.worsen = fault;
    struct pl_service *s = serve(e, NULL);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        must_submit(s, &jobs[i]);
        if (jobs[i].leaves) {
            wait_tokens(&jobs[i], jobs[i].leave_at);
            pl_service_cancel(s, jobs[i].number);
        }
        if (i >= RUNNING && below(9) == 0) wait_end(&jobs[below(i + 1)]);
    }
    for (uint32_t i = 0; i < REQUESTS; i++) {
        wait_end(&jobs[i]);
        assert_int_equal(jobs[i].ended, PL_EVENT_END);
        bool whole = jobs[i].reason != PL_END_CANCELLED;
        wrong += jobs[i].got.count > want[i].count || (whole && jobs[i].got.count != want[i].count) ||
                 memcmp(jobs[i].got.ids, want[i].ids, jobs[i].got.count * sizeof(uint32_t)) != 0;
    }
    assert_true(pl_service_drain(s, 60000));
    all_pages_are_back(s);
    pl_service_info(s, n);
    pl_service_destroy(s);
    plumb_engine_destroy(e);
    return wrong;
}

static uint32_t program(uint64_t with, bool fault) {
    static struct job jobs[REQUESTS];
    static struct text want[REQUESTS];
    struct pl_service_info n;
    seed = with;
    draws = 0;
    for (uint32_t i = 0; i < REQUESTS; i++) jobs[i] = i < RUNNING ? long_job() : random_job();
    run_alone(jobs, want);
    uint32_t wrong = run_together(jobs, want, &n, fault);
    print_message("# seed %llu: %llu steps, %llu ahead, %llu surplus rows, %llu preempted, %u wrong, %u pages\n",
                  (unsigned long long)with, (unsigned long long)n.steps, (unsigned long long)n.steps_ahead,
                  (unsigned long long)n.surplus_rows, (unsigned long long)n.preempted, wrong, n.page_count);
    assert_true(n.steps_ahead > 20 && n.surplus_rows > 0);
    if (strcmp(model, "llama") != 0) {
        print_message(
            "#   states: %llu kept, %llu begun with, %llu not kept; %llu requests without the state of their pages\n",
            (unsigned long long)n.states_kept, (unsigned long long)n.states_restored, (unsigned long long)n.states_skipped,
            (unsigned long long)n.prefix_declined);
        assert_true(n.states_kept > 20 && n.states_restored > 5);
    }
    preempted += n.preempted;
    assert_true(n.steps_waited[PL_CHOICE_LOGPROBS] > 0 && n.choices[PL_CHOICE_DEVICE] > 0);
    uint64_t waited = 0;
    for (int p = 0; p < PL_CHOICE_PLACES; p++) waited += n.steps_waited[p];
    assert_true(n.steps_ahead + waited <= n.steps);
    assert_true(fake.unread_max <= 2);
    return wrong;
}

static void texts_equal_those_of_runs_alone(void **state) {
    (void)state;
    for (uint64_t with = 1; with <= 3; with++) assert_int_equal(program(with, false), 0);
}
static void recurrent_texts_equal_those_of_runs_alone(void **state) {
    (void)state;
    preempted = 0;
    model = "mamba"; /* no pages that count: its state is in slots */
    assert_int_equal(program(5, false), 0);
    model = "hybrid"; /* both, so it is preempted too */
    for (uint64_t with = 6; with <= 8; with++) assert_int_equal(program(with, false), 0);
    assert_true(preempted > 0);
    model = "plamo2"; /* one of its windows is shorter than the texts */
    assert_int_equal(program(11, false), 0);
    model = "nemotron"; /* with experts */
    assert_int_equal(program(12, false), 0);
    model = "llama";
}
/* Scales and levels travel with pages that are shared, copied, given up and computed again. */
static void caches_in_few_bits_do_alike(void **state) {
    (void)state;
    preempted = 0;
    kv_dtype = "int8";
    assert_int_equal(program(9, false), 0);
    kv_dtype = "k8v4";
    sparse_values = 0.02f;
    assert_int_equal(program(10, false), 0);
    kv_dtype = "f32";
    sparse_values = 0;
    assert_true(preempted > 0);
}
static void a_choice_of_another_row_is_seen(void **state) {
    (void)state;
    assert_true(program(4, true) > 0);
}

/* The pages of who leaves are free when the step that was running is done. */
static void a_client_that_leaves_frees_its_pages(void **state) {
    (void)state;
    struct plumb_engine *e = open_engine(false, 0);
    struct pl_service *s = serve(e, &(struct pl_service_options){.no_prefix_cache = true});
    struct job stays = greedy(8, 80), leaves = greedy(40, 40);
    stays.ignore_eos = leaves.ignore_eos = true;
    must_submit(s, &stays);
    must_submit(s, &leaves);
    wait_tokens(&leaves, 3);
    pl_service_cancel(s, leaves.number);
    struct pl_service_info n;
    pl_service_info(s, &n);
    uint32_t owned = n.page_count - n.pages_free;
    assert_true(owned <= 6); /* those of the other: 88 tokens */
    wait_end(&leaves);
    assert_true(leaves.ended == PL_EVENT_END && (leaves.reason == PL_END_CANCELLED || leaves.got.count == 40));
    pl_service_cancel(s, stays.number);
    wait_end(&stays);
    all_pages_are_back(s);
    pl_service_destroy(s);
    plumb_engine_destroy(e);
}

/* All tokens banned for one: it gets an error, the others their text. */
static void a_request_that_fails_fails_alone(void **state) {
    (void)state;
    struct plumb_engine *e = open_engine(false, 0);
    struct pl_service *s = serve(e, NULL);
    uint32_t vocab = e->config.vocab;
    struct pl_logit_bias *bias = pl_alloc(vocab, sizeof *bias);
    for (uint32_t i = 0; i < vocab; i++) bias[i] = (struct pl_logit_bias){i, -INFINITY};
    struct job good[3], bad = greedy(5, 20);
    for (int i = 0; i < 3; i++) good[i] = greedy(6 + (uint32_t)i, 30), good[i].ignore_eos = true;
    bad.sampling.bias = bias;
    bad.sampling.bias_count = vocab;
    must_submit(s, &good[0]);
    must_submit(s, &bad);
    must_submit(s, &good[1]);
    wait_end(&bad);
    must_submit(s, &good[2]);
    assert_int_equal(bad.ended, PL_EVENT_ERROR);
    assert_non_null(strstr(bad.err.text, "no usable logits"));
    for (int i = 0; i < 3; i++) {
        wait_end(&good[i]);
        assert_int_equal(good[i].ended, PL_EVENT_END);
        assert_int_equal(good[i].got.count, 30);
    }
    all_pages_are_back(s);
    pl_service_destroy(s);
    plumb_engine_destroy(e);
    pl_free(bias);
}

/* The device fails in its n-th call, whichever that is: every request gets the reason, later ones are refused. */
static void fails_at(uint64_t n, uint64_t step) {
    struct plumb_engine *e = open_engine(false, 0);
    struct pl_service *s = serve(e, &(struct pl_service_options){.fail_step = step});
    struct job jobs[4];
    struct pl_err err = {0};
    fake.fail_at = n;
    uint32_t sent = 0, failed = 0;
    for (; sent < 4; sent++) {
        jobs[sent] = greedy(4 + 3 * sent, 10 + 20 * sent);
        jobs[sent].ignore_eos = true;
        if (submit(s, &jobs[sent], &err) != PL_OK) break; /* it has failed already */
    }
    for (uint32_t i = 0; i < sent; i++) {
        wait_end(&jobs[i]);
        failed += jobs[i].ended == PL_EVENT_ERROR;
        if (jobs[i].ended == PL_EVENT_ERROR) assert_int_equal(jobs[i].err.status, PL_DEVICE);
        if (jobs[i].ended == PL_EVENT_END) assert_int_equal(jobs[i].got.count, jobs[i].max_tokens);
    }
    assert_true(failed > 0);
    struct job late = greedy(3, 3);
    assert_int_equal(submit(s, &late, &err), PL_DEVICE);
    assert_non_null(strstr(err.text, "failed on its device"));
    pl_service_destroy(s);
    plumb_engine_destroy(e);
}
static void a_device_failure_fails_all(void **state) {
    (void)state;
    seed = 9;
    for (uint64_t n = 1; n <= 24; n++) fails_at(n, 0);
    for (uint64_t step = 1; step <= 12; step++) fails_at(0, step);
}

/* A session gets the same ids, finish and logits whether or not its steps are launched ahead. */
struct outcome {
    struct text text;
    uint32_t len, ids[CONTEXT];
    enum plumb_finish finish;
    float logits[512];
};
static bool keep(void *user, uint32_t id, const char *text, size_t len, double logprob, const uint32_t *top_ids,
                 const double *top_logprobs, size_t top_count) {
    struct text *t = user;
    (void)text, (void)len, (void)logprob, (void)top_ids, (void)top_logprobs, (void)top_count;
    if (id != UINT32_MAX) t->ids[t->count++] = id;
    return t->count != 17;
}
static struct outcome generate(bool no_ahead, const struct job *j, uint64_t *surplus) {
    struct plumb_engine *e = open_engine(no_ahead, 0);
    struct plumb_session *s = NULL;
    struct pl_err err = {0};
    struct outcome o = {0};
    struct plumb_generate_options g = {
        .size = sizeof g, .max_tokens = j->max_tokens, .ignore_eos = j->ignore_eos, .on_token = keep, .user = &o.text};
    g.sampling.size = sizeof g.sampling;
    plumb_sampling_default(&g.sampling);
    g.sampling.temperature = j->sampling.temperature;
    g.sampling.seed = j->sampling.seed;
    assert_int_equal(pl_session_create(e, &s, &err), PL_OK);
    assert_int_equal(pl_session_append(s, j->prompt, j->prompt_count, NULL, NULL, &err), PL_OK);
    if (pl_session_generate(s, &g, NULL, &o.finish, &err) != PL_OK) fail_msg("%s", err.text);
    assert_true(s->has_logits && e->config.vocab <= 512);
    o.len = pl_session_held(s);
    memcpy(o.ids, s->ids, o.len * sizeof *o.ids);
    memcpy(o.logits, s->logits, e->config.vocab * sizeof(float));
    *surplus += e->ahead.surplus_rows;
    plumb_session_destroy(s);
    assert_int_equal(e->pages.free_count, e->pages.page_count);
    plumb_engine_destroy(e);
    return o;
}
static void sessions_end_alike(void **state) {
    (void)state;
    model = "llama";
    uint64_t surplus = 0, none = 0;
    seed = 21, draws = 0;
    for (uint32_t i = 0; i < 40; i++) {
        struct job j = random_job();
        if (i % 8 == 0) j.max_tokens = 90; /* beyond the context */
        struct outcome a = generate(false, &j, &surplus), b = generate(true, &j, &none);
        assert_memory_equal(&a, &b, sizeof a);
    }
    assert_true(surplus > 0 && none == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_equal_those_of_runs_alone),
                                       cmocka_unit_test(caches_in_few_bits_do_alike),
                                       cmocka_unit_test(a_choice_of_another_row_is_seen),
                                       cmocka_unit_test(a_client_that_leaves_frees_its_pages),
                                       cmocka_unit_test(a_request_that_fails_fails_alone),
                                       cmocka_unit_test(a_device_failure_fails_all),
                                       cmocka_unit_test(sessions_end_alike),
                                       cmocka_unit_test(recurrent_texts_equal_those_of_runs_alone)};
    return cmocka_run_group_tests_name("service", tests, NULL, NULL);
}
