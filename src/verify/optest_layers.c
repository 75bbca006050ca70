/* optest_layers - cases of operations that only some families of models ask for: gated rows, ternary products, products of
 * each head, latent attention, state-space layers, and the choice of tokens. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "ref/ref.h"
#include "sample/sample.h"
#include "tensor/quant.h"
#include "verify/optest_bench.h"

static const char *plural(uint32_t n) { return n == 1 ? "" : "s"; }

/* Ends a step that was begun; the first status that is not PL_OK. */
static enum pl_status end_step(struct pl_optest_bench *b, enum pl_status st) {
    enum pl_status end = pl_ops_end(b->o);
    return st != PL_OK ? st : end;
}

/* ---------- rows times a gate ---------- */

void pl_optest_gate_rows(struct pl_optest_bench *b, uint32_t rows) {
    char what[96];
    snprintf(what, sizeof what, "sigmoid, %u row%s of %d", rows, plural(rows), WIDE);
    struct pl_optest_case *c = pl_optest_add(b, "gate_rows", what);
    size_t n = (size_t)rows * WIDE;
    float *x = pl_optest_values(b, n), *gate = pl_optest_values(b, rows), *got = pl_optest_values(b, n);
    struct pl_activation *ax = NULL, *ag = NULL;
    enum pl_status st = x == NULL || gate == NULL || got == NULL ? PL_NO_MEMORY : PL_OK;
    pl_optest_plain_batch(b, rows);
    if (st == PL_OK) st = pl_optest_activation(b, WIDE, &ax);
    if (st == PL_OK) st = pl_optest_activation(b, 1, &ag);
    if (st == PL_OK) st = pl_ops_begin(b->o, &b->batch, b->kv);
    if (st == PL_OK) {
        st = pl_optest_fill(b, x, rows, WIDE, ax);
        if (st == PL_OK) st = pl_optest_fill(b, gate, rows, 1, ag);
        pl_ops_witness_reset(b->o);
        if (st == PL_OK) st = pl_ops_gate_rows(b->o, ax, ag);
        if (st == PL_OK) st = pl_ops_activation_read(b->o, ax, 0, rows, got);
        st = end_step(b, st);
    }
    for (size_t i = 0; x != NULL && gate != NULL && i < n; i++)
        x[i] = (float)((double)x[i] / (1 + exp(-(double)gate[i / WIDE])));
    pl_optest_judge(b, c, st, got, x, n, BOUND_EXACT);
    pl_ops_activation_destroy(b->o, ax);
    pl_ops_activation_destroy(b->o, ag);
    pl_free(x);
    pl_free(gate);
    pl_free(got);
}

/* ---------- products of three values ---------- */

/* Codes of -0.75, 0 and 0.75. */
static void *ternary_codes(struct pl_optest_bench *b, float *scale) {
    uint8_t *codes = pl_calloc((size_t)OUT, WIDE / 4);
    float row[WIDE];
    for (size_t o = 0; codes != NULL && o < OUT; o++) {
        for (size_t i = 0; i < WIDE; i++) row[i] = 0.75f * floorf(1.5f * pl_optest_uniform(b) + 0.5f);
        if (pl_ternary_row(row, WIDE, scale, codes + o * WIDE / 4)) continue;
        pl_free(codes);
        codes = NULL;
    }
    return codes;
}

static enum pl_status run_ternary(struct pl_optest_bench *b, const struct pl_weight *w, const float *x, uint32_t rows,
                                  float *got) {
    struct pl_activation *in = NULL, *out = NULL;
    pl_optest_plain_batch(b, rows);
    enum pl_status st = pl_optest_activation(b, WIDE, &in);
    if (st == PL_OK) st = pl_optest_activation(b, OUT, &out);
    if (st == PL_OK) st = pl_ops_begin(b->o, &b->batch, b->kv);
    if (st == PL_OK) {
        st = pl_optest_fill(b, x, rows, WIDE, in);
        pl_ops_witness_reset(b->o);
        if (st == PL_OK) st = pl_ops_ternary(b->o, 1, &w, in, &out);
        if (st == PL_OK) st = pl_ops_activation_read(b->o, out, 0, rows, got);
        st = end_step(b, st);
    }
    pl_ops_activation_destroy(b->o, in);
    pl_ops_activation_destroy(b->o, out);
    return st;
}

void pl_optest_ternary(struct pl_optest_bench *b, uint32_t rows) {
    char what[96];
    snprintf(what, sizeof what, "-1, 0, 1 [%d,%d], %u row%s", OUT, WIDE, rows, plural(rows));
    struct pl_optest_case *c = pl_optest_add(b, "ternary", what);
    size_t nx = (size_t)rows * WIDE, ny = (size_t)rows * OUT;
    float scale = 0, scratch[WIDE];
    void *codes = ternary_codes(b, &scale);
    float *x = pl_optest_values(b, nx), *got = pl_optest_values(b, ny), *want = pl_optest_values(b, ny);
    struct pl_tensor t = pl_optest_matrix(codes, PL_TERNARY, OUT, WIDE);
    t.bytes = (size_t)OUT * WIDE / 4;
    t.scales = &scale;
    t.scale_dtype = PL_F32;
    struct pl_weight *w = NULL;
    enum pl_status st = codes == NULL || x == NULL || got == NULL || want == NULL
                            ? PL_NO_MEMORY
                            : pl_ops_weight_create(b->o, &t, PL_WEIGHT_TERNARY, &w, &b->err);
    if (st == PL_UNSUPPORTED) {
        pl_optest_skip(b, c, b->err.text);
    } else {
        if (st == PL_OK) st = run_ternary(b, w, x, rows, got);
        if (st == PL_OK) st = pl_ref_ternary(&t, x, WIDE, rows, want, OUT, scratch);
        pl_optest_judge(b, c, st, got, want, ny, BOUND_EXACT);
    }
    pl_ops_weight_destroy(b->o, w);
    pl_free(codes);
    pl_free(x);
    pl_free(got);
    pl_free(want);
}

/* ---------- a product of each head ---------- */

/* A head of x has X_HEAD numbers of which HEAD_IN count, one of y Y_HEAD of which HEAD_OUT are written. */
enum { HEADS = 4, HEAD_IN = 96, HEAD_OUT = 24, X_HEAD = 100, Y_HEAD = 26, X_COLS = HEADS * X_HEAD, Y_COLS = HEADS * Y_HEAD };

static enum pl_status run_heads(struct pl_optest_bench *b, const struct pl_weight *w, const float *x, const float *start,
                                uint32_t rows, float *got) {
    struct pl_activation *in = NULL, *out = NULL;
    pl_optest_plain_batch(b, rows);
    enum pl_status st = pl_ops_heads_reserve(b->o, w, ROWS_MAX, &b->err);
    if (st == PL_OK) st = pl_optest_activation(b, X_COLS, &in);
    if (st == PL_OK) st = pl_optest_activation(b, Y_COLS, &out);
    if (st == PL_OK) st = pl_ops_begin(b->o, &b->batch, b->kv);
    if (st == PL_OK) {
        st = pl_optest_fill(b, x, rows, X_COLS, in);
        if (st == PL_OK) st = pl_optest_fill(b, start, rows, Y_COLS, out);
        pl_ops_witness_reset(b->o);
        if (st == PL_OK) st = pl_ops_heads_linear(b->o, w, in, out);
        if (st == PL_OK) st = pl_ops_activation_read(b->o, out, 0, rows, got);
        st = end_step(b, st);
    }
    pl_ops_activation_destroy(b->o, in);
    pl_ops_activation_destroy(b->o, out);
    return st;
}

void pl_optest_heads(struct pl_optest_bench *b, enum pl_dtype t, uint32_t rows) {
    char what[96];
    snprintf(what, sizeof what, "%s, %d heads [%d,%d], %u row%s", pl_dtype_name(t), HEADS, HEAD_OUT, HEAD_IN, rows,
             plural(rows));
    struct pl_optest_case *c = pl_optest_add(b, "heads_linear", what);
    void *raw = pl_optest_weights(b, t, (size_t)HEADS * HEAD_OUT * HEAD_IN);
    float *x = pl_optest_values(b, (size_t)rows * X_COLS), *got = pl_optest_values(b, (size_t)rows * Y_COLS),
          *want = pl_optest_values(b, (size_t)rows * Y_COLS), scratch[HEAD_IN];
    struct pl_tensor head[HEADS];
    struct pl_weight *w = NULL;
    for (size_t h = 0; h < HEADS; h++) {
        head[h] = pl_optest_matrix(raw, t, HEAD_OUT, HEAD_IN);
        head[h].data = (const char *)raw + h * head[h].bytes;
    }
    enum pl_status st = raw == NULL || x == NULL || got == NULL || want == NULL
                            ? PL_NO_MEMORY
                            : pl_ops_heads_create(b->o, head, HEADS, &w, &b->err);
    if (st == PL_UNSUPPORTED) {
        pl_optest_skip(b, c, b->err.text);
    } else {
        if (st == PL_OK) st = run_heads(b, w, x, want, rows, got);
        for (size_t h = 0; h < HEADS && st == PL_OK; h++)
            st =
                pl_ref_matmul(&head[h], NULL, x + h * X_HEAD, X_COLS, rows, false, want + h * Y_HEAD, Y_COLS, NULL, scratch);
        pl_optest_judge(b, c, st, got, want, (size_t)rows * Y_COLS, t == PL_F32 ? BOUND_EXACT : BOUND_ROUNDED);
    }
    pl_ops_weight_destroy(b->o, w);
    pl_free(raw);
    pl_free(x);
    pl_free(got);
    pl_free(want);
}

/* ---------- latent attention ---------- */

struct latent_case {
    const char *what;
    uint32_t heads, c, r, q_head; /* q_head: numbers of a head of q, the last r of them rotated */
    uint32_t seqs, past[SEQS], rows[SEQS];
};
static const struct latent_case latent_cases[PL_OPTEST_LATENT_CASES] = {
    {"one row after 40 tokens", 2, 128, 32, 64, 1, {40}, {1}},
    {"prompts beside a row", 2, 128, 32, 64, 3, {64, 0, 33}, {1, 20, 17}},
    {"published width, three sequences of one row, up to 450 tokens", 16, 512, 64, 96, 3, {5, 130, 450}, {1, 1, 1}},
    {"published width, one row that begins a page", 16, 512, 64, 96, 1, {64}, {1}},
};

struct latent_data { /* by token: sequence s has tokens first[s].. */
    uint32_t first[SEQS], total, rows;
    float *q, *kv, *qa, *norm, *angles; /* [total, heads q_head], [total, D], [rows, heads D], [c], [ROWS_MAX, r] */
    float *key, *got_qa, *want_qa, *got, *want, *row;
    struct pl_weight *w;
    struct pl_rope *rope;
};

static bool latent_room(struct pl_optest_bench *b, const struct latent_case *a, struct latent_data *d) {
    size_t dim = a->c + a->r;
    for (uint32_t s = 0; s < a->seqs; s++) {
        d->first[s] = d->total;
        d->total += a->past[s] + a->rows[s];
        d->rows += a->rows[s];
    }
    size_t wide = d->rows * a->heads * dim;
    d->q = pl_optest_values(b, (size_t)d->total * a->heads * a->q_head);
    d->kv = pl_optest_values(b, d->total * dim);
    d->qa = pl_optest_values(b, wide);
    d->norm = pl_optest_values(b, a->c);
    d->angles = pl_optest_values(b, (size_t)ROWS_MAX * a->r);
    d->key = pl_optest_values(b, d->total * dim);
    d->got_qa = pl_calloc(wide, sizeof *d->got_qa);
    d->want_qa = pl_calloc(wide, sizeof *d->want_qa);
    d->got = pl_calloc(wide, sizeof *d->got);
    d->want = pl_calloc(wide, sizeof *d->want);
    d->row = pl_calloc(wide, sizeof *d->row);
    for (size_t i = 0; d->angles != NULL && i < (size_t)ROWS_MAX * a->r / 2; i++) {
        double angle = (double)(i / (a->r / 2)) * pow(10000.0, -2.0 * (double)(i % (a->r / 2)) / a->r);
        d->angles[2 * i] = (float)cos(angle);
        d->angles[2 * i + 1] = (float)sin(angle);
    }
    return d->q != NULL && d->kv != NULL && d->qa != NULL && d->norm != NULL && d->angles != NULL && d->key != NULL &&
           d->got_qa != NULL && d->want_qa != NULL && d->got != NULL && d->want != NULL && d->row != NULL;
}

static void latent_free(struct latent_data *d) {
    float *list[] = {d->q, d->kv, d->qa, d->norm, d->angles, d->key, d->got_qa, d->want_qa, d->got, d->want, d->row};
    for (size_t i = 0; i < PL_COUNT_OF(list); i++) pl_free(list[i]);
}

/* The batch of one step; `only` names a sequence whose history is written, SEQS means the step that is judged. */
static uint32_t latent_batch(struct pl_optest_bench *b, const struct latent_case *a, const struct latent_data *d,
                             uint32_t only) {
    uint32_t row = 0, n = 0;
    for (uint32_t i = 0; i < PAGES; i++) b->pages[i] = PAGES - 1 - i;
    for (uint32_t s = 0; s < a->seqs; s++) {
        bool history = only < SEQS;
        uint32_t past = history ? 0 : a->past[s], rows = history ? a->past[s] : a->rows[s];
        if (history && s != only) continue;
        b->seqs[n++] = (struct pl_batch_seq){.first_row = row, .rows = rows, .past = past, .page_first = s * 16};
        for (uint32_t i = 0; i < rows; i++) b->tokens[row++] = d->first[s] + past + i;
    }
    b->batch = (struct pl_batch){.rows = row,
                                 .tokens = b->tokens,
                                 .seq_count = n,
                                 .seqs = b->seqs,
                                 .pages = b->pages,
                                 .page_entries = PAGES,
                                 .logit_count = 1,
                                 .logit_rows = b->logit_rows};
    return row;
}

/* The queries' own part: the judged rows alone have one, in a table of all tokens. */
static enum pl_status fill_queries(struct pl_optest_bench *b, const struct latent_case *a, const struct latent_data *d,
                                   struct pl_activation *qa) {
    size_t wide = (size_t)a->heads * (a->c + a->r);
    float *table = pl_calloc(d->total * wide, sizeof *table);
    if (table == NULL) return PL_NO_MEMORY;
    for (uint32_t i = 0; i < d->rows; i++) memcpy(table + b->tokens[i] * wide, d->qa + i * wide, wide * sizeof *table);
    enum pl_status st = pl_optest_fill(b, table, d->total, wide, qa);
    pl_free(table);
    return st;
}

static enum pl_status latent_step(struct pl_optest_bench *b, const struct latent_case *a, const struct latent_data *d,
                                  uint32_t only) {
    struct pl_activation *q = NULL, *kv = NULL, *qa = NULL, *y = NULL;
    size_t dim = a->c + a->r;
    uint32_t rows = latent_batch(b, a, d, only);
    bool judged = only == SEQS;
    struct pl_latent p = {.heads = a->heads, .norm = d->w, .norm_eps = 1e-6f, .rope = d->rope};
    struct pl_attention at = {.heads = a->heads, .scale = (float)(1 / sqrt((double)dim))};
    enum pl_status st = pl_optest_activation(b, (size_t)a->heads * a->q_head, &q);
    if (st == PL_OK) st = pl_optest_activation(b, dim, &kv);
    if (st == PL_OK) st = pl_optest_activation(b, a->heads * dim, &qa);
    if (st == PL_OK) st = pl_optest_activation(b, (size_t)a->heads * a->c, &y);
    if (st == PL_OK) st = pl_ops_begin(b->o, &b->batch, b->kv);
    if (st == PL_OK) {
        st = pl_optest_fill(b, d->q, d->total, (size_t)a->heads * a->q_head, q);
        if (st == PL_OK) st = pl_optest_fill(b, d->kv, d->total, dim, kv);
        if (st == PL_OK && judged) st = fill_queries(b, a, d, qa);
        pl_ops_witness_reset(b->o);
        if (st == PL_OK) st = pl_ops_latent_append(b->o, &p, q, kv, qa);
        if (st == PL_OK && judged) st = pl_ops_activation_read(b->o, qa, 0, rows, d->got_qa);
        if (st == PL_OK && judged) st = pl_ops_attention(b->o, &at, qa, y);
        if (st == PL_OK && judged) st = pl_ops_activation_read(b->o, y, 0, rows, d->got);
        st = end_step(b, st);
    }
    struct pl_activation *list[] = {q, kv, qa, y};
    for (size_t i = 0; i < PL_COUNT_OF(list); i++) pl_ops_activation_destroy(b->o, list[i]);
    return st;
}

/* One sequence; its first row is `row` of the step. */
static void latent_reference(const struct latent_case *a, struct latent_data *d, uint32_t s, uint32_t row,
                             enum pl_dtype kv) {
    size_t dim = a->c + a->r, heads = a->heads, wide = heads * dim;
    double scores[ROWS_MAX];
    for (size_t i = 0; i < a->past[s] + a->rows[s]; i++) {
        const float *in = d->kv + (d->first[s] + i) * dim;
        float *key = d->key + (d->first[s] + i) * dim;
        pl_ref_rmsnorm(in, d->norm, a->c, 1e-6, 0, key);
        memcpy(key + a->c, in + a->c, a->r * sizeof *key);
        pl_ref_rope(key + a->c, d->angles + i * a->r, a->r, false);
        for (size_t k = 0; k < dim; k++) key[k] = pl_optest_rounded(kv, key[k]);
    }
    memcpy(d->want_qa + row * wide, d->qa + row * wide, a->rows[s] * wide * sizeof *d->qa);
    for (size_t i = 0; i < a->rows[s]; i++) {
        size_t position = a->past[s] + i;
        for (size_t h = 0; h < heads; h++) {
            float *to = d->want_qa + ((row + i) * heads + h) * dim + a->c;
            const float *q = d->q + ((d->first[s] + position) * heads + h + 1) * a->q_head - a->r;
            memcpy(to, q, a->r * sizeof *to);
            pl_ref_rope(to, d->angles + position * a->r, a->r, false);
        }
    }
    const struct pl_ref_attention r = {.rows = a->rows[s],
                                       .past = a->past[s],
                                       .heads = heads,
                                       .kv_heads = 1,
                                       .head_dim = dim,
                                       .scale = 1 / sqrt((double)dim),
                                       .q = d->want_qa + row * wide,
                                       .q_stride = wide,
                                       .k = d->key + d->first[s] * dim,
                                       .v = d->key + d->first[s] * dim,
                                       .out = d->row + row * wide,
                                       .out_stride = wide};
    pl_ref_attention(&r, scores);
    for (size_t i = row * heads; i < (row + a->rows[s]) * heads; i++) /* a value is the first c numbers of its key */
        memcpy(d->want + i * a->c, d->row + i * dim, a->c * sizeof *d->want);
}

static enum pl_status run_latent(struct pl_optest_bench *b, const struct latent_case *a, struct latent_data *d,
                                 enum pl_dtype kv) {
    struct pl_kv_shape shape = {.layers = 1,
                                .page_count = PAGES,
                                .page_tokens = PAGE,
                                .kv_heads = 1,
                                .head_dim = a->c + a->r,
                                .value_dim = a->c,
                                .dtype = kv};
    struct pl_tensor norm = pl_optest_vector(d->norm, a->c);
    enum pl_status st = pl_ops_kv_create(b->o, &shape, &b->kv, &b->err);
    if (st == PL_OK) st = pl_ops_weight_create(b->o, &norm, PL_WEIGHT_VECTOR, &d->w, &b->err);
    if (st == PL_OK) st = pl_ops_rope_create(b->o, d->angles, ROWS_MAX, a->r, false, &d->rope, &b->err);
    for (uint32_t s = 0; st == PL_OK && s < a->seqs; s++)
        if (a->past[s] > 0) st = latent_step(b, a, d, s);
    if (st == PL_OK) st = latent_step(b, a, d, SEQS);
    for (uint32_t s = 0, row = 0; s < a->seqs; row += a->rows[s++]) latent_reference(a, d, s, row, kv);
    return st;
}

void pl_optest_latent(struct pl_optest_bench *b, size_t which, enum pl_dtype kv) {
    const struct latent_case *a = &latent_cases[which];
    struct latent_data d = {0};
    struct pl_kv_store *before = b->kv;
    char what[96], after[96];
    snprintf(what, sizeof what, "%s cache, %s", pl_dtype_name(kv), a->what);
    snprintf(after, sizeof after, "latent %.88s", what);
    if (pl_ops_port(PL_OP_latent_append, pl_ops_backend(b->o)) == PL_PORT_NONE) {
        pl_optest_skip(b, pl_optest_add(b, "latent_append", what), "this backend has no port of it");
        return;
    }
    enum pl_status st = latent_room(b, a, &d) ? run_latent(b, a, &d, kv) : PL_NO_MEMORY;
    pl_optest_judge(b, pl_optest_add(b, "latent_append", what), st, d.got_qa, d.want_qa,
                    (size_t)d.rows * a->heads * (a->c + a->r), BOUND_EXACT);
    pl_optest_judge(b, pl_optest_add(b, "attention", after), st, d.got, d.want, (size_t)d.rows * a->heads * a->c,
                    BOUND_ATTENTION);
    pl_ops_rope_destroy(b->o, d.rope);
    pl_ops_weight_destroy(b->o, d.w);
    if (b->kv != before) pl_ops_kv_destroy(b->o, b->kv);
    b->kv = before;
    latent_free(&d);
}

/* ---------- state-space layers ---------- */

struct state_case {
    const char *what;
    uint32_t heads, head_dim, groups, state; /* H, P, G, N */
    bool full, gated;
    bool delta, in_turn; /* the gated delta rule: B is q, C is k, z is what beta comes from */
};
static const struct state_case state_cases[PL_OPTEST_STATE_CASES] = {
    {"Mamba-2: 4 heads of 16, 2 groups of 16", 4, 16, 2, 16, false, false, false, false},
    {"Mamba: 64 heads of 1, 16 states, gated", 64, 1, 1, 16, true, true, false, false},
    {"delta rule: 4 heads of 16, 2 key heads of 16", 4, 16, 2, 16, false, false, true, false},
    {"delta rule: 4 heads of 16, 2 key heads of 16 in turn", 4, 16, 2, 16, false, false, true, true},
};
/* Three sequences that begin in one step and go on by one row each in the next. */
static const uint32_t state_rows[SEQS] = {5, 1, 9}, state_slots[SEQS] = {2, 0, 1};
enum { KERNEL = 4, STATE_TOKENS = 5 + 1 + 9 + SEQS, STATE_COLS_MAX = 128, INNER_STATE = 64 };

struct state_data {
    size_t cols; /* x, then B, then C: what the convolution runs over */
    float *x, *dt, *z, *conv_w, *conv_b, *a, *dt_bias, *skip;
    struct pl_weight *w[5]; /* of the last five */
    float conv_got[STATE_TOKENS * STATE_COLS_MAX], conv_want[STATE_TOKENS * STATE_COLS_MAX];
    float got[STATE_TOKENS * INNER_STATE], want[STATE_TOKENS * INNER_STATE];
};

static bool state_room(struct pl_optest_bench *b, const struct state_case *s, struct state_data *d) {
    size_t na = s->full ? (size_t)s->heads * s->state : s->heads;
    d->cols = INNER_STATE + 2 * (size_t)s->groups * s->state;
    d->x = pl_optest_values(b, STATE_TOKENS * d->cols);
    d->dt = pl_optest_values(b, (size_t)STATE_TOKENS * s->heads);
    d->z = pl_optest_values(b, (size_t)STATE_TOKENS * INNER_STATE);
    d->conv_w = pl_optest_values(b, KERNEL * d->cols);
    d->conv_b = pl_optest_values(b, d->cols);
    d->a = pl_optest_values(b, na);
    d->dt_bias = pl_optest_values(b, s->heads);
    d->skip = pl_optest_values(b, s->heads);
    bool whole = d->x != NULL && d->dt != NULL && d->z != NULL && d->conv_w != NULL && d->conv_b != NULL && d->a != NULL &&
                 d->dt_bias != NULL && d->skip != NULL;
    for (size_t i = 0; whole && i < na; i++) d->a[i] = -expf(d->a[i]);
    return whole;
}

static void state_free(struct pl_optest_bench *b, struct state_data *d) {
    float *list[] = {d->x, d->dt, d->z, d->conv_w, d->conv_b, d->a, d->dt_bias, d->skip};
    for (size_t i = 0; i < PL_COUNT_OF(list); i++) pl_free(list[i]);
    for (size_t i = 0; i < PL_COUNT_OF(d->w); i++) pl_ops_weight_destroy(b->o, d->w[i]);
    pl_free(d);
}

static void state_batch(struct pl_optest_bench *b, bool more) {
    uint32_t row = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        uint32_t rows = more ? 1 : state_rows[s];
        b->seqs[s] = (struct pl_batch_seq){
            .first_row = row, .rows = rows, .past = more ? state_rows[s] : 0, .page_first = s * 16, .state = state_slots[s]};
        row += rows;
    }
    for (uint32_t i = 0; i < row; i++) b->tokens[i] = i + (more ? STATE_TOKENS - SEQS : 0);
    for (uint32_t i = 0; i < PAGES; i++) b->pages[i] = i;
    b->batch = (struct pl_batch){.rows = row,
                                 .tokens = b->tokens,
                                 .seq_count = SEQS,
                                 .seqs = b->seqs,
                                 .pages = b->pages,
                                 .page_entries = PAGES,
                                 .logit_count = 1,
                                 .logit_rows = b->logit_rows};
}

static enum pl_status state_recurrence(struct pl_optest_bench *b, const struct state_case *s, const struct state_data *d,
                                       const struct pl_activation *x, const struct pl_activation *dt,
                                       const struct pl_activation *z, struct pl_activation *y) {
    const uint32_t second = INNER_STATE + s->groups * s->state;
    const struct pl_delta delta = {.heads = s->heads,
                                   .head_dim = s->head_dim,
                                   .groups = s->groups,
                                   .state = s->state,
                                   .in_turn = s->in_turn,
                                   .a = d->w[2],
                                   .dt_bias = d->w[3],
                                   .x = x,
                                   .dt = dt,
                                   .beta = z,
                                   .q_first = INNER_STATE,
                                   .k_first = second};
    const struct pl_ssm ssm = {.heads = s->heads,
                               .head_dim = s->head_dim,
                               .groups = s->groups,
                               .state = s->state,
                               .full = s->full,
                               .a = d->w[2],
                               .dt_bias = d->w[3],
                               .skip = d->w[4],
                               .dt_max = 10,
                               .x = x,
                               .b = x,
                               .c = x,
                               .dt = dt,
                               .z = s->gated ? z : NULL,
                               .b_first = INNER_STATE,
                               .c_first = second};
    return s->delta ? pl_ops_delta(b->o, &delta, y) : pl_ops_ssm(b->o, &ssm, y);
}

/* One step: the convolution over all columns, and the recurrence over the same columns as they came in. */
static enum pl_status state_step(struct pl_optest_bench *b, const struct state_case *s, struct state_data *d, bool more) {
    struct pl_activation *x = NULL, *dt = NULL, *z = NULL, *mixed = NULL, *y = NULL;
    size_t first = more ? STATE_TOKENS - SEQS : 0, gates = s->delta ? s->heads : INNER_STATE;
    state_batch(b, more);
    enum pl_status st = pl_optest_activation(b, d->cols, &x);
    if (st == PL_OK) st = pl_optest_activation(b, s->heads, &dt);
    if (st == PL_OK) st = pl_optest_activation(b, gates, &z);
    if (st == PL_OK) st = pl_optest_activation(b, d->cols, &mixed);
    if (st == PL_OK) st = pl_optest_activation(b, INNER_STATE, &y);
    if (st == PL_OK) st = pl_ops_begin(b->o, &b->batch, b->kv);
    if (st == PL_OK) {
        struct pl_conv conv = {.kernel = KERNEL, .silu = true, .w = d->w[0], .bias = d->w[1]};
        st = pl_optest_fill(b, d->x, STATE_TOKENS, d->cols, x);
        if (st == PL_OK) st = pl_optest_fill(b, d->dt, STATE_TOKENS, s->heads, dt);
        if (st == PL_OK) st = pl_optest_fill(b, d->z, STATE_TOKENS, gates, z);
        pl_ops_witness_reset(b->o);
        if (st == PL_OK) st = pl_ops_causal_conv(b->o, &conv, x, mixed);
        if (st == PL_OK) st = state_recurrence(b, s, d, x, dt, z, y);
        uint32_t rows = b->batch.rows;
        if (st == PL_OK) st = pl_ops_activation_read(b->o, mixed, 0, rows, d->conv_got + first * d->cols);
        if (st == PL_OK) st = pl_ops_activation_read(b->o, y, 0, rows, d->got + first * INNER_STATE);
        st = end_step(b, st);
    }
    struct pl_activation *list[] = {x, dt, z, mixed, y};
    for (size_t i = 0; i < PL_COUNT_OF(list); i++) pl_ops_activation_destroy(b->o, list[i]);
    return st;
}

/* Both steps of one sequence, whose rows begin at `first` in the one and `later` in the other. */
static void state_reference(const struct state_case *s, struct state_data *d, uint32_t rows, size_t first, size_t later) {
    size_t bc = (size_t)s->groups * s->state, cols = d->cols;
    float inputs[(KERNEL - 1) * STATE_COLS_MAX] = {0}, columns[2][16 * STATE_COLS_MAX], x[16 * INNER_STATE];
    double state[INNER_STATE * 16] = {0};
    for (int step = 0; step < 2; step++) {
        size_t at = step == 0 ? first : later, n = step == 0 ? rows : 1;
        pl_ref_causal_conv(d->conv_w, d->conv_b, cols, KERNEL, true, d->x + at * cols, n, inputs, d->conv_want + at * cols);
        for (size_t t = 0; t < n; t++) {
            const float *in = d->x + (at + t) * cols;
            memcpy(x + t * INNER_STATE, in, INNER_STATE * sizeof *x);
            memcpy(columns[0] + t * bc, in + INNER_STATE, bc * sizeof *in);
            memcpy(columns[1] + t * bc, in + INNER_STATE + bc, bc * sizeof *in);
        }
        const struct pl_ref_ssm p = {.rows = n,
                                     .heads = s->heads,
                                     .head_dim = s->head_dim,
                                     .groups = s->groups,
                                     .state = s->state,
                                     .full = s->full,
                                     .a = d->a,
                                     .dt_bias = d->dt_bias,
                                     .skip = d->skip,
                                     .x = x,
                                     .b = columns[0],
                                     .c = columns[1],
                                     .dt = d->dt + at * s->heads,
                                     .z = s->gated ? d->z + at * INNER_STATE : NULL,
                                     .dt_max = 10};
        const struct pl_ref_delta delta = {.rows = n,
                                           .heads = s->heads,
                                           .head_dim = s->head_dim,
                                           .groups = s->groups,
                                           .state = s->state,
                                           .in_turn = s->in_turn,
                                           .a = d->a,
                                           .dt_bias = d->dt_bias,
                                           .q = columns[0],
                                           .k = columns[1],
                                           .v = x,
                                           .dt = d->dt + at * s->heads,
                                           .beta = d->z + at * s->heads};
        if (s->delta)
            pl_ref_delta(&delta, state, d->want + at * INNER_STATE);
        else
            pl_ref_ssm(&p, state, d->want + at * INNER_STATE);
    }
}

static enum pl_status state_begin(struct pl_optest_bench *b, const struct state_case *s, struct state_data *d) {
    struct pl_kv_shape shape = {.page_count = PAGES,
                                .page_tokens = PAGE,
                                .kv_heads = G,
                                .head_dim = D,
                                .dtype = PL_F32,
                                .state_layers = 1,
                                .state_slots = SEQS,
                                .state_conv = (KERNEL - 1) * d->cols,
                                .state_ssm = (size_t)INNER_STATE * s->state};
    const float *vectors[] = {d->conv_w, d->conv_b, d->a, d->dt_bias, d->skip};
    const size_t lengths[] = {KERNEL * d->cols, d->cols, s->full ? (size_t)s->heads * s->state : s->heads, s->heads,
                              s->heads};
    PL_TRY(pl_ops_kv_create(b->o, &shape, &b->kv, &b->err));
    for (size_t i = 0; i < PL_COUNT_OF(vectors); i++) {
        struct pl_tensor t = pl_optest_vector(vectors[i], lengths[i]);
        PL_TRY(pl_ops_weight_create(b->o, &t, PL_WEIGHT_VECTOR, &d->w[i], &b->err));
    }
    return PL_OK;
}

void pl_optest_state(struct pl_optest_bench *b, size_t which) {
    const struct state_case *s = &state_cases[which];
    struct state_data *d = pl_calloc(1, sizeof *d);
    struct pl_kv_store *before = b->kv;
    const size_t more = STATE_TOKENS - SEQS;
    char scan[96], update[96];
    snprintf(scan, sizeof scan, "%s, prompts of 5, 1 and 9", s->what);
    snprintf(update, sizeof update, "%s, one row more each", s->what);
    if (d == NULL) return;
    enum pl_status st = state_room(b, s, d) ? state_begin(b, s, d) : PL_NO_MEMORY;
    if (st == PL_OK)
        for (size_t i = 0, at = 0; i < SEQS; at += state_rows[i++]) state_reference(s, d, state_rows[i], at, more + i);
    if (st == PL_OK) st = state_step(b, s, d, false);
    pl_optest_judge(b, pl_optest_add(b, s->delta ? "delta" : "ssm_scan", scan), st, d->got, d->want, more * INNER_STATE,
                    BOUND_EXACT);
    if (st == PL_OK) st = state_step(b, s, d, true);
    pl_optest_judge(b, pl_optest_add(b, s->delta ? "delta" : "ssm_update", update), st, d->got + more * INNER_STATE,
                    d->want + more * INNER_STATE, (size_t)SEQS * INNER_STATE, BOUND_EXACT);
    snprintf(scan, sizeof scan, "%zu channels, kernel %d, prompts of 5, 1 and 9, then one row each", d->cols, KERNEL);
    if (!s->delta) /* which has no other channels */
        pl_optest_judge(b, pl_optest_add(b, "causal_conv", scan), st, d->conv_got, d->conv_want, STATE_TOKENS * d->cols,
                        BOUND_EXACT);
    if (b->kv != before) pl_ops_kv_destroy(b->o, b->kv);
    b->kv = before;
    state_free(b, d);
}

/* ---------- the choice of tokens ---------- */

enum { CHOICES = 9 };

static const struct pl_draw draws[CHOICES] = {
    {0, 0, 1, 0, 1, 0},       {0.7f, 0, 1, 0, 2, 1},  {1, 40, 1, 0, 3, 2},
    {1, 0, 0.9f, 0, 4, 3},    {1, 0, 1, 0.05f, 5, 4}, {0.8f, 40, 0.95f, 0.05f, 6, 5},
    {1.5f, 2, 1, 0, 7, 4096}, {30, 0, 0.5f, 0, 8, 7}, {0.05f, 300, 0.9999f, 0, 9, 8},
};

/* What src/sample draws from that row. */
static enum pl_status drawn_on_host(const float *row, const struct pl_draw *d, uint32_t *id, struct pl_err *err) {
    struct pl_sampling s;
    struct pl_sampler *sampler = NULL;
    float copy[WIDE];
    pl_sampling_default(&s);
    s.temperature = d->temperature;
    s.top_k = d->top_k;
    s.top_p = d->top_p;
    s.min_p = d->min_p;
    s.seed = d->seed;
    memcpy(copy, row, sizeof copy);
    PL_TRY(pl_sampler_create(&s, WIDE, &sampler, err));
    enum pl_status st = pl_sampler_draw(sampler, copy, d->position, id);
    pl_sampler_destroy(sampler);
    return st;
}

static enum pl_status run_choice(struct pl_optest_bench *b, const float *logits, bool drawn, uint32_t ids[CHOICES]) {
    struct pl_activation *x = NULL;
    uint32_t slot = 0;
    pl_optest_plain_batch(b, CHOICES);
    enum pl_status st = pl_optest_activation(b, WIDE, &x);
    if (st == PL_OK) st = pl_ops_begin(b->o, &b->batch, b->kv);
    if (st == PL_OK) st = end_step(b, pl_optest_fill(b, logits, CHOICES, WIDE, x));
    pl_ops_witness_reset(b->o);
    if (st == PL_OK) st = pl_ops_choose(b->o, x, CHOICES, drawn ? draws : NULL, &slot);
    if (st == PL_OK) st = pl_ops_chosen(b->o, slot, ids, CHOICES);
    pl_ops_activation_destroy(b->o, x);
    return st;
}

void pl_optest_choice(struct pl_optest_bench *b, bool drawn) {
    char what[96];
    snprintf(what, sizeof what, drawn ? "%d rows of %d, filters of every kind, as src/sample draws" : "%d rows of %d",
             CHOICES, WIDE);
    struct pl_optest_case *c = pl_optest_add(b, drawn ? "draw" : "argmax", what);
    float *logits = pl_optest_values(b, (size_t)CHOICES * WIDE), got[CHOICES] = {0}, want[CHOICES] = {0};
    uint32_t ids[CHOICES] = {0};
    enum pl_status st = logits == NULL ? PL_NO_MEMORY : PL_OK;
    if (!pl_ops_chooses(b->o)) {
        pl_optest_skip(b, c, "no port: where logits are in host memory, the sampler reads them there");
        pl_free(logits);
        return;
    }
    for (size_t i = 0; st == PL_OK && i < (size_t)CHOICES * WIDE; i++) logits[i] *= 8;
    if (st == PL_OK) st = run_choice(b, logits, drawn, ids);
    for (size_t r = 0; st == PL_OK && r < CHOICES; r++) {
        uint32_t id = (uint32_t)pl_ref_argmax(logits + r * WIDE, WIDE);
        if (drawn) st = drawn_on_host(logits + r * WIDE, &draws[r], &id, &b->err);
        want[r] = (float)id;
        got[r] = (float)ids[r];
    }
    pl_optest_judge(b, c, st, got, want, CHOICES, 0); /* the same ids, nothing less */
    pl_free(logits);
}
