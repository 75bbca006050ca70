/* Steps launched ahead on every device present: sessions and services give what they give step by step, bit for bit.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; test_service has the
 * host's side) test-timeout: 600 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "device/device.h"
#include "engine/engine.h"
#include "engine/service.h"
#include "tests/devices.h"
#include "tests/skip.h"
#include "tiny_model.h"

enum { CONTEXT = 96, CASES = 6 };

static const char *backend;
static int device_index;

static struct plumb_engine *open_engine(bool no_ahead) {
    struct plumb_engine_options o = {.size = sizeof o,
                                     .model = tiny_model("llama"),
                                     .backend = backend,
                                     .device = device_index,
                                     .context = CONTEXT,
                                     .max_sessions = CASES,
                                     .batch_rows = 64,
                                     .page_tokens = 16,
                                     .invariant = true,
                                     .no_ahead = no_ahead};
    struct plumb_engine *e = NULL;
    struct pl_err err = {0};
    if (pl_engine_create(&o, &e, &err) != PL_OK) fail_msg("%s", err.text);
    return e;
}

struct text {
    uint32_t ids[CONTEXT], count, len;
    enum plumb_finish finish;
    float logits[512];
};
static bool keep(void *user, uint32_t id, const char *text, size_t len, double logprob, const uint32_t *top_ids,
                 const double *top_logprobs, size_t top_count) {
    struct text *t = user;
    (void)text, (void)len, (void)logprob, (void)top_ids, (void)top_logprobs, (void)top_count;
    if (id != UINT32_MAX) t->ids[t->count++] = id;
    return true;
}

static uint32_t prompt_of(uint32_t i, uint32_t *ids) {
    uint32_t n = 3 + 7 * i;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t c[4] = {k, i, 0, 0}, key[2] = {3, 5};
        ids[k] = pl_philox4x32(c, key).v[0] % 250;
    }
    return n;
}
/* Every other one is drawn with noise and filters. */
static float temperature_of(uint32_t i) { return i % 2 == 0 ? 0 : 1.2f; }

static struct text session_text(struct plumb_engine *e, uint32_t i) {
    struct text t = {0};
    struct plumb_session *s = NULL;
    struct pl_err err = {0};
    uint32_t ids[CONTEXT], n = prompt_of(i, ids);
    struct plumb_generate_options g = {.size = sizeof g, .max_tokens = 40, .on_token = keep, .user = &t};
    g.sampling.size = sizeof g.sampling;
    plumb_sampling_default(&g.sampling);
    g.sampling.temperature = temperature_of(i);
    g.sampling.seed = i;
    assert_int_equal(pl_session_create(e, &s, &err), PL_OK);
    assert_int_equal(pl_session_append(s, ids, n, NULL, NULL, &err), PL_OK);
    if (pl_session_generate(s, &g, NULL, &t.finish, &err) != PL_OK) fail_msg("%s", err.text);
    t.len = pl_session_held(s);
    assert_true(s->has_logits && e->config.vocab <= 512);
    memcpy(t.logits, s->logits, e->config.vocab * sizeof(float));
    plumb_session_destroy(s);
    return t;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint32_t ended;
static void on_event(void *user, const struct pl_event *e) {
    struct text *t = user;
    pthread_mutex_lock(&lock);
    if (e->kind == PL_EVENT_TOKEN && !e->is_end_token) t->ids[t->count++] = e->id;
    ended += e->kind == PL_EVENT_END;
    assert_true(e->kind != PL_EVENT_ERROR);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* All at once: the texts are those of the sessions. */
static void serve_all(struct plumb_engine *e, const struct text *want) {
    struct pl_service *s = NULL;
    struct pl_err err = {0};
    struct pl_service_options o = {.max_running = CASES};
    static struct text got[CASES];
    memset(got, 0, sizeof got);
    ended = 0;
    assert_int_equal(pl_service_create(e, &o, &s, &err), PL_OK);
    for (uint32_t i = 0; i < CASES; i++) {
        uint32_t ids[CONTEXT], n = prompt_of(i, ids);
        uint64_t number;
        struct pl_service_request q = {
            .prompt = ids, .prompt_count = n, .max_tokens = 40, .on_event = on_event, .user = &got[i]};
        pl_sampling_default(&q.sampling);
        q.sampling.temperature = temperature_of(i);
        q.sampling.seed = i;
        assert_int_equal(pl_service_submit(s, &q, &number, &err), PL_OK);
    }
    pthread_mutex_lock(&lock);
    while (ended < CASES) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    struct pl_service_info info;
    pl_service_info(s, &info);
    assert_int_equal(info.steps_ahead > 0, !e->opt.no_ahead);
    assert_int_equal(info.unconverged, 0);
    pl_service_destroy(s);
    for (uint32_t i = 0; i < CASES; i++) {
        assert_int_equal(got[i].count, want[i].count);
        assert_memory_equal(got[i].ids, want[i].ids, sizeof got[i].ids);
    }
}

static void ahead_is_step_by_step(const char *kind) {
    static struct text want[CASES];
    backend = kind;
    for (int no_ahead = 1; no_ahead >= 0; no_ahead--) {
        struct plumb_engine *e = open_engine(no_ahead != 0);
        for (uint32_t i = 0; i < CASES; i++) {
            struct text t = session_text(e, i);
            if (no_ahead) want[i] = t;
            assert_memory_equal(&t, &want[i], sizeof t);
        }
        assert_int_equal(e->ahead.steps > 0, !no_ahead);
        serve_all(e, want);
        assert_int_equal(e->pages.free_count, e->pages.page_count);
        plumb_engine_destroy(e);
    }
}

static void every_device(void **state) {
    (void)state;
    static const enum pl_device_kind kinds[] = {PL_DEVICE_CUDA, PL_DEVICE_ROCM, PL_DEVICE_OPENCL};
    int ran = 0;
    for (size_t i = 0; i < PL_COUNT_OF(kinds); i++) {
        device_index = test_device_of(kinds[i]);
        if (device_index < 0) continue;
        ahead_is_step_by_step(pl_device_kind_name(kinds[i]));
        ran++;
    }
    if (ran == 0) SKIP("no such device here");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_device)};
    return cmocka_run_group_tests_name("launched ahead on devices", tests, NULL, NULL);
}
