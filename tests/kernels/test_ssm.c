/* State-space kernels on every device present against src/ref: shapes that are no multiple of anything, several sequences in
 * scattered slots, states carried from chunk to chunk bit for bit, poisoned outputs and sentinels, and faults that are seen.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 600 */
#include "ssm_bed.h"

enum { SEQS = 3, SLOTS = 5 };
/* Rows of each sequence in the first step and in the second; slots; only the second sequence has a past. */
static const uint32_t lengths[2][SEQS] = {{70, 1, 5}, {1, 2, 33}}, slots[SEQS] = {4, 0, 2};

static uint32_t record(uint32_t step, uint32_t seqs[SEQS * PL_SEQ_WORDS], bool one_by_one) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        uint32_t *q = seqs + i * PL_SEQ_WORDS, n = one_by_one ? 1 : lengths[step][i];
        q[PL_SEQ_FIRST] = rows;
        q[PL_SEQ_ROWS] = n;
        q[PL_SEQ_PAST] = step == 0 && i != 1 ? 0 : 9;
        q[PL_SEQ_SLOT] = slots[i];
        rows += n;
    }
    return rows;
}

static void check_counted(const struct pl_kernel *k, uint64_t launched) {
    uint64_t counted = 0;
    CHECK(pl_kernel_counted(&ks, k, &counted, &err));
    assert_int_equal(counted, launched);
}

/* --- convolution --- */

static void one_conv(size_t channels, uint32_t kernel, bool bias, bool silu) {
    size_t past = (kernel - 1) * channels, stride = past + 7; /* the recurrence's values follow */
    struct pl_kernel k = {0};
    CHECK(pl_kernel_causal_conv(&ks, (struct pl_conv_kind){kernel, bias, silu}, &k, &err));
    float *w = kit_random(kernel * channels, 1), *b = kit_random(channels, 1), *state = kit_random(SLOTS * stride, 1);
    struct pl_device_buffer bw = kit_up(w, kernel * channels * 4), bb = kit_up(b, channels * 4),
                            bs = kit_up(state, SLOTS * stride * 4);
    for (uint32_t step = 0; step < 2; step++) {
        uint32_t seqs[SEQS * PL_SEQ_WORDS], rows = record(step, seqs, false);
        float *x = kit_random(rows * channels, 2), *want = kit_random(rows * channels, 0);
        for (uint32_t i = 0; i < SEQS; i++) {
            const uint32_t *q = seqs + i * PL_SEQ_WORDS;
            float *own = state + q[PL_SEQ_SLOT] * stride;
            if (q[PL_SEQ_PAST] == 0) memset(own, 0, past * sizeof *own);
            pl_ref_causal_conv(w, bias ? b : NULL, channels, kernel, silu, x + q[PL_SEQ_FIRST] * channels, q[PL_SEQ_ROWS],
                               own, want + q[PL_SEQ_FIRST] * channels);
        }
        struct pl_device_buffer bx = kit_up(x, rows * channels * 4), by = kit_out(rows * channels * 4),
                                bq = kit_up(seqs, sizeof seqs);
        const struct pl_launch_conv c = {.x = &bx,
                                         .w = &bw,
                                         .bias = bias ? &bb : NULL,
                                         .state = &bs,
                                         .seqs = &bq,
                                         .y = &by,
                                         .channels = channels,
                                         .seq_count = SEQS,
                                         .longest = step == 0 ? 70 : 33,
                                         .slot_stride = stride};
        CHECK(pl_launch_causal_conv(&ks, &k, &c));
        float *y = kit_down(&by);
        kit_near("causal_conv", y, want, rows * channels, 4e-6, 0.1);
        free(y), free(x), free(want);
        kit_drop(&bx), kit_drop(&bq);
    }
    float *got = kit_down(&bs);
    assert_memory_equal(got, state, SLOTS * stride * 4); /* inputs, as they are; other slots and values untouched */
    check_counted(&k, k.record->eager);
    kit_drop(&bw), kit_drop(&bb);
    free(w), free(b), free(state), free(got);
    pl_kernel_free(&ks, &k);
}
static void convolutions(void) {
    one_conv(200, 4, true, true);
    one_conv(5, 2, false, false);
    one_conv(129, 3, false, true);
    one_conv(64, 8, true, false);
}
static void convolutions_equal_the_reference(void **state) {
    (void)state;
    kit_each(convolutions);
}

/* --- recurrence --- */

static const struct shape shapes[] = {{70, 1, 1, 16, true, true, true, true},    {33, 1, 1, 12, true, true, false, true},
                                      {4, 64, 1, 128, true, true, false, false}, {8, 16, 2, 20, true, true, true, false},
                                      {6, 7, 3, 5, false, false, false, false},  {2, 100, 1, 256, true, true, false, false}};

static void run_step(struct bed *b, struct pl_kernel *k, uint32_t step, bool one_by_one, struct pl_device_buffer *bs,
                     bool wrong) {
    const struct shape *s = b->s;
    uint32_t seqs[SEQS * PL_SEQ_WORDS], rows = record(step, seqs, one_by_one);
    float *xbc = kit_random(rows * b->wide, 1), *dt = kit_random(rows * s->heads, 3), *z = kit_random(rows * b->inner, 3),
          *want = kit_random(rows * b->inner, 0);
    dt[0] = 40, dt[rows * s->heads - 1] = -50;
    for (uint32_t i = 0; i < SEQS; i++) {
        const uint32_t *q = seqs + i * PL_SEQ_WORDS, at = q[PL_SEQ_FIRST];
        bed_reference(b, slots[i], q[PL_SEQ_PAST] == 0, q[PL_SEQ_ROWS], xbc + at * b->wide, dt + at * s->heads,
                      z + at * b->inner, want + at * b->inner);
    }
    struct bed_buffers u = bed_up(b, rows, xbc, dt, z, seqs, SEQS);
    struct pl_launch_ssm l = bed_launch(b, &u, bs, SEQS);
    if (wrong) l.b_first += (uint32_t)b->bc, l.c_first -= (uint32_t)b->bc;
    CHECK(pl_launch_ssm(&ks, k, &l));
    float *y = kit_down(&u.y);
    if (wrong) { /* B and C exchanged: must be seen */
        double most = 0;
        for (size_t i = 0; i < rows * b->inner; i++) most = fmax(most, fabs((double)y[i] - (double)want[i]));
        assert_true(most > 1e-2);
    } else {
        kit_near("ssm", y, want, rows * b->inner, 2e-5, 1);
    }
    free(y), free(xbc), free(dt), free(z), free(want);
    bed_drop(&u);
}

static void one_shape(const struct shape *s) {
    struct bed b = bed_make(s, SLOTS, 11);
    struct pl_kernel scan = {0}, update = {0};
    struct pl_ssm_kind kind = {s->n, s->full, s->bias, s->skip, s->gate, false};
    CHECK(pl_kernel_ssm(&ks, kind, &scan, &err));
    kind.one_row = true;
    CHECK(pl_kernel_ssm(&ks, kind, &update, &err));
    struct pl_device_buffer bs = kit_up(b.state, SLOTS * b.stride * 4);
    run_step(&b, &scan, 0, false, &bs, false);
    run_step(&b, &scan, 1, false, &bs, false);
    run_step(&b, &update, 1, true, &bs, false);
    float *got = kit_down(&bs);
    double off = bed_states_apart(&b, got);
    if (off > 1e-5) fail_msg("a state is %g from the reference", off);
    bs = kit_up(got, SLOTS * b.stride * 4);
    run_step(&b, &scan, 1, false, &bs, true);
    kit_drop(&bs);
    check_counted(&scan, 3);
    check_counted(&update, 1);
    free(got);
    bed_free(&b);
    pl_kernel_free(&ks, &scan), pl_kernel_free(&ks, &update);
}
static void recurrences(void) {
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) {
        pl_kernels_reset_counts(&ks);
        one_shape(&shapes[i]);
    }
}
static void recurrences_equal_the_reference(void **state) {
    (void)state;
    kit_each(recurrences);
}

/* --- the gated delta rule --- */

static void one_rule(uint32_t heads, uint32_t dim, uint32_t keys, struct pl_delta_kind kind) {
    size_t n = kind.state, inner = (size_t)heads * dim, kn = keys * n, cols = 2 * kn + inner, own = inner * n, past = 7,
           stride = own + past;
    struct pl_kernel k = {0};
    CHECK(pl_kernel_delta(&ks, kind, &k, &err));
    float *a = kit_random(heads, 1), *bias = kit_random(heads, 1), *state = kit_random(SLOTS * stride, 1);
    double *exact = calloc(own, SLOTS * sizeof *exact);
    assert_non_null(exact);
    for (uint32_t h = 0; h < heads; h++) a[h] -= 1.1f;
    for (size_t i = 0; i < SLOTS * own; i++) exact[i] = (double)state[i / own * stride + past + i % own];
    struct pl_device_buffer ba = kit_up(a, heads * 4), bb = kit_up(bias, heads * 4), bs = kit_up(state, SLOTS * stride * 4);
    for (uint32_t step = 0; step < 2; step++) {
        uint32_t seqs[SEQS * PL_SEQ_WORDS], rows = record(step, seqs, false);
        float *x = kit_random(rows * cols, 2), *dt = kit_random(rows * heads, 3), *beta = kit_random(rows * heads, 3),
              *want = kit_random(rows * inner, 0), *parts[3];
        const size_t at[] = {0, kn, 2 * kn}, widths[] = {kn, kn, inner};
        for (size_t p = 0; p < 3; p++) {
            parts[p] = malloc(rows * widths[p] * sizeof(float));
            for (size_t t = 0; t < rows; t++)
                memcpy(parts[p] + t * widths[p], x + t * cols + at[p], widths[p] * sizeof(float));
        }
        for (uint32_t i = 0; i < SEQS; i++) {
            const uint32_t *q = seqs + i * PL_SEQ_WORDS;
            size_t r = q[PL_SEQ_FIRST];
            const struct pl_ref_delta ref = {q[PL_SEQ_ROWS],
                                             heads,
                                             dim,
                                             keys,
                                             n,
                                             kind.in_turn,
                                             a,
                                             bias,
                                             parts[0] + r * kn,
                                             parts[1] + r * kn,
                                             parts[2] + r * inner,
                                             dt + r * heads,
                                             beta + r * heads};
            double *s = exact + q[PL_SEQ_SLOT] * own;
            if (q[PL_SEQ_PAST] == 0) memset(s, 0, own * sizeof *s);
            pl_ref_delta(&ref, s, want + r * inner);
        }
        struct pl_device_buffer bx = kit_up(x, rows * cols * 4), bd = kit_up(dt, rows * heads * 4),
                                bg = kit_up(beta, rows * heads * 4), by = kit_out(rows * inner * 4),
                                bq = kit_up(seqs, sizeof seqs);
        struct pl_launch_delta l = {.x = &bx,
                                    .dt = &bd,
                                    .beta = &bg,
                                    .a = &ba,
                                    .dt_bias = &bb,
                                    .state = &bs,
                                    .seqs = &bq,
                                    .y = &by,
                                    .heads = heads,
                                    .head_dim = dim,
                                    .groups = keys,
                                    .x_stride = (uint32_t)cols,
                                    .k_first = (uint32_t)kn,
                                    .v_first = (uint32_t)(2 * kn),
                                    .cols = kind.cols,
                                    .seq_count = SEQS,
                                    .slot_stride = stride,
                                    .state_first = past};
        CHECK(pl_launch_delta(&ks, &k, &l));
        float *y = kit_down(&by);
        kit_near("delta", y, want, rows * inner, 2e-5, 0.1);
        free(y), free(x), free(dt), free(beta), free(want), free(parts[0]), free(parts[1]), free(parts[2]);
        kit_drop(&bx), kit_drop(&bd), kit_drop(&bg), kit_drop(&bq);
    }
    float *got = kit_down(&bs);
    for (size_t i = 0; i < SLOTS * stride; i++) {
        double to = i % stride < past ? (double)state[i] : exact[i / stride * own + i % stride - past];
        if (!(fabs((double)got[i] - to) <= 2e-5 * (1 + fabs(to))))
            fail_msg("state %zu is %g, not %g", i, (double)got[i], to);
    }
    check_counted(&k, k.record->eager);
    kit_drop(&ba), kit_drop(&bb);
    free(a), free(bias), free(state), free(exact), free(got);
    pl_kernel_free(&ks, &k);
}
static void rules(void) { /* as processors have it, and as others: with one, four and eight threads a column */
    one_rule(4, 8, 2, pl_delta_kind_for(12, false, true));
    one_rule(2, 20, 2, pl_delta_kind_for(256, false, true));
    one_rule(6, 33, 3, pl_delta_kind_for(5, true, false));
    one_rule(2, 128, 1, pl_delta_kind_for(128, false, false));
    one_rule(4, 40, 2, pl_delta_kind_for(65, true, false)); /* four parts of 17, the last shorter */
    one_rule(2, 20, 2, pl_delta_kind_for(256, false, false));
}
static void the_delta_rule_equals_the_reference(void **state) {
    (void)state;
    kit_each(rules);
}

/* --- gated norm --- */

static void one_norm(size_t rows, size_t cols, uint32_t groups, bool gate, bool norm_first) {
    size_t n = rows * cols;
    struct pl_kernel k = {0};
    CHECK(pl_kernel_gated_norm(&ks, gate, &k, &err));
    float *x = kit_random(n, 3), *z = kit_random(n, 3), *w = kit_random(cols, 1), *want = kit_random(n, 0);
    struct pl_device_buffer bx = kit_up(x, n * 4), bz = kit_up(z, n * 4), bw = kit_up(w, cols * 4), by = kit_out(n * 4);
    CHECK(pl_launch_gated_norm(&ks, &k, &bx, gate ? &bz : NULL, &bw, &by, rows, cols, groups, norm_first, 1e-5f));
    CHECK(pl_launch_gated_norm(&ks, &k, &bx, gate ? &bz : NULL, &bw, &bx, rows, cols, groups, norm_first, 1e-5f));
    for (size_t r = 0; r < rows; r++)
        pl_ref_gated_norm(x + r * cols, gate ? z + r * cols : NULL, w, cols, groups, (double)1e-5f, norm_first,
                          want + r * cols);
    float *y = kit_down(&by), *in_place = kit_down(&bx);
    kit_near("gated_norm", y, want, n, 5e-6, 0.1);
    assert_memory_equal(y, in_place, n * 4);
    free(y), free(in_place), free(x), free(z), free(w), free(want);
    kit_drop(&bz), kit_drop(&bw);
    pl_kernel_free(&ks, &k);
}
static void norms(void) {
    one_norm(5, 256, 1, true, false);
    one_norm(3, 120, 8, true, false);
    one_norm(7, 66, 3, true, true);
    one_norm(2, 33, 3, false, false);
    one_norm(1, 5120, 8, true, false);
}
static void gated_norms_equal_the_reference(void **state) {
    (void)state;
    kit_each(norms);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_equal_the_reference),
        cmocka_unit_test(recurrences_equal_the_reference),
        cmocka_unit_test(the_delta_rule_equals_the_reference),
        cmocka_unit_test(gated_norms_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
