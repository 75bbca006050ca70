/* The n-th device call fails while a tiny model is loaded and run: a refusal each time, no crash, nothing left behind, and
 * the next engine in the same process is right. On devices for a spread of n; with tests/device/fake_cuda.c (tests/device/
 * test_every_fault.py) for every n of every call of the driver, and for every allocation of memory on the host. */
#include "golden.h"

#include <dlfcn.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "tests/devices.h"

static int device_index;
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
    uint32_t best[GOLD_TOKENS_MAX], slot = 0;
    enum pl_status st = pl_model_forward(r->model, &b, r->kv, &logits);
    if (st != PL_OK) return st;
    if (rows == 1 && pl_ops_chooses(r->ops)) {
        st = pl_ops_choose(r->ops, logits, rows, NULL, &slot);
        if (st == PL_OK) st = pl_ops_chosen(r->ops, slot, best, rows);
        if (st != PL_OK) return st;
    }
    return pl_ops_activation_read(r->ops, logits, 0, rows, to);
}

static enum pl_status load(struct rig *r, enum pl_backend backend, struct pl_err *err) {
    bool exact = getenv("PLUMB_TEST_FAKE") == NULL;
    struct pl_ops_options oo = {.backend = backend, .device = device_index, .exact = exact};
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
    const char *path = getenv("PLUMB_TEST_MODEL");
    enum pl_status st = pl_file_open(path != NULL ? path : "tests/golden/model/llama3.gguf", &r.file, err);
    if (st != PL_OK) return st;
    for (uint32_t i = 0; i < GOLD_PAGES; i++) r.pages[i] = (i * 37 + 11) % GOLD_PAGES;
    st = load(&r, backend, err);
    uint32_t prompt = g.tokens - 3;
    if (st == PL_OK) st = step(&r, 0, prompt, out);
    for (uint32_t t = prompt; st == PL_OK && t < g.tokens; t++) st = step(&r, t, 1, out + (size_t)t * g.vocab);
    rig_close(&r);
    return st;
}

/* Any will do where nothing is computed. */
static void own_tokens(void) {
    g = (struct gold){.tokens = 20, .vocab = 64};
    for (uint32_t i = 0; i < g.tokens; i++) g.ids[i] = i;
}

static void check_right(enum pl_backend backend) {
    struct pl_err err = {0};
    assert_int_equal(life(backend, &err), PL_OK);
    for (uint32_t t = 0; t < g.tokens; t++) {
        assert_true(gold_rms_distance(out + (size_t)t * g.vocab, g.logits[t], g.vocab) < 1e-4);
    }
}

static void faults(enum pl_backend backend, enum pl_device_kind kind) {
    struct pl_err err = {0};
    device_index = test_device_of(kind);
    if (device_index < 0 || getenv("PLUMB_TEST_FAKE") != NULL)
        SKIP("no such device here, or the fake driver stands in for it");
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

/* --- every call of a driver that computes nothing --- */

static struct {
    long (*calls)(void), (*live)(void);
    void (*fail_at)(long n);
    const char *(*failed)(void);
} fake;

static bool open_fake(void) {
    char path[4096];
    if (getenv("PLUMB_TEST_FAKE") == NULL || getenv("PLUMB_CUDA_PATH") == NULL) return false;
    snprintf(path, sizeof path, "%s/libcuda.so.1", getenv("PLUMB_CUDA_PATH"));
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(h);
    *(void **)(void *)&fake.calls = dlsym(h, "fake_cuda_calls");
    *(void **)(void *)&fake.live = dlsym(h, "fake_cuda_live");
    *(void **)(void *)&fake.fail_at = dlsym(h, "fake_cuda_fail_at");
    *(void **)(void *)&fake.failed = dlsym(h, "fake_cuda_failed");
    assert_true(fake.calls != NULL && fake.live != NULL && fake.fail_at != NULL && fake.failed != NULL);
    return true;
}

/* What only puts things away, or only asks for a figure of a message: its failure stops nobody. */
static bool is_harmless(const char *call) {
    static const char *const list[] = {"cuMemFree_v2",       "cuMemFreeHost",    "cuStreamDestroy_v2",
                                       "cuEventDestroy_v2",  "cuModuleUnload",   "cuGraphDestroy",
                                       "cuGraphExecDestroy", "cuCtxSynchronize", "cuDevicePrimaryCtxRelease_v2",
                                       "cuMemGetInfo_v2"};
    for (size_t i = 0; i < PL_COUNT_OF(list); i++)
        if (strcmp(call, list[i]) == 0) return true;
    return false;
}

static char last_line[700];
static void keep_line(const char *line, void *user) {
    (void)user;
    if (last_line[0] == 0) snprintf(last_line, sizeof last_line, "%s", line); /* what comes after it follows from it */
}

static void every_driver_call(void **state) {
    (void)state;
    if (!open_fake()) SKIP("tests/device/test_every_fault.py runs this, with its fake driver");
    struct pl_err err = {0};
    own_tokens();
    pl_log_set_sink(keep_line, NULL);
    assert_int_equal(life(PL_BACKEND_CUDA, &err), PL_OK); /* compiles, and fills the cache */
    assert_int_equal(fake.live(), 0);
    long before = fake.calls(), calls, full = 0, harmless = 0;
    assert_int_equal(life(PL_BACKEND_CUDA, &err), PL_OK);
    calls = fake.calls() - before;
    for (long n = 1; n <= calls; n++) {
        err = (struct pl_err){0};
        last_line[0] = 0;
        fake.fail_at(n);
        enum pl_status st = life(PL_BACKEND_CUDA, &err);
        const char *name = fake.failed();
        if (name == NULL) fail_msg("call %ld of %ld was not reached", n, calls);
        fake.fail_at(0);
        const char *said = err.text[0] != 0 ? err.text : last_line;
        if (is_harmless(name) ? st != PL_OK && st != PL_DEVICE : st == PL_OK)
            fail_msg("call %ld of %ld, %s, failed and the model said %s: %s", n, calls, name, pl_status_name(st), said);
        bool allocates = strcmp(name, "cuMemAlloc_v2") == 0 || strcmp(name, "cuMemHostAlloc") == 0;
        if (st != PL_OK && !is_harmless(name) &&
            strstr(said, allocates ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_ILLEGAL_ADDRESS") == NULL)
            fail_msg("call %ld, %s, failed and this was said: %s", n, name, said);
        if (allocates && st != PL_NO_MEMORY) fail_msg("%s failed and the model said %s", name, pl_status_name(st));
        if (strcmp(name, "cuMemAlloc_v2") == 0 && strstr(said, "bytes were free") == NULL)
            fail_msg("no budget in: %s", said);
        if (fake.live() != 0)
            fail_msg("call %ld of %ld, %s, failed and %ld things were left behind", n, calls, name, fake.live());
        full += allocates;
        harmless += is_harmless(name);
    }
    pl_log_set_sink(NULL, NULL);
    assert_int_equal(life(PL_BACKEND_CUDA, &err), PL_OK);
    print_message("# every one of %ld driver calls failed in turn: %ld allocations, %ld that only put away\n", calls, full,
                  harmless);
}

/* Memory of the host: refused, or done without (a cache that cannot be read). */
static void every_allocation(void **state) {
    (void)state;
    if (!open_fake()) SKIP("tests/device/test_every_fault.py runs this, with its fake driver");
    struct pl_err err = {0};
    own_tokens();
    pl_log_set_sink(keep_line, NULL);
    assert_int_equal(life(PL_BACKEND_CUDA, &err), PL_OK);
    uint64_t before = pl_mem_calls();
    assert_int_equal(life(PL_BACKEND_CUDA, &err), PL_OK);
    uint64_t calls = pl_mem_calls() - before, refused = 0;
    for (uint64_t n = 1; n <= calls; n++) {
        err = (struct pl_err){0};
        pl_mem_fail_at(n);
        enum pl_status st = life(PL_BACKEND_CUDA, &err);
        pl_mem_fail_at(0);
        if (st != PL_OK && st != PL_NO_MEMORY)
            fail_msg("allocation %llu of %llu failed and the model said %s: %s", (unsigned long long)n,
                     (unsigned long long)calls, pl_status_name(st), err.text);
        assert_int_equal(fake.live(), 0);
        refused += st != PL_OK;
    }
    pl_log_set_sink(NULL, NULL);
    print_message("# every one of %llu allocations failed in turn: %llu refusals\n", (unsigned long long)calls,
                  (unsigned long long)refused);
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
    test_own_cache();
    struct CMUnitTest tests[] = {cmocka_unit_test(opencl), cmocka_unit_test(cuda), cmocka_unit_test(every_driver_call),
                                 cmocka_unit_test(every_allocation)};
    return TEST_RUN("device faults", tests);
}
