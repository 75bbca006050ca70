/* Where chat templates live: GGUF metadata, chat_template.jinja, additional_chat_templates, chat_template.json,
 * tokenizer_config.json; the first place that has one of a name wins. */
#include <string.h>

#include "base/mem.h"
#include "file/reader.h"

enum { MAX_TEMPLATE_BYTES = 4 << 20 };

static bool have_template(const struct pl_file *f, struct pl_str name) {
    for (size_t i = 0; i < f->template_count; i++) {
        if (pl_str_eq(f->templates[i].name, name)) return true;
    }
    return false;
}

/* Both views must live as long as the file. */
static enum pl_status add_template(struct pl_file *f, struct pl_str name, struct pl_str text, struct pl_err *err) {
    if (have_template(f, name)) return PL_OK;
    if (text.len > MAX_TEMPLATE_BYTES) {
        PL_FAIL(err, PL_LIMIT, "%s: chat template %s has %s bytes; at most %s are read", PL_SHOWN_C(f->path),
                pl_shown(name).s, pl_num(text.len).s, pl_num(MAX_TEMPLATE_BYTES).s);
    }
    if (pl_grow(&f->templates, &f->template_cap, f->template_count + 1, sizeof *f->templates) != PL_OK) {
        PL_FAIL(err, PL_NO_MEMORY, "%s: no memory for chat templates", PL_SHOWN_C(f->path));
    }
    f->templates[f->template_count++] = (struct pl_template_text){name, text};
    return PL_OK;
}

enum pl_status pl_templates_from_gguf(struct pl_file *f, struct pl_err *err) {
    static const char key[] = "tokenizer.chat_template";
    for (size_t i = 0; i < f->value_count; i++) {
        const struct pl_gguf_value *v = &f->values[i];
        if (!pl_str_starts(v->key, key) || v->type != PL_GGUF_STRING) continue;
        struct pl_str rest = {v->key.data + sizeof key - 1, v->key.len - (sizeof key - 1)};
        struct pl_str name = PL_STR("default");
        if (rest.len > 1 && rest.data[0] == '.')
            name = (struct pl_str){rest.data + 1, rest.len - 1};
        else if (rest.len != 0)
            continue; /* tokenizer.chat_templates: the list of names */
        PL_TRY(add_template(f, name, v->strings[0], err));
    }
    return PL_OK;
}

bool pl_file_chat_template(const struct pl_file *f, const char *name, struct pl_str *out) {
    struct pl_str want = name == NULL ? PL_STR("default") : pl_str_from(name);
    for (size_t i = 0; i < f->template_count; i++) {
        if (!pl_str_eq(f->templates[i].name, want)) continue;
        *out = f->templates[i].text;
        return true;
    }
    return false;
}
