/* State-space layers: work is shared out by sequence and block of channels or heads, norms by row. */
#include "cpu/ssm.h"

#include "cpu/internal.h"

enum { SERIAL_WORK = 1 << 14, CONV_BLOCK = 64 };

struct ssm_job {
    struct pl_cpu *c;
    const struct pl_cpu_conv *conv;
    const struct pl_cpu_ssm *ssm;
    const struct pl_cpu_delta *delta;
    const struct pl_cpu_gated_norm *norm;
    size_t units, blocks, block; /* of a sequence; channels or heads of one */
};

static void run(struct pl_cpu *c, size_t work, pl_pool_fn fn, struct ssm_job *job) {
    atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    if (work < SERIAL_WORK)
        fn(job, 0, 1);
    else
        pl_pool_run_any(c->pool, fn, job);
}

static void conv_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    const struct ssm_job *j = arg;
    size_t u, end;
    while (cpu_take(j->c, 1, j->units, &u, &end)) {
        size_t first = u % j->blocks * j->block;
        j->c->table->conv(j->conv, &j->conv->seqs[u / j->blocks], first, PL_MIN(first + j->block, j->conv->channels));
    }
}

static size_t rows_of(const struct pl_cpu_state_seq *seqs, size_t count) {
    size_t rows = 0;
    for (size_t i = 0; i < count; i++) rows += seqs[i].rows;
    return rows;
}

void pl_cpu_causal_conv(struct pl_cpu *c, const struct pl_cpu_conv *p) {
    PL_ASSERT(p->kernel >= 2 && p->kernel <= PL_CPU_CONV_MAX && p->x != p->y);
    size_t blocks = (p->channels + CONV_BLOCK - 1) / CONV_BLOCK;
    struct ssm_job j = {.c = c, .conv = p, .blocks = blocks, .block = CONV_BLOCK, .units = blocks * p->seq_count};
    run(c, 2 * p->kernel * p->channels * rows_of(p->seqs, p->seq_count), conv_worker, &j);
}

static void ssm_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    const struct ssm_job *j = arg;
    size_t u, end;
    while (cpu_take(j->c, 1, j->units, &u, &end)) {
        size_t first = u % j->blocks * j->block;
        j->c->table->ssm(j->ssm, &j->ssm->seqs[u / j->blocks], first, PL_MIN(first + j->block, j->ssm->heads));
    }
}

void pl_cpu_ssm(struct pl_cpu *c, const struct pl_cpu_ssm *p) {
    PL_ASSERT(p->heads % p->groups == 0 && p->head_dim >= 1 && p->head_dim <= SSM_HEAD_MAX);
    size_t block = PL_MAX((size_t)1, (size_t)SSM_BLOCK / p->head_dim), blocks = (p->heads + block - 1) / block;
    struct ssm_job j = {.c = c, .ssm = p, .blocks = blocks, .block = block, .units = blocks * p->seq_count};
    run(c, 2 * p->heads * p->head_dim * p->state * rows_of(p->seqs, p->seq_count), ssm_worker, &j);
}

static void delta_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    const struct ssm_job *j = arg;
    size_t u, end;
    while (cpu_take(j->c, 1, j->units, &u, &end))
        j->c->table->delta(j->delta, &j->delta->seqs[u / j->blocks], u % j->blocks);
}

void pl_cpu_delta(struct pl_cpu *c, const struct pl_cpu_delta *p) {
    PL_ASSERT(p->heads % p->groups == 0 && p->state >= 1 && p->state <= PL_CPU_DELTA_MAX);
    struct ssm_job j = {.c = c, .delta = p, .blocks = p->heads, .block = 1, .units = p->heads * p->seq_count};
    run(c, 4 * p->heads * p->head_dim * p->state * rows_of(p->seqs, p->seq_count), delta_worker, &j);
}

static void norm_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    const struct ssm_job *j = arg;
    size_t row, end;
    while (cpu_take(j->c, 1, j->norm->rows, &row, &end)) j->c->table->gated_norm(j->norm, row);
}

void pl_cpu_gated_norm(struct pl_cpu *c, const struct pl_cpu_gated_norm *p) {
    PL_ASSERT(p->cols % p->groups == 0);
    struct ssm_job j = {.c = c, .norm = p};
    run(c, 4 * p->rows * p->cols, norm_worker, &j);
}
