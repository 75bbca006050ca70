/* The real transform of any length against its definition in double, on the CPU and on every device with a library. */
#include <math.h>
#include <stdio.h>

#include "audio/fft.h"
#include "base/mem.h"
#include "tests/devices.h"

enum { ROWS = 3 };

static void need_library(void) {
    struct pl_fft *f = NULL;
    struct pl_err err = {0};
    if (pl_fft_create(NULL, 4, 1, &f, &err) == PL_UNSUPPORTED) {
        SKIP(err.text);
    }
    pl_fft_destroy(f);
}

/* Largest distance from the definition, relative to the largest value of the row. */
static double distance(const float *x, const float *y, uint32_t n) {
    double worst = 0, largest = 1e-30;
    for (uint32_t k = 0; k <= n / 2; k++) {
        double re = 0, im = 0;
        for (uint64_t j = 0; j < n; j++) {
            double angle = -2.0 * M_PI * (double)(j * k % n) / n;
            re += (double)x[j] * cos(angle);
            im += (double)x[j] * sin(angle);
        }
        largest = fmax(largest, hypot(re, im));
        worst = fmax(worst, hypot(re - (double)y[2 * k], im - (double)y[2 * k + 1]));
    }
    return worst / largest;
}

static double one_length(struct pl_device *d, uint32_t n, double damage) {
    struct pl_fft *f = NULL;
    struct pl_err err = {0};
    float *x = calloc((size_t)ROWS * n, sizeof *x), *y = calloc((size_t)ROWS * (n / 2 + 1) * 2, sizeof *y);
    double worst = 0;
    for (size_t i = 0; i < (size_t)ROWS * n; i++) x[i] = (float)((double)(i * 2654435761u % 1000) / 500.0 - 1.0);
    if (pl_fft_create(d, n, ROWS, &f, &err) != PL_OK) fail_msg("%s", err.text);
    if (pl_fft_run(f, ROWS, x, y, &err) != PL_OK) fail_msg("%s", err.text);
    y[0] += (float)damage;
    for (size_t r = 0; r < ROWS; r++) worst = fmax(worst, distance(x + r * n, y + r * (n / 2 + 1) * 2, n));
    pl_fft_destroy(f);
    free(x);
    free(y);
    return worst;
}

static void all_lengths(struct pl_device *d, const char *what) {
    static const uint32_t more[] = {97, 101, 128, 243, 400, 401, 441, 512, 997, 1000};
    double worst = 0;
    for (uint32_t n = 1; n <= 64; n++) worst = fmax(worst, one_length(d, n, 0));
    for (size_t i = 0; i < PL_COUNT_OF(more); i++) worst = fmax(worst, one_length(d, more[i], 0));
    print_message("# %s: at most %.1e off\n", what, worst);
    assert_true(worst < 3e-6);
    assert_true(one_length(d, 400, 0.01) > 3e-6); /* the comparison sees a wrong value */
}

static void the_cpu_transforms_every_length(void **state) {
    (void)state;
    need_library();
    all_lengths(NULL, "KissFFT");
}

static void devices_with_a_library_do_too(void **state) {
    static const enum pl_device_kind kinds[] = {PL_DEVICE_CUDA, PL_DEVICE_ROCM};
    int ran = 0;
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(kinds); i++) {
        int index = test_device_of(kinds[i]);
        struct pl_device *d = NULL;
        struct pl_err err = {0};
        if (index < 0) continue;
        if (pl_device_open(kinds[i], index, &d, &err) != PL_OK) fail_msg("%s", err.text);
        all_lengths(d, pl_device_kind_name(kinds[i]));
        pl_device_close(d);
        ran++;
    }
    if (ran == 0) {
        SKIP("no device with cuFFT or hipFFT");
    }
}

static void a_device_without_a_library_is_refused_by_name(void **state) {
    int index = test_device_of(PL_DEVICE_OPENCL);
    struct pl_device *d = NULL;
    struct pl_fft *f = NULL;
    struct pl_err err = {0};
    (void)state;
    if (index < 0) {
        SKIP("no OpenCL device");
    }
    if (pl_device_open(PL_DEVICE_OPENCL, index, &d, &err) != PL_OK) fail_msg("%s", err.text);
    assert_int_equal(pl_fft_create(d, 400, 1, &f, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "opencl"));
    pl_device_close(d);
}

static void limits_and_memory(void **state) {
    struct pl_fft *f = NULL;
    struct pl_err err = {0};
    (void)state;
    need_library();
    assert_int_equal(pl_fft_create(NULL, 0, 1, &f, &err), PL_LIMIT);
    assert_int_equal(pl_fft_create(NULL, UINT32_MAX, 1, &f, &err), PL_LIMIT);
    assert_int_equal(pl_fft_create(NULL, 400, UINT32_MAX, &f, &err), PL_LIMIT);
    for (uint32_t n = 400; n <= 401; n++) {
        uint64_t failed = 0;
        for (uint64_t nth = 1; f == NULL; nth++) {
            pl_mem_fail_at(nth);
            enum pl_status st = pl_fft_create(NULL, n, 1, &f, &err);
            pl_mem_fail_at(0);
            if (st != PL_OK) assert_int_equal(st, PL_NO_MEMORY);
            failed += st != PL_OK;
        }
        assert_true(failed >= 2);
        pl_fft_destroy(f);
        f = NULL;
    }
}

int main(void) {
    struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cpu_transforms_every_length),
        cmocka_unit_test(devices_with_a_library_do_too),
        cmocka_unit_test(a_device_without_a_library_is_refused_by_name),
        cmocka_unit_test(limits_and_memory),
    };
    return TEST_RUN("fft", tests);
}
