/* ssm_bed - a state-space layer's recurrence as the tests of its kernels set it up: x, B and C are columns of one
 * activation, as Mamba-2 has them, three others stand before them, and of a slot the recurrence's values come last. */
#ifndef TESTS_KERNELS_SSM_BED_H
#define TESTS_KERNELS_SSM_BED_H

#include "kit.h"

#include "ops/ssm.h"

enum { BED_BEFORE = 3 };
#define BED_DT_MIN 0.01f
#define BED_DT_MAX 20

struct shape {
    uint32_t heads, head_dim, groups, n;
    bool bias, skip, gate, full; /* full: Mamba's, a decay for each value of the state */
};
struct bed {
    const struct shape *s;
    size_t inner, bc, wide, stride, first, slots; /* wide: columns of x, B and C; first: values of a slot before the state */
    float *a, *bias, *skip;
    float *state;  /* [slots, stride] */
    double *exact; /* [slots, inner, n]: the states alone, for the reference */
};

static struct bed bed_make(const struct shape *s, size_t slots, size_t first) {
    struct bed b = {.s = s, .inner = (size_t)s->heads * s->head_dim, .bc = (size_t)s->groups * s->n, .first = first};
    size_t decays = s->full ? s->heads * s->n : s->heads;
    b.wide = b.inner + BED_BEFORE + 2 * b.bc, b.stride = first + b.inner * s->n, b.slots = slots;
    b.a = kit_random(decays, 1), b.bias = kit_random(s->heads, 1), b.skip = kit_random(s->heads, 1);
    for (size_t i = 0; i < decays; i++) b.a[i] -= 1.1f;
    b.state = kit_random(slots * b.stride, 1);
    b.exact = malloc(slots * b.inner * s->n * sizeof *b.exact);
    for (size_t i = 0; i < slots; i++)
        for (size_t k = 0; k < b.inner * s->n; k++)
            b.exact[i * b.inner * s->n + k] = (double)b.state[i * b.stride + first + k];
    return b;
}
static void bed_free(struct bed *b) { free(b->a), free(b->bias), free(b->skip), free(b->state), free(b->exact); }

/* src/ref over rows of one sequence: xbc [rows, wide], dt [rows, heads], z and want [rows, inner]; fresh: without a past. */
static void bed_reference(const struct bed *b, size_t slot, bool fresh, size_t rows, const float *xbc, const float *dt,
                          const float *z, float *want) {
    const struct shape *s = b->s;
    const size_t widths[] = {b->inner, b->bc, b->bc};
    float *parts[3];
    double *own = b->exact + slot * b->inner * s->n;
    for (size_t k = 0, at = BED_BEFORE; k < 3; at += widths[k++]) {
        parts[k] = malloc(rows * widths[k] * sizeof(float));
        for (size_t t = 0; t < rows; t++)
            memcpy(parts[k] + t * widths[k], xbc + t * b->wide + at, widths[k] * sizeof(float));
    }
    if (fresh) memset(own, 0, b->inner * s->n * sizeof *own);
    const struct pl_ref_ssm ref = {.rows = rows,
                                   .heads = s->heads,
                                   .head_dim = s->head_dim,
                                   .groups = s->groups,
                                   .state = s->n,
                                   .full = s->full,
                                   .a = b->a,
                                   .dt_bias = s->bias ? b->bias : NULL,
                                   .skip = s->skip ? b->skip : NULL,
                                   .x = parts[0],
                                   .b = parts[1],
                                   .c = parts[2],
                                   .dt = dt,
                                   .z = s->gate ? z : NULL,
                                   .dt_min = (double)BED_DT_MIN,
                                   .dt_max = BED_DT_MAX};
    pl_ref_ssm(&ref, own, want);
    for (size_t k = 0; k < 3; k++) free(parts[k]);
}

/* Everything on the device but the states, which stay from launch to launch. */
struct bed_buffers {
    struct pl_device_buffer xbc, dt, z, y, seqs, a, bias, skip;
};
static struct bed_buffers bed_up(const struct bed *b, size_t rows, const float *xbc, const float *dt, const float *z,
                                 const uint32_t *seqs, size_t seq_count) {
    const struct shape *s = b->s;
    return (struct bed_buffers){.xbc = kit_up(xbc, rows * b->wide * 4),
                                .dt = kit_up(dt, rows * s->heads * 4),
                                .z = kit_up(z, rows * b->inner * 4),
                                .y = kit_out(rows * b->inner * 4),
                                .seqs = kit_up(seqs, seq_count * PL_SEQ_WORDS * 4),
                                .a = kit_up(b->a, (s->full ? s->heads * s->n : s->heads) * 4),
                                .bias = kit_up(b->bias, s->heads * 4),
                                .skip = kit_up(b->skip, s->heads * 4)};
}
static void bed_drop(struct bed_buffers *u) { /* all but y, which kit_down frees */
    struct pl_device_buffer *all[] = {&u->xbc, &u->dt, &u->z, &u->seqs, &u->a, &u->bias, &u->skip};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) kit_drop(all[i]);
}
static struct pl_launch_ssm bed_launch(const struct bed *b, struct bed_buffers *u, struct pl_device_buffer *state,
                                       uint32_t seq_count) {
    const struct shape *s = b->s;
    return (struct pl_launch_ssm){.x = &u->xbc,
                                  .b = &u->xbc,
                                  .c = &u->xbc,
                                  .dt = &u->dt,
                                  .z = s->gate ? &u->z : NULL,
                                  .a = &u->a,
                                  .dt_bias = s->bias ? &u->bias : NULL,
                                  .skip = s->skip ? &u->skip : NULL,
                                  .state = state,
                                  .seqs = &u->seqs,
                                  .y = &u->y,
                                  .heads = s->heads,
                                  .head_dim = s->head_dim,
                                  .groups = s->groups,
                                  .n = s->n,
                                  .x_stride = (uint32_t)b->wide,
                                  .b_stride = (uint32_t)b->wide,
                                  .c_stride = (uint32_t)b->wide,
                                  .x_first = BED_BEFORE,
                                  .b_first = (uint32_t)(BED_BEFORE + b->inner),
                                  .c_first = (uint32_t)(BED_BEFORE + b->inner + b->bc),
                                  .dt_min = BED_DT_MIN,
                                  .dt_max = BED_DT_MAX,
                                  .seq_count = seq_count,
                                  .slot_stride = b->stride,
                                  .state_first = b->first};
}

/* The farthest value of any slot from what it must be, relative to 1 + |value|: states as the reference left them, what
 * stands before them as it was. */
static double bed_states_apart(const struct bed *b, const float *got) {
    double most = 0;
    for (size_t i = 0; i < b->slots; i++)
        for (size_t k = 0; k < b->stride; k++) {
            double want =
                       k < b->first ? (double)b->state[i * b->stride + k] : b->exact[i * b->inner * b->s->n + k - b->first],
                   off = fabs((double)got[i * b->stride + k] - want) / (1 + fabs(want));
            most = fmax(most, isnan(off) ? INFINITY : off);
        }
    return most;
}

#endif
