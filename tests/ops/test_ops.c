/* The port table, opening backends, handles and their limits. What operations compute is tested in tests/cpu and, through
 * whole models, in tests/model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ops/ops.h"

static struct pl_ops *open_cpu(const char *isa) {
    struct pl_ops *o;
    struct pl_err err = {0};
    struct pl_ops_options opt = {.backend = PL_BACKEND_CPU, .threads = 2, .isa = isa};
    if (pl_ops_create(&opt, &o, &err) != PL_OK) fail_msg("%s", err.text);
    return o;
}

static void names_are_complete(void **state) {
    (void)state;
    for (int b = 0; b < PL_BACKEND_COUNT; b++) {
        enum pl_backend back;
        assert_true(pl_backend_from_name(pl_backend_name((enum pl_backend)b), &back));
        assert_int_equal(back, b);
    }
    enum pl_backend unused;
    assert_false(pl_backend_from_name("directx", &unused));
    for (int op = 0; op < PL_OP_COUNT; op++) {
        assert_non_null(pl_op_name((enum pl_op)op));
        enum pl_port cpu = pl_ops_port((enum pl_op)op, PL_BACKEND_CPU);
        assert_int_equal(cpu, op == PL_OP_argmax || op == PL_OP_draw ? PL_PORT_NONE
                                                                     : PL_PORT_CPU); /* its rows are where the sampler is */
    }
}

/* A backend without a single port is refused by name; there is no quiet CPU run. */
static void missing_backends_are_refused(void **state) {
    (void)state;
    for (int b = 0; b < PL_BACKEND_COUNT; b++) {
        bool any = false;
        for (int op = 0; op < PL_OP_COUNT; op++)
            any = any || pl_ops_port((enum pl_op)op, (enum pl_backend)b) != PL_PORT_NONE;
        if (any) continue;
        struct pl_ops *o = NULL;
        struct pl_err err = {0};
        struct pl_ops_options opt = {.backend = (enum pl_backend)b};
        assert_int_equal(pl_ops_create(&opt, &o, &err), PL_UNSUPPORTED);
        assert_null(o);
        assert_non_null(strstr(err.text, pl_backend_name((enum pl_backend)b)));
        assert_non_null(strstr(err.text, "attention"));
    }
    struct pl_ops *o;
    struct pl_err err = {0};
    struct pl_ops_options opt = {.backend = (enum pl_backend)99};
    assert_int_equal(pl_ops_create(&opt, &o, &err), PL_INVALID);
    opt = (struct pl_ops_options){.backend = PL_BACKEND_CPU, .isa = "mmx"};
    assert_int_equal(pl_ops_create(&opt, &o, &err), PL_INVALID);
    assert_non_null(strstr(err.text, "mmx"));
}

static void the_backend_line(void **state) {
    (void)state;
    struct pl_ops *o = open_cpu("scalar");
    assert_string_equal(pl_ops_describe(o), "cpu (scalar, 2 threads)");
    assert_int_equal(pl_ops_backend(o), PL_BACKEND_CPU);
    pl_ops_destroy(o);
}

static void cache_shapes(void **state) {
    (void)state;
    struct pl_kv_shape s = {.layers = 2, .page_count = 3, .page_tokens = 4, .kv_heads = 5, .head_dim = 8, .dtype = PL_BF16};
    assert_int_equal(pl_kv_shape_bytes(&s), 2 * 2 * 3 * 4 * 5 * 8 * 2);
    s.page_count = SIZE_MAX / 4;
    assert_int_equal(pl_kv_shape_bytes(&s), 0);
    struct pl_ops *o = open_cpu("scalar");
    struct pl_kv_store *kv;
    struct pl_err err = {0};
    assert_int_equal(pl_ops_kv_create(o, &s, &kv, &err), PL_INVALID);
    s.page_count = 3;
    s.dtype = PL_Q8_0;
    assert_int_equal(pl_ops_kv_create(o, &s, &kv, &err), PL_UNSUPPORTED);
    s.dtype = PL_BF16;
    assert_int_equal(pl_ops_kv_create(o, &s, &kv, &err), PL_OK);
    assert_int_equal(pl_ops_kv_copy_page(o, kv, false, 0, 2), PL_OK);
    assert_int_equal(pl_ops_kv_copy_page(o, kv, false, 0, 3), PL_INVALID);
    pl_ops_kv_destroy(o, kv);
    pl_ops_destroy(o);
}

static void impossible_handles(void **state) {
    (void)state;
    struct pl_ops *o = open_cpu("scalar");
    struct pl_err err = {0};
    struct pl_activation *a;
    assert_int_equal(pl_ops_activation_create(o, 0, 8, &a, &err), PL_INVALID);
    assert_int_equal(pl_ops_activation_create(o, SIZE_MAX / 2, 8, &a, &err), PL_LIMIT);
    assert_int_equal(pl_ops_activation_create(o, 4, 5, &a, &err), PL_OK);
    float out[5];
    assert_int_equal(pl_ops_activation_read(o, a, 0, 1, out), PL_INVALID); /* holds no rows yet */
    assert_int_equal(pl_ops_activation_read(o, a, 0, 0, out), PL_OK);
    pl_ops_activation_destroy(o, a);
    float matrix[4] = {1, 2, 3, 4};
    struct pl_tensor t = {
        .name = "w", .dtype = PL_F32, .ndim = 2, .shape = {2, 2, 1, 1}, .data = matrix, .bytes = sizeof matrix};
    struct pl_weight *w;
    assert_int_equal(pl_ops_weight_create(o, &t, PL_WEIGHT_VECTOR, &w, &err), PL_FORMAT);
    assert_non_null(strstr(err.text, "2 rows"));
    assert_int_equal(pl_ops_weight_create(o, &t, PL_WEIGHT_MATRIX, &w, &err), PL_OK);
    assert_non_null(strstr(pl_ops_weight_kernel(o, w, 1), "scalar"));
    pl_ops_weight_destroy(o, w);
    struct pl_rope *r;
    assert_int_equal(pl_ops_rope_create(o, matrix, 1, 3, true, &r, &err), PL_INVALID);
    pl_ops_destroy(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_complete), cmocka_unit_test(missing_backends_are_refused),
        cmocka_unit_test(the_backend_line),   cmocka_unit_test(cache_shapes),
        cmocka_unit_test(impossible_handles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
