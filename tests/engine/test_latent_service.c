/* Latent attention by keys and values of each head on devices, in a service: sequences that share steps, pages and a prefix
 * that one of them finds in the cache give the tokens of those that ran alone, without the cache.
 * test-kernels: shared */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "engine/service.h"
#include "tests/devices.h"

enum { JOBS = 4, PROMPT = 75, TOKENS = 12 };
struct job {
    uint32_t prompt[PROMPT], got[TOKENS], count;
    bool ended;
    uint64_t number;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void on_event(void *user, const struct pl_event *e) {
    struct job *j = user;
    pthread_mutex_lock(&lock);
    if (e->kind == PL_EVENT_TOKEN && j->count < TOKENS) j->got[j->count++] = e->id;
    if (e->kind == PL_EVENT_END || e->kind == PL_EVENT_ERROR) j->ended = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void submit(struct pl_service *s, struct job *j) {
    struct pl_err err = {0};
    struct pl_service_request q = {.prompt = j->prompt,
                                   .prompt_count = PROMPT,
                                   .max_tokens = TOKENS,
                                   .ignore_eos = true,
                                   .on_event = on_event,
                                   .user = j};
    pl_sampling_default(&q.sampling);
    q.sampling.temperature = 0;
    if (pl_service_submit(s, &q, &j->number, &err) != PL_OK) fail_msg("%s", err.text);
}
static void wait_end(struct job *j) {
    pthread_mutex_lock(&lock);
    while (!j->ended) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    assert_int_equal(j->count, TOKENS);
}

/* Prompts 0 and 1 share all but their ends, 2 and 3 nothing. */
static void fill(struct job *jobs) {
    memset(jobs, 0, JOBS * sizeof *jobs);
    for (uint32_t i = 0; i < JOBS; i++)
        for (uint32_t k = 0; k < PROMPT; k++) jobs[i].prompt[k] = (k * 37 + (i < 2 && k < 60 ? 0 : 5 * i + 3) + k * k) % 96;
}

static int number; /* of the device */

static void run(const char *backend, bool together, struct job *jobs, struct pl_service_info *info) {
    const struct plumb_engine_options o = {.size = sizeof o,
                                           .model = "tests/golden/model/deepseek2-lite",
                                           .backend = backend,
                                           .device = number,
                                           .context = 112,
                                           .max_sessions = JOBS,
                                           .batch_rows = 96,
                                           .logit_rows = JOBS + 8,
                                           .page_tokens = 16,
                                           .kv_dtype = "f32",
                                           .force_kernels = together ? "attention=expanded" : NULL};
    const struct pl_service_options so = {.max_running = JOBS, .max_waiting = JOBS, .no_prefix_cache = !together};
    struct plumb_engine *e = NULL;
    struct pl_service *s = NULL;
    struct pl_err err = {0};
    if (pl_engine_create(&o, &e, &err) != PL_OK) fail_msg("%s", err.text);
    if (pl_service_create(e, &so, &s, &err) != PL_OK) fail_msg("%s", err.text);
    submit(s, &jobs[0]);
    wait_end(&jobs[0]);
    for (uint32_t i = 1; i < JOBS; i++) {
        submit(s, &jobs[i]);
        if (!together) wait_end(&jobs[i]);
    }
    for (uint32_t i = 1; i < JOBS; i++) wait_end(&jobs[i]);
    pl_service_info(s, info);
    pl_service_destroy(s);
    plumb_engine_destroy(e);
}

static void texts_equal_those_alone(void **state) {
    static const enum pl_device_kind kinds[] = {PL_DEVICE_OPENCL, PL_DEVICE_CUDA};
    static struct job want[JOBS], got[JOBS];
    struct pl_service_info info;
    int ran = 0;
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(kinds); i++) {
        number = test_device_of(kinds[i]);
        if (number < 0) continue;
        fill(want), fill(got);
        run(pl_device_kind_name(kinds[i]), false, want, &info);
        assert_int_equal(info.prefix_tokens_adopted, 0);
        run(pl_device_kind_name(kinds[i]), true, got, &info);
        assert_true(info.prefix_tokens_adopted >= 48); /* three pages of the first's */
        for (uint32_t k = 0; k < JOBS; k++) assert_memory_equal(got[k].got, want[k].got, sizeof want[k].got);
        assert_memory_not_equal(got[0].got, got[2].got, sizeof got[0].got); /* else this could not fail */
        ran++;
    }
    if (ran == 0) SKIP("no such device here");
}

int main(void) {
    test_own_cache();
    struct CMUnitTest tests[] = {cmocka_unit_test(texts_equal_those_alone)};
    return TEST_RUN("latent attention in a service", tests);
}
