/* Layers with a sliding window give pages back: sessions and services of a model that mixes them with others give the texts
 * and logits of an engine that keeps all pages, bit for bit; on the CPU and on every device present.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; kv, sched and test_service
 * have the host's side) test-timeout: 600 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "engine/engine.h"
#include "engine/service.h"
#include "tests/devices.h"
#include "tiny_model.h"

enum { CONTEXT = 512, RUNNING = 4, CHATS = 10, WINDOW = 20, PAGE = 16 };

static const char *backend;
static int device_index;

static struct plumb_engine *open_of(const char *layout, uint32_t context, uint32_t logit_rows, uint64_t kv_memory) {
    struct plumb_engine_options o = {.size = sizeof o,
                                     .model = tiny_model("windows"),
                                     .backend = backend,
                                     .device = device_index,
                                     .context = context,
                                     .max_sessions = RUNNING,
                                     .batch_rows = 64,
                                     .logit_rows = logit_rows,
                                     .page_tokens = PAGE,
                                     .kv_dtype = "f32",
                                     .kv_layout = layout,
                                     .kv_memory = kv_memory,
                                     .invariant = true};
    struct plumb_engine *e = NULL;
    struct pl_err err = {0};
    if (pl_engine_create(&o, &e, &err) != PL_OK) fail_msg("%s", err.text);
    return e;
}

static struct plumb_engine *open_engine(const char *layout, uint32_t logit_rows, uint64_t kv_memory) {
    return open_of(layout, CONTEXT, logit_rows, kv_memory);
}

static uint32_t token(uint32_t a, uint32_t b) {
    uint32_t c[4] = {a, b, 0, 6}, key[2] = {3, 5};
    return pl_philox4x32(c, key).v[0] % 250;
}

/* --- sessions --- */

struct probe {
    uint32_t held;
    float logits[512];
};
static void look(const struct plumb_session *s, struct probe *out) {
    assert_true(s->has_logits && s->engine->config.vocab <= 512);
    out->held = pl_session_held(s);
    memcpy(out->logits, s->logits, s->engine->config.vocab * sizeof(float));
}
static uint32_t windowed_owned(const struct plumb_session *s) {
    return s->tables.of[PL_PAGES_WINDOWED].count - s->tables.of[PL_PAGES_WINDOWED].gone;
}

/* Appends, goes back a little and far, and on. */
static void session_probes(struct plumb_engine *e, struct probe *out) {
    struct plumb_session *s = NULL, *other = NULL;
    struct pl_err err = {0};
    static const uint32_t back[] = {490, 350, 60, 0};
    uint32_t ids[CONTEXT];
    for (uint32_t i = 0; i < CONTEXT; i++) ids[i] = token(i, 0);
    assert_int_equal(pl_session_create(e, &s, &err), PL_OK);
    assert_int_equal(pl_session_create(e, &other, &err), PL_OK);
    for (size_t i = 0; i < PL_COUNT_OF(back); i++) {
        assert_int_equal(pl_session_append(other, ids, 60, NULL, NULL, &err), PL_OK); /* takes what the first gave back */
        assert_int_equal(pl_session_append(s, ids + pl_session_held(s), 500 - pl_session_held(s), NULL, NULL, &err), PL_OK);
        look(s, out++);
        if (e->pools.window > 0) assert_true(windowed_owned(s) <= pl_window_pages(WINDOW + PL_SESSION_BACK, PAGE, 1));
        assert_int_equal(pl_session_truncate(s, back[i], &err), PL_OK);
        assert_int_equal(pl_session_append(s, ids + CONTEXT / 2, 5, NULL, NULL, &err), PL_OK);
        look(s, out++);
        assert_int_equal(pl_session_truncate(s, back[i], &err), PL_OK);
    }
    plumb_session_destroy(s);
    plumb_session_destroy(other);
}

static void sessions_keep_their_logits(void) {
    static struct probe want[8], got[8];
    struct plumb_engine *e = open_engine("dense", 0, 0);
    assert_int_equal(e->kv_shape.window_page_count, 0);
    session_probes(e, want);
    plumb_engine_destroy(e);
    e = open_engine("paged", 0, 0);
    assert_true(e->pools.window == WINDOW && e->kv_shape.window_page_count * 4 <= e->kv_shape.page_count * 3);
    session_probes(e, got);
    assert_memory_equal(want, got, sizeof got);
    assert_int_equal(e->state_recomputed, 60); /* once: by 10 and by 150 tokens it can go back */
    assert_int_equal(e->pages.free_count, e->pages.page_count);
    assert_int_equal(e->window_pages.free_count, e->window_pages.page_count);
    plumb_engine_destroy(e);
}

/* --- services --- */

struct chat {
    uint32_t tokens[CONTEXT], count, answer, cached;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint32_t ended;
static void on_event(void *user, const struct pl_event *e) {
    struct chat *c = user;
    pthread_mutex_lock(&lock);
    if (e->kind == PL_EVENT_TOKEN) c->tokens[c->count++] = e->id;
    if (e->kind == PL_EVENT_END) c->cached += e->cached_tokens;
    ended += e->kind == PL_EVENT_END;
    assert_true(e->kind != PL_EVENT_ERROR);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void turn(struct pl_service *s, struct chat *c, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint64_t number;
        struct pl_err err = {0};
        struct pl_service_request q = {.prompt = c[i].tokens,
                                       .prompt_count = c[i].count,
                                       .max_tokens = 50,
                                       .ignore_eos = true,
                                       .on_event = on_event,
                                       .user = &c[i]};
        pl_sampling_default(&q.sampling);
        q.sampling.temperature = 0;
        assert_int_equal(pl_service_submit(s, &q, &number, &err), PL_OK);
    }
    pthread_mutex_lock(&lock);
    while (ended < n) pthread_cond_wait(&changed, &lock);
    ended = 0;
    pthread_mutex_unlock(&lock);
}

/* Chats of three turns, all at once; some begin alike. */
static void serve_chats(struct plumb_engine *e, bool prefixes, struct chat *c, struct pl_service_info *info) {
    struct pl_service *s = NULL;
    struct pl_err err = {0};
    struct pl_service_options o = {.max_running = RUNNING, .no_prefix_cache = !prefixes};
    if (pl_service_create(e, &o, &s, &err) != PL_OK) fail_msg("%s", err.text);
    memset(c, 0, CHATS * sizeof *c);
    for (uint32_t i = 0; i < CHATS; i++)
        for (c[i].count = 0; c[i].count < 90 + 13 * i; c[i].count++)
            c[i].tokens[c[i].count] = token(c[i].count, c[i].count < 70 ? i % 2 : i);
    for (uint32_t t = 0; t < 3; t++) {
        turn(s, c, CHATS);
        for (uint32_t i = 0; i < CHATS; i++)
            for (uint32_t k = 0; k < 9; k++) c[i].tokens[c[i].count++] = token(k, i + t);
    }
    pl_service_info(s, info);
    assert_int_equal(info->pages_free + info->pages_cached, info->page_count);
    assert_int_equal(info->window_pages_free + info->window_pages_cached, info->window_pages);
    pl_service_destroy(s);
}

static uint32_t differing(const struct chat *a, const struct chat *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < CHATS; i++)
        n += a[i].count != b[i].count || memcmp(a[i].tokens, b[i].tokens, a[i].count * sizeof a[i].tokens[0]) != 0;
    return n;
}

static void services_keep_their_texts(void) {
    static struct chat want[CHATS], got[CHATS];
    struct pl_service_info info;
    struct plumb_engine *e = open_engine("dense", 0, 0);
    serve_chats(e, false, want, &info);
    plumb_engine_destroy(e);
    for (int few = 0; few < 2; few++) {
        e = open_engine("paged", RUNNING + 8, 0);
        uint64_t all = pl_kv_pages_bytes(&e->kv_shape);
        plumb_engine_destroy(e);
        e = open_engine("paged", RUNNING + 8, few ? all / 4 : 0);
        serve_chats(e, true, got, &info);
        print_message(
            "# %s: %u + %u windowed pages, %llu preempted, %llu of %llu tokens adopted, %llu less than was known\n", backend,
            info.page_count, info.window_pages, (unsigned long long)info.preempted,
            (unsigned long long)info.prefix_tokens_adopted, (unsigned long long)info.prefix_tokens_asked,
            (unsigned long long)info.prefix_declined);
        assert_int_equal(differing(got, want), 0);
        assert_true(info.window_pages > 0 && info.window_pages < RUNNING * CONTEXT / PAGE && (info.preempted > 0 || !few));
        if (!few) assert_true(info.prefix_tokens_adopted * 2 > info.prefix_tokens_asked);
        plumb_engine_destroy(e);
    }
    e = open_engine("paged", RUNNING + 8, 0);
    e->pools.window = 4; /* planted: pages go while rows still see them */
    serve_chats(e, true, got, &info);
    assert_true(differing(got, want) > 0);
    plumb_engine_destroy(e);
}

/* Windowed layers have pages of their own only where those, the prefix cache's share among them, are a quarter fewer. */
static void pages_of_their_own_save_some(void **state) {
    (void)state;
    int own[2] = {0}, whole[2] = {0};
    backend = "cpu";
    for (uint32_t context = 32; context <= CONTEXT; context += 32) {
        for (int service = 0; service < 2; service++) {
            struct plumb_engine *e = open_of("paged", context, service ? RUNNING + 8 : 0, 0);
            const struct pl_kv_shape *s = &e->kv_shape;
            assert_true(4 * s->window_page_count <= 3 * s->page_count);
            (s->window_page_count > 0 ? own : whole)[service]++;
            plumb_engine_destroy(e);
        }
    }
    print_message("# pages of their own in %d and %d of %d contexts\n", own[0], own[1], CONTEXT / 32);
    assert_true(own[1] > 0 && own[1] < own[0] && whole[0] > 0); /* a service needs more of them */
}

static void on_the_cpu(void **state) {
    (void)state;
    backend = "cpu";
    sessions_keep_their_logits();
    services_keep_their_texts();
}

static void on_every_device(void **state) {
    (void)state;
    static const enum pl_device_kind kinds[] = {PL_DEVICE_CUDA, PL_DEVICE_ROCM, PL_DEVICE_OPENCL};
    int ran = 0;
    for (size_t i = 0; i < PL_COUNT_OF(kinds); i++) {
        device_index = test_device_of(kinds[i]);
        if (device_index < 0) continue;
        backend = pl_device_kind_name(kinds[i]);
        sessions_keep_their_logits();
        services_keep_their_texts();
        ran++;
    }
    if (ran == 0) SKIP("no such device here");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pages_of_their_own_save_some), cmocka_unit_test(on_the_cpu),
                                       cmocka_unit_test(on_every_device)};
    return cmocka_run_group_tests_name("windows", tests, NULL, NULL);
}
