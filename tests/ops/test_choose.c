/* Choosing: every name that exists parses, every other is an error that lists the known ones; pick by plan, force, disable,
 * strict. And the CPU's implementations by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "cpu/amx.h"
#include "ops/choose.h"
#include "tests/skip.h"

static struct pl_err err;

static struct pl_choice parsed(enum pl_backend b, const char *force, const char *disable, bool strict) {
    struct pl_choice c;
    err = (struct pl_err){0};
    if (pl_choice_parse(b, force, disable, strict, &c, &err) != PL_OK) fail_msg("%s", err.text);
    return c;
}
static void refused(enum pl_backend b, const char *force, const char *disable, const char *why) {
    struct pl_choice c;
    err = (struct pl_err){0};
    assert_int_equal(pl_choice_parse(b, force, disable, false, &c, &err), PL_USAGE);
    if (strstr(err.text, why) == NULL) fail_msg("'%s' is not in: %s", why, err.text);
}

static void every_ranked_name_can_be_forced(void **state) {
    (void)state;
    static const enum pl_backend all[] = {PL_BACKEND_CPU, PL_BACKEND_CUDA, PL_BACKEND_ROCM, PL_BACKEND_OPENCL};
    for (size_t b = 0; b < PL_COUNT_OF(all); b++) {
        for (int op = 0; op < PL_OP_COUNT; op++) {
            enum pl_impl list[PL_IMPL_COUNT];
            size_t n = pl_impl_ranked(all[b], (enum pl_op)op, list);
            assert_true(n >= 1);
            if (pl_op_leader((enum pl_op)op) != (enum pl_op)op) continue;
            for (size_t i = 0; i < n; i++) {
                char text[80];
                if (list[i] == PL_IMPL_WIDENED) continue;
                snprintf(text, sizeof text, "%s=%s", pl_op_name((enum pl_op)op), pl_impl_name(list[i]));
                struct pl_choice c = parsed(all[b], text, NULL, false);
                if (list[i] == PL_IMPL_CHAIN || list[i] == PL_IMPL_EXPANDED || list[i] == PL_IMPL_LAYERS) {
                    /* a wish: others are chosen as usual */
                    assert_true(list[i] == PL_IMPL_CHAIN ? c.chain : list[i] == PL_IMPL_LAYERS ? c.layers : c.expanded);
                    assert_int_equal(c.forced[op], PL_IMPL_NONE);
                } else {
                    assert_int_equal(c.forced[op], list[i]);
                }
                char line[300], want[100];
                pl_choice_describe(&c, line, sizeof line);
                snprintf(want, sizeof want, "forced %s", text);
                assert_string_equal(line, want);
            }
        }
    }
    assert_int_equal(pl_impl_ranked(PL_BACKEND_METAL, PL_OP_linear, (enum pl_impl[PL_IMPL_COUNT]){0}), 0);
}

static void unknown_names_list_the_known(void **state) {
    (void)state;
    refused(PL_BACKEND_CUDA, "lineer=gemv", NULL, "known: embed, norm");
    refused(PL_BACKEND_CUDA, "linear=gemm", NULL, "known: cublaslt, chain, stream, mma, fma, gemv, portable");
    refused(PL_BACKEND_OPENCL, "linear=gemv", NULL, "known: portable");
    refused(PL_BACKEND_CPU, "attention=portable", NULL, "scalar");
    refused(PL_BACKEND_CUDA, "linear", NULL, "OPERATION=IMPLEMENTATION");
    refused(PL_BACKEND_CUDA, "=gemv", NULL, "OPERATION=IMPLEMENTATION");
    refused(PL_BACKEND_CUDA, "linear=", NULL, "OPERATION=IMPLEMENTATION");
    refused(PL_BACKEND_CUDA, NULL, "attention=tile", "--disable-kernel");
    refused(PL_BACKEND_CUDA, "linear_add=gemv", NULL, "name that one");
    refused(PL_BACKEND_CUDA, "linear=gemv,linear=portable", NULL, "twice");
    refused(PL_BACKEND_CUDA, "linear=gemv", "linear=gemv", "forced and disabled");
    refused(PL_BACKEND_OPENCL, NULL, "norm=portable", "no other implementation");
    refused(PL_BACKEND_CUDA, NULL,
            "linear=portable,linear=gemv,linear=fma,linear=mma,linear=stream,linear=chain,linear=cublaslt",
            "no other implementation");
    struct pl_choice c = parsed(PL_BACKEND_CUDA, "linear=gemv,attention=split", &"glu=portable"[12], false);
    assert_int_equal(c.forced[PL_OP_linear_add], PL_IMPL_GEMV); /* it follows linear */
    c = parsed(PL_BACKEND_CUDA, "linear=gemv", "attention=tiles", false);
    char line[200];
    pl_choice_describe(&c, line, sizeof line);
    assert_string_equal(line, "forced linear=gemv; disabled attention=tiles");
}

static void the_pick(void **state) {
    (void)state;
    struct pl_candidate list[] = {
        {PL_IMPL_CUBLASLT, false, NULL}, {PL_IMPL_GEMV, true, "weight type"}, {PL_IMPL_PORTABLE, true, NULL}};
    struct pl_choice c = parsed(PL_BACKEND_CUDA, NULL, NULL, false);
    struct pl_pick p = pl_choose(&c, PL_OP_linear, list, 3);
    assert_int_equal(p.taken, PL_IMPL_PORTABLE);
    assert_int_equal(p.planned, PL_IMPL_GEMV); /* not the first of the list, which this case is not meant for */
    assert_string_equal(p.reason, "weight type");
    c = parsed(PL_BACKEND_CUDA, NULL, NULL, true);
    assert_int_equal(pl_choose(&c, PL_OP_linear, list, 3).taken, PL_IMPL_NONE); /* strict */
    list[1].why_not = NULL;
    assert_int_equal(pl_choose(&c, PL_OP_linear, list, 3).taken, PL_IMPL_GEMV);
    c = parsed(PL_BACKEND_CUDA, "linear=cublaslt", NULL, false); /* forced: whatever the plan says */
    assert_int_equal(pl_choose(&c, PL_OP_linear, list, 3).taken, PL_IMPL_CUBLASLT);
    list[0].why_not = "width";
    p = pl_choose(&c, PL_OP_linear, list, 3);
    assert_int_equal(p.taken, PL_IMPL_NONE);
    assert_string_equal(p.reason, "width");
    c = parsed(PL_BACKEND_CUDA, NULL, "linear=gemv", false);
    p = pl_choose(&c, PL_OP_linear, list, 3);
    assert_int_equal(p.taken, PL_IMPL_PORTABLE);
    assert_string_equal(p.reason, "disabled by request");
}

/* --- the CPU through pl_ops: forced and disabled tables compute, are named, and add up --- */

static struct pl_ops *cpu(const char *force, const char *disable, bool strict) {
    struct pl_ops *o = NULL;
    struct pl_ops_options opt = {
        .backend = PL_BACKEND_CPU, .threads = 2, .force = force, .disable = disable, .strict = strict};
    err = (struct pl_err){0};
    if (pl_ops_create(&opt, &o, &err) != PL_OK) fail_msg("%s", err.text);
    return o;
}

/* y = x w^T for 3 rows, q8_0 weights or an odd width of f32: the kernel's name goes to `kernel`. */
static void product(struct pl_ops *o, const struct pl_tensor *t, char kernel[64], float *y_out) {
    struct pl_weight *w = NULL;
    struct pl_activation *x = NULL, *y = NULL;
    struct pl_kv_store *kv = NULL;
    struct pl_weight *table = NULL;
    size_t in = t->shape[1], out = t->shape[0];
    float *values = test_malloc(3 * in * sizeof *values);
    for (size_t i = 0; i < 3 * in; i++) values[i] = (float)(i % 7) - 3.0f;
    struct pl_tensor e = {.name = "e", .dtype = PL_F32, .ndim = 2, .shape = {3, in, 1, 1}, .data = values, .bytes = 12 * in};
    struct pl_kv_shape s = {.layers = 1, .page_count = 1, .page_tokens = 16, .kv_heads = 1, .head_dim = 32, .dtype = PL_F32};
    uint32_t tokens[3] = {0, 1, 2}, page = 0;
    struct pl_batch_seq q = {.rows = 3};
    struct pl_batch b = {
        .rows = 3, .tokens = tokens, .seq_count = 1, .seqs = &q, .pages = &page, .page_entries = 1, .logit_count = 0};
    assert_int_equal(pl_ops_weight_create(o, t, PL_WEIGHT_MATRIX, &w, &err), PL_OK);
    assert_int_equal(pl_ops_weight_create(o, &e, PL_WEIGHT_EMBED, &table, &err), PL_OK);
    assert_int_equal(pl_ops_activation_create(o, 3, in, &x, &err), PL_OK);
    assert_int_equal(pl_ops_activation_create(o, 3, out, &y, &err), PL_OK);
    assert_int_equal(pl_ops_kv_create(o, &s, &kv, &err), PL_OK);
    assert_int_equal(pl_ops_begin(o, &b, kv), PL_OK);
    assert_int_equal(pl_ops_embed(o, table, 1, x), PL_OK);
    assert_int_equal(pl_ops_linear(o, 1, (const struct pl_weight *const *)&w, NULL, x, &y), PL_OK);
    assert_int_equal(pl_ops_end(o), PL_OK);
    assert_int_equal(pl_ops_activation_read(o, y, 0, 3, y_out), PL_OK);
    snprintf(kernel, 64, "%s", pl_ops_weight_kernel(o, w, 3));
    pl_ops_weight_destroy(o, w);
    pl_ops_weight_destroy(o, table);
    pl_ops_activation_destroy(o, x);
    pl_ops_activation_destroy(o, y);
    pl_ops_kv_destroy(o, kv);
    test_free(values);
}

static const struct pl_ops_decision *decision_of(const struct pl_ops *o, const char *op, struct pl_ops_decision list[16]) {
    size_t n = pl_ops_decisions(o, list, 16);
    assert_true(n <= 16);
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].op, op) == 0 && list[i].count > 0) return &list[i];
    return NULL;
}

static void cpu_tables_by_name(void **state) {
    (void)state;
    float matrix[5 * 32], want[15], got[15];
    for (size_t i = 0; i < 160; i++) matrix[i] = (float)(i % 11) * 0.25f;
    struct pl_tensor t = {
        .name = "w", .dtype = PL_F32, .ndim = 2, .shape = {5, 32, 1, 1}, .data = matrix, .bytes = sizeof matrix};
    for (int isa = 0; isa < PL_ISA_COUNT; isa++) {
        if (!pl_cpu_isa_available((enum pl_isa)isa)) continue;
        char force[64], kernel[64];
        snprintf(force, sizeof force, "linear=%s", pl_isa_name((enum pl_isa)isa));
        struct pl_ops *o = cpu(force, NULL, true);
        product(o, &t, kernel, isa == 0 ? want : got);
        char first[16];
        snprintf(first, sizeof first, "%.*s", (int)strcspn(pl_isa_name((enum pl_isa)isa), "-"),
                 pl_isa_name((enum pl_isa)isa));
        assert_true(strncmp(kernel, first, strlen(first)) == 0);
        assert_string_equal(pl_ops_forced(o) + strlen("forced "), force);
        struct pl_ops_decision list[16];
        const struct pl_ops_decision *d = decision_of(o, "linear", list);
        assert_non_null(d);
        assert_string_equal(d->outcome, "chosen");
        assert_string_equal(d->taken, pl_isa_name((enum pl_isa)isa));
        assert_int_equal(pl_ops_asked(o, PL_OP_linear), 1);
        assert_true(pl_ops_decisions_add_up(o));
        for (size_t i = 0; isa > 0 && i < 15; i++) assert_float_equal(got[i], want[i], 1e-3);
        pl_ops_destroy(o);
    }
    if (!pl_cpu_isa_available(PL_ISA_AVX2)) return;
    char disable[64], kernel[64];
    snprintf(disable, sizeof disable, "linear=%s", pl_isa_name(pl_cpu_best_isa()));
    struct pl_ops *o = cpu(NULL, disable, false);
    struct pl_ops_decision list[16];
    product(o, &t, kernel, got);
    const struct pl_ops_decision *d = decision_of(o, "linear", list);
    assert_string_equal(d->outcome, "fallback");
    assert_string_equal(d->planned, pl_isa_name(pl_cpu_best_isa()));
    assert_string_equal(d->reason, "disabled by request");
    assert_true(pl_ops_decisions_add_up(o));
    pl_ops_destroy(o);
    struct pl_ops_options opt = {.backend = PL_BACKEND_CPU, .disable = disable, .strict = true};
    assert_int_equal(pl_ops_create(&opt, &o, &err), PL_UNSUPPORTED); /* a fallback, known before anything is loaded */
    assert_non_null(strstr(err.text, "--strict: linear"));
}

static char warning[300];
static void keep_warning(const char *line, void *user) {
    (void)user;
    snprintf(warning, sizeof warning, "%s", line);
}

/* A CPU that has tiles, whose products with them came out wrong: told, counted, refused under --strict and by name. */
static void tiles_that_were_declined(void **state) {
    (void)state;
    if (!pl_cpu_isa_available(PL_ISA_AVX512)) SKIP("this CPU has no AVX-512");
    float matrix[5 * 32] = {0}, y[15];
    struct pl_tensor t = {
        .name = "w", .dtype = PL_F32, .ndim = 2, .shape = {5, 32, 1, 1}, .data = matrix, .bytes = sizeof matrix};
    cpu_amx_pretend_declined("its product of q4_k is wrong");
    pl_log_set_sink(keep_warning, NULL);
    struct pl_ops *o = cpu(NULL, NULL, false);
    pl_log_set_sink(NULL, NULL);
    assert_non_null(strstr(warning, "avx512-vnni runs instead of avx512-amx: its product of q4_k is wrong"));
    char kernel[64];
    product(o, &t, kernel, y);
    struct pl_ops_decision list[16];
    const struct pl_ops_decision *d = decision_of(o, "linear", list);
    assert_string_equal(d->outcome, "fallback");
    assert_string_equal(d->planned, "avx512-amx");
    assert_string_equal(d->taken, "avx512-vnni");
    assert_string_equal(d->reason, "its product of q4_k is wrong");
    assert_string_equal(decision_of(o, "embed", list)->outcome, "chosen");
    assert_true(pl_ops_decisions_add_up(o));
    pl_ops_destroy(o);
    struct pl_ops_options opt = {.backend = PL_BACKEND_CPU, .strict = true};
    assert_int_equal(pl_ops_create(&opt, &o, &err), PL_UNSUPPORTED);
    opt = (struct pl_ops_options){.backend = PL_BACKEND_CPU, .isa = "avx512-amx"};
    assert_int_equal(pl_ops_create(&opt, &o, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "its product of q4_k is wrong"));
    opt = (struct pl_ops_options){.backend = PL_BACKEND_CPU, .isa = "avx512-vnni", .strict = true};
    assert_int_equal(pl_ops_create(&opt, &o, &err), PL_OK); /* asked for: no fallback */
    pl_ops_destroy(o);
    cpu_amx_pretend_declined(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_ranked_name_can_be_forced),
                                       cmocka_unit_test(unknown_names_list_the_known), cmocka_unit_test(the_pick),
                                       cmocka_unit_test(cpu_tables_by_name), cmocka_unit_test(tiles_that_were_declined)};
    return cmocka_run_group_tests_name("choosing", tests, NULL, NULL);
}
