/* The device contract on every device this machine has: copies, launches, faults injected at every call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/stage.h"
#include "tests/devices.h"

static const char *const opencl_text = "__kernel void add(__global const float *a, __global float *b, const float by) {\n"
                                       "    b[get_global_id(0)] = a[get_global_id(0)] + by;\n}\n";
static const char *const cuda_text = "extern \"C\" __global__ void add(const float *a, float *b, const float by) {\n"
                                     "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n    b[i] = a[i] + by;\n}\n";

enum { N = 256 };
static int device_index;

static enum pl_status run_kernel(struct pl_device *d, struct pl_device_stream s, struct pl_device_module m,
                                 struct pl_device_buffer *a, struct pl_device_buffer *b, struct pl_err *err) {
    struct pl_device_function f = {0};
    PL_TRY(pl_device_function(d, m, "add", &f, err));
    float by = 0.5f;
    struct pl_device_arg args[] = {PL_ARG_BUFFER(a), PL_ARG_BUFFER(b), PL_ARG_VALUE(by)};
    struct pl_device_launch l = {f, {N / 64, 1, 1}, {64, 1, 1}, 0, false, args, 3};
    enum pl_status st = pl_device_launch(d, s, &l, err);
    pl_device_function_release(d, &f);
    return st;
}

static enum pl_status compile_and_run(struct pl_device *d, struct pl_device_stream s, struct pl_device_buffer *a,
                                      struct pl_device_buffer *b, struct pl_err *err) {
    struct pl_buf image = {0}, log = {0};
    struct pl_device_source src = {"add.k", pl_device_info(d)->kind == PL_DEVICE_OPENCL ? opencl_text : cuda_text, NULL, 0};
    struct pl_device_module m = {0};
    enum pl_status st = pl_device_compile(d, pl_device_info(d)->kind, NULL, &src, &image, &log, err);
    if (st == PL_OK) st = pl_device_module_load(d, image.data, image.len, &m, err);
    if (st == PL_OK) st = run_kernel(d, s, m, a, b, err);
    pl_device_module_unload(d, &m);
    pl_buf_deinit(&image);
    pl_buf_deinit(&log);
    return st;
}

/* Everything once: open, allocate, copy up, compute, copy across, copy down. out[N] on success. */
static enum pl_status scenario(enum pl_device_kind kind, float *out, struct pl_err *err) {
    struct pl_device *d = NULL;
    struct pl_device_buffer a = {0}, b = {0};
    struct pl_device_stream s = {0};
    struct pl_device_event from = {0}, to = {0};
    float *in = NULL;
    double us = 0;
    enum pl_status st = pl_device_open(kind, device_index, &d, err);
    if (st != PL_OK) return st;
    if ((st = pl_device_stream_create(d, &s, err)) != PL_OK) goto done;
    if ((st = pl_device_event_create(d, &from, err)) != PL_OK) goto done;
    if ((st = pl_device_event_create(d, &to, err)) != PL_OK) goto done;
    if ((st = pl_device_alloc(d, N * 4, &a, err)) != PL_OK) goto done;
    if ((st = pl_device_alloc(d, N * 4, &b, err)) != PL_OK) goto done;
    if ((st = pl_device_host_alloc(d, N * 4, (void **)&in, err)) != PL_OK) goto done;
    for (int i = 0; i < N; i++) in[i] = (float)i;
    if ((st = pl_device_fill(d, s, &b, 0xFF, err)) != PL_OK) goto done;
    if ((st = pl_device_event_record(d, &from, s, err)) != PL_OK) goto done;
    if ((st = pl_device_upload(d, s, &a, 0, in, N * 4, err)) != PL_OK) goto done;
    if ((st = compile_and_run(d, s, &a, &b, err)) != PL_OK) goto done;
    if ((st = pl_device_event_record(d, &to, s, err)) != PL_OK) goto done;
    if ((st = pl_device_stream_after(d, s, &to, err)) != PL_OK) goto done;
    if ((st = pl_device_copy(d, s, &a, 0, &b, N * 2, N * 2, err)) != PL_OK) goto done;
    if ((st = pl_device_download(d, s, out, &a, 0, N * 4, err)) != PL_OK) goto done;
    if ((st = pl_device_stream_wait(d, s, err)) != PL_OK) goto done;
    if ((st = pl_device_event_elapsed_us(d, &from, &to, &us, err)) != PL_OK) goto done;
done:
    if (pl_device_poisoned(d)) {
        struct pl_err again = {0};
        assert_int_equal(pl_device_stream_wait(d, s, &again), PL_DEVICE);
        assert_int_equal(pl_device_drain(d, &again), PL_OK);
        assert_false(pl_device_poisoned(d));
    }
    pl_device_host_free(d, in);
    pl_device_free(d, &a);
    pl_device_free(d, &b);
    pl_device_event_destroy(d, &from);
    pl_device_event_destroy(d, &to);
    pl_device_stream_destroy(d, &s);
    pl_device_close(d);
    return st;
}

static bool present(enum pl_device_kind kind) {
    if (getenv("PLUMB_TEST_DEVICE") != NULL && test_device_of(kind) < 0) return false;
    device_index = PL_MAX(test_device_of(kind), 0);
    int n = 0;
    struct pl_err err = {0};
    if (pl_device_count(kind, &n, &err) == PL_OK && n > 0) return true;
    assert_true(strlen(err.text) > 10 || n == 0);
    print_message("# %s: not here: %s\n", pl_device_kind_name(kind), err.text);
    return false;
}

static void one_kind(enum pl_device_kind kind) {
    if (!present(kind)) SKIP("no such device here");
    float out[N];
    struct pl_err err = {0};
    enum pl_status st = scenario(kind, out, &err);
    if (st != PL_OK) print_message("# %s\n", err.text);
    assert_int_equal(st, PL_OK);
    for (int i = 0; i < N / 2; i++) assert_true(out[i] == (float)(i + N / 2) + 0.5f);
    for (int i = N / 2; i < N; i++) assert_true(out[i] == (float)i);
    for (uint64_t n = 1;; n++) { /* the n-th call fails, for every n: a refusal, nothing leaked, the next run works */
        uint64_t before = pl_device_calls();
        memset(&err, 0, sizeof err);
        pl_device_fail_at(n);
        st = scenario(kind, out, &err);
        pl_device_fail_at(0);
        if (pl_device_calls() - before < n) break;
        assert_true(st == PL_DEVICE || st == PL_NO_MEMORY);
        assert_non_null(strstr(err.text, "injected"));
    }
    assert_int_equal(scenario(kind, out, &err), PL_OK);
}
static void opencl(void **state) {
    (void)state;
    one_kind(PL_DEVICE_OPENCL);
}
static void cuda(void **state) {
    (void)state;
    one_kind(PL_DEVICE_CUDA);
}
static void rocm(void **state) {
    (void)state;
    one_kind(PL_DEVICE_ROCM);
}

/* What is written to a part lands in the whole, there and nowhere else. */
static void parts_of_buffers(struct pl_device *d, struct pl_device_stream s) {
    enum { AT = PL_DEVICE_VIEW_ALIGN, LEN = 40 };
    struct pl_err err = {0};
    struct pl_device_buffer whole = {0}, part = {0};
    unsigned char text[LEN], got[3 * AT];
    memset(text, 7, sizeof text);
    assert_int_equal(pl_device_alloc(d, sizeof got, &whole, &err), PL_OK);
    assert_int_equal(pl_device_fill(d, s, &whole, 1, &err), PL_OK);
    assert_int_equal(pl_device_view(d, &whole, 3 * AT, 1, &part, &err), PL_INVALID);
    assert_int_equal(pl_device_view(d, &whole, AT, sizeof got, &part, &err), PL_INVALID);
    assert_int_equal(pl_device_view(d, &whole, AT, LEN, &part, &err), PL_OK);
    assert_int_equal(pl_device_upload(d, s, &part, 0, text, LEN + 1, &err), PL_INVALID);
    assert_int_equal(pl_device_upload(d, s, &part, 0, text, LEN, &err), PL_OK);
    assert_int_equal(pl_device_download(d, s, got, &whole, 0, sizeof got, &err), PL_OK);
    assert_int_equal(pl_device_stream_wait(d, s, &err), PL_OK);
    for (size_t i = 0; i < sizeof got; i++) assert_int_equal(got[i], i >= AT && i < AT + LEN ? 7 : 1);
    pl_device_view_drop(d, &part);
    pl_device_free(d, &whole);
}

/* Every length near the borders of how it is done. */
static void fills(struct pl_device *d, struct pl_device_stream s) {
    static const size_t sizes[] = {1, 15, 16, 17, 4095, 65535, 65536, 65537, 65552, 131072, 131073, 200001, 1 << 20};
    struct pl_err err = {0};
    for (size_t i = 0; i < PL_COUNT_OF(sizes); i++) {
        struct pl_device_buffer b = {0};
        unsigned char *got = test_malloc(sizes[i]);
        assert_int_equal(pl_device_alloc(d, sizes[i], &b, &err), PL_OK);
        assert_int_equal(pl_device_fill(d, s, &b, 0x11, &err), PL_OK);
        assert_int_equal(pl_device_fill(d, s, &b, (uint8_t)(0xA0 + i), &err), PL_OK);
        assert_int_equal(pl_device_download(d, s, got, &b, 0, sizes[i], &err), PL_OK);
        assert_int_equal(pl_device_stream_wait(d, s, &err), PL_OK);
        for (size_t k = 0; k < sizes[i]; k++) assert_true(got[k] == 0xA0 + i);
        test_free(got);
        pl_device_free(d, &b);
    }
}

/* More than all blocks together, from odd places to odd places. */
static void staged(struct pl_device *d, struct pl_device_stream s) {
    enum { LEN = (150 << 20) + 4321, AT = 77 };
    struct pl_err err = {0};
    struct pl_device_buffer b = {0};
    struct pl_stage *stage = NULL;
    uint32_t *from = test_malloc(LEN + 8), *got = test_malloc(LEN + 8);
    for (size_t i = 0; i < LEN / 4 + 1; i++) from[i] = (uint32_t)i * 2654435761u;
    assert_int_equal(pl_device_alloc(d, LEN + AT, &b, &err), PL_OK);
    assert_int_equal(pl_stage_create(d, &stage, &err), PL_OK);
    assert_int_equal(pl_stage_upload(stage, s, &b, AT, (char *)from + 3, LEN, &err), PL_OK);
    assert_int_equal(pl_stage_upload(stage, s, &b, 0, (char *)from + 3, 5, &err), PL_OK);
    pl_stage_destroy(stage);
    assert_int_equal(pl_device_download(d, s, got, &b, AT, LEN, &err), PL_OK);
    assert_int_equal(pl_device_stream_wait(d, s, &err), PL_OK);
    assert_memory_equal(got, (char *)from + 3, LEN);
    pl_device_free(d, &b);
    test_free(from);
    test_free(got);
}

static void refusals(void **state) {
    (void)state;
    for (int k = 0; k < PL_DEVICE_KIND_COUNT; k++) {
        enum pl_device_kind kind = (enum pl_device_kind)k;
        struct pl_err err = {0};
        struct pl_device *d = NULL;
        assert_int_equal(pl_device_open(kind, 9999, &d, &err), PL_NOT_FOUND);
        assert_null(d);
        if (!present(kind)) continue;
        assert_non_null(strstr(err.text, "9999"));
        assert_int_equal(pl_device_open(kind, device_index, &d, &err), PL_OK);
        struct pl_device_buffer b = {0};
        struct pl_device_stream s = {0};
        assert_int_equal(pl_device_alloc(d, UINT64_C(1) << 60, &b, &err), PL_NO_MEMORY);
        assert_false(pl_device_poisoned(d));
        assert_int_equal(pl_device_alloc(d, 16, &b, &err), PL_OK);
        assert_int_equal(pl_device_stream_create(d, &s, &err), PL_OK);
        char bytes[32] = {0};
        assert_int_equal(pl_device_upload(d, s, &b, 8, bytes, 9, &err), PL_INVALID);
        assert_int_equal(pl_device_download(d, s, bytes, &b, UINT64_MAX, 2, &err), PL_INVALID);
        parts_of_buffers(d, s);
        fills(d, s);
        staged(d, s);
        struct pl_buf image = {0}, log = {0};
        struct pl_device_source src = {"bad.k", "this is no kernel", NULL, 0};
        assert_int_equal(pl_device_compile(d, kind, NULL, &src, &image, &log, &err), PL_DEVICE);
        assert_non_null(strstr(err.text, "bad.k"));
        struct pl_device_module m = {0};
        assert_int_not_equal(pl_device_module_load(d, "garbage", 7, &m, &err), PL_OK);
        assert_false(pl_device_poisoned(d));
        pl_buf_deinit(&image);
        pl_buf_deinit(&log);
        pl_device_free(d, &b);
        pl_device_stream_destroy(d, &s);
        pl_device_close(d);
    }
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(opencl), cmocka_unit_test(cuda), cmocka_unit_test(rocm),
                                 cmocka_unit_test(refusals)};
    return TEST_RUN("device", tests);
}
