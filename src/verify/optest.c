/* optest - the list of cases and how they are run; products, rows, experts and attention. Others: optest_layers.c. */
#include "verify/optest_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "ref/ref.h"
#include "tensor/convert.h"
#include "tensor/quant.h"

float pl_optest_uniform(struct pl_optest_bench *b) {
    const uint32_t counter[4] = {b->random++, 0, 0, 0}, key[2] = {11, 12};
    return 2 * pl_uniform_open(pl_philox4x32(counter, key).v[0]) - 1;
}

float *pl_optest_values(struct pl_optest_bench *b, size_t n) {
    float *p = pl_alloc(n, sizeof *p);
    for (size_t i = 0; p != NULL && i < n; i++) p[i] = pl_optest_uniform(b);
    return p;
}

struct pl_optest_case *pl_optest_add(struct pl_optest_bench *b, const char *op, const char *what) {
    struct pl_optest *t = b->t;
    if (pl_grow(&t->cases, &t->cap, t->count + 1, sizeof *t->cases) != PL_OK) return NULL;
    struct pl_optest_case *c = &t->cases[t->count++];
    *c = (struct pl_optest_case){.passed = true};
    snprintf(c->op, sizeof c->op, "%s", op);
    snprintf(c->what, sizeof c->what, "%s", what);
    return c;
}

static double relative_error(const float *got, const float *want, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - want[i];
        difference += d * d;
        size += (double)want[i] * want[i];
    }
    double e = sqrt(difference / (size > 0 ? size : 1));
    return isfinite(e) ? e : HUGE_VAL;
}

static int by_kernel(const void *a, const void *b) {
    return strcmp(((const struct pl_ops_launches *)a)->kernel, ((const struct pl_ops_launches *)b)->kernel);
}

/* The kernels that op ran, from the witness; by name, because the witness has them as they first came. */
static void name_kernel(struct pl_optest_bench *b, struct pl_optest_case *c) {
    struct pl_ops_launches list[128];
    size_t n = PL_MIN(pl_ops_witness(b->o, list, PL_COUNT_OF(list)), PL_COUNT_OF(list));
    qsort(list, n, sizeof *list, by_kernel);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i].op, c->op) != 0 || list[i].launches == 0 || strncmp(list[i].kernel, "declined", 8) == 0) continue;
        size_t used = strlen(c->kernel);
        snprintf(c->kernel + used, sizeof c->kernel - used, "%s%.80s", used > 0 ? " " : "", list[i].kernel);
    }
}

void pl_optest_judge(struct pl_optest_bench *b, struct pl_optest_case *c, enum pl_status st, const float *got,
                     const float *want, size_t n, double bound) {
    if (c == NULL) return;
    c->bound = bound;
    name_kernel(b, c);
    if (st != PL_OK) {
        c->passed = false;
        const char *why = pl_ops_refusal(b->o);
        snprintf(c->why, sizeof c->why, "%s %.150s", pl_status_text(st), why[0] != '\0' ? why : b->err.text);
    } else {
        c->error = relative_error(got, want, n);
        c->passed = c->error <= bound;
        if (c->kernel[0] == '\0') {
            c->passed = false;
            snprintf(c->why, sizeof c->why, "no launch was counted");
        }
    }
    b->t->failed += !c->passed;
}

void pl_optest_skip(struct pl_optest_bench *b, struct pl_optest_case *c, const char *why) {
    if (c == NULL) return;
    c->skipped = true;
    snprintf(c->why, sizeof c->why, "%.190s", why);
    b->t->skipped++;
}

/* ---------- a batch, and activations with known values ---------- */

/* One sequence of `rows` rows after `past` tokens, in pages from `page` on. */
void pl_optest_plain_batch(struct pl_optest_bench *b, uint32_t rows) {
    for (uint32_t i = 0; i < rows; i++) b->tokens[i] = i, b->logit_rows[i] = i;
    for (uint32_t i = 0; i < PAGES; i++) b->pages[i] = PAGES - 1 - i;
    b->seqs[0] = (struct pl_batch_seq){.rows = rows};
    b->batch = (struct pl_batch){.rows = rows,
                                 .tokens = b->tokens,
                                 .seq_count = 1,
                                 .seqs = b->seqs,
                                 .pages = b->pages,
                                 .page_entries = PAGES,
                                 .logit_count = rows,
                                 .logit_rows = b->logit_rows};
}

enum pl_status pl_optest_activation(struct pl_optest_bench *b, size_t cols, struct pl_activation **out) {
    return pl_ops_activation_create(b->o, ROWS_MAX, cols, out, &b->err);
}

struct pl_tensor pl_optest_matrix(const void *data, enum pl_dtype t, size_t rows, size_t cols) {
    struct pl_tensor w = {.name = "test", .dtype = t, .ndim = 2, .shape = {rows, cols, 1, 1}, .data = data};
    (void)pl_dtype_row_bytes(t, cols, &w.bytes);
    w.bytes *= rows;
    return w;
}
struct pl_tensor pl_optest_vector(const float *data, size_t n) {
    return (struct pl_tensor){
        .name = "test", .dtype = PL_F32, .ndim = 1, .shape = {n, 1, 1, 1}, .data = data, .bytes = n * 4};
}

/* embed is the door */
enum pl_status pl_optest_fill(struct pl_optest_bench *b, const float *values, size_t table_rows, size_t cols,
                              struct pl_activation *x) {
    struct pl_tensor t = pl_optest_matrix(values, PL_F32, table_rows, cols);
    struct pl_weight *table = NULL;
    float *row = pl_alloc(cols, sizeof *row);
    if (row == NULL) return PL_NO_MEMORY;
    enum pl_status st = pl_ops_weight_create(b->o, &t, PL_WEIGHT_EMBED, &table, &b->err);
    if (st == PL_OK) st = pl_ops_embed(b->o, table, 1.0f, x);
    if (st == PL_OK) st = pl_ops_activation_read(b->o, x, 0, 1, row); /* the table may go only when it was read */
    if (table != NULL) pl_ops_weight_destroy(b->o, table);
    pl_free(row);
    return st;
}

/* ---------- products ---------- */

/* By quantising where that is known, else random blocks whose values are sane. */
void *pl_optest_weights(struct pl_optest_bench *b, enum pl_dtype t, size_t n) {
    const struct pl_dtype_info *info = pl_dtype_info(t);
    size_t blocks = n / info->block_elems;
    uint8_t *raw = pl_calloc(blocks, info->block_bytes);
    float *values = pl_optest_values(b, n), out[256];
    if (raw != NULL && values != NULL && pl_quantize_span(t, values, n, raw) != PL_OK) {
        for (size_t i = 0; i < blocks; i++) {
            uint8_t *block = raw + i * info->block_bytes;
            for (int tries = 0; tries < 4000; tries++) {
                for (uint32_t k = 0; k < info->block_bytes; k++) block[k] = (uint8_t)(int)(128 * (pl_optest_uniform(b) + 1));
                double top = 0;
                if (pl_dequant_span(t, block, info->block_elems, out) != PL_OK) break;
                for (uint32_t k = 0; k < info->block_elems; k++) top = fmax(top, isfinite(out[k]) ? fabs(out[k]) : 1e30);
                if (top > 0.05 && top < 4) break;
            }
        }
    }
    if (raw != NULL && values != NULL && t == PL_F32) memcpy(raw, values, n * 4);
    for (size_t i = 0; raw != NULL && values != NULL && (t == PL_F16 || t == PL_BF16) && i < n; i++) {
        uint16_t h = t == PL_F16 ? pl_f32_to_f16(values[i]) : pl_f32_to_bf16(values[i]);
        memcpy(raw + 2 * i, &h, 2);
    }
    pl_free(values);
    return raw;
}

static enum pl_status product(struct pl_optest_bench *b, const struct pl_weight *w, const float *x, uint32_t rows, bool add,
                              float *got, const float *start) {
    struct pl_activation *in = NULL, *out = NULL;
    const struct pl_weight *list[1] = {w};
    pl_optest_plain_batch(b, rows);
    enum pl_status st = pl_optest_activation(b, WIDE, &in);
    if (st == PL_OK) st = pl_optest_activation(b, OUT, &out);
    if (st == PL_OK) st = pl_ops_begin(b->o, &b->batch, b->kv);
    if (st == PL_OK) st = pl_optest_fill(b, x, rows, WIDE, in);
    if (st == PL_OK && add) st = pl_optest_fill(b, start, rows, OUT, out);
    pl_ops_witness_reset(b->o);
    if (st == PL_OK) st = add ? pl_ops_linear_add(b->o, w, in, out) : pl_ops_linear(b->o, 1, list, NULL, in, &out);
    if (st == PL_OK) st = pl_ops_activation_read(b->o, out, 0, rows, got);
    enum pl_status end = pl_ops_end(b->o);
    pl_ops_activation_destroy(b->o, in);
    pl_ops_activation_destroy(b->o, out);
    return st != PL_OK ? st : end;
}

static void test_product(struct pl_optest_bench *b, enum pl_dtype t, uint32_t rows, bool add) {
    char what[96];
    snprintf(what, sizeof what, "%s [%d,%d], %u row%s", pl_dtype_name(t), OUT, WIDE, rows, rows == 1 ? "" : "s");
    struct pl_optest_case *c = pl_optest_add(b, add ? "linear_add" : "linear", what);
    void *raw = pl_optest_weights(b, t, (size_t)OUT * WIDE);
    float *x = pl_optest_values(b, (size_t)rows * WIDE), *got = pl_optest_values(b, (size_t)rows * OUT),
          *want = pl_optest_values(b, (size_t)rows * OUT), *start = pl_optest_values(b, (size_t)rows * OUT), scratch[WIDE];
    struct pl_weight *w = NULL;
    if (c != NULL && raw != NULL && x != NULL && got != NULL && want != NULL && start != NULL) {
        struct pl_tensor tensor = pl_optest_matrix(raw, t, OUT, WIDE);
        enum pl_status st = pl_ops_weight_create(b->o, &tensor, PL_WEIGHT_MATRIX, &w, &b->err);
        if (st == PL_UNSUPPORTED) {
            pl_optest_skip(b, c, b->err.text);
        } else {
            if (add) memcpy(want, start, (size_t)rows * OUT * sizeof *want);
            if (st == PL_OK) st = product(b, w, x, rows, add, got, start);
            if (st == PL_OK) st = pl_ref_matmul(&tensor, NULL, x, WIDE, rows, add, want, OUT, NULL, scratch);
            pl_optest_judge(b, c, st, got, want, (size_t)rows * OUT, t == PL_F32 ? BOUND_EXACT : BOUND_ROUNDED);
        }
    }
    pl_ops_weight_destroy(b->o, w);
    pl_free(raw);
    pl_free(x);
    pl_free(got);
    pl_free(want);
    pl_free(start);
}

/* ---------- rows ---------- */

enum row_op {
    ROW_EMBED,
    ROW_NORM,
    ROW_ADD_NORM,
    ROW_ADD,
    ROW_SILU,
    ROW_GELU,
    ROW_SOFTCAP,
    ROW_GATHER,
    ROW_LAYER_NORM,
    ROW_SCALE,
    ROW_GATED_NORM,
    ROW_OPS
};
static const char *const row_names[ROW_OPS][2] = {
    {"embed", "f32 table"}, {"norm", "rms, weight"},   {"add_norm", "in one"},
    {"add", "residual"},    {"glu", "silu"},           {"glu", "gelu tanh"},
    {"softcap", "0.5"},     {"gather", "every row"},   {"layer_norm", "weight, bias"},
    {"scale", "0.5"},       {"gated_norm", "2 groups"}};

static enum pl_status row_op(struct pl_optest_bench *b, enum row_op op, struct pl_activation *x, struct pl_activation *y,
                             const struct pl_weight *w) {
    switch (op) {
    case ROW_EMBED: return PL_OK;
    case ROW_NORM: return pl_ops_norm(b->o, x, w, 1e-5f, 0, y);
    case ROW_ADD_NORM: return pl_ops_add_norm(b->o, x, y, w, 1e-5f, 0, y);
    case ROW_ADD: return pl_ops_add(b->o, y, x);
    case ROW_SILU: return pl_ops_glu(b->o, PL_OPS_SILU, x, y, y);
    case ROW_GELU: return pl_ops_glu(b->o, PL_OPS_GELU_TANH, x, y, y);
    case ROW_SOFTCAP: return pl_ops_softcap(b->o, y, 0.5f);
    case ROW_GATHER: return pl_ops_gather_logit_rows(b->o, x, y);
    case ROW_LAYER_NORM: return pl_ops_layer_norm(b->o, x, w, w, 1e-5f, y);
    case ROW_SCALE: return pl_ops_scale(b->o, y, 0.5f);
    case ROW_GATED_NORM: {
        struct pl_gated_norm p = {.groups = 2, .eps = 1e-5f, .w = w};
        return pl_ops_gated_norm(b->o, &p, y, x, y);
    }
    case ROW_OPS: break;
    }
    return PL_INVALID;
}

/* What row_op leaves in y, whose values were those of y before. */
static void row_reference(enum row_op op, const float *x, const float *w, size_t rows, float *y) {
    float sum[WIDE];
    for (size_t r = 0; r < rows; r++, x += WIDE, y += WIDE) {
        if (op == ROW_NORM) pl_ref_rmsnorm(x, w, WIDE, 1e-5, 0, y);
        for (size_t i = 0; i < WIDE; i++) sum[i] = x[i] + y[i];
        if (op == ROW_ADD_NORM) pl_ref_rmsnorm(sum, w, WIDE, 1e-5, 0, y);
        if (op == ROW_ADD) memcpy(y, sum, sizeof sum);
        if (op == ROW_SILU || op == ROW_GELU) pl_ref_glu(op == ROW_SILU ? PL_REF_SILU : PL_REF_GELU_TANH, x, y, y, WIDE);
        if (op == ROW_LAYER_NORM) pl_ref_layernorm(x, w, w, WIDE, 1e-5, y);
        for (size_t i = 0; op == ROW_SCALE && i < WIDE; i++) y[i] *= 0.5f;
        if (op == ROW_GATED_NORM) pl_ref_gated_norm(y, x, w, WIDE, 2, 1e-5, false, y);
        if (op == ROW_SOFTCAP) pl_ref_softcap(y, WIDE, 0.5);
        if (op == ROW_GATHER || op == ROW_EMBED) memcpy(y, x, WIDE * sizeof *y);
    }
}

static void test_row(struct pl_optest_bench *b, enum row_op op, uint32_t rows) {
    char what[96];
    snprintf(what, sizeof what, "%s, %u rows of %d", row_names[op][1], rows, WIDE);
    struct pl_optest_case *c = pl_optest_add(b, row_names[op][0], what);
    size_t n = (size_t)rows * WIDE;
    float *xs = pl_optest_values(b, n), *ys = pl_optest_values(b, n), *got = pl_optest_values(b, n),
          *ws = pl_optest_values(b, WIDE);
    struct pl_activation *x = NULL, *y = NULL;
    struct pl_weight *w = NULL;
    struct pl_tensor tensor = pl_optest_vector(ws, WIDE);
    pl_optest_plain_batch(b, rows);
    enum pl_status st = xs == NULL || ys == NULL || got == NULL || ws == NULL ? PL_NO_MEMORY : PL_OK;
    if (st == PL_OK) st = pl_ops_weight_create(b->o, &tensor, PL_WEIGHT_VECTOR, &w, &b->err);
    if (st == PL_OK) st = pl_optest_activation(b, WIDE, &x);
    if (st == PL_OK) st = pl_optest_activation(b, WIDE, &y);
    if (st == PL_OK) st = pl_ops_begin(b->o, &b->batch, b->kv);
    if (st == PL_OK && op != ROW_EMBED) st = pl_optest_fill(b, ys, rows, WIDE, y);
    pl_ops_witness_reset(b->o);
    if (st == PL_OK) st = pl_optest_fill(b, xs, rows, WIDE, x);
    if (st == PL_OK) st = row_op(b, op, x, y, w);
    if (st == PL_OK) st = pl_ops_activation_read(b->o, op == ROW_EMBED ? x : y, 0, rows, got);
    enum pl_status end = pl_ops_end(b->o);
    if (ys != NULL && xs != NULL && ws != NULL) row_reference(op, xs, ws, rows, ys);
    pl_optest_judge(b, c, st != PL_OK ? st : end, got, ys, n, BOUND_EXACT);
    pl_ops_weight_destroy(b->o, w);
    pl_ops_activation_destroy(b->o, x);
    pl_ops_activation_destroy(b->o, y);
    pl_free(xs);
    pl_free(ys);
    pl_free(got);
    pl_free(ws);
}

/* ---------- experts ---------- */

enum { EXPERTS = 8, USED = 3, INNER = 256 };

struct experts {
    struct pl_tensor tensor[3][EXPERTS]; /* gate, up, down */
    void *raw[3];
    struct pl_weight *w[3];
};

static enum pl_status make_experts(struct pl_optest_bench *b, enum pl_dtype t, struct experts *e) {
    for (int m = 0; m < 3; m++) {
        size_t out = m == 2 ? WIDE : INNER, in = m == 2 ? INNER : WIDE;
        e->raw[m] = pl_optest_weights(b, t, EXPERTS * out * in);
        if (e->raw[m] == NULL) return PL_NO_MEMORY;
        for (size_t x = 0; x < EXPERTS; x++) {
            e->tensor[m][x] = pl_optest_matrix(NULL, t, out, in);
            e->tensor[m][x].data = (const char *)e->raw[m] + x * e->tensor[m][x].bytes;
        }
        PL_TRY(pl_ops_experts_create(b->o, e->tensor[m], EXPERTS, &e->w[m], &b->err));
    }
    return PL_OK;
}

/* y += the weighted sum of what the chosen experts say. */
static enum pl_status moe_reference(const struct experts *e, const float *logits, const float *x, size_t rows, float *y) {
    struct pl_ref_route route = {.experts = EXPERTS, .used = USED, .renormalise = true, .scale = 1};
    size_t ids[EXPERTS];
    double weights[EXPERTS], scratch[2 * EXPERTS];
    float gate[INNER], up[INNER], said[WIDE], row[WIDE];
    for (size_t r = 0; r < rows; r++) {
        pl_ref_route(&route, logits + r * EXPERTS, ids, weights, scratch);
        for (size_t k = 0; k < USED; k++) {
            size_t i = ids[k];
            PL_TRY(pl_ref_matmul(&e->tensor[0][i], NULL, x + r * WIDE, WIDE, 1, false, gate, INNER, NULL, row));
            PL_TRY(pl_ref_matmul(&e->tensor[1][i], NULL, x + r * WIDE, WIDE, 1, false, up, INNER, NULL, row));
            pl_ref_glu(PL_REF_SILU, gate, up, gate, INNER);
            PL_TRY(pl_ref_matmul(&e->tensor[2][i], NULL, gate, INNER, 1, false, said, WIDE, NULL, row));
            for (size_t c = 0; c < WIDE; c++) y[r * WIDE + c] += (float)weights[k] * said[c];
        }
    }
    return PL_OK;
}

static enum pl_status run_moe(struct pl_optest_bench *b, const struct experts *e, const float *values[3], uint32_t rows,
                              float *got) {
    struct pl_moe p = {
        .used = USED, .renormalise = true, .scale = 1, .act = PL_OPS_SILU, .gate = e->w[0], .up = e->w[1], .down = e->w[2]};
    struct pl_activation *in[3] = {NULL}; /* logits, x, y */
    pl_optest_plain_batch(b, rows);
    enum pl_status st = pl_ops_moe_reserve(b->o, &p, ROWS_MAX, &b->err);
    for (int i = 0; i < 3 && st == PL_OK; i++) st = pl_optest_activation(b, i == 0 ? EXPERTS : WIDE, &in[i]);
    if (st == PL_OK) st = pl_ops_begin(b->o, &b->batch, b->kv);
    if (st == PL_OK) {
        for (int i = 0; i < 3 && st == PL_OK; i++) st = pl_optest_fill(b, values[i], rows, i == 0 ? EXPERTS : WIDE, in[i]);
        pl_ops_witness_reset(b->o);
        if (st == PL_OK) st = pl_ops_moe(b->o, &p, in[0], in[1], in[2]);
        if (st == PL_OK) st = pl_ops_activation_read(b->o, in[2], 0, rows, got);
        enum pl_status end = pl_ops_end(b->o);
        if (st == PL_OK) st = end;
    }
    for (int i = 0; i < 3; i++) pl_ops_activation_destroy(b->o, in[i]);
    return st;
}

static void test_moe(struct pl_optest_bench *b, enum pl_dtype t, uint32_t rows) {
    char what[96];
    snprintf(what, sizeof what, "%s, %d of %d experts, %u row%s", pl_dtype_name(t), USED, EXPERTS, rows,
             rows == 1 ? "" : "s");
    struct pl_optest_case *c = pl_optest_add(b, "moe", what);
    struct experts e = {0};
    float *logits = pl_optest_values(b, (size_t)rows * EXPERTS), *x = pl_optest_values(b, (size_t)rows * WIDE),
          *y = pl_optest_values(b, (size_t)rows * WIDE), *got = pl_optest_values(b, (size_t)rows * WIDE);
    enum pl_status st = logits == NULL || x == NULL || y == NULL || got == NULL ? PL_NO_MEMORY : make_experts(b, t, &e);
    if (st == PL_UNSUPPORTED) {
        pl_optest_skip(b, c, b->err.text);
    } else {
        const float *values[3] = {logits, x, y};
        if (st == PL_OK) st = run_moe(b, &e, values, rows, got);
        if (st == PL_OK) st = moe_reference(&e, logits, x, rows, y);
        pl_optest_judge(b, c, st, got, y, (size_t)rows * WIDE, BOUND_ROUNDED);
    }
    for (int m = 0; m < 3; m++) {
        pl_ops_weight_destroy(b->o, e.w[m]);
        pl_free(e.raw[m]);
    }
    pl_free(logits);
    pl_free(x);
    pl_free(y);
    pl_free(got);
}

/* ---------- attention ---------- */

struct attention_case {
    const char *what;
    uint32_t seqs, past[SEQS], rows[SEQS];
    uint32_t window;
    float softcap;
    bool rope;
};
static const struct attention_case attention_cases[] = {
    {"one row after 40 tokens", 1, {40}, {1}, 0, 0, true},
    {"three sequences of one row, up to 450 tokens", 3, {5, 130, 450}, {1, 1, 1}, 0, 0, false},
    {"the same, window 70, softcap 20", 3, {5, 130, 450}, {1, 1, 1}, 70, 20, false},
    {"one row that begins a page", 1, {64}, {1}, 0, 0, true},
    {"prompts beside a row", 3, {64, 0, 33}, {1, 50, 17}, 0, 0, true},
};

struct attention_data {
    float *q, *k, *v, *got, *want; /* by token: sequence s has tokens first[s].. */
    uint32_t first[SEQS], total;
    float rope[ROWS_MAX * D]; /* [positions, D/2, 2] */
};

float pl_optest_rounded(enum pl_dtype t, float x) {
    return t == PL_F16 ? pl_f16_to_f32(pl_f32_to_f16(x)) : t == PL_BF16 ? pl_bf16_to_f32(pl_f32_to_bf16(x)) : x;
}

/* One step: rows [from, to) of each sequence, all layers of the test's one-layer model up to attention. */
static enum pl_status attention_step(struct pl_optest_bench *b, const struct attention_case *a, struct attention_data *d,
                                     bool history, const struct pl_rope *rope, float *out) {
    struct pl_activation *q = NULL, *k = NULL, *v = NULL, *y = NULL;
    uint32_t row = 0;
    for (uint32_t s = 0; s < a->seqs; s++) {
        uint32_t past = history ? 0 : a->past[s], rows = history ? a->past[s] : a->rows[s];
        b->seqs[s] = (struct pl_batch_seq){.first_row = row, .rows = rows, .past = past, .page_first = s * 16};
        for (uint32_t i = 0; i < rows; i++) b->tokens[row++] = d->first[s] + past + i;
    }
    b->batch = (struct pl_batch){.rows = row,
                                 .tokens = b->tokens,
                                 .seq_count = a->seqs,
                                 .seqs = b->seqs,
                                 .pages = b->pages,
                                 .page_entries = PAGES,
                                 .logit_count = 1,
                                 .logit_rows = b->logit_rows};
    struct pl_qkv p = {.heads = H, .rope = rope};
    struct pl_attention at = {.heads = H, .scale = 0.125f, .softcap = a->softcap, .window = a->window};
    enum pl_status st = pl_optest_activation(b, H * D, &q);
    if (st == PL_OK) st = pl_optest_activation(b, G * D, &k);
    if (st == PL_OK) st = pl_optest_activation(b, G * D, &v);
    if (st == PL_OK) st = pl_optest_activation(b, H * D, &y);
    if (st == PL_OK) st = pl_ops_begin(b->o, &b->batch, b->kv);
    if (st == PL_OK) st = pl_optest_fill(b, d->q, d->total, H * D, q);
    if (st == PL_OK) st = pl_optest_fill(b, d->k, d->total, G * D, k);
    if (st == PL_OK) st = pl_optest_fill(b, d->v, d->total, G * D, v);
    pl_ops_witness_reset(b->o);
    if (st == PL_OK) st = pl_ops_rope_append(b->o, &p, q, k, v);
    if (st == PL_OK && !history) st = pl_ops_attention(b->o, &at, q, y);
    if (st == PL_OK && !history) st = pl_ops_activation_read(b->o, y, 0, row, out);
    enum pl_status end = pl_ops_end(b->o);
    pl_ops_activation_destroy(b->o, q);
    pl_ops_activation_destroy(b->o, k);
    pl_ops_activation_destroy(b->o, v);
    pl_ops_activation_destroy(b->o, y);
    return st != PL_OK ? st : end;
}

static size_t attention_reference(const struct attention_case *a, struct attention_data *d, enum pl_dtype t) {
    double scores[ROWS_MAX];
    size_t row = 0;
    for (uint32_t s = 0; s < a->seqs; s++) {
        uint32_t first = d->first[s], len = a->past[s] + a->rows[s];
        for (uint32_t i = 0; a->rope && i < len; i++) {
            for (uint32_t h = 0; h < H; h++)
                pl_ref_rope(d->q + ((size_t)(first + i) * H + h) * D, d->rope + (size_t)i * D, D, true);
            for (uint32_t h = 0; h < G; h++)
                pl_ref_rope(d->k + ((size_t)(first + i) * G + h) * D, d->rope + (size_t)i * D, D, true);
        }
        for (size_t i = (size_t)first * G * D; i < (size_t)(first + len) * G * D; i++) {
            d->k[i] = pl_optest_rounded(t, d->k[i]);
            d->v[i] = pl_optest_rounded(t, d->v[i]);
        }
        struct pl_ref_attention r = {.rows = a->rows[s],
                                     .past = a->past[s],
                                     .heads = H,
                                     .kv_heads = G,
                                     .head_dim = D,
                                     .window = a->window,
                                     .scale = 0.125,
                                     .softcap = (double)a->softcap,
                                     .q = d->q + (size_t)(first + a->past[s]) * H * D,
                                     .k = d->k + (size_t)first * G * D,
                                     .v = d->v + (size_t)first * G * D,
                                     .q_stride = H * D,
                                     .out = d->want + row * H * D,
                                     .out_stride = H * D};
        pl_ref_attention(&r, scores);
        row += a->rows[s];
    }
    return row;
}

static void attention_with(struct pl_optest_bench *b, const struct attention_case *a, enum pl_dtype t,
                           struct attention_data *d) {
    char what[96];
    snprintf(what, sizeof what, "%s cache, %s%s", pl_dtype_name(t), a->what, a->rope ? ", rope" : "");
    struct pl_optest_case *c = pl_optest_add(b, "attention", what);
    struct pl_kv_shape shape = {
        .layers = 1, .page_count = PAGES, .page_tokens = PAGE, .kv_heads = G, .head_dim = D, .dtype = t};
    struct pl_kv_store *before = b->kv;
    struct pl_rope *rope = NULL;
    bool past = false;
    for (uint32_t s = 0; s < a->seqs; s++) past |= a->past[s] > 0;
    enum pl_status st = pl_ops_kv_create(b->o, &shape, &b->kv, &b->err);
    if (st == PL_OK && a->rope) st = pl_ops_rope_create(b->o, d->rope, ROWS_MAX, D, true, &rope, &b->err);
    /* History first, sequences one after the other. */
    for (uint32_t s = 0; st == PL_OK && past && s < a->seqs; s++) {
        struct attention_case single = {.seqs = 1, .past = {a->past[s]}};
        struct attention_data view = *d;
        view.first[0] = d->first[s];
        for (uint32_t i = 0; i < PAGES; i++) b->pages[i] = (2 * PAGES - 1 - i - s * 16) % PAGES;
        if (a->past[s] > 0) st = attention_step(b, &single, &view, true, rope, NULL);
    }
    for (uint32_t i = 0; i < PAGES; i++) b->pages[i] = PAGES - 1 - i;
    if (st == PL_OK) st = attention_step(b, a, d, false, rope, d->got);
    size_t rows = attention_reference(a, d, t);
    pl_optest_judge(b, c, st, d->got, d->want, rows * H * D, BOUND_ATTENTION);
    pl_ops_rope_destroy(b->o, rope);
    if (b->kv != before) pl_ops_kv_destroy(b->o, b->kv);
    b->kv = before;
}

static void test_attention(struct pl_optest_bench *b, const struct attention_case *a, enum pl_dtype t) {
    struct attention_data *d = pl_calloc(1, sizeof *d);
    if (d == NULL) return;
    for (uint32_t s = 0; s < a->seqs; s++) {
        d->first[s] = d->total;
        d->total += a->past[s] + a->rows[s];
    }
    d->q = pl_optest_values(b, (size_t)d->total * H * D);
    d->k = pl_optest_values(b, (size_t)d->total * G * D);
    d->v = pl_optest_values(b, (size_t)d->total * G * D);
    d->got = pl_optest_values(b, (size_t)ROWS_MAX * H * D);
    d->want = pl_optest_values(b, (size_t)ROWS_MAX * H * D);
    for (size_t i = 0; i < ROWS_MAX * D / 2; i++) {
        double angle = (double)(i / (D / 2)) * pow(10000.0, -2.0 * (double)(i % (D / 2)) / D);
        d->rope[2 * i] = (float)cos(angle);
        d->rope[2 * i + 1] = (float)sin(angle);
    }
    if (d->q != NULL && d->k != NULL && d->v != NULL && d->got != NULL && d->want != NULL) attention_with(b, a, t, d);
    pl_free(d->q);
    pl_free(d->k);
    pl_free(d->v);
    pl_free(d->got);
    pl_free(d->want);
    pl_free(d);
}

/* ---------- all of it ---------- */

enum job_kind {
    JOB_PRODUCT,
    JOB_PRODUCT_ADD,
    JOB_ROW,
    JOB_MOE,
    JOB_ATTENTION,
    JOB_GATE_ROWS,
    JOB_TERNARY,
    JOB_HEADS,
    JOB_LATENT,
    JOB_STATE,
    JOB_CHOICE
};
struct job {
    enum job_kind kind;
    int what; /* weight type, row operation or number of the case */
    uint32_t rows;
    enum pl_dtype kv;
};
enum { JOBS_MAX = 512 };

static void add_job(struct job *list, size_t *n, enum job_kind kind, int what, uint32_t rows, enum pl_dtype kv) {
    PL_ASSERT(*n < JOBS_MAX);
    list[(*n)++] = (struct job){kind, what, rows, kv};
}

/* What only some families of models ask for. */
static void layer_jobs(bool quick, struct job *list, size_t *n) {
    static const uint32_t rows[] = {1, 40, 3};
    static const enum pl_dtype kv[] = {PL_F16, PL_BF16, PL_F32}, heads[] = {PL_Q8_0, PL_F16, PL_F32};
    add_job(list, n, JOB_GATE_ROWS, 0, 9, PL_F32);
    for (size_t r = 0; r < PL_COUNT_OF(rows); r++) {
        if (quick && rows[r] == 3) continue;
        add_job(list, n, JOB_TERNARY, 0, rows[r], PL_F32);
        for (size_t t = 0; t < (quick ? 1 : PL_COUNT_OF(heads)); t++)
            add_job(list, n, JOB_HEADS, (int)heads[t], rows[r], PL_F32);
    }
    for (size_t t = 0; t < (quick ? 1 : PL_COUNT_OF(kv)); t++)
        for (int i = 0; i < PL_OPTEST_LATENT_CASES; i++) add_job(list, n, JOB_LATENT, i, 0, kv[t]);
    for (int i = 0; i < PL_OPTEST_STATE_CASES; i++) add_job(list, n, JOB_STATE, i, 0, PL_F32);
    for (int i = 0; i < 2; i++) add_job(list, n, JOB_CHOICE, i, 0, PL_F32);
}

static size_t all_jobs(bool quick, struct job list[JOBS_MAX]) {
    static const uint32_t rows[] = {1, 40, 3};
    static const enum pl_dtype kv[] = {PL_F16, PL_BF16, PL_F32};
    size_t n = 0;
    for (int t = 0; t < PL_DTYPE_COUNT; t++) {
        if (t >= PL_MLX && t < PL_IQ1_S) continue; /* no weights of a file in one array */
        if (quick && t != PL_F32 && t != PL_F16 && t != PL_Q8_0 && t != PL_Q4_K) continue;
        for (size_t r = 0; r < (quick ? 2 : PL_COUNT_OF(rows)); r++) add_job(list, &n, JOB_PRODUCT, t, rows[r], PL_F32);
        add_job(list, &n, JOB_PRODUCT_ADD, t, 1, PL_F32);
    }
    for (int op = 0; op < ROW_OPS; op++) {
        if (!quick) add_job(list, &n, JOB_ROW, op, 1, PL_F32);
        add_job(list, &n, JOB_ROW, op, 9, PL_F32);
    }
    for (size_t r = 0; r < PL_COUNT_OF(rows); r++) add_job(list, &n, JOB_MOE, PL_Q8_0, rows[r], PL_F32);
    if (!quick) add_job(list, &n, JOB_MOE, PL_F16, 40, PL_F32);
    for (size_t t = 0; t < (quick ? 1 : PL_COUNT_OF(kv)); t++)
        for (size_t i = 0; i < PL_COUNT_OF(attention_cases); i++) add_job(list, &n, JOB_ATTENTION, (int)i, 0, kv[t]);
    layer_jobs(quick, list, &n);
    return n;
}

/* A case's random numbers depend on the case and not on what ran before it. */
static void run_job(struct pl_optest_bench *b, const struct job *j) {
    b->random = ((uint32_t)j->kind << 28) + ((uint32_t)j->what << 22) + (j->rows << 16) + ((uint32_t)j->kv << 8);
    switch (j->kind) {
    case JOB_PRODUCT: test_product(b, (enum pl_dtype)j->what, j->rows, false); break;
    case JOB_PRODUCT_ADD: test_product(b, (enum pl_dtype)j->what, j->rows, true); break;
    case JOB_ROW: test_row(b, (enum row_op)j->what, j->rows); break;
    case JOB_MOE: test_moe(b, (enum pl_dtype)j->what, j->rows); break;
    case JOB_ATTENTION: test_attention(b, &attention_cases[j->what], j->kv); break;
    case JOB_GATE_ROWS: pl_optest_gate_rows(b, j->rows); break;
    case JOB_TERNARY: pl_optest_ternary(b, j->rows); break;
    case JOB_HEADS: pl_optest_heads(b, (enum pl_dtype)j->what, j->rows); break;
    case JOB_LATENT: pl_optest_latent(b, (size_t)j->what, j->kv); break;
    case JOB_STATE: pl_optest_state(b, (size_t)j->what); break;
    case JOB_CHOICE: pl_optest_choice(b, j->what == 1); break;
    }
}

static void shuffle(struct job *list, size_t n, uint32_t seed) {
    for (size_t i = n; i > 1; i--) {
        const uint32_t counter[4] = {(uint32_t)i, 0, 0, 0}, key[2] = {seed, 13};
        size_t k = pl_philox4x32(counter, key).v[0] % i;
        struct job t = list[i - 1];
        list[i - 1] = list[k];
        list[k] = t;
    }
}

/* Some kernels are chosen by the layouts of the weights there are, as a model's would be: one of a layout of its own is
 * there from the start, whatever the order of cases. */
static enum pl_status common_weight(struct pl_optest_bench *b) {
    b->random = 0;
    b->raw = pl_optest_weights(b, PL_Q4_K, (size_t)OUT * WIDE);
    struct pl_tensor t = pl_optest_matrix(b->raw, PL_Q4_K, OUT, WIDE);
    if (b->raw == NULL) return PL_NO_MEMORY;
    enum pl_status st = pl_ops_weight_create(b->o, &t, PL_WEIGHT_MATRIX, &b->common, &b->err);
    return st == PL_UNSUPPORTED ? PL_OK : st;
}

static enum pl_status open_backend(struct pl_optest_bench *b, const struct pl_ops_options *opt, struct pl_err *err) {
    struct pl_kv_shape shape = {
        .layers = 1, .page_count = PAGES, .page_tokens = PAGE, .kv_heads = G, .head_dim = D, .dtype = PL_F32};
    PL_TRY(pl_ops_create(opt, &b->o, err));
    PL_TRY(pl_ops_kv_create(b->o, &shape, &b->kv, err));
    PL_TRY(common_weight(b));
    snprintf(b->t->backend, sizeof b->t->backend, "%s", pl_ops_describe(b->o));
    return PL_OK;
}
static void close_backend(struct pl_optest_bench *b) {
    if (b->common != NULL) pl_ops_weight_destroy(b->o, b->common);
    pl_free(b->raw);
    b->common = NULL;
    b->raw = NULL;
    if (b->kv != NULL) pl_ops_kv_destroy(b->o, b->kv);
    if (b->o != NULL) pl_ops_destroy(b->o);
    b->kv = NULL;
    b->o = NULL;
}

static enum pl_status run_jobs(struct pl_optest_bench *b, const struct pl_optest_options *how, const struct job *list,
                               size_t n, struct pl_err *err) {
    enum pl_status st = how->alone ? PL_OK : open_backend(b, &how->ops, err);
    for (size_t i = 0; i < n && st == PL_OK; i++) {
        if (how->alone) st = open_backend(b, &how->ops, err);
        if (st == PL_OK) run_job(b, &list[i]);
        if (st == PL_OK && (how->alone || i + 1 == n)) st = pl_ops_kernels_agree(b->o, err);
        if (how->alone) close_backend(b);
    }
    close_backend(b);
    return st;
}

enum pl_status pl_optest_run(const struct pl_optest_options *how, struct pl_optest *out, struct pl_err *err) {
    struct pl_optest_bench *b = pl_calloc(1, sizeof *b);
    struct job *list = pl_calloc(JOBS_MAX, sizeof *list);
    enum pl_status st = PL_OK;
    *out = (struct pl_optest){0};
    if (b == NULL || list == NULL) {
        st = pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for tests of operations");
    } else {
        size_t n = all_jobs(how->quick, list);
        if (how->shuffle != 0) shuffle(list, n, how->shuffle);
        b->t = out;
        st = run_jobs(b, how, list, n, err);
    }
    pl_free(list);
    pl_free(b);
    return st;
}

static const struct pl_optest_case *find_case(const struct pl_optest *t, const struct pl_optest_case *like) {
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->cases[i].op, like->op) == 0 && strcmp(t->cases[i].what, like->what) == 0) return &t->cases[i];
    return NULL;
}

size_t pl_optest_compare(const struct pl_optest *a, const struct pl_optest *b, char *first, size_t cap) {
    size_t differ = a->count != b->count;
    if (differ > 0) snprintf(first, cap, "%zu cases then, %zu now", a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        const struct pl_optest_case *x = &a->cases[i], *y = find_case(b, x);
        bool same = y != NULL && x->passed == y->passed && x->skipped == y->skipped && strcmp(x->kernel, y->kernel) == 0 &&
                    memcmp(&x->error, &y->error, sizeof x->error) == 0; /* the same bits, or something was left behind */
        if (same || differ++ > 0) continue;
        if (y == NULL)
            snprintf(first, cap, "%s, %s: absent", x->op, x->what);
        else if (strcmp(x->kernel, y->kernel) != 0)
            snprintf(first, cap, "%s, %s: by %s, then by %s", x->op, x->what, x->kernel, y->kernel);
        else
            snprintf(first, cap, "%s, %s by %s: %s with error %.9g, then %s with %.9g", x->op, x->what, x->kernel,
                     x->passed ? "passed" : "failed", x->error, y->passed ? "passed" : "failed", y->error);
    }
    return differ;
}

void pl_optest_deinit(struct pl_optest *t) {
    pl_free(t->cases);
    *t = (struct pl_optest){0};
}

json_t *pl_optest_json(const struct pl_optest *t) {
    json_t *list = json_array();
    for (size_t i = 0; i < t->count; i++) {
        const struct pl_optest_case *c = &t->cases[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:o, s:f, s:s}", "op", c->op, "case", c->what, "kernel",
                                              c->kernel, "status",
                                              c->skipped  ? "skipped"
                                              : c->passed ? "pass"
                                                          : "fail",
                                              "error", isfinite(c->error) ? json_real(c->error) : json_null(), "bound",
                                              c->bound, "why", c->why));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:o}", "backend", t->backend, "cases", (json_int_t)t->count, "failed",
                     (json_int_t)t->failed, "skipped", (json_int_t)t->skipped, "list", list);
}
