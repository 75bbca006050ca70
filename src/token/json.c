#include "token/token.h"
enum pl_status pl_tokenizer_from_json(const json_t *a, const json_t *b, const json_t *c, const json_t *d,
                                      struct pl_tokenizer **out, struct pl_err *err) {
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    (void)out;
    PL_FAIL(err, PL_UNSUPPORTED, "no json yet");
}
