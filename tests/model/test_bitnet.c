/* BitNet: refused, naming the backend, where there is no port; what a file may hold that is none; memory. */
#include "golden.h"

#include <unistd.h>

#include "base/mem.h"
#include "ops/impl.h"

/* The CPU's operations under a backend that has no ports. */
static enum pl_status load_without_port(const char *path, struct pl_err *err) {
    struct pl_ops_options oo = {.backend = PL_BACKEND_CPU, .threads = 1};
    struct pl_model_options mo = {.max_context = 32, .max_rows = 4, .max_logits = 1};
    struct pl_file *f = NULL;
    struct pl_ops *o = NULL;
    struct pl_model *m = NULL;
    RIG_OK(pl_file_open(path, &f, err), *err);
    RIG_OK(pl_ops_create(&oo, &o, err), *err);
    const struct pl_ops_impl *real = o->impl;
    struct pl_ops_impl other = *real;
    other.backend = PL_BACKEND_METAL;
    o->impl = &other;
    enum pl_status st = pl_model_create(f, o, &mo, &m, err);
    pl_model_destroy(m);
    o->impl = real;
    pl_ops_destroy(o);
    pl_file_close(f);
    return st;
}

static void refused_where_there_is_no_port(void **state) {
    struct pl_err err = {0};
    (void)state;
    assert_int_equal(load_without_port("tests/golden/model/bitnet", &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "backend metal has no port of ternary"));
    assert_non_null(strstr(err.text, "q_proj"));
    err = (struct pl_err){0};
    assert_int_equal(load_without_port("tests/golden/model/bitnet-tq.gguf", &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "backend metal"));
    assert_int_equal(load_without_port("tests/golden/model/llama3", &err), PL_OK); /* it is the operation that lacks */
}

/* The GGUF in f16 with one value of a matrix changed: no longer -s, 0 and s. */
static void a_matrix_that_is_not_ternary_is_named(void **state) {
    static char data[1 << 18];
    char path[] = "/tmp/plumb-bitnet-XXXXXX.gguf";
    struct pl_file *f = NULL;
    struct pl_err err = {0};
    (void)state;
    RIG_OK(pl_file_open("tests/golden/model/bitnet.gguf", &f, &err), err);
    const struct pl_tensor *t = pl_file_tensor(f, "blk.1.attn_q.weight");
    FILE *in = fopen("tests/golden/model/bitnet.gguf", "rb");
    assert_non_null(in);
    size_t len = fread(data, 1, sizeof data, in);
    fclose(in);
    uint16_t *at = memmem(data, len, t->data, 256);
    assert_non_null(at);
    while ((*at & 0x7FFFu) == 0) at++;
    *at ^= 1u; /* the last bit of an f16 */
    pl_file_close(f);
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0 && write(fd, data, len) == (ssize_t)len);
    close(fd);
    struct pl_ops_options oo = {.backend = PL_BACKEND_CPU, .threads = 2};
    struct pl_model_options mo = {.max_context = 32, .max_rows = 4, .max_logits = 1};
    struct pl_ops *o = NULL;
    struct pl_model *m = NULL;
    RIG_OK(pl_file_open(path, &f, &err), err);
    RIG_OK(pl_ops_create(&oo, &o, &err), err);
    assert_int_equal(pl_model_create(f, o, &mo, &m, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "blk.1.attn_q.weight (f16) holds values other than"));
    pl_ops_destroy(o);
    pl_file_close(f);
    unlink(path);
}

/* What matrices are made of is let go where the backend has a copy, and kept where it has none. */
static void matrices_are_held_once(void **state) {
    static const char *const isas[] = {"scalar", NULL};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct rig r;
        rig_open(&r, "tests/golden/model/bitnet", isas[i], PL_F32, 4);
        uint64_t codes = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96) / 4;
        assert_true(pl_model_bytes_owned(r.model) >= codes);
        rig_close(&r);
    }
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(refused_where_there_is_no_port),
                                 cmocka_unit_test(a_matrix_that_is_not_ternary_is_named),
                                 cmocka_unit_test(matrices_are_held_once)};
    return cmocka_run_group_tests_name("bitnet", tests, NULL, NULL);
}
