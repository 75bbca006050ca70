/* Mamba-2's recurrence by chunks on every device present: against src/ref, whose state it must leave behind as well, and
 * against the kernel that goes token by token. Chunks that are full, begun, and one row long, sequences in scattered slots
 * with and without a past, one too short for it that must stay as it is, and two faults that are seen.
 *
 * test-variants: release (as test_ssm)
 * test-timeout: 600 */
#include "ssm_bed.h"

enum { SEQS = 5, SLOTS = 7, SPLIT = 2 };
static const uint32_t lengths[SEQS] = {PL_SSM_CHUNK + 1, 1, 3 * PL_SSM_CHUNK, 2, 45}, slots[SEQS] = {6, 0, 2, 5, 3},
                      pasts[SEQS] = {0, 9, 7, 0, 200};

static const struct shape shapes[] = {{3, 64, 1, 128, true, true, false, false},
                                      {8, 16, 2, 20, true, true, true, false},
                                      {6, 7, 3, 5, false, false, false, false},
                                      {2, 40, 1, 256, true, true, false, false}};

struct data {
    struct bed bed;
    size_t rows, states; /* states: numbers in those of all slots */
    float *xbc, *dt, *z, *want;
};
enum fault { NONE, STATE_DROPPED, DECAY_LATE };

/* The definition once more, a sequence at a time, with faults: the state not passed from chunk to chunk, or each row's decay
 * one row late. */
static void twin(const struct data *d, enum fault f, float *y, double *states) {
    const struct bed *bed = &d->bed;
    const struct shape *s = bed->s;
    for (size_t q = 0, row = 0; q < SEQS; row += lengths[q++])
        for (size_t i = 0; i < bed->inner; i++) {
            size_t h = i / s->head_dim, g = h / (s->heads / s->groups);
            double *own = states + (slots[q] * bed->inner + i) * s->n, late = 0;
            if (pasts[q] == 0) memset(own, 0, s->n * sizeof *own);
            for (size_t t = 0; t < lengths[q]; t++) {
                const float *x = d->xbc + (row + t) * bed->wide + BED_BEFORE, *b = x + bed->inner + g * s->n,
                            *c = b + bed->bc;
                double v = (double)d->dt[(row + t) * s->heads + h] + (s->bias ? (double)bed->bias[h] : 0),
                       step = fmin(fmax(v > 30 ? v : log1p(exp(v)), (double)BED_DT_MIN), BED_DT_MAX), sum = 0,
                       decay = exp((double)bed->a[h] * (f == DECAY_LATE ? late : step));
                late = step;
                for (size_t k = 0; k < s->n; k++) {
                    double past = f == STATE_DROPPED && t % PL_SSM_CHUNK == 0 ? 0 : own[k];
                    own[k] = decay * past + step * (double)x[i] * (double)b[k];
                    sum += own[k] * (double)c[k];
                }
                if (s->skip) sum += (double)bed->skip[h] * (double)x[i];
                double z = (double)d->z[(row + t) * bed->inner + i];
                y[(row + t) * bed->inner + i] = (float)(s->gate ? sum * z / (1 + exp(-z)) : sum);
            }
        }
}

static void reference(struct data *d) {
    const struct bed *b = &d->bed;
    for (size_t q = 0, row = 0; q < SEQS; row += lengths[q++])
        bed_reference(b, slots[q], pasts[q] == 0, lengths[q], d->xbc + row * b->wide, d->dt + row * b->s->heads,
                      d->z + row * b->inner, d->want + row * b->inner);
}

static struct data data_make(const struct shape *s) {
    struct data d = {.bed = bed_make(s, SLOTS, 11)};
    d.states = SLOTS * d.bed.inner * s->n;
    for (size_t q = 0; q < SEQS; q++) d.rows += lengths[q];
    d.xbc = kit_random(d.rows * d.bed.wide, 1), d.dt = kit_random(d.rows * s->heads, 3);
    d.z = kit_random(d.rows * d.bed.inner, 3), d.want = kit_random(d.rows * d.bed.inner, 0);
    /* Steps at both ends of the clip; after the large ones sums of exponents are large and their differences must be good.
     */
    for (size_t h = 0; h < s->heads; h++)
        d.dt[5 * s->heads + h] = d.dt[150 * s->heads + h] = 40, d.dt[20 * s->heads + h] = -50;
    return d;
}
static void data_free(struct data *d) {
    bed_free(&d->bed);
    free(d->xbc), free(d->dt), free(d->z), free(d->want);
}

static double apart(const struct data *d, const float *y, const float *want, bool one_row) {
    double most = 0;
    for (size_t q = 0, row = 0; q < SEQS; row += lengths[q++])
        for (size_t i = row * d->bed.inner; (lengths[q] < SPLIT) == one_row && i < (row + lengths[q]) * d->bed.inner; i++) {
            double off = fabs((double)y[i] - (double)want[i]) / (1 + fabs((double)want[i]));
            most = fmax(most, isnan(y[i]) ? INFINITY : off);
        }
    return most;
}

/* Leaves y [rows, inner] and the states of all slots. */
static void run(const struct data *d, bool by_chunks, float **y, float **states) {
    const struct bed *b = &d->bed;
    const struct shape *s = b->s;
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
    struct bed_buffers u = bed_up(b, d->rows, d->xbc, d->dt, d->z, seqs, SEQS);
    struct pl_device_buffer bs = kit_up(b->state, SLOTS * b->stride * 4),
                            dots = kit_out(d->rows * s->groups * PL_SSM_CHUNK * 4),
                            steps = kit_out(d->rows * 3 * s->heads * 4);
    struct pl_launch_ssm l = bed_launch(b, &u, &bs, SEQS);
    l.split = by_chunks ? SPLIT : 0;
    if (by_chunks) {
        CHECK(pl_launch_ssm_dots(&ks, &chunks.dots, &l, &dots, &steps, 3 * PL_SSM_CHUNK));
        CHECK(pl_launch_ssm_chunks(&ks, &chunks.scan, &l, &dots, &steps));
    }
    CHECK(pl_launch_ssm(&ks, &walk, &l)); /* what is left, or all */
    *y = kit_down(&u.y), *states = kit_down(&bs);
    kit_drop(&dots), kit_drop(&steps);
    bed_drop(&u);
    pl_kernel_free(&ks, &chunks.dots), pl_kernel_free(&ks, &chunks.scan), pl_kernel_free(&ks, &walk);
}

/* Relative to 1 + |value|; the token by token form of the same test has 2e-5 and 1e-5. */
static const double y_limit = 2e-5, state_limit = 1e-5;

static void one_shape(const struct shape *s) {
    struct data d = data_make(s);
    float *y, *states, *other_y, *other_states, *wrong = kit_random(d.rows * d.bed.inner, 0);
    double *scratch = malloc(d.states * sizeof *scratch);
    memcpy(scratch, d.bed.exact, d.states * sizeof *scratch);
    run(&d, true, &y, &states);
    run(&d, false, &other_y, &other_states);
    reference(&d);
    double off = fmax(apart(&d, y, d.want, false), apart(&d, y, d.want, true)), state_off = bed_states_apart(&d.bed, states);
    print_message("# %u heads of %u, state %u: %.1e from the reference, the state %.1e; token by token %.1e, %.1e\n",
                  s->heads, s->head_dim, s->n, off, state_off, apart(&d, other_y, d.want, false),
                  bed_states_apart(&d.bed, other_states));
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
