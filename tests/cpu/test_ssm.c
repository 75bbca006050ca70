/* State-space kernels against src/ref: shapes with odd tails, states carried over any chunks bit for bit, neighbours and
 * threads that change nothing, fresh states that are zeros whatever the memory holds, and faults that must be seen. */
#include "tests/cpu/support.h"

#include "cpu/ssm.h"

enum { ROWS = 23 };

struct shape {
    size_t heads, head_dim, groups, state;
    bool full;
};
/* Mamba; with a tail; Mamba-2; groups; a head that is no multiple of four; large. */
static const struct shape shapes[] = {{70, 1, 1, 16, true},  {64, 1, 1, 12, true}, {4, 64, 1, 128, false},
                                      {8, 16, 2, 20, false}, {6, 7, 3, 5, false},  {3, 256, 1, 256, false}};

/* One sequence's inputs and what comes out of them. */
struct run {
    const struct shape *s;
    float *a, *bias, *skip, *x, *b, *c, *dt, *z;
    size_t inner, bc, states;
};

static float *random_floats(uint64_t *seed, size_t n, float scale, float offset) {
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++) v[i] = rng_uniform(seed) * scale + offset;
    return v;
}

static struct run run_make(const struct shape *s) {
    uint64_t seed = s->heads * 31 + s->state;
    struct run r = {.s = s, .inner = s->heads * s->head_dim, .bc = s->groups * s->state};
    r.states = r.inner * s->state;
    r.a = random_floats(&seed, s->full ? s->heads * s->state : s->heads, 1, -1.1f);
    r.bias = random_floats(&seed, s->heads, 1, -1);
    r.skip = random_floats(&seed, s->heads, 1, 0);
    r.x = random_floats(&seed, ROWS * r.inner, 2, 0);
    r.b = random_floats(&seed, ROWS * r.bc, 1, 0);
    r.c = random_floats(&seed, ROWS * r.bc, 1, 0);
    r.dt = random_floats(&seed, ROWS * s->heads, 3, 0);
    r.z = random_floats(&seed, ROWS * r.inner, 3, 0);
    r.dt[0] = 40, r.dt[1] = -60; /* softplus: itself, and nearly nothing */
    return r;
}
static void run_free(struct run *r) {
    float *all[] = {r->a, r->bias, r->skip, r->x, r->b, r->c, r->dt, r->z};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static struct pl_cpu_ssm args(const struct run *r, const struct pl_cpu_state_seq *seqs, size_t count, float *y) {
    const struct shape *s = r->s;
    return (struct pl_cpu_ssm){.seq_count = count,
                               .seqs = seqs,
                               .heads = s->heads,
                               .head_dim = s->head_dim,
                               .groups = s->groups,
                               .state = s->state,
                               .full = s->full,
                               .a = r->a,
                               .dt_bias = r->bias,
                               .skip = r->skip,
                               .dt_min = 0.01f,
                               .dt_max = 30,
                               .x = r->x,
                               .b = r->b,
                               .c = r->c,
                               .dt = r->dt,
                               .z = r->z,
                               .x_stride = r->inner,
                               .b_stride = r->bc,
                               .c_stride = r->bc,
                               .dt_stride = s->heads,
                               .z_stride = r->inner,
                               .y = y,
                               .y_stride = r->inner};
}

/* All rows in chunks; the state is poisoned before. */
static void run_chunks(struct pl_cpu *c, const struct run *r, size_t chunk, float *state, float *y) {
    for (size_t i = 0; i < r->states; i++) state[i] = POISON;
    for (size_t done = 0; done < ROWS; done += chunk) {
        struct pl_cpu_state_seq seq = {
            .first_row = done, .rows = PL_MIN(chunk, ROWS - done), .fresh = done == 0, .ssm = state};
        struct pl_cpu_ssm p = args(r, &seq, 1, y);
        pl_cpu_ssm(c, &p);
    }
}

static void reference(const struct run *r, bool gated, float *y, double *state) {
    const struct shape *s = r->s;
    struct pl_ref_ssm p = {.rows = ROWS,
                           .heads = s->heads,
                           .head_dim = s->head_dim,
                           .groups = s->groups,
                           .state = s->state,
                           .full = s->full,
                           .a = r->a,
                           .dt_bias = r->bias,
                           .skip = r->skip,
                           .x = r->x,
                           .b = r->b,
                           .c = r->c,
                           .dt = r->dt,
                           .z = gated ? r->z : NULL,
                           .dt_min = (double)0.01f,
                           .dt_max = 30};
    memset(state, 0, r->states * sizeof *state);
    pl_ref_ssm(&p, state, y);
}

/* Largest difference over the largest value. */
static double distance(const float *got, const float *want, size_t n) {
    double diff = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        diff = fmax(diff, isnan(got[i]) ? INFINITY : fabs((double)got[i] - (double)want[i]));
        top = fmax(top, fabs((double)want[i]));
    }
    return diff / top;
}

static void scan_of(enum pl_isa isa, const struct shape *s) {
    struct run r = run_make(s);
    struct pl_cpu *one = cpu_make(isa, 1), *three = cpu_make(isa, 3);
    struct guarded y = guarded_make(ROWS * r.inner), other = guarded_make(ROWS * r.inner), state = guarded_make(r.states),
                   other_state = guarded_make(r.states);
    float *want = calloc(ROWS, r.inner * sizeof *want);
    double *want_state = calloc(r.inner, s->state * sizeof *want_state);
    reference(&r, true, want, want_state);
    run_chunks(one, &r, ROWS, state.x, y.x);
    double d = distance(y.x, want, ROWS * r.inner), far = 0;
    for (size_t i = 0; i < r.states; i++)
        far = fmax(far, fabs((double)state.x[i] - want_state[i]) / (1 + fabs(want_state[i])));
    if (!(d < 2e-6) || !(far < 2e-6))
        fail_msg("%s, %zu heads of %zu, state %zu: %g from the reference, the state %g", pl_isa_name(isa), s->heads,
                 s->head_dim, s->state, d, far);
    const size_t chunks[] = {1, 2, 5, 22};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        run_chunks(i % 2 == 0 ? three : one, &r, chunks[i], other_state.x, other.x);
        assert_memory_equal(other.x, y.x, ROWS * r.inner * sizeof(float));
        assert_memory_equal(other_state.x, state.x, r.states * sizeof(float));
    }
    /* What must not pass: the reference without its gate. */
    reference(&r, false, want, want_state);
    assert_true(distance(y.x, want, ROWS * r.inner) > 1e-2);
    guarded_free(&y), guarded_free(&other), guarded_free(&state), guarded_free(&other_state);
    free(want), free(want_state);
    pl_cpu_destroy(one), pl_cpu_destroy(three);
    run_free(&r);
}
static void scans_equal_the_reference(void **unused) {
    (void)unused;
    FOR_EACH_ISA(isa)
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) scan_of(isa, &shapes[i]);
}

/* Rows 0-8 as one sequence, 9 alone, 10-22 as a third, against each by itself. */
static void neighbours_do_not_matter(void **unused) {
    (void)unused;
    FOR_EACH_ISA(isa) {
        struct run r = run_make(&shapes[3]);
        struct pl_cpu *c = cpu_make(isa, 2);
        const size_t first[] = {0, 9, 10, ROWS};
        float *y = calloc(ROWS * r.inner, sizeof *y), *alone = calloc(ROWS * r.inner, sizeof *alone),
              *state = calloc(6 * r.states, sizeof *state);
        struct pl_cpu_state_seq seqs[6];
        for (size_t i = 0; i < 6; i++) {
            size_t k = i % 3;
            for (size_t n = 0; n < r.states; n++) state[i * r.states + n] = (float)(n % 7) * 0.1f;
            seqs[i] = (struct pl_cpu_state_seq){
                .first_row = first[k], .rows = first[k + 1] - first[k], .fresh = k == 2, .ssm = state + i * r.states};
        }
        struct pl_cpu_ssm p = args(&r, seqs, 3, y);
        pl_cpu_ssm(c, &p);
        for (size_t i = 3; i < 6; i++) {
            p = args(&r, &seqs[i], 1, alone);
            pl_cpu_ssm(c, &p);
        }
        assert_memory_equal(y, alone, ROWS * r.inner * sizeof *y);
        assert_memory_equal(state, state + 3 * r.states, 3 * r.states * sizeof *state);
        free(y), free(alone), free(state);
        pl_cpu_destroy(c);
        run_free(&r);
    }
}

static void conv_of(enum pl_isa isa, size_t channels, size_t kernel, bool bias, bool silu) {
    uint64_t seed = channels + kernel;
    float *w = random_floats(&seed, kernel * channels, 1, 0), *b = random_floats(&seed, channels, 1, 0),
          *x = random_floats(&seed, ROWS * channels, 2, 0), *want = malloc(ROWS * channels * sizeof *want),
          *want_state = calloc((kernel - 1) * channels, sizeof *want_state);
    struct pl_cpu *c = cpu_make(isa, 2);
    pl_ref_causal_conv(w, bias ? b : NULL, channels, kernel, silu, x, ROWS, want_state, want);
    const size_t chunks[] = {ROWS, 1, 2, 3, 7};
    struct guarded y = guarded_make(ROWS * channels), state = guarded_make((kernel - 1) * channels);
    float *first = malloc(ROWS * channels * sizeof *first);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        for (size_t done = 0; done < ROWS; done += chunks[i]) {
            struct pl_cpu_state_seq seq = {
                .first_row = done, .rows = PL_MIN(chunks[i], ROWS - done), .fresh = done == 0, .conv = state.x};
            struct pl_cpu_conv p = {.seq_count = 1,
                                    .channels = channels,
                                    .kernel = kernel,
                                    .seqs = &seq,
                                    .w = w,
                                    .bias = bias ? b : NULL,
                                    .silu = silu,
                                    .x = x,
                                    .x_stride = channels,
                                    .y = y.x,
                                    .y_stride = channels};
            pl_cpu_causal_conv(c, &p);
        }
        double d = distance(y.x, want, ROWS * channels);
        if (!(d < 1e-6)) fail_msg("%s, %zu channels, %zu taps: %g", pl_isa_name(isa), channels, kernel, d);
        assert_memory_equal(state.x, want_state, (kernel - 1) * channels * sizeof(float));
        if (i == 0) memcpy(first, y.x, ROWS * channels * sizeof *first);
        assert_memory_equal(y.x, first, ROWS * channels * sizeof *first);
    }
    /* What must not pass: taps in the other order. */
    for (size_t k = 0; k < kernel / 2; k++)
        for (size_t i = 0; i < channels; i++) {
            float t = w[k * channels + i];
            w[k * channels + i] = w[(kernel - 1 - k) * channels + i];
            w[(kernel - 1 - k) * channels + i] = t;
        }
    memset(want_state, 0, (kernel - 1) * channels * sizeof *want_state);
    pl_ref_causal_conv(w, bias ? b : NULL, channels, kernel, silu, x, ROWS, want_state, want);
    assert_true(distance(first, want, ROWS * channels) > 1e-2);
    guarded_free(&y), guarded_free(&state);
    free(w), free(b), free(x), free(want), free(want_state), free(first);
    pl_cpu_destroy(c);
}
static void convolutions_equal_the_reference(void **unused) {
    (void)unused;
    FOR_EACH_ISA(isa) {
        conv_of(isa, 200, 4, true, true);
        conv_of(isa, 13, 3, false, true);
        conv_of(isa, 64, 8, true, false);
        conv_of(isa, 1, 2, false, false);
    }
}

static void norm_of(enum pl_isa isa, size_t cols, size_t groups, bool gate, bool norm_first) {
    uint64_t seed = cols + groups;
    float *x = random_floats(&seed, ROWS * cols, 3, 0), *z = random_floats(&seed, ROWS * cols, 3, 0),
          *w = random_floats(&seed, cols, 1, 0.5f), *want = malloc(ROWS * cols * sizeof *want);
    struct pl_cpu *c = cpu_make(isa, 2);
    struct guarded y = guarded_make(ROWS * cols);
    struct pl_cpu_gated_norm p = {.rows = ROWS,
                                  .cols = cols,
                                  .groups = groups,
                                  .x = x,
                                  .z = gate ? z : NULL,
                                  .w = w,
                                  .x_stride = cols,
                                  .z_stride = cols,
                                  .norm_first = norm_first,
                                  .eps = 1e-5f,
                                  .y = y.x,
                                  .y_stride = cols};
    pl_cpu_gated_norm(c, &p);
    for (size_t r = 0; r < ROWS; r++)
        pl_ref_gated_norm(x + r * cols, p.z != NULL ? z + r * cols : NULL, w, cols, groups, (double)1e-5f, norm_first,
                          want + r * cols);
    double d = distance(y.x, want, ROWS * cols);
    if (!(d < 1e-6)) fail_msg("%s, %zu columns in %zu groups: %g", pl_isa_name(isa), cols, groups, d);
    if (gate) { /* the other order is another result */
        for (size_t r = 0; r < ROWS; r++)
            pl_ref_gated_norm(x + r * cols, z + r * cols, w, cols, groups, (double)1e-5f, !norm_first, want + r * cols);
        assert_true(distance(y.x, want, ROWS * cols) > 1e-2);
    }
    p.y = x; /* in place */
    pl_cpu_gated_norm(c, &p);
    assert_memory_equal(x, y.x, ROWS * cols * sizeof *x);
    guarded_free(&y);
    free(x), free(z), free(w), free(want);
    pl_cpu_destroy(c);
}
static void gated_norms_equal_the_reference(void **unused) {
    (void)unused;
    FOR_EACH_ISA(isa) {
        norm_of(isa, 256, 1, true, false);
        norm_of(isa, 120, 8, true, false);
        norm_of(isa, 120, 4, true, true);
        norm_of(isa, 33, 3, false, false);
    }
}

/* --- the gated delta rule --- */

struct rule {
    size_t heads, head_dim, groups, state;
    bool in_turn;
};
static const struct rule rules[] = {
    {4, 8, 2, 12, false}, {6, 33, 3, 5, true}, {2, 128, 1, 128, false}, {4, 100, 2, 256, false}};

static void rule_of(enum pl_isa isa, const struct rule *s) {
    uint64_t seed = s->heads * 17 + s->state;
    size_t keys = s->groups * s->state, inner = s->heads * s->head_dim, cols = 2 * keys + inner, states = inner * s->state;
    float *x = random_floats(&seed, ROWS * cols, 2, 0), *dt = random_floats(&seed, ROWS * s->heads, 3, 0),
          *beta = random_floats(&seed, ROWS * s->heads, 3, 0), *a = random_floats(&seed, s->heads, 1, -1.1f),
          *bias = random_floats(&seed, s->heads, 1, -1), *state = malloc(2 * states * sizeof *state),
          *want = malloc(ROWS * inner * sizeof *want), *parts[3], *first = malloc(ROWS * inner * sizeof *first);
    const size_t at[] = {0, keys, 2 * keys}, widths[] = {keys, keys, inner};
    double *exact = calloc(states, sizeof *exact), *other = calloc(states, sizeof *other);
    struct pl_cpu *c = cpu_make(isa, 2);
    struct guarded y = guarded_make(ROWS * inner);
    dt[0] = 40, dt[1] = -60;
    memset(x, 0, s->state * sizeof *x); /* a query of nothing */
    for (size_t k = 0; k < 3; k++) {
        parts[k] = malloc(ROWS * widths[k] * sizeof(float));
        for (size_t t = 0; t < ROWS; t++) memcpy(parts[k] + t * widths[k], x + t * cols + at[k], widths[k] * sizeof(float));
    }
    struct pl_ref_delta ref = {ROWS, s->heads, s->head_dim, s->groups, s->state, s->in_turn, a,
                               bias, parts[0], parts[1],    parts[2],  dt,       beta};
    pl_ref_delta(&ref, exact, want);
    static const size_t chunks[] = {ROWS, 5, 1};
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < 2 * states; i++) state[i] = POISON;
        for (size_t done = 0; done < ROWS; done += chunks[k]) {
            struct pl_cpu_state_seq seq = {
                .first_row = done, .rows = PL_MIN(chunks[k], ROWS - done), .fresh = done == 0, .ssm = state};
            struct pl_cpu_delta p = {.seq_count = 1,
                                     .heads = s->heads,
                                     .head_dim = s->head_dim,
                                     .groups = s->groups,
                                     .state = s->state,
                                     .seqs = &seq,
                                     .in_turn = s->in_turn,
                                     .a = a,
                                     .dt_bias = bias,
                                     .q = x,
                                     .k = x + keys,
                                     .v = x + 2 * keys,
                                     .dt = dt,
                                     .beta = beta,
                                     .x_stride = cols,
                                     .dt_stride = s->heads,
                                     .beta_stride = s->heads,
                                     .y = y.x,
                                     .y_stride = inner};
            pl_cpu_delta(c, &p);
        }
        double d = distance(y.x, want, ROWS * inner), off = 0;
        for (size_t i = 0; i < states; i++) off = fmax(off, fabs((double)state[i] - exact[i]) / (1 + fabs(exact[i])));
        if (!(d < 3e-6) || !(off < 1e-5))
            fail_msg("%s, heads of %zu, %zu: %g, states %g", pl_isa_name(isa), s->head_dim, s->state, d, off);
        for (size_t i = states; i < 2 * states; i++) assert_true(state[i] == POISON);
        if (k == 0) memcpy(first, y.x, ROWS * inner * sizeof *first);
        assert_memory_equal(first, y.x, ROWS * inner * sizeof *first); /* whatever the chunks */
    }
    if (s->groups > 1) { /* another key head is another result */
        ref.in_turn = !s->in_turn;
        pl_ref_delta(&ref, other, want);
        assert_true(distance(y.x, want, ROWS * inner) > 1e-2);
    }
    guarded_free(&y);
    for (size_t k = 0; k < 3; k++) free(parts[k]);
    free(x), free(dt), free(beta), free(a), free(bias), free(state), free(want), free(first), free(exact), free(other);
    pl_cpu_destroy(c);
}
static void the_delta_rule_equals_the_reference(void **unused) {
    (void)unused;
    FOR_EACH_ISA(isa) {
        for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) rule_of(isa, &rules[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scans_equal_the_reference),           cmocka_unit_test(neighbours_do_not_matter),
        cmocka_unit_test(convolutions_equal_the_reference),    cmocka_unit_test(gated_norms_equal_the_reference),
        cmocka_unit_test(the_delta_rule_equals_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
