/* Mamba-2's recurrence by chunks on every device present: against src/ref, whose state it must leave behind as well, and
 * against the kernel that goes token by token. Chunks that are full, begun, and one row long, sequences in scattered slots
 * with and without a past, one too short for it that must stay as it is, and two faults that are seen.
 *
 * test-variants: release (as test_ssm)
 * test-timeout: 600 */
#include "kit.h"

#include "ops/ssm.h"

enum { SEQS = 5, SLOTS = 7, SPLIT = 2 };
static const uint32_t lengths[SEQS] = {PL_SSM_CHUNK + 1, 1, 3 * PL_SSM_CHUNK, 2, 45}, slots[SEQS] = {6, 0, 2, 5, 3},
                      pasts[SEQS] = {0, 9, 7, 0, 200};

struct shape {
    uint32_t heads, head_dim, groups, n;
    bool bias, skip, gate;
};
static const struct shape shapes[] = {{3, 64, 1, 128, true, true, false},
                                      {8, 16, 2, 20, true, true, true},
                                      {6, 7, 3, 5, false, false, false},
                                      {2, 40, 1, 256, true, true, false}};

struct data {
    const struct shape *s;
    size_t inner, bc, wide, stride, first, rows, states; /* wide: columns of x, B and C in one activation */
    float *a, *bias, *skip, *xbc, *dt, *z, *state, *want;
    double *exact; /* states of all slots */
};
enum fault { NONE, STATE_DROPPED, DECAY_LATE };

/* The definition once more, a sequence at a time, with faults: the state not passed from chunk to chunk, or each row's decay
 * one row late. */
static void twin(const struct data *d, enum fault f, float *y, double *states) {
    const struct shape *s = d->s;
    for (size_t q = 0, row = 0; q < SEQS; row += lengths[q++])
        for (size_t i = 0; i < d->inner; i++) {
            size_t h = i / s->head_dim, g = h / (s->heads / s->groups);
            double *own = states + (slots[q] * d->inner + i) * s->n, late = 0;
            if (pasts[q] == 0) memset(own, 0, s->n * sizeof *own);
            for (size_t t = 0; t < lengths[q]; t++) {
                const float *x = d->xbc + (row + t) * d->wide, *b = x + 3 + d->inner + g * s->n, *c = b + d->bc;
                double v = (double)d->dt[(row + t) * s->heads + h] + (s->bias ? (double)d->bias[h] : 0),
                       step = fmin(fmax(v > 30 ? v : log1p(exp(v)), (double)0.01f), 20), sum = 0,
                       decay = exp((double)d->a[h] * (f == DECAY_LATE ? late : step));
                late = step;
                for (size_t k = 0; k < s->n; k++) {
                    double past = f == STATE_DROPPED && t % PL_SSM_CHUNK == 0 ? 0 : own[k];
                    own[k] = decay * past + step * (double)x[3 + i] * (double)b[k];
                    sum += own[k] * (double)c[k];
                }
                if (s->skip) sum += (double)d->skip[h] * (double)x[3 + i];
                double z = (double)d->z[(row + t) * d->inner + i];
                y[(row + t) * d->inner + i] = (float)(s->gate ? sum * z / (1 + exp(-z)) : sum);
            }
        }
}

static void reference(struct data *d) {
    const struct shape *s = d->s;
    for (size_t q = 0, row = 0; q < SEQS; row += lengths[q++]) {
        float *parts[3];
        size_t widths[] = {d->inner, d->bc, d->bc}, at = 3;
        for (size_t k = 0; k < 3; at += widths[k++]) {
            parts[k] = malloc(lengths[q] * widths[k] * sizeof(float));
            for (size_t t = 0; t < lengths[q]; t++)
                memcpy(parts[k] + t * widths[k], d->xbc + (row + t) * d->wide + at, widths[k] * sizeof(float));
        }
        double *own = d->exact + slots[q] * d->inner * s->n;
        if (pasts[q] == 0) memset(own, 0, d->inner * s->n * sizeof *own);
        const struct pl_ref_ssm ref = {.rows = lengths[q],
                                       .heads = s->heads,
                                       .head_dim = s->head_dim,
                                       .groups = s->groups,
                                       .state = s->n,
                                       .a = d->a,
                                       .dt_bias = s->bias ? d->bias : NULL,
                                       .skip = s->skip ? d->skip : NULL,
                                       .x = parts[0],
                                       .b = parts[1],
                                       .c = parts[2],
                                       .dt = d->dt + row * s->heads,
                                       .z = s->gate ? d->z + row * d->inner : NULL,
                                       .dt_min = (double)0.01f,
                                       .dt_max = 20};
        pl_ref_ssm(&ref, own, d->want + row * d->inner);
        for (size_t k = 0; k < 3; k++) free(parts[k]);
    }
}

static struct data data_make(const struct shape *s) {
    struct data d = {.s = s, .inner = (size_t)s->heads * s->head_dim, .bc = (size_t)s->groups * s->n, .first = 11};
    d.wide = d.inner + 3 + 2 * d.bc, d.stride = d.first + d.inner * s->n, d.states = SLOTS * d.inner * s->n;
    for (size_t q = 0; q < SEQS; q++) d.rows += lengths[q];
    d.a = kit_random(s->heads, 1), d.bias = kit_random(s->heads, 1), d.skip = kit_random(s->heads, 1);
    for (size_t i = 0; i < s->heads; i++) d.a[i] -= 1.1f;
    d.xbc = kit_random(d.rows * d.wide, 1), d.dt = kit_random(d.rows * s->heads, 3), d.z = kit_random(d.rows * d.inner, 3);
    /* Steps at both ends of the clip; after the large ones sums of exponents are large and their differences must be good.
     */
    for (size_t h = 0; h < s->heads; h++)
        d.dt[5 * s->heads + h] = d.dt[150 * s->heads + h] = 40, d.dt[20 * s->heads + h] = -50;
    d.state = kit_random(SLOTS * d.stride, 1), d.want = kit_random(d.rows * d.inner, 0);
    d.exact = malloc(d.states * sizeof *d.exact);
    for (size_t i = 0; i < SLOTS; i++)
        for (size_t k = 0; k < d.inner * s->n; k++)
            d.exact[i * d.inner * s->n + k] = (double)d.state[i * d.stride + d.first + k];
    return d;
}
static void data_free(struct data *d) {
    float *all[] = {d->a, d->bias, d->skip, d->xbc, d->dt, d->z, d->state, d->want};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) free(all[i]);
    free(d->exact);
}

static double apart(const struct data *d, const float *y, const float *want, bool one_row) {
    double most = 0;
    for (size_t q = 0, row = 0; q < SEQS; row += lengths[q++])
        for (size_t i = row * d->inner; (lengths[q] < SPLIT) == one_row && i < (row + lengths[q]) * d->inner; i++) {
            double off = fabs((double)y[i] - (double)want[i]) / (1 + fabs((double)want[i]));
            most = fmax(most, isnan(y[i]) ? INFINITY : off);
        }
    return most;
}
static double states_apart(const struct data *d, const float *got) {
    double most = 0;
    for (size_t i = 0; i < SLOTS; i++)
        for (size_t k = 0; k < d->stride; k++) {
            double want =
                       k < d->first ? (double)d->state[i * d->stride + k] : d->exact[i * d->inner * d->s->n + k - d->first],
                   off = fabs((double)got[i * d->stride + k] - want) / (1 + fabs(want));
            most = fmax(most, isnan(off) ? INFINITY : off);
        }
    return most;
}

/* Leaves y [rows, inner] and the states of all slots. */
static void run(const struct data *d, bool by_chunks, float **y, float **states) {
    const struct shape *s = d->s;
    uint32_t seqs[SEQS * PL_SEQ_WORDS], row = 0;
    const struct pl_ssm_kind kind = {s->n, false, s->bias, s->skip, s->gate, false};
    for (uint32_t i = 0; i < SEQS; row += lengths[i++]) {
        uint32_t *q = seqs + i * PL_SEQ_WORDS;
        q[PL_SEQ_FIRST] = row, q[PL_SEQ_ROWS] = lengths[i], q[PL_SEQ_PAST] = pasts[i], q[PL_SEQ_SLOT] = slots[i];
    }
    struct pl_ssm_chunks chunks = {0};
    struct pl_kernel walk = {0};
    CHECK(pl_kernel_ssm_chunks(&ks, kind, &chunks, &err));
    CHECK(pl_kernel_ssm(&ks, kind, &walk, &err));
    struct pl_device_buffer bx = kit_up(d->xbc, d->rows * d->wide * 4), bdt = kit_up(d->dt, d->rows * s->heads * 4),
                            bz = kit_up(d->z, d->rows * d->inner * 4), by = kit_out(d->rows * d->inner * 4),
                            bq = kit_up(seqs, sizeof seqs), ba = kit_up(d->a, s->heads * 4),
                            bb = kit_up(d->bias, s->heads * 4), bk = kit_up(d->skip, s->heads * 4),
                            bs = kit_up(d->state, SLOTS * d->stride * 4),
                            dots = kit_out(d->rows * s->groups * PL_SSM_CHUNK * 4),
                            steps = kit_out(d->rows * 3 * s->heads * 4);
    const struct pl_launch_ssm l = {.x = &bx,
                                    .b = &bx,
                                    .c = &bx,
                                    .dt = &bdt,
                                    .z = s->gate ? &bz : NULL,
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
                                    .x_stride = (uint32_t)d->wide,
                                    .b_stride = (uint32_t)d->wide,
                                    .c_stride = (uint32_t)d->wide,
                                    .x_first = 3,
                                    .b_first = (uint32_t)(3 + d->inner),
                                    .c_first = (uint32_t)(3 + d->inner + d->bc),
                                    .dt_min = 0.01f,
                                    .dt_max = 20,
                                    .seq_count = SEQS,
                                    .slot_stride = d->stride,
                                    .state_first = d->first,
                                    .split = by_chunks ? SPLIT : 0};
    if (by_chunks) {
        CHECK(pl_launch_ssm_dots(&ks, &chunks.dots, &l, &dots, &steps, 3 * PL_SSM_CHUNK));
        CHECK(pl_launch_ssm_chunks(&ks, &chunks.scan, &l, &dots, &steps));
    }
    CHECK(pl_launch_ssm(&ks, &walk, &l)); /* what is left, or all */
    *y = kit_down(&by), *states = kit_down(&bs);
    struct pl_device_buffer *all[] = {&bx, &bdt, &bz, &bq, &ba, &bb, &bk, &dots, &steps};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) kit_drop(all[i]);
    pl_kernel_free(&ks, &chunks.dots), pl_kernel_free(&ks, &chunks.scan), pl_kernel_free(&ks, &walk);
}

/* Relative to 1 + |value|; the token by token form of the same test has 2e-5 and 1e-5. */
static const double y_limit = 2e-5, state_limit = 1e-5;

static void one_shape(const struct shape *s) {
    struct data d = data_make(s);
    float *y, *states, *other_y, *other_states, *wrong = kit_random(d.rows * d.inner, 0);
    double *scratch = malloc(d.states * sizeof *scratch);
    memcpy(scratch, d.exact, d.states * sizeof *scratch);
    run(&d, true, &y, &states);
    run(&d, false, &other_y, &other_states);
    reference(&d);
    double off = fmax(apart(&d, y, d.want, false), apart(&d, y, d.want, true)), state_off = states_apart(&d, states);
    print_message("# %u heads of %u, state %u: %.1e from the reference, the state %.1e; token by token %.1e, %.1e\n",
                  s->heads, s->head_dim, s->n, off, state_off, apart(&d, other_y, d.want, false),
                  states_apart(&d, other_states));
    assert_true(off < y_limit && state_off < state_limit);
    assert_true(apart(&d, y, other_y, false) < y_limit);
    assert_true(apart(&d, y, other_y, true) == 0); /* too short: the very same */
    for (enum fault f = NONE; f <= DECAY_LATE; f++) {
        double *own = malloc(d.states * sizeof *own);
        memcpy(own, scratch, d.states * sizeof *own);
        twin(&d, f, wrong, own);
        off = apart(&d, y, wrong, false);
        if (f == NONE ? off >= y_limit : off < 1e-2) fail_msg("fault %d: %g apart", f, off);
        free(own);
    }
    free(y), free(states), free(other_y), free(other_states), free(wrong), free(scratch);
    data_free(&d);
}
static void shapes_of_device(void) {
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) one_shape(&shapes[i]);
}
static void chunks_equal_the_reference(void **state) {
    (void)state;
    kit_each(shapes_of_device);
}

static void mamba_is_declined(void **state) {
    (void)state;
    const struct pl_ssm_kind mamba = {.state = 16, .full = true}, mamba2 = {.state = 128};
    assert_non_null(pl_ssm_chunks_declines(&mamba));
    assert_null(pl_ssm_chunks_declines(&mamba2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_equal_the_reference),
        cmocka_unit_test(mamba_is_declined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
