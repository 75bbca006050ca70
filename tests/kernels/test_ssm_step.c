/* One token of a Mamba-2 layer in one launch (NVIDIA devices) against src/ref's convolution and recurrence one after the
 * other: sequences in scattered slots, fresh and with a past, several steps over the same state; what other slots hold and
 * the words that groups of threads meet at are as they were. Taps in the other order and B for C are seen.
 *
 * test-variants: release (as test_ssm)
 * test-timeout: 300 */
#include "kit.h"

#include "ops/cuda_ssm.h"
#include "tests/skip.h"

enum { SEQS = 3, SLOTS = 5, STEPS = 3, TAPS = 4 };
static const uint32_t slots[SEQS] = {4, 0, 2};

struct shape {
    uint32_t heads, head_dim, groups, n;
    bool conv_bias, bias, skip, gate;
};
static const struct shape shapes[] = {{6, 64, 1, 128, true, true, true, true},
                                      {4, 32, 2, 128, false, false, false, false},
                                      {3, 96, 3, 256, true, true, true, false}};
enum fault { NONE, TAPS_TURNED, B_FOR_C };

struct data {
    const struct shape *s;
    size_t inner, bc, channels, conv, stride;
    float *w, *conv_bias, *a, *bias, *skip, *state;
};

static double sigmoid_times(double v) { return v / (1 + exp(-v)); }

/* One row of one sequence in double; conv and own are its parts of a slot. */
static void reference(const struct data *d, enum fault f, const float *x, const float *dt, const float *z, double *conv,
                      double *own, double *y) {
    const struct shape *s = d->s;
    double *made = malloc(d->channels * sizeof *made);
    for (size_t c = 0; c < d->channels; c++) {
        double sum = s->conv_bias ? (double)d->conv_bias[c] : 0;
        for (size_t k = 0; k < TAPS; k++) {
            double in = k + 1 < TAPS ? conv[k * d->channels + c] : (double)x[c];
            sum += (double)d->w[(f == TAPS_TURNED ? TAPS - 1 - k : k) * d->channels + c] * in;
        }
        made[c] = sigmoid_times(sum);
    }
    memmove(conv, conv + d->channels, (TAPS - 2) * d->channels * sizeof *conv);
    for (size_t c = 0; c < d->channels; c++) conv[(TAPS - 2) * d->channels + c] = (double)x[c];
    for (size_t i = 0; i < d->inner; i++) {
        size_t h = i / s->head_dim, g = h / (s->heads / s->groups);
        double v = (double)dt[h] + (s->bias ? (double)d->bias[h] : 0), step = fmin(fmax(log1p(exp(v)), (double)0.01f), 20);
        double keep = exp(step * (double)d->a[h]), sum = s->skip ? (double)d->skip[h] * made[i] : 0;
        const double *b = made + d->inner + g * s->n, *c = b + (f == B_FOR_C ? 0 : d->bc);
        for (size_t k = 0; k < s->n; k++) {
            own[i * s->n + k] = keep * own[i * s->n + k] + step * made[i] * b[k];
            sum += own[i * s->n + k] * c[k];
        }
        y[i] = s->gate ? sum * sigmoid_times((double)z[i]) : sum;
    }
    free(made);
}

static double apart(const float *got, const double *want, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double off = fabs((double)got[i] - want[i]) / (1 + fabs(want[i]));
        most = fmax(most, isnan(off) ? INFINITY : off);
    }
    return most;
}

static void one_shape(const struct shape *s) {
    struct data d = {.s = s, .inner = (size_t)s->heads * s->head_dim, .bc = (size_t)s->groups * s->n};
    d.channels = d.inner + 2 * d.bc, d.conv = (TAPS - 1) * d.channels, d.stride = d.conv + d.inner * s->n;
    const struct pl_step_kind kind = {{s->n, false, s->bias, s->skip, s->gate, true}, {TAPS, s->conv_bias, true}};
    const char *why = pl_step_declines(&ks, &kind, s->head_dim, d.stride, d.conv);
    if (why != NULL) fail_msg("declined: %s", why);
    d.w = kit_random(TAPS * d.channels, 1), d.conv_bias = kit_random(d.channels, 1), d.a = kit_random(s->heads, 1);
    d.bias = kit_random(s->heads, 1), d.skip = kit_random(s->heads, 1), d.state = kit_random(SLOTS * d.stride, 1);
    for (size_t i = 0; i < s->heads; i++) d.a[i] -= 1.1f;
    double *exact = malloc(SLOTS * d.stride * sizeof *exact), *wrong = malloc(d.stride * sizeof *wrong),
           *want = malloc(SEQS * d.inner * sizeof *want), *other = malloc(2 * d.inner * sizeof *other);
    for (size_t i = 0; i < SLOTS * d.stride; i++) exact[i] = (double)d.state[i];
    struct pl_kernel k = {0};
    CHECK(pl_kernel_step(&ks, &kind, &k, &err));
    uint32_t zeros[SEQS * 4] = {0};
    struct pl_device_buffer bw = kit_up(d.w, TAPS * d.channels * 4), bcb = kit_up(d.conv_bias, d.channels * 4),
                            ba = kit_up(d.a, s->heads * 4), bb = kit_up(d.bias, s->heads * 4),
                            bk = kit_up(d.skip, s->heads * 4), bs = kit_up(d.state, SLOTS * d.stride * 4),
                            meet = kit_up(zeros, SEQS * s->groups * 4);
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t seqs[SEQS * PL_SEQ_WORDS];
        float *x = kit_random(SEQS * d.channels, 1), *dt = kit_random(SEQS * s->heads, 3),
              *z = kit_random(SEQS * d.inner, 3);
        for (uint32_t i = 0; i < SEQS; i++) {
            uint32_t *q = seqs + i * PL_SEQ_WORDS;
            q[PL_SEQ_FIRST] = i, q[PL_SEQ_ROWS] = 1, q[PL_SEQ_PAST] = step + i,
            q[PL_SEQ_SLOT] = slots[i]; /* the first is fresh */
            double *slot = exact + slots[i] * d.stride;
            if (q[PL_SEQ_PAST] == 0) memset(slot, 0, d.stride * sizeof *slot);
            for (enum fault f = TAPS_TURNED; f <= B_FOR_C && step == 1 && i == 1; f++) {
                memcpy(wrong, slot, d.stride * sizeof *wrong);
                reference(&d, f, x + i * d.channels, dt + i * s->heads, z + i * d.inner, wrong, wrong + d.conv,
                          other + (f - TAPS_TURNED) * d.inner);
            }
            reference(&d, NONE, x + i * d.channels, dt + i * s->heads, z + i * d.inner, slot, slot + d.conv,
                      want + i * d.inner);
        }
        struct pl_device_buffer bx = kit_up(x, SEQS * d.channels * 4), bdt = kit_up(dt, SEQS * s->heads * 4),
                                by = kit_up(z, SEQS * d.inner * 4), bq = kit_up(seqs, sizeof seqs); /* y over z */
        const struct pl_launch_conv c = {.x = &bx,
                                         .w = &bw,
                                         .bias = s->conv_bias ? &bcb : NULL,
                                         .state = &bs,
                                         .seqs = &bq,
                                         .channels = d.channels,
                                         .seq_count = SEQS,
                                         .longest = 1,
                                         .slot_stride = d.stride};
        const struct pl_launch_ssm l = {.dt = &bdt,
                                        .z = s->gate ? &by : NULL,
                                        .a = &ba,
                                        .dt_bias = s->bias ? &bb : NULL,
                                        .skip = s->skip ? &bk : NULL,
                                        .state = &bs,
                                        .seqs = &bq,
                                        .y = &by,
                                        .heads = s->heads,
                                        .head_dim = s->head_dim,
                                        .groups = s->groups,
                                        .n = s->n,
                                        .b_first = (uint32_t)d.inner,
                                        .c_first = (uint32_t)(d.inner + d.bc),
                                        .dt_min = 0.01f,
                                        .dt_max = 20,
                                        .seq_count = SEQS,
                                        .slot_stride = d.stride,
                                        .state_first = d.conv};
        CHECK(pl_launch_step(&ks, &k, &l, &c, &meet));
        float *y = kit_down(&by);
        double off = apart(y, want, SEQS * d.inner);
        if (off >= 2e-5)
            fail_msg("%u heads of %u, state %u, step %u: %g from the reference", s->heads, s->head_dim, s->n, step, off);
        for (size_t f = 0; f < 2 && step == 1; f++) assert_true(apart(y + d.inner, other + f * d.inner, d.inner) > 1e-2);
        free(y), free(x), free(dt), free(z);
        kit_drop(&bx), kit_drop(&bdt), kit_drop(&bq);
    }
    float *states = kit_down(&bs);
    uint32_t *met = kit_down(&meet);
    assert_memory_equal(met, zeros, SEQS * s->groups * 4);
    double off = apart(states, exact, SLOTS * d.stride);
    print_message("# %u heads of %u, state %u: states %.1e from the reference\n", s->heads, s->head_dim, s->n, off);
    assert_true(off < 1e-5);
    for (size_t i = 0; i < SLOTS; i++) /* the convolution's are inputs, as they are */
        for (size_t j = 0; j < d.conv; j++) assert_true((double)states[i * d.stride + j] == exact[i * d.stride + j]);
    uint64_t counted = 0;
    CHECK(pl_kernel_counted(&ks, &k, &counted, &err));
    assert_int_equal(counted, STEPS);
    struct pl_device_buffer *all[] = {&bw, &bcb, &ba, &bb, &bk};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) kit_drop(all[i]);
    float *floats[] = {d.w, d.conv_bias, d.a, d.bias, d.skip, d.state, states};
    for (size_t i = 0; i < PL_COUNT_OF(floats); i++) free(floats[i]);
    free(exact), free(wrong), free(want), free(other), free(met);
    pl_kernel_free(&ks, &k);
}

static size_t tried;
static void on_device(void) {
    if (pl_device_info(ks.device)->kind != PL_DEVICE_CUDA) return;
    tried++;
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) {
        pl_kernels_reset_counts(&ks);
        one_shape(&shapes[i]);
    }
}
static void steps_equal_the_reference(void **state) {
    (void)state;
    kit_each(on_device);
    if (tried == 0) SKIP("no CUDA device here");
}

static void what_is_taken(void **state) {
    (void)state;
    struct pl_kernels paper = {0};
    struct pl_step_kind kind = {{.state = 128}, {.kernel = 4}};
    if (pl_device_paper(PL_DEVICE_CUDA, "sm_90", &paper.device, &err) != PL_OK) SKIP("no CUDA compiler here");
    assert_null(pl_step_declines(&paper, &kind, 64, 4, 4));
    assert_non_null(pl_step_declines(&paper, &kind, 48, 4, 4));
    assert_non_null(pl_step_declines(&paper, &kind, 64, 4, 2));
    kind.conv.kernel = 8;
    assert_non_null(pl_step_declines(&paper, &kind, 64, 4, 4));
    kind = (struct pl_step_kind){{.state = 20}, {.kernel = 4}};
    assert_non_null(pl_step_declines(&paper, &kind, 64, 4, 4));
    kind = (struct pl_step_kind){{.state = 128, .full = true}, {.kernel = 4}};
    assert_non_null(pl_step_declines(&paper, &kind, 64, 4, 4));
    pl_device_close(paper.device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_equal_the_reference),
        cmocka_unit_test(what_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
