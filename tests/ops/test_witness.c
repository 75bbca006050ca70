/* What ran, counted twice: by the host and by the kernels themselves. A launch that does not happen is seen.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ops/device_ops.h"
#include "tests/devices.h"

enum { ROWS = 3, COLS = 40 };
static struct pl_err err;

struct rig {
    struct pl_ops *o;
    struct pl_weight *table, *w;
    struct pl_activation *x;
    struct pl_kv_store *kv;
};

static bool open_rig(struct rig *r, bool uncounted) {
    static float rows[ROWS * COLS], weight[COLS];
    static const enum pl_backend backends[] = {PL_BACKEND_CUDA, PL_BACKEND_ROCM, PL_BACKEND_OPENCL};
    for (size_t i = 0; i < ROWS * COLS; i++) rows[i] = (float)(i % 5) - 1.5f;
    for (size_t i = 0; i < COLS; i++) weight[i] = 1;
    *r = (struct rig){0};
    for (size_t b = 0; b < PL_COUNT_OF(backends) && r->o == NULL; b++) {
        int index = test_device_of((enum pl_device_kind)b);
        if (index < 0) continue;
        struct pl_ops_options opt = {.backend = backends[b], .device = index, .uncounted = uncounted};
        if (pl_ops_create(&opt, &r->o, &err) != PL_OK) r->o = NULL;
    }
    if (r->o == NULL) return false;
    struct pl_tensor t = {
        .name = "t", .dtype = PL_F32, .ndim = 2, .shape = {ROWS, COLS, 1, 1}, .data = rows, .bytes = sizeof rows};
    struct pl_tensor n = {
        .name = "n", .dtype = PL_F32, .ndim = 1, .shape = {COLS, 1, 1, 1}, .data = weight, .bytes = sizeof weight};
    struct pl_kv_shape s = {.layers = 1, .page_count = 1, .page_tokens = 16, .kv_heads = 1, .head_dim = 32, .dtype = PL_F32};
    assert_int_equal(pl_ops_weight_create(r->o, &t, PL_WEIGHT_EMBED, &r->table, &err), PL_OK);
    assert_int_equal(pl_ops_weight_create(r->o, &n, PL_WEIGHT_VECTOR, &r->w, &err), PL_OK);
    assert_int_equal(pl_ops_activation_create(r->o, ROWS, COLS, &r->x, &err), PL_OK);
    assert_int_equal(pl_ops_kv_create(r->o, &s, &r->kv, &err), PL_OK);
    return true;
}
static void close_rig(struct rig *r) {
    pl_ops_weight_destroy(r->o, r->table);
    pl_ops_weight_destroy(r->o, r->w);
    pl_ops_activation_destroy(r->o, r->x);
    pl_ops_kv_destroy(r->o, r->kv);
    pl_ops_destroy(r->o);
}

/* One row decodes (a graph where there are graphs), ROWS rows run at once; two norms in each. */
static void step(struct rig *r, uint32_t rows) {
    uint32_t tokens[ROWS] = {2, 0, 1}, page = 0;
    struct pl_batch_seq q = {.rows = rows};
    struct pl_batch b = {.rows = rows, .tokens = tokens, .seq_count = 1, .seqs = &q, .pages = &page, .page_entries = 1};
    assert_int_equal(pl_ops_begin(r->o, &b, r->kv), PL_OK);
    assert_int_equal(pl_ops_embed(r->o, r->table, 1, r->x), PL_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(pl_ops_norm(r->o, r->x, r->w, 1e-6f, 0, r->x), PL_OK);
    assert_int_equal(pl_ops_end(r->o), PL_OK);
}

static struct pl_ops_kernel find(struct rig *r, const char *part) {
    struct pl_ops_kernel list[64];
    size_t n = 0;
    assert_int_equal(pl_ops_kernels(r->o, list, 64, &n, &err), PL_OK);
    assert_true(n <= 64);
    for (size_t i = 0; i < n; i++)
        if (strstr(list[i].kernel, part) != NULL) return list[i];
    fail_msg("no kernel %s", part);
    return list[0];
}

static void both_count(void **state) {
    (void)state;
    struct rig r;
    if (!open_rig(&r, false)) SKIP("no such device here");
    bool graphs = ((struct dev_ops *)r.o)->ks.graphs;
    step(&r, 1);
    step(&r, ROWS);
    step(&r, 1);
    struct pl_ops_kernel k = find(&r, "/norm");
    assert_string_equal(k.symbol, "pk_norm");
    assert_int_equal(strlen(k.module), 32);
    assert_non_null(strstr(k.variant, "GROUP="));
    assert_int_equal(k.eager + k.graph, 6);
    assert_int_equal(k.graph, graphs ? 4 : 0);
    assert_true(k.counted);
    assert_int_equal(k.device, 6);
    assert_int_equal(find(&r, "/embed/").device, 3);
    assert_int_equal(find(&r, "/softcap").device, 0); /* made, never launched */
    assert_int_equal(pl_ops_kernels_agree(r.o, &err), PL_OK);
    assert_int_equal(pl_ops_asked(r.o, PL_OP_norm), 6);
    assert_true(pl_ops_decisions_add_up(r.o));
    pl_ops_witness_reset(r.o);
    assert_int_equal(find(&r, "/norm").device, 0);
    step(&r, ROWS);
    assert_int_equal(find(&r, "/norm").device, 2);
    assert_int_equal(pl_ops_kernels_agree(r.o, &err), PL_OK);
    close_rig(&r);
}

/* The output may well look right; the count cannot. */
static void a_skipped_launch_is_seen(void **state) {
    (void)state;
    struct rig r;
    if (!open_rig(&r, false)) SKIP("no such device here");
    char name[48];
    step(&r, ROWS);
    snprintf(name, sizeof name, "%s", find(&r, "/norm").kernel);
    pl_ops_witness_reset(r.o);
    ((struct dev_ops *)r.o)->ks.skipped = name;
    step(&r, ROWS);
    step(&r, 1);
    struct pl_ops_kernel k = find(&r, "/norm");
    assert_int_equal(k.eager + k.graph, 4);
    assert_int_equal(k.device, 0);
    err = (struct pl_err){0};
    assert_int_equal(pl_ops_kernels_agree(r.o, &err), PL_INTERNAL);
    assert_non_null(strstr(err.text, name));
    assert_non_null(strstr(err.text, "4 times, but counted 0"));
    close_rig(&r);
}

static void uncounted_kernels_say_so(void **state) {
    (void)state;
    struct rig r;
    if (!open_rig(&r, true)) SKIP("no such device here");
    step(&r, ROWS);
    struct pl_ops_kernel k = find(&r, "/norm");
    assert_false(k.counted); /* unknown, which is not zero */
    assert_int_equal(k.eager, 2);
    assert_non_null(strstr(k.variant, "PL_UNCOUNTED"));
    assert_int_equal(pl_ops_kernels_agree(r.o, &err), PL_OK);
    close_rig(&r);
}

int main(void) {
    test_own_cache();
    struct CMUnitTest tests[] = {cmocka_unit_test(both_count), cmocka_unit_test(a_skipped_launch_is_seen),
                                 cmocka_unit_test(uncounted_kernels_say_so)};
    return TEST_RUN("witness", tests);
}
