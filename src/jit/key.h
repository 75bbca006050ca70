/* key - the full text of everything that can change an artefact, field by field with lengths (inside src/jit). */
#ifndef PL_JIT_KEY_H
#define PL_JIT_KEY_H

#include "jit/jit.h"

struct pl_jit_key_of {
    enum pl_device_kind kind;
    const char *target, *compiler;
    enum pl_jit_field weak, mutated; /* test hooks; PL_JIT_FIELD_COUNT: none */
    const char *suffix;
};
void pl_jit_key_make(const struct pl_jit_key_of *k, const struct pl_jit_spec *spec, const struct pl_device_source *src,
                     const struct pl_buf *source, struct pl_buf *key);

#endif
