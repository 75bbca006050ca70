/* Up to 64 rows read the weights once, however wide they are: one thread's kernels are watched as they go through the
 * tiles, and no tile comes back after another one. */
#include "cpu/internal.h"
#include "tests/cpu/support.h"

static const struct cpu_table *watched;
static size_t now, tiles_begun;

static void meet(size_t tile) {
    if (tile == now) return;
    assert_true(tiles_begun == 0 || tile > now); /* with one thread in order; an earlier one would be read again */
    now = tile;
    tiles_begun++;
}
static void watch_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                       const float *bias, bool accumulate) {
    meet(tile);
    watched->q8_tile(w, tile, g, y, y_stride, bias, accumulate);
}
static void watch_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                         size_t y_stride, const float *bias, bool accumulate) {
    meet(tile);
    watched->q8_groups(w, tile, g, n, y, y_stride, bias, accumulate);
}
static void watch_fine(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride,
                       const float *bias, bool accumulate) {
    meet(tile);
    watched->fine_tile(w, tile, g, y, y_stride, bias, accumulate);
}
static void watch_float(const struct pl_cpu_matmul *m, size_t i, size_t tile, size_t begin, size_t end, void *scratch) {
    meet(tile);
    watched->float_tile(m, i, tile, begin, end, scratch);
}
static void watch_float_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                               size_t y_stride, const float *bias, bool accumulate) {
    meet(tile);
    watched->float_groups(w, tile, g, n, y, y_stride, bias, accumulate);
}

static void watch(struct pl_cpu *c) {
    watched = c->table;
    static struct cpu_table t;
    t = *c->table;
    if (t.q8_tile != NULL) t.q8_tile = watch_tile;
    if (t.q8_groups != NULL) t.q8_groups = watch_groups;
    if (t.fine_tile != NULL) t.fine_tile = watch_fine;
    if (t.float_tile != NULL) t.float_tile = watch_float;
    if (t.float_groups != NULL) t.float_groups = watch_float_groups;
    c->table = &t;
}

static void each_tile_once(void **state) {
    (void)state;
    enum { OUT = 50, IN = 14336 / PL_TEST_SHARE, MOST = 64 };
    static const size_t cases[] = {0, 1, 2, 3, 7, 10, 12}; /* floats, Q4_0, Q8_0, Q4_K, Q6_K */
    static const size_t rows[] = {1, 2, 3, 15, 16, 33, 64};
    float *x = calloc((size_t)MOST * IN, sizeof *x), *y = calloc((size_t)MOST * OUT, sizeof *y);
    FOR_EACH_ISA(isa) {
        if (isa == PL_ISA_SCALAR) continue; /* has no products of its own: it widens row by row */
        struct pl_cpu *c = cpu_make(isa, 1);
        struct pl_err err = {0};
        assert_int_equal(pl_cpu_reserve(c, MOST, IN, 128, &err), PL_OK);
        watch(c);
        for (size_t k = 0; k < PL_COUNT_OF(cases); k++) {
            struct pl_tensor t = tensor_random(&weight_cases[cases[k]], OUT, IN, k);
            struct pl_cpu_weight *w = NULL;
            assert_int_equal(pl_cpu_weight_create(c, &t, &w, &err), PL_OK);
            for (size_t i = 0; i < PL_COUNT_OF(rows); i++)
                for (int fine = 0; fine < 2; fine++) {
                    const struct pl_cpu_weight *one = w;
                    const size_t stride = OUT;
                    struct pl_cpu_matmul m = {
                        .count = 1, .rows = rows[i], .w = &one, .x = x, .x_stride = IN, .y = &y, .y_stride = &stride};
                    m.fine = fine != 0;
                    now = SIZE_MAX, tiles_begun = 0;
                    pl_cpu_matmul(c, &m);
                    assert_int_equal(tiles_begun, (OUT + TILE_ROWS - 1) / TILE_ROWS);
                }
            pl_cpu_weight_destroy(w);
            tensor_free(&t);
        }
        pl_cpu_destroy(c);
    }
    free(x), free(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_tile_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
