#include "jit/key.h"

#include <string.h>

/* Raised when the meaning of an argument struct or of the launch convention changes without a change in any source. */
#define ABI_VERSION "plumb kernel ABI 1"

static void add_field(const struct pl_jit_key_of *k, struct pl_buf *key, enum pl_jit_field field, const char *text,
                      size_t len) {
    static const char *const names[PL_JIT_FIELD_COUNT] = {
#define PL_JIT_FIELD_NAME(name) #name,
        PL_JIT_FIELD_LIST(PL_JIT_FIELD_NAME)};
    if (k->weak == field) return;
    const char *suffix = k->mutated == field ? k->suffix : "";
    pl_buf_printf(key, "%s %zu:", names[field], len + strlen(suffix));
    pl_buf_add(key, text, len);
    pl_buf_add_c(key, suffix);
    pl_buf_add_char(key, '\n');
}

/* Weakened keys leave the values out, so they must not come in again at the head of the source. */
static size_t values_len(const struct pl_jit_spec *spec) {
    size_t n = 0;
    for (size_t i = 0; i < spec->value_count; i++) n += 10 + strlen(spec->values[i].name) + strlen(spec->values[i].text);
    return n;
}

void pl_jit_key_make(const struct pl_jit_key_of *k, const struct pl_jit_spec *spec, const struct pl_device_source *src,
                     const struct pl_buf *source, struct pl_buf *key) {
    const char *kind = pl_device_kind_name(k->kind);
    struct pl_buf options = {0};
    for (size_t i = 0; i < src->option_count; i++)
        pl_buf_printf(&options, "%zu:%s", strlen(src->options[i]), src->options[i]);
    size_t head = values_len(spec);
    PL_ASSERT(head <= source->len);
    add_field(k, key, PL_JIT_FIELD_ABI, ABI_VERSION, strlen(ABI_VERSION));
    add_field(k, key, PL_JIT_FIELD_KIND, kind, strlen(kind));
    add_field(k, key, PL_JIT_FIELD_TARGET, k->target, strlen(k->target));
    add_field(k, key, PL_JIT_FIELD_COMPILER, k->compiler, strlen(k->compiler));
    add_field(k, key, PL_JIT_FIELD_OPTIONS, pl_buf_cstr(&options), options.len);
    add_field(k, key, PL_JIT_FIELD_ENTRY, spec->entry, strlen(spec->entry));
    add_field(k, key, PL_JIT_FIELD_VALUES, source->data, head);
    add_field(k, key, PL_JIT_FIELD_SOURCE, source->data + head, source->len - head);
    if (options.failed) key->failed = true;
    pl_buf_deinit(&options);
}
