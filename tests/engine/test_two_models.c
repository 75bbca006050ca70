/* Two models of one vocabulary and different weight types, open on one device in one process and decoding in turn: each
 * gives, bit for bit, what it gives undisturbed without any kernel cache. A cache that took one's kernels for the other's
 * would give plausible nonsense. They draw in turn as well. A model's logits are f32 whatever its weights are; that rows of
 * f32, f16 and bf16 are told apart is shown by tests/kernels/test_draw (types_in_turn).
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees)
 * test-timeout: 600 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/device.h"
#include "engine/engine.h"
#include "tests/devices.h"
#include "tests/skip.h"

enum { STEPS = 6, PROMPT = 5 };
static const char *const paths[2][2] = {{"tests/golden/model/qwen3", "tests/golden/model/qwen3-mlx3"},
                                        {"tests/golden/model/qwen2.gguf", "tests/golden/model/qwen2-mlx8"}};
static struct pl_err err;

struct run {
    struct plumb_engine *e;
    struct plumb_session *s;
    uint32_t next;
    float *logits; /* [STEPS, V] */
    uint32_t drawn[STEPS];
};

static int number;
static const char *device(void) {
    for (int k = 0; k < PL_DEVICE_KIND_COUNT; k++) {
        int index = test_device_of((enum pl_device_kind)k);
        if (index >= 0) return number = index, pl_device_kind_name((enum pl_device_kind)k);
    }
    return NULL;
}

static void open_run(struct run *r, const char *path, const char *backend, const char *cache) {
    struct plumb_engine_options opt = {.size = sizeof opt,
                                       .model = path,
                                       .backend = backend,
                                       .device = number,
                                       .context = 64,
                                       .batch_rows = 8,
                                       .jit_cache = cache};
    *r = (struct run){0};
    if (pl_engine_create(&opt, &r->e, &err) != PL_OK) fail_msg("%s", err.text);
    assert_int_equal(pl_session_create(r->e, &r->s, &err), PL_OK);
    r->logits = test_malloc(STEPS * r->e->config.vocab * sizeof *r->logits);
}
static void close_run(struct run *r) {
    plumb_session_destroy(r->s);
    plumb_engine_destroy(r->e);
}

static void step(struct run *r, uint32_t i) {
    static const uint32_t prompt[PROMPT] = {3, 11, 7, 19, 5};
    uint32_t vocab = r->e->config.vocab;
    enum pl_status st = i == 0 ? pl_session_append(r->s, prompt, PROMPT, NULL, NULL, &err)
                               : pl_session_append(r->s, &r->next, 1, NULL, NULL, &err);
    if (st != PL_OK) fail_msg("%s", err.text);
    memcpy(r->logits + (size_t)i * vocab, r->s->logits, vocab * sizeof *r->logits);
    for (uint32_t t = r->next = 0; t < vocab; t++)
        if (r->s->logits[t] > r->s->logits[r->next]) r->next = t;
}

static bool keep(void *user, uint32_t id, const char *text, size_t len, double logprob, const uint32_t *top_ids,
                 const double *top_logprobs, size_t top_count) {
    (void)text, (void)len, (void)logprob, (void)top_ids, (void)top_logprobs, (void)top_count;
    if (id != UINT32_MAX) *(uint32_t *)user = id;
    return true;
}
/* One token more by chance, chosen on the device. */
static void draw(struct run *r, uint32_t i, uint64_t seed) {
    struct plumb_generate_options opt = {
        .size = sizeof opt, .max_tokens = 1, .ignore_eos = true, .on_token = keep, .user = &r->drawn[i]};
    plumb_sampling_default(&opt.sampling);
    opt.sampling.temperature = 1.5f, opt.sampling.top_k = 0, opt.sampling.top_p = 0.98f, opt.sampling.seed = seed;
    uint32_t generated = 0;
    enum plumb_finish finish;
    enum pl_status st = pl_session_generate(r->s, &opt, &generated, &finish, &err);
    if (st != PL_OK) fail_msg("%s", err.text);
    assert_int_equal(generated, 1);
}

static void in_turn(void **state) {
    (void)state;
    const char *backend = device();
    if (backend == NULL) SKIP("no device here");
    for (size_t p = 0; p < PL_COUNT_OF(paths); p++) {
        struct run alone[2], both[2];
        /* The other one is open meanwhile: on CUDA a kernel that needs the whole device is left out beside another model. */
        for (int m = 0; m < 2; m++) open_run(&alone[m], paths[p][m], backend, "off");
        for (int m = 0; m < 2; m++) {
            for (uint32_t i = 0; i < STEPS; i++) step(&alone[m], i);
            for (uint32_t i = 0; i < STEPS; i++) draw(&alone[m], i, m + 7);
        }
        for (int m = 0; m < 2; m++) close_run(&alone[m]);
        for (int m = 0; m < 2; m++) open_run(&both[m], paths[p][m], backend, "on");
        assert_int_equal(both[0].e->config.vocab, both[1].e->config.vocab);
        size_t bytes = STEPS * both[0].e->config.vocab * sizeof(float);
        for (uint32_t i = 0; i < STEPS; i++) {
            for (uint32_t m = 0; m < 2; m++) step(&both[(m + i) % 2], i);
        }
        for (uint32_t i = 0; i < STEPS; i++) {
            for (uint32_t m = 0; m < 2; m++) draw(&both[(m + i) % 2], i, (m + i) % 2 + 7);
        }
        for (int m = 0; m < 2; m++) {
            assert_memory_equal(both[m].logits, alone[m].logits, bytes);
            assert_int_equal(both[m].next, alone[m].next);
            assert_memory_equal(both[m].drawn, alone[m].drawn, sizeof both[m].drawn);
        }
        assert_memory_not_equal(alone[0].logits, alone[1].logits, bytes); /* the two are told apart at all */
        assert_memory_not_equal(alone[0].drawn, alone[1].drawn, sizeof alone[0].drawn);
        for (int m = 0; m < 2; m++) close_run(&both[m]);
        for (int m = 0; m < 2; m++) test_free(alone[m].logits), test_free(both[m].logits);
    }
}

int main(void) {
    test_own_cache();
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_turn)};
    return cmocka_run_group_tests_name("two models", tests, NULL, NULL);
}
