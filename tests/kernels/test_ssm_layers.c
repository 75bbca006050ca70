/* Mamba-2 layers of one token in one launch (kernels/cuda/ssm_layers.k.c) against a reference in double: x and every state
 * after three tokens, the first without a past, other slots as they were, each run twice and bit for bit, one launch
 * counted. Taps in the other order are seen. Runs on sm_90 and up; elsewhere it is declined, which is checked.
 *
 * test-variants: release
 * test-timeout: 300 */
#include "kit.h"

#include "ops/cuda_layers.h"

enum { LAYERS = 3, SLOTS = 2, SLOT = 1, STEPS = 3, HEAD = 64, VECTORS = 8 };
struct shape {
    size_t width, n, taps;
    enum pl_dtype type;
    bool conv_bias, dt_bias, skip;
};
static const struct shape shapes[] = {{1024, 128, 4, PL_BF16, true, true, true},
                                      {512, 256, 3, PL_F16, false, false, false},
                                      {2560, 128, 4, PL_BF16, true, true, true}};
struct sizes {
    size_t width, inner, heads, channels, n, taps, conv, stride;
};
/* Of a layer: matrices z, x, dt, out as floats of the type's values, vectors in the order of the launch's table, its state.
 */
struct layer {
    float *m[4], *v[VECTORS];
    double *state;
};
enum { NORM, INNER_NORM, TAPS, TAPS_BIAS, DECAY, DT_BIAS, SKIP, STATE };

static struct sizes sizes_of(const struct shape *s) {
    struct sizes z = {.width = s->width, .inner = 2 * s->width, .heads = 2 * s->width / HEAD, .n = s->n, .taps = s->taps};
    z.channels = z.inner + 2 * z.n, z.conv = (z.taps - 1) * z.channels, z.stride = z.conv + z.inner * z.n;
    return z;
}
static uint16_t narrow(float v, enum pl_dtype t) { return t == PL_BF16 ? pl_f32_to_bf16(v) : pl_f32_to_f16(v); }
static float widened(uint16_t v, enum pl_dtype t) { return t == PL_BF16 ? pl_bf16_to_f32(v) : pl_f16_to_f32(v); }

/* --- the reference --- */

static double silu(double v) { return v / (1 + exp(-v)); }
static double *normed(const double *x, const float *w, size_t n, double eps, double offset) {
    double square = 0, *y = malloc(n * sizeof *y);
    for (size_t i = 0; i < n; i++) square += x[i] * x[i];
    for (size_t i = 0; i < n; i++) y[i] = x[i] / sqrt(square / (double)n + eps) * (offset + (double)w[i]);
    return y;
}
static double *multiplied(const float *m, size_t out, size_t in, const double *x) {
    double *y = calloc(out, sizeof *y);
    for (size_t o = 0; o < out; o++)
        for (size_t i = 0; i < in; i++) y[o] += (double)m[o * in + i] * x[i];
    return y;
}
static void convolve(const struct sizes *z, const struct shape *s, const struct layer *l, bool turned, double *past,
                     const double *in, double *made) {
    for (size_t c = 0; c < z->channels; c++) {
        double sum = s->conv_bias ? (double)l->v[TAPS_BIAS][c] : 0;
        for (size_t k = 0; k < z->taps; k++)
            sum += (double)l->v[TAPS][(turned ? z->taps - 1 - k : k) * z->channels + c] *
                   (k + 1 < z->taps ? past[k * z->channels + c] : in[c]);
        made[c] = silu(sum);
        for (size_t k = 0; k + 2 < z->taps; k++) past[k * z->channels + c] = past[(k + 1) * z->channels + c];
        past[(z->taps - 2) * z->channels + c] = in[c];
    }
}
static void reference(const struct sizes *z, const struct shape *s, const struct layer *l, bool turned, double *slot,
                      double *x) {
    double *h = normed(x, l->v[NORM], z->width, 1e-5, 0.25), *gate = multiplied(l->m[0], z->inner, z->width, h),
           *in = multiplied(l->m[1], z->channels, z->width, h), *dt = multiplied(l->m[2], z->heads, z->width, h),
           *made = malloc(z->channels * sizeof *made), *y = calloc(z->inner, sizeof *y);
    convolve(z, s, l, turned, slot, in, made);
    for (size_t i = 0; i < z->inner; i++) {
        size_t head = i / HEAD;
        double v = dt[head] + (s->dt_bias ? (double)l->v[DT_BIAS][head] : 0), step = fmin(fmax(log1p(exp(v)), 0.01), 20);
        double keep = exp(step * (double)l->v[DECAY][head]), *own = slot + z->conv + i * z->n;
        y[i] = s->skip ? (double)l->v[SKIP][head] * made[i] : 0;
        for (size_t k = 0; k < z->n; k++) {
            own[k] = keep * own[k] + step * made[i] * made[z->inner + k];
            y[i] += own[k] * made[z->inner + z->n + k];
        }
        y[i] *= silu(gate[i]);
    }
    double *g = normed(y, l->v[INNER_NORM], z->inner, 2e-5, 0.5), *out = multiplied(l->m[3], z->width, z->inner, g);
    for (size_t i = 0; i < z->width; i++) x[i] += out[i];
    free(h), free(gate), free(in), free(dt), free(made), free(y), free(g), free(out);
}
static double apart(const float *got, const double *want, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double off = fabs((double)got[i] - want[i]) / (1 + fabs(want[i]));
        most = fmax(most, isnan(off) ? INFINITY : off);
    }
    return most;
}

/* --- on the device --- */

struct bed {
    struct pl_device_weight w[LAYERS][4];
    struct pl_device_buffer v[LAYERS][VECTORS], x, cx, dt, y, seqs, table, meet;
    struct pl_layer_launches l[LAYERS];
};
static void layer_make(const struct sizes *z, const struct shape *s, struct layer *l, struct pl_device_weight *w,
                       struct pl_device_buffer *v) {
    const size_t rows[4] = {z->inner, z->channels, z->heads, z->width}, cols[4] = {z->width, z->width, z->width, z->inner};
    const size_t lengths[VECTORS] = {z->width, z->inner, z->taps * z->channels, z->channels, z->heads,
                                     z->heads, z->heads, SLOTS * z->stride};
    for (int i = 0; i < 4; i++) {
        size_t n = rows[i] * cols[i];
        uint16_t *packed = malloc(n * sizeof *packed);
        l->m[i] = kit_random(n, 2 / sqrtf((float)cols[i]));
        for (size_t k = 0; k < n; k++) packed[k] = narrow(l->m[i][k], s->type), l->m[i][k] = widened(packed[k], s->type);
        w[i] = (struct pl_device_weight){.dtype = s->type, .rows = rows[i], .cols = cols[i], .row_bytes = 2 * cols[i]};
        w[i].data = kit_up(packed, n * sizeof *packed);
        free(packed);
    }
    for (int i = 0; i < VECTORS; i++) {
        l->v[i] = kit_random(lengths[i], 1);
        for (size_t k = 0; k < lengths[i] && i == DECAY; k++) l->v[i][k] -= 1.1f;
        v[i] = kit_up(l->v[i], lengths[i] * sizeof(float));
    }
    l->state = malloc(lengths[STATE] * sizeof *l->state);
    for (size_t k = 0; k < lengths[STATE]; k++) l->state[k] = (double)l->v[STATE][k];
}
static void launches_make(const struct sizes *z, const struct shape *s, struct bed *b) {
    for (int i = 0; i < LAYERS; i++) {
        struct pl_device_weight *w = b->w[i];
        struct pl_device_buffer *v = b->v[i];
        b->l[i] = (struct pl_layer_launches){
            .in = {.count = 3,
                   .w = {&w[0], &w[1], &w[2]},
                   .y = {&b->y, &b->cx, &b->dt},
                   .x = &b->x,
                   .norm = &v[NORM],
                   .eps = 1e-5f,
                   .offset = 0.25f},
            .out = {.count = 1,
                    .w = {&w[3]},
                    .y = {&b->x},
                    .x = &b->y,
                    .norm = &v[INNER_NORM],
                    .eps = 2e-5f,
                    .offset = 0.5f,
                    .add = true},
            .conv = {.x = &b->cx,
                     .w = &v[TAPS],
                     .bias = s->conv_bias ? &v[TAPS_BIAS] : NULL,
                     .channels = z->channels,
                     .seq_count = 1,
                     .longest = 1},
            .ssm = {.dt = &b->dt,
                    .z = &b->y,
                    .a = &v[DECAY],
                    .dt_bias = s->dt_bias ? &v[DT_BIAS] : NULL,
                    .skip = s->skip ? &v[SKIP] : NULL,
                    .state = &v[STATE],
                    .seqs = &b->seqs,
                    .y = &b->y,
                    .heads = (uint32_t)z->heads,
                    .head_dim = HEAD,
                    .groups = 1,
                    .n = (uint32_t)z->n,
                    .b_first = (uint32_t)z->inner,
                    .c_first = (uint32_t)(z->inner + z->n),
                    .dt_min = 0.01f,
                    .dt_max = 20,
                    .seq_count = 1,
                    .slot_stride = z->stride,
                    .state_first = z->conv},
            .kind = {{(uint32_t)z->n, false, s->dt_bias, s->skip, true, true}, {(uint32_t)z->taps, s->conv_bias, true}}};
    }
}
static void run(struct bed *b, struct pl_kernel *k, uint32_t step) {
    uint32_t seqs[PL_SEQ_WORDS] = {0};
    uint64_t before = 0, counted = 0;
    seqs[PL_SEQ_ROWS] = 1, seqs[PL_SEQ_PAST] = step, seqs[PL_SEQ_SLOT] = SLOT;
    CHECK(pl_device_upload(ks.device, ks.stream, &b->seqs, 0, seqs, sizeof seqs, &err));
    CHECK(pl_device_stream_wait(ks.device, ks.stream, &err));
    CHECK(pl_kernel_counted(&ks, k, &before, &err));
    CHECK(pl_launch_layers(&ks, k, b->l, LAYERS, &b->table, &b->meet));
    CHECK(pl_kernel_counted(&ks, k, &counted, &err));
    assert_int_equal(counted, before + 1);
}
static float *tokens(struct bed *b, struct pl_kernel *k, const struct sizes *z, const struct layer *l, const float *x) {
    b->x = kit_up(x, z->width * sizeof *x);
    for (int i = 0; i < LAYERS; i++)
        CHECK(pl_device_upload(ks.device, ks.stream, &b->v[i][STATE], 0, l[i].v[STATE], SLOTS * z->stride * sizeof(float),
                               &err));
    for (uint32_t step = 0; step < STEPS; step++) run(b, k, step);
    return kit_down(&b->x);
}
static void one_shape(const struct shape *s) {
    struct sizes z = sizes_of(s);
    struct layer l[LAYERS];
    struct bed b;
    struct pl_kernel k = {0};
    uint64_t table[LAYERS][PL_LAYERS_WORDS];
    uint32_t zeros[PL_CHAIN_MEET_BYTES / 4] = {0};
    float *x = kit_random(z.width, 1);
    for (int i = 0; i < LAYERS; i++) layer_make(&z, s, &l[i], b.w[i], b.v[i]);
    b.cx = kit_out(z.channels * 4), b.dt = kit_out(z.heads * 4), b.y = kit_out(z.inner * 4);
    b.seqs = kit_out(PL_SEQ_WORDS * 4), b.meet = kit_up(zeros, sizeof zeros);
    launches_make(&z, s, &b);
    assert_null(pl_layers_declines(&ks, b.l, LAYERS));
    pl_layers_fill(b.l, LAYERS, table);
    b.table = kit_up(table, sizeof table);
    CHECK(pl_kernel_layers(&ks, b.l, &k, &err));
    double *want = malloc(z.width * sizeof *want), *turned = malloc(z.width * sizeof *turned),
           *other = malloc(z.stride * sizeof *other);
    for (size_t i = 0; i < z.width; i++) want[i] = turned[i] = (double)x[i];
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < LAYERS; i++) {
            double *slot = l[i].state + SLOT * z.stride;
            if (step == 0) memset(slot, 0, z.stride * sizeof *slot);
            memcpy(other, slot, z.stride * sizeof *slot);
            if (step + 1 == STEPS) reference(&z, s, &l[i], true, other, turned);
            reference(&z, s, &l[i], false, slot, want);
        }
        if (step + 2 == STEPS) memcpy(turned, want, z.width * sizeof *want);
    }
    float *got = tokens(&b, &k, &z, l, x), *again = tokens(&b, &k, &z, l, x);
    double off = apart(got, want, z.width), states = 0;
    assert_memory_equal(got, again, z.width * sizeof *got);
    for (int i = 0; i < LAYERS; i++) {
        float *state = kit_down(&b.v[i][STATE]);
        states = fmax(states, apart(state, l[i].state, SLOTS * z.stride));
        free(state);
    }
    print_message("# %s, %zu, state %zu: x %.1e, states %.1e from the reference\n", k.name, z.width, z.n, off, states);
    assert_true(off < 1e-4 && states < 1e-4);
    assert_true(apart(got, turned, z.width) > 1e-2);
    for (int i = 0; i < LAYERS; i++) {
        for (int j = 0; j < 4; j++) kit_drop(&b.w[i][j].data), free(l[i].m[j]);
        for (int j = 0; j < VECTORS; j++) free(l[i].v[j]);
        for (int j = 0; j < STATE; j++) kit_drop(&b.v[i][j]);
        free(l[i].state);
    }
    struct pl_device_buffer *rest[] = {&b.cx, &b.dt, &b.y, &b.seqs, &b.meet, &b.table};
    for (size_t i = 0; i < PL_COUNT_OF(rest); i++) kit_drop(rest[i]);
    free(x), free(got), free(again), free(want), free(turned), free(other);
    pl_kernel_free(&ks, &k);
}

static void all_shapes(void) {
    if (pl_cuda_capability(&ks) < 90) {
        const struct pl_layer_launches none[1] = {0};
        assert_non_null(pl_layers_declines(&ks, none, 1));
        return;
    }
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++)
        if (i < 2 || !test_small()) one_shape(&shapes[i]);
}
static void layers_equal_the_reference(void **state) {
    (void)state;
    kit_each(all_shapes);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_equal_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
