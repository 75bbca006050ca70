/* optest_bench - what the cases of optest share: one backend with its batch, random values, and how a case is judged.
 *
 * Inside of optest alone (optest.c, optest_layers.c). A case adds itself, runs, and is judged or skipped exactly once; what
 * it makes on the backend it destroys. */
#ifndef PL_VERIFY_OPTEST_BENCH_H
#define PL_VERIFY_OPTEST_BENCH_H

#include "verify/optest.h"

enum { D = 64, H = 8, G = 2, WIDE = 512, OUT = 96, ROWS_MAX = 512, PAGES = 64, PAGE = 32, SEQS = 3 };
static const double BOUND_EXACT = 2e-5, BOUND_ROUNDED = 1.5e-2, BOUND_ATTENTION = 2e-3;

struct pl_optest_bench {
    struct pl_ops *o;
    struct pl_optest *t;
    struct pl_kv_store *kv;
    struct pl_weight *common;
    void *raw; /* of common */
    uint32_t random;
    uint32_t tokens[ROWS_MAX], pages[PAGES], logit_rows[ROWS_MAX];
    struct pl_batch_seq seqs[SEQS];
    struct pl_batch batch;
    struct pl_err err;
};

float pl_optest_uniform(struct pl_optest_bench *b);           /* in (-1, 1) */
float *pl_optest_values(struct pl_optest_bench *b, size_t n); /* as many of them; pl_free; NULL: no memory */
/* Packed random weights of any type. pl_free; NULL: no memory. */
void *pl_optest_weights(struct pl_optest_bench *b, enum pl_dtype t, size_t n);
float pl_optest_rounded(enum pl_dtype t, float x); /* as a cache of that type holds it */

struct pl_optest_case *pl_optest_add(struct pl_optest_bench *b, const char *op, const char *what);
/* Passed when st is PL_OK, the error of got [n] beside want is within the bound, and op launched something. */
void pl_optest_judge(struct pl_optest_bench *b, struct pl_optest_case *c, enum pl_status st, const float *got,
                     const float *want, size_t n, double bound);
void pl_optest_skip(struct pl_optest_bench *b, struct pl_optest_case *c, const char *why);

/* One sequence of `rows` rows, all of them with logits; tokens are 0, 1, .. */
void pl_optest_plain_batch(struct pl_optest_bench *b, uint32_t rows);
enum pl_status pl_optest_activation(struct pl_optest_bench *b, size_t cols, struct pl_activation **out);
struct pl_tensor pl_optest_matrix(const void *data, enum pl_dtype t, size_t rows, size_t cols);
struct pl_tensor pl_optest_vector(const float *data, size_t n);
/* In a step: x [rows, cols] becomes values[token of the row]; values is [table_rows, cols]. */
enum pl_status pl_optest_fill(struct pl_optest_bench *b, const float *values, size_t table_rows, size_t cols,
                              struct pl_activation *x);

/* optest_layers.c */
void pl_optest_gate_rows(struct pl_optest_bench *b, uint32_t rows);
void pl_optest_ternary(struct pl_optest_bench *b, uint32_t rows);
void pl_optest_heads(struct pl_optest_bench *b, enum pl_dtype t, uint32_t rows);
enum { PL_OPTEST_LATENT_CASES = 4, PL_OPTEST_STATE_CASES = 4 };
void pl_optest_latent(struct pl_optest_bench *b, size_t which, enum pl_dtype kv); /* the append, and attention after it */
void pl_optest_state(struct pl_optest_bench *b, size_t which);                    /* convolution, scan, update, delta rule */
void pl_optest_choice(struct pl_optest_bench *b, bool drawn);

#endif
