/* reference - saved next-token distributions of one text, to measure other builds, settings and servers against.
 *
 * File: a fixed head, a JSON object about where it came from, the token ids, then one row per scored token in the order of
 * the text: position, log-probability of the token that came, the most likely token, the distribution, a checksum. Rows have
 * one size, so an interrupted file is continued at its last whole row. Three forms: f16 and f32 hold log-probabilities of
 * the whole vocabulary, top holds the K most likely (servers tell no more).
 *
 * Nothing in a file is believed: sizes are checked before use, every row's checksum and position too. A file made from
 * other ids or another vocabulary is refused, with both hashes. */
#ifndef PL_VERIFY_REFERENCE_H
#define PL_VERIFY_REFERENCE_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum pl_reference_form { PL_REFERENCE_F16, PL_REFERENCE_F32, PL_REFERENCE_TOP, PL_REFERENCE_FORM_COUNT };
enum { PL_REFERENCE_TOP_MAX = 256 };

/* One distribution: whole (full not NULL) or its most likely part. Views. */
struct pl_row {
    const float *full; /* [vocab] log-probabilities */
    const uint32_t *top_ids;
    const float *top; /* [top_count] descending */
    uint32_t top_count;
    double logprob; /* of the token that came */
    uint32_t best;  /* the most likely token, when best_known */
    bool best_known;
};

struct pl_reference_about {
    uint32_t vocab, window, stride;
    uint64_t id_count, ids_hash, vocabulary_hash; /* vocabulary_hash 0: not known (a server) */
    enum pl_reference_form form;
    uint32_t top_count; /* of PL_REFERENCE_TOP */
};

struct pl_reference {
    FILE *file;
    struct pl_reference_about about;
    json_t *origin; /* owned */
    uint64_t rows;  /* whole rows there are; id_count - 1 when complete */
    uint64_t rows_at, row_bytes;
    uint8_t *raw; /* [row_bytes] */
    float *full;  /* [vocab] of the row read last */
    float top[PL_REFERENCE_TOP_MAX];
    uint32_t top_ids[PL_REFERENCE_TOP_MAX];
};

/* A new file; ids [id_count] are written, origin is borrowed. */
enum pl_status pl_reference_create(const char *path, const struct pl_reference_about *about, const uint32_t *ids,
                                   const json_t *origin, struct pl_reference **out, struct pl_err *err) PL_MUST_CHECK;
/* An existing one. writable: to be continued; a torn last row is cut off. */
enum pl_status pl_reference_open(const char *path, bool writable, struct pl_reference **out,
                                 struct pl_err *err) PL_MUST_CHECK;
/* PL_INVALID unless the file was made from the same ids, windows and vocabulary. */
enum pl_status pl_reference_match(const struct pl_reference *r, const struct pl_reference_about *want,
                                  struct pl_err *err) PL_MUST_CHECK;
/* The next row: for the token at position rows + 1. */
enum pl_status pl_reference_append(struct pl_reference *r, const struct pl_row *row, struct pl_err *err) PL_MUST_CHECK;
/* Row index (position index + 1). The views in *out are good until the next call. */
enum pl_status pl_reference_read(struct pl_reference *r, uint64_t index, struct pl_row *out,
                                 struct pl_err *err) PL_MUST_CHECK;
/* Flushes; PL_IO when the disk did not take it all. r is gone either way. NULL is allowed. */
enum pl_status pl_reference_close(struct pl_reference *r, struct pl_err *err) PL_MUST_CHECK;

/* KL(reference || other), in nats. Where both know the whole vocabulary it is exact; else both are coarsened to the
 * tokens that both name and one bucket for all others, which never gives more than the exact value: *bound is set. */
double pl_row_kl(const struct pl_row *reference, const struct pl_row *other, uint32_t vocab, bool *bound);
uint32_t pl_row_best(const struct pl_row *r, uint32_t vocab); /* the most likely token, the first of equals */
/* -INFINITY: it is not among those that are known. */
double pl_row_logprob(const struct pl_row *r, uint32_t id, uint32_t vocab);
/* Log-probabilities of logits [vocab]. */
void pl_row_normalise(const float *logits, uint32_t vocab, float *logprobs);

#endif
