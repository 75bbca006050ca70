/* The line of progress while weights are packed at their second product, read from a pseudo-terminal that is stderr:
 * nothing before its time, then bytes of all that waits; below text that is under way; gone when all are packed. */
#include <fcntl.h>
#include <unistd.h>

#include "base/progress.h"
#include "cpu/internal.h"
#include "tests/cpu/support.h"
#include "tests/skip.h"

enum { COUNT = 4, OUT = 64, IN = 512 };

static void ignore(void *user, const struct pl_tensor *t) { (void)user, (void)t; }

/* Two products of four weights; what stderr got, in `seen`. */
static void two_passes(uint64_t patience_ns, bool text_open, char *seen, size_t size) {
    struct pl_cpu *c = cpu_make(pl_cpu_best_isa(), 1);
    struct pl_err err = {0};
    float x[IN], y[OUT], *py = y;
    uint64_t s = 1;
    const size_t stride = OUT;
    rng_fill(&s, x, IN);
    c->packing.patience_ns = patience_ns;
    pl_cpu_pack_later(c, 0, ignore, NULL);
    struct pl_tensor t = tensor_random(&(struct weight_case){PL_Q8_0, 0, 0, 0}, OUT, IN, 1);
    struct pl_cpu_weight *w[COUNT];
    for (size_t i = 0; i < COUNT; i++) assert_int_equal(pl_cpu_weight_create(c, &t, &w[i], &err), PL_OK);
    assert_int_equal(c->packing.total, COUNT * pl_cpu_weight_bytes_owned(w[0]));
    int master = posix_openpt(O_RDWR | O_NOCTTY), before = dup(STDERR_FILENO);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0 && dup2(slave, STDERR_FILENO) >= 0);
    pl_log_text_open(text_open);
    for (size_t pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < COUNT; i++) {
            const struct pl_cpu_weight *one = w[i];
            struct pl_cpu_matmul m = {
                .count = 1, .rows = 1, .w = &one, .x = x, .x_stride = IN, .y = &py, .y_stride = &stride};
            pl_cpu_matmul(c, &m);
            c->packing.drawn_ns = 0; /* as if each took long */
        }
    pl_log_text_open(false);
    const bool shown = c->packing.shown || pl_log_progress_shown();
    dup2(before, STDERR_FILENO);
    assert_false(shown);
    assert_int_equal(c->packing.done, c->packing.total);
    assert_int_equal(write(slave, "~", 1), 1); /* what was written before it comes before it */
    size_t have = 0;
    for (ssize_t n; have < size && (have == 0 || seen[have - 1] != '~'); have += (size_t)n)
        assert_true((n = read(master, seen + have, size - have)) > 0);
    seen[have - 1] = 0;
    close(before), close(slave), close(master);
    for (size_t i = 0; i < COUNT; i++) pl_cpu_weight_destroy(w[i]);
    pl_cpu_destroy(c);
    tensor_free(&t);
}

static size_t times(const char *text, const char *what) {
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p++) n++;
    return n;
}
static void need_packed_weights(void) {
    if (pl_cpu_best_isa() == PL_ISA_SCALAR) SKIP("the plain table packs nothing");
}

static void shown_after_its_time_and_removed(void **state) {
    (void)state;
    need_packed_weights();
    char seen[4096];
    two_passes(0, false, seen, sizeof seen);
    assert_int_equal(times(seen, "\r\033[Kplumb: packing weights: "), COUNT - 1);
    assert_int_equal(times(seen, " MB"), COUNT - 1);
    assert_int_equal(times(seen, "\033[K"), COUNT);
    assert_string_equal(seen + strlen(seen) - 4, "\r\033[K"); /* the last thing wipes it */
}

static void nothing_for_a_short_time(void **state) {
    (void)state;
    need_packed_weights();
    char seen[4096];
    two_passes((uint64_t)600 * 1000000000, false, seen, sizeof seen);
    assert_string_equal(seen, "");
}

static void below_text_that_is_under_way(void **state) {
    (void)state;
    need_packed_weights();
    char seen[4096];
    two_passes(0, true, seen, sizeof seen);
    assert_int_equal(times(seen, "\033D\033M\0337\033[B\r\033[Kplumb: packing weights: "), COUNT - 1);
    assert_int_equal(times(seen, " MB\0338"), COUNT - 1);
    const char *last = "\0337\033[B\r\033[K\0338";
    assert_string_equal(seen + strlen(seen) - strlen(last), last);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shown_after_its_time_and_removed),
        cmocka_unit_test(nothing_for_a_short_time),
        cmocka_unit_test(below_text_that_is_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
