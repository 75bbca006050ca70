/* Paged attention: tiles of queries walk the chunks of their context in order; when there are few tiles (decode of
 * few sequences) the chunks themselves are shared out and their states merged afterwards, in the same order and so
 * to the same bits. */
#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "cpu/internal.h"
#include "tensor/kv4.h"

struct attn_job {
    struct pl_cpu *c;
    const struct pl_cpu_attention *a;
    size_t tiles;      /* of all sequences and KV heads */
    size_t chunks_max; /* of the longest context */
    size_t unit;       /* floats of one partial state: ATTN_QUERIES * (padded head + 2) */
};

static size_t queries_of(const struct pl_cpu_attention *a, const struct pl_cpu_seq *s) {
    return s->rows * (a->heads / a->kv->kv_heads);
}
static size_t tiles_of(const struct pl_cpu_attention *a, const struct pl_cpu_seq *s) {
    return (queries_of(a, s) + ATTN_QUERIES - 1) / ATTN_QUERIES;
}

/* Tile `index` of the job; the long ones (late rows) first, they are the most work. */
static struct cpu_attn_tile tile_at(const struct pl_cpu_attention *a, size_t index) {
    size_t s = 0, n;
    for (; index >= (n = tiles_of(a, &a->seqs[s]) * a->kv->kv_heads); s++) index -= n;
    const struct pl_cpu_seq *seq = &a->seqs[s];
    size_t g = index % a->kv->kv_heads, t = tiles_of(a, seq) - 1 - index / a->kv->kv_heads;
    size_t first = t * ATTN_QUERIES;
    return (struct cpu_attn_tile){a, seq, g, first, PL_MIN((size_t)ATTN_QUERIES, queries_of(a, seq) - first)};
}

/* Chunks [*begin, *end) that any query of the tile sees. */
static void chunks_of(const struct cpu_attn_tile *t, size_t *begin, size_t *end) {
    size_t group = t->a->heads / t->a->kv->kv_heads;
    size_t first = t->seq->past + t->first / group + 1, last = t->seq->past + (t->first + t->count - 1) / group + 1;
    size_t lo = t->a->window != 0 && first > t->a->window ? first - t->a->window : 0;
    *begin = lo / ATTN_CHUNK;
    *end = (last + ATTN_CHUNK - 1) / ATTN_CHUNK;
}

static float *out_row(const struct cpu_attn_tile *t, size_t query) {
    size_t group = t->a->heads / t->a->kv->kv_heads, q = t->first + query;
    size_t row = t->seq->first_row + q / group, head = t->kv_head * group + q % group;
    return t->a->out + row * t->a->out_stride + head * cpu_value_dim(t->a->kv);
}

struct tile_state {
    struct cpu_attn_state *s;
    float *o;
};
static struct tile_state state_at(float *p, size_t d_pad) {
    return (struct tile_state){(struct cpu_attn_state *)(void *)(p + ATTN_QUERIES * d_pad), p};
}

static void chunk_states(const struct cpu_table *table, const struct cpu_attn_tile *t, size_t chunk, struct tile_state part,
                         size_t d_pad, void *scratch) {
    if (pl_fault("short-chunk") && t->seq->past > 0) { /* every row sees one token less: not its own */
        struct pl_cpu_seq shorter = *t->seq;
        struct cpu_attn_tile wrong = *t;
        shorter.past--;
        wrong.seq = &shorter;
        table->attn_chunk(&wrong, chunk, part.s, part.o, d_pad, scratch);
        return;
    }
    table->attn_chunk(t, chunk, part.s, part.o, d_pad, scratch);
}

static void merge(const struct cpu_table *table, struct tile_state sum, struct tile_state part, size_t q, size_t d_pad) {
    if (pl_fault("merge-log-base") && part.s[q].m != -INFINITY) part.s[q].m *= 1.442695f; /* taken for log2 units */
    table->attn_merge(&sum.s[q], sum.o + q * d_pad, &part.s[q], part.o + q * d_pad, d_pad);
}

static void finish(const struct cpu_table *table, const struct cpu_attn_tile *t, struct tile_state sum, size_t d_pad) {
    size_t group = t->a->heads / t->a->kv->kv_heads, d = cpu_value_dim(t->a->kv);
    for (size_t q = 0; q < t->count; q++) {
        struct cpu_attn_state *s = &sum.s[q];
        if (t->a->sinks != NULL) s->l += expf(t->a->sinks[t->kv_head * group + (t->first + q) % group] - s->m);
        table->attn_finish(s, sum.o + q * d_pad, out_row(t, q), d);
        if (t->a->kv->dtype == PL_K8V4) pl_kv4_turn_back(out_row(t, q), d); /* once, not for every token */
    }
}

static void whole_worker(void *arg, int index, int count) {
    struct attn_job *j = arg;
    const struct cpu_table *table = j->c->table;
    size_t d_pad = cpu_head_pad(j->a->kv->head_dim), at, begin, last, chunk, end;
    /* The KV heads of a token lie side by side: where there is work enough, a thread takes all of a sequence's. */
    const size_t grain = j->tiles / j->a->kv->kv_heads >= 4 * (size_t)count ? j->a->kv->kv_heads : 1;
    float *scratch = cpu_thread_scratch(j->c, index);
    struct tile_state sum = state_at(scratch, d_pad), part = state_at(scratch + j->unit, d_pad);
    while (cpu_take(j->c, grain, j->tiles, &begin, &last))
        for (at = begin; at < last; at++) {
            struct cpu_attn_tile t = tile_at(j->a, at);
            for (size_t q = 0; q < t.count; q++) sum.s[q] = (struct cpu_attn_state){-INFINITY, 0};
            for (chunks_of(&t, &chunk, &end); chunk < end; chunk++) {
                chunk_states(table, &t, chunk, part, d_pad, scratch + 2 * j->unit);
                for (size_t q = 0; q < t.count; q++) merge(table, sum, part, q, d_pad);
            }
            finish(table, &t, sum, d_pad);
        }
}

static void split_worker(void *arg, int index, int count) {
    (void)count;
    struct attn_job *j = arg;
    const struct cpu_table *table = j->c->table;
    size_t d_pad = cpu_head_pad(j->a->kv->head_dim), at, unused;
    void *scratch = cpu_thread_scratch(j->c, index);
    while (cpu_take(j->c, 1, j->tiles * j->chunks_max, &at, &unused)) {
        struct cpu_attn_tile t = tile_at(j->a, at / j->chunks_max);
        size_t begin, end, chunk = at % j->chunks_max;
        chunks_of(&t, &begin, &end);
        if (chunk < begin || chunk >= end) continue;
        struct tile_state part = state_at(j->c->space.partial + at * j->unit, d_pad);
        chunk_states(table, &t, chunk, part, d_pad, scratch);
    }
}

static void merge_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    struct attn_job *j = arg;
    const struct cpu_table *table = j->c->table;
    size_t d_pad = cpu_head_pad(j->a->kv->head_dim), first, unused;
    while (cpu_take(j->c, 1, j->tiles, &first, &unused)) {
        struct cpu_attn_tile t = tile_at(j->a, first);
        size_t chunk, end;
        chunks_of(&t, &chunk, &end);
        struct tile_state sum = state_at(j->c->space.partial + (first * j->chunks_max + chunk) * j->unit, d_pad);
        while (++chunk < end) {
            struct tile_state part = state_at(j->c->space.partial + (first * j->chunks_max + chunk) * j->unit, d_pad);
            for (size_t q = 0; q < t.count; q++) merge(table, sum, part, q, d_pad);
        }
        finish(table, &t, sum, d_pad);
    }
}

void pl_cpu_attention(struct pl_cpu *c, const struct pl_cpu_attention *a) {
    PL_ASSERT(a->kv->head_dim <= ATTN_HEAD_MAX && a->heads % a->kv->kv_heads == 0);
    struct attn_job j = {.c = c, .a = a, .unit = ATTN_QUERIES * (cpu_head_pad(a->kv->head_dim) + 2)};
    size_t longest = 0;
    for (size_t s = 0; s < a->seq_count; s++) {
        j.tiles += tiles_of(a, &a->seqs[s]) * a->kv->kv_heads;
        longest = PL_MAX(longest, a->seqs[s].past + a->seqs[s].rows);
    }
    if (j.tiles == 0) return;
    j.chunks_max = (longest + ATTN_CHUNK - 1) / ATTN_CHUNK;
    atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    bool few = j.tiles < 4 * (size_t)pl_pool_threads(c->pool);
    if (few && j.chunks_max > 1 && j.tiles * j.chunks_max * j.unit <= c->partial_floats) {
        pl_pool_run_any(c->pool, split_worker, &j);
        atomic_store_explicit(&c->next, 0, memory_order_relaxed);
        merge_worker(&j, 0, 1);
    } else {
        pl_pool_run_any(c->pool, whole_worker, &j);
    }
}
