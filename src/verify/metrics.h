/* metrics - a page of Prometheus text, as numbers that can be compared.
 *
 * A series is its name with its labels, exactly as written. What is not there is absent, which is not zero: lookups say
 * so. Lines that are no sample are counted, never guessed at. */
#ifndef PL_VERIFY_METRICS_H
#define PL_VERIFY_METRICS_H

#include "base/str.h"

struct pl_series {
    char *key; /* name{labels}, owned */
    double value;
};
struct pl_metrics {
    struct pl_series *series; /* sorted by key */
    size_t count, cap, bad_lines;
};

enum pl_status pl_metrics_parse(const char *text, struct pl_metrics *out, struct pl_err *err) PL_MUST_CHECK;
void pl_metrics_deinit(struct pl_metrics *m);
const double *pl_metrics_find(const struct pl_metrics *m, const char *key); /* NULL: absent */
/* after minus before for one series. A series that appeared in between began at zero; false: absent afterwards, or a
 * counter that went down (the server was restarted). */
bool pl_metrics_delta(const struct pl_metrics *before, const struct pl_metrics *after, const char *key, double *out);
/* The value of label in name{..label="value"..}, into out; false: there is no such label. */
bool pl_series_label(const char *key, const char *label, char *out, size_t cap);
bool pl_series_named(const char *key, const char *name); /* is it a series of this metric? */

#endif
