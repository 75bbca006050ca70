/* Weak stand-ins until the template engine is in: they give way to it at link time. To be deleted with its landing. */
#include "chat/template.h"

#define WEAK __attribute__((weak))

WEAK enum pl_status pl_template_parse(const char *source, size_t len, struct pl_template **out, struct pl_err *err) {
    (void)source, (void)len, (void)out;
    PL_FAIL(err, PL_UNSUPPORTED, "chat templates are not in this build");
}
WEAK void pl_template_destroy(struct pl_template *t) { (void)t; }
WEAK void pl_rendered_deinit(struct pl_rendered *r) { (void)r; }
WEAK enum pl_status pl_template_render(const struct pl_template *t, const json_t *vars, const char *const *trusted,
                                       const struct pl_template_limits *limits, int64_t now_unix, struct pl_rendered *out,
                                       struct pl_err *err) {
    (void)t, (void)vars, (void)trusted, (void)limits, (void)now_unix, (void)out;
    PL_FAIL(err, PL_UNSUPPORTED, "chat templates are not in this build");
}
