/* The n-th device call fails, for a spread of n, while a tiny model is loaded and run: a refusal each time, no crash, and
 * the next engine in the same process is right. */
#include "golden.h"

#include <unistd.h>

#include "tests/devices.h"

static struct gold g;
static float out[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX];

static enum pl_status step(struct rig *r, uint32_t done, uint32_t rows, float *to) {
    uint32_t wanted[GOLD_TOKENS_MAX];
    for (uint32_t i = 0; i < GOLD_TOKENS_MAX; i++) wanted[i] = i;
    struct pl_batch_seq seq = {.first_row = 0, .rows = rows, .past = done, .page_first = 0};
    struct pl_batch b = {.rows = rows,
                         .tokens = g.ids + done,
                         .seq_count = 1,
                         .seqs = &seq,
                         .pages = r->pages,
                         .page_entries = GOLD_PAGES,
                         .logit_count = rows,
                         .logit_rows = wanted};
    const struct pl_activation *logits;
    enum pl_status st = pl_model_forward(r->model, &b, r->kv, &logits);
    if (st != PL_OK) return st;
    return pl_ops_activation_read(r->ops, logits, 0, rows, to);
}

static enum pl_status load(struct rig *r, enum pl_backend backend, struct pl_err *err) {
    struct pl_ops_options oo = {.backend = backend, .exact = true};
    struct pl_model_options mo = {.max_context = 128, .max_rows = GOLD_TOKENS_MAX, .max_logits = GOLD_TOKENS_MAX};
    enum pl_status st = pl_ops_create(&oo, &r->ops, err);
    if (st == PL_OK) st = pl_model_create(r->file, r->ops, &mo, &r->model, err);
    if (st != PL_OK) return st;
    const struct pl_model_config *c = pl_model_config(r->model);
    struct pl_kv_shape shape = {.layers = c->layers,
                                .page_count = GOLD_PAGES,
                                .page_tokens = GOLD_PAGE,
                                .kv_heads = c->kv_heads,
                                .head_dim = c->head_dim,
                                .dtype = PL_F32};
    return pl_ops_kv_create(r->ops, &shape, &r->kv, err);
}

/* A whole life: open, load, a prompt, three single tokens. */
static enum pl_status life(enum pl_backend backend, struct pl_err *err) {
    struct rig r = {0};
    RIG_OK(pl_file_open("tests/golden/model/llama3.gguf", &r.file, err), *err);
    for (uint32_t i = 0; i < GOLD_PAGES; i++) r.pages[i] = (i * 37 + 11) % GOLD_PAGES;
    enum pl_status st = load(&r, backend, err);
    uint32_t prompt = g.tokens - 3;
    if (st == PL_OK) st = step(&r, 0, prompt, out);
    for (uint32_t t = prompt; st == PL_OK && t < g.tokens; t++) st = step(&r, t, 1, out + (size_t)t * g.vocab);
    rig_close(&r);
    return st;
}

static void check_right(enum pl_backend backend) {
    struct pl_err err = {0};
    assert_int_equal(life(backend, &err), PL_OK);
    for (uint32_t t = 0; t < g.tokens; t++) {
        assert_true(gold_rms_distance(out + (size_t)t * g.vocab, g.logits[t], g.vocab) < 1e-4);
    }
}

static void faults(enum pl_backend backend, enum pl_device_kind kind) {
    int devices = 0;
    struct pl_err err = {0};
    if (pl_device_count(kind, &devices, &err) != PL_OK || devices == 0) skip();
    assert_true(gold_read("llama3", &g));
    check_right(backend);
    uint64_t before = pl_device_calls();
    check_right(backend);
    uint64_t calls = pl_device_calls() - before, tried = 0;
    for (uint64_t n = 1; n <= calls; n += 1 + n / 6, tried++) {
        memset(&err, 0, sizeof err);
        pl_device_fail_at(n);
        enum pl_status st = life(backend, &err);
        pl_device_fail_at(0);
        if (st != PL_DEVICE && st != PL_NO_MEMORY)
            fail_msg("call %llu of %llu failed and the model said %s", (unsigned long long)n, (unsigned long long)calls,
                     pl_status_name(st));
    }
    print_message("# %s: %llu of %llu device calls failed in turn\n", pl_device_kind_name(kind), (unsigned long long)tried,
                  (unsigned long long)calls);
    check_right(backend);
}
static void opencl(void **state) {
    (void)state;
    faults(PL_BACKEND_OPENCL, PL_DEVICE_OPENCL);
}
static void cuda(void **state) {
    (void)state;
    faults(PL_BACKEND_CUDA, PL_DEVICE_CUDA);
}

int main(void) {
    char cache[4096]; /* not the user's */
    if (getcwd(cache, sizeof cache - 16) == NULL) return 1;
    strcat(cache, "/build/test-cache");
    setenv("XDG_CACHE_HOME", cache, 1);
    struct CMUnitTest tests[] = {cmocka_unit_test(opencl), cmocka_unit_test(cuda)};
    return TEST_RUN("device faults", tests);
}
