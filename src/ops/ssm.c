#include "ops/ssm.h"

#include <stdio.h>

static uint32_t groups(uint64_t n, uint32_t size) { return (uint32_t)((n + size - 1) / size); }

static struct pl_jit_spec spec_of(const char *part, const char *entry, uint32_t group) {
    struct pl_jit_spec s = {.file = "ssm.k.c", .entry = entry};
    pl_jit_set_u32(&s, "GROUP", group);
    pl_jit_set(&s, part, "1");
    return s;
}

enum pl_status pl_kernel_causal_conv(struct pl_kernels *ks, struct pl_conv_kind kind, struct pl_kernel *out,
                                     struct pl_err *err) {
    char name[48];
    struct pl_jit_spec s = spec_of("CONV", "pk_causal_conv", ks->linear);
    pl_jit_set_u32(&s, "K", kind.kernel);
    if (kind.bias) pl_jit_set(&s, "HAS_BIAS", "1");
    if (kind.silu) pl_jit_set(&s, "ACT_SILU", "1");
    snprintf(name, sizeof name, "causal_conv/k%u%s", kind.kernel, kind.silu ? "/silu" : "");
    return pl_kernel_make(ks, &s, ks->linear, name, out, err);
}

enum pl_status pl_launch_causal_conv(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_conv *c) {
    uint32_t chunks = groups(c->longest, PL_CONV_CHUNK);
    struct pl_args_conv a = {(u32)c->channels, chunks, c->slot_stride};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(c->x),        PL_ARG_BUFFER(c->w),    PL_ARG_BUFFER(c->bias),
                                   PL_ARG_BUFFER(c->state),    PL_ARG_BUFFER(c->seqs), PL_ARG_BUFFER(c->y),
                                   PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, groups(c->channels, k->group), chunks * (uint32_t)c->seq_count, 0, args,
                            PL_COUNT_OF(args));
}

/* Threads that share a row of the state: as many as there are values, at most what the device's products take. */
static uint32_t team_of(const struct pl_kernels *ks, uint32_t state) {
    uint32_t team = ks->team;
    while (team > 1 && team > state) team /= 2;
    return team;
}

enum pl_status pl_kernel_ssm(struct pl_kernels *ks, struct pl_ssm_kind kind, struct pl_kernel *out, struct pl_err *err) {
    char name[48];
    struct pl_jit_spec s = spec_of("SSM", "pk_ssm", ks->linear);
    pl_jit_set_u32(&s, "TEAM", team_of(ks, kind.state));
    pl_jit_set_u32(&s, "STATE", kind.state);
    if (kind.full) pl_jit_set(&s, "FULL", "1");
    if (kind.bias) pl_jit_set(&s, "HAS_BIAS", "1");
    if (kind.skip) pl_jit_set(&s, "HAS_SKIP", "1");
    if (kind.gate) pl_jit_set(&s, "HAS_GATE", "1");
    if (kind.one_row) pl_jit_set(&s, "ONE_ROW", "1");
    snprintf(name, sizeof name, "%s/n%u%s", kind.one_row ? "ssm_update" : "ssm_scan", kind.state, kind.full ? "/full" : "");
    return pl_kernel_make(ks, &s, ks->linear, name, out, err);
}

static struct pl_args_ssm args_of(const struct pl_launch_ssm *s) {
    return (struct pl_args_ssm){.heads = s->heads,
                                .head_dim = s->head_dim,
                                .groups = s->groups,
                                .x_stride = s->x_stride,
                                .b_stride = s->b_stride,
                                .c_stride = s->c_stride,
                                .x_first = s->x_first,
                                .b_first = s->b_first,
                                .c_first = s->c_first,
                                .dt_min = s->dt_min,
                                .dt_max = s->dt_max,
                                .split = s->split,
                                .slot_stride = s->slot_stride,
                                .state_first = s->state_first};
}
enum pl_status pl_launch_ssm(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_ssm *s) {
    struct pl_args_ssm a = args_of(s);
    struct pl_device_arg args[] = {
        PL_ARG_BUFFER(s->x),     PL_ARG_BUFFER(s->b),    PL_ARG_BUFFER(s->c),       PL_ARG_BUFFER(s->dt),
        PL_ARG_BUFFER(s->z),     PL_ARG_BUFFER(s->a),    PL_ARG_BUFFER(s->dt_bias), PL_ARG_BUFFER(s->skip),
        PL_ARG_BUFFER(s->state), PL_ARG_BUFFER(s->seqs), PL_ARG_BUFFER(s->y),       PL_ARG_BUFFER(&k->counter),
        PL_ARG_VALUE(a)};
    uint32_t rows = k->group / team_of(ks, s->n);
    return pl_kernel_launch(ks, k, groups((uint64_t)s->heads * s->head_dim, rows), (uint32_t)s->seq_count, 0, args,
                            PL_COUNT_OF(args));
}

/* --- by chunks --- */

enum { CHUNK_GROUP = 128, CHUNK_SLICE = 16, CHUNK_STRIP = 16 }; /* threads; columns of a group; rows of dots of a group */

const char *pl_ssm_chunks_declines(const struct pl_ssm_kind *kind) {
    return kind->full ? "each value of the state has its own decay" : NULL;
}

static struct pl_jit_spec chunk_spec(const char *part, const char *entry, struct pl_ssm_kind kind) {
    struct pl_jit_spec s = {.file = "ssm_chunks.k.c", .entry = entry};
    pl_jit_set_u32(&s, "GROUP", CHUNK_GROUP);
    pl_jit_set_u32(&s, "STATE", kind.state);
    pl_jit_set_u32(&s, "Q", PL_SSM_CHUNK);
    pl_jit_set(&s, part, "1");
    return s;
}

enum pl_status pl_kernel_ssm_chunks(struct pl_kernels *ks, struct pl_ssm_kind kind, struct pl_ssm_chunks *out,
                                    struct pl_err *err) {
    char name[48];
    struct pl_jit_spec dots = chunk_spec("DOTS", "pk_ssm_dots", kind), scan = chunk_spec("CHUNKS", "pk_ssm_chunks", kind);
    if (kind.bias) pl_jit_set(&dots, "HAS_BIAS", "1");
    pl_jit_set_u32(&scan, "SLICE", CHUNK_SLICE);
    if (kind.skip) pl_jit_set(&scan, "HAS_SKIP", "1");
    if (kind.gate) pl_jit_set(&scan, "HAS_GATE", "1");
    snprintf(name, sizeof name, "ssm_dots/n%u", kind.state);
    PL_TRY(pl_kernel_make(ks, &dots, CHUNK_GROUP, name, &out->dots, err));
    snprintf(name, sizeof name, "ssm_chunks/n%u", kind.state);
    return pl_kernel_make(ks, &scan, CHUNK_GROUP, name, &out->scan, err);
}

enum pl_status pl_launch_ssm_dots(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_ssm *s,
                                  pl_buffer_in *dots, pl_buffer_in *steps, size_t longest) {
    struct pl_args_ssm a = args_of(s);
    struct pl_device_arg args[] = {PL_ARG_BUFFER(s->b), PL_ARG_BUFFER(s->c),       PL_ARG_BUFFER(s->dt),
                                   PL_ARG_BUFFER(s->a), PL_ARG_BUFFER(s->dt_bias), PL_ARG_BUFFER(s->seqs),
                                   PL_ARG_BUFFER(dots), PL_ARG_BUFFER(steps),      PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    uint32_t each = s->groups * (PL_SSM_CHUNK / CHUNK_STRIP) + groups(s->heads, CHUNK_GROUP);
    return pl_kernel_launch(ks, k, each * groups(longest, PL_SSM_CHUNK), (uint32_t)s->seq_count, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_ssm_chunks(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_ssm *s,
                                    pl_buffer_in *dots, pl_buffer_in *steps) {
    struct pl_args_ssm a = args_of(s);
    struct pl_device_arg args[] = {PL_ARG_BUFFER(s->x),  PL_ARG_BUFFER(s->b),        PL_ARG_BUFFER(s->c),
                                   PL_ARG_BUFFER(s->z),  PL_ARG_BUFFER(s->skip),     PL_ARG_BUFFER(dots),
                                   PL_ARG_BUFFER(steps), PL_ARG_BUFFER(s->state),    PL_ARG_BUFFER(s->seqs),
                                   PL_ARG_BUFFER(s->y),  PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, s->heads * groups(s->head_dim, CHUNK_SLICE), (uint32_t)s->seq_count, 0, args,
                            PL_COUNT_OF(args));
}

/* --- the gated delta rule --- */

enum { DELTA_PER_MOST = 32 }; /* values of a column that a thread keeps in registers */

struct pl_delta_kind pl_delta_kind_for(uint32_t state, bool in_turn, bool cpu) {
    struct pl_delta_kind kind = {.state = state, .cols = cpu ? 16 : 32, .parts = 1, .in_turn = in_turn};
    while (!cpu && state > kind.parts * DELTA_PER_MOST) kind.parts *= 2;
    return kind;
}

enum pl_status pl_kernel_delta(struct pl_kernels *ks, struct pl_delta_kind kind, struct pl_kernel *out, struct pl_err *err) {
    char name[64];
    const uint32_t group = kind.cols * kind.parts;
    struct pl_jit_spec s = {.file = "delta.k.c", .entry = "pk_delta"};
    pl_jit_set_u32(&s, "GROUP", group);
    pl_jit_set_u32(&s, "COLS", kind.cols);
    pl_jit_set_u32(&s, "PARTS", kind.parts);
    pl_jit_set_u32(&s, "PER", (uint32_t)groups(kind.state, kind.parts));
    pl_jit_set_u32(&s, "STATE", kind.state);
    if (kind.in_turn) pl_jit_set(&s, "IN_TURN", "1");
    snprintf(name, sizeof name, "delta/n%u%s", kind.state, kind.in_turn ? "/in_turn" : "");
    return pl_kernel_make(ks, &s, group, name, out, err);
}
enum pl_status pl_launch_delta(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_delta *s) {
    struct pl_args_delta a = {.heads = s->heads,
                              .head_dim = s->head_dim,
                              .groups = s->groups,
                              .x_stride = s->x_stride,
                              .q_first = s->q_first,
                              .k_first = s->k_first,
                              .v_first = s->v_first,
                              .slot_stride = s->slot_stride,
                              .state_first = s->state_first};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(s->x),    PL_ARG_BUFFER(s->dt),      PL_ARG_BUFFER(s->beta),
                                   PL_ARG_BUFFER(s->a),    PL_ARG_BUFFER(s->dt_bias), PL_ARG_BUFFER(s->state),
                                   PL_ARG_BUFFER(s->seqs), PL_ARG_BUFFER(s->y),       PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, s->heads * groups(s->head_dim, s->cols), (uint32_t)s->seq_count, 0, args,
                            PL_COUNT_OF(args));
}

enum pl_status pl_kernel_gated_norm(struct pl_kernels *ks, bool gate, struct pl_kernel *out, struct pl_err *err) {
    struct pl_jit_spec s = spec_of("GATED_NORM", "pk_gated_norm", ks->norm);
    if (gate) pl_jit_set(&s, "HAS_GATE", "1");
    return pl_kernel_make(ks, &s, ks->norm, gate ? "gated_norm" : "gated_norm/plain", out, err);
}

enum pl_status pl_launch_gated_norm(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *z,
                                    pl_buffer_in *w, pl_buffer_in *y, size_t rows, size_t cols, uint32_t norm_groups,
                                    bool norm_first, float eps) {
    struct pl_args_gated a = {(u32)cols, norm_groups, norm_first, eps};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(z),           PL_ARG_BUFFER(w),
                                   PL_ARG_BUFFER(y), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, norm_groups, (uint32_t)rows, 0, args, PL_COUNT_OF(args));
}
