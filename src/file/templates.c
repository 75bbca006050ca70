/* Where chat templates live: GGUF metadata, chat_template.jinja, additional_chat_templates, chat_template.json,
 * tokenizer_config.json; the first place that has one of a name wins. */
#include <dirent.h>
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

/* A string is the default; a list has {name, template}; an object maps names to texts. */
static enum pl_status add_json(struct pl_file *f, const json_t *value, struct pl_err *err) {
    size_t i;
    const char *key;
    json_t *item;
    if (json_is_string(value)) {
        struct pl_str text = {json_string_value(value), json_string_length(value)};
        return add_template(f, PL_STR("default"), text, err);
    }
    json_array_foreach(value, i, item) {
        const json_t *name = json_object_get(item, "name"), *text = json_object_get(item, "template");
        if (!json_is_string(name) || !json_is_string(text)) {
            PL_FAIL(err, PL_FORMAT, "%s: chat_template entry %zu has no name or no template; expected {name, template}",
                    PL_SHOWN_C(f->path), i);
        }
        PL_TRY(add_template(f, (struct pl_str){json_string_value(name), json_string_length(name)},
                            (struct pl_str){json_string_value(text), json_string_length(text)}, err));
    }
    if (!json_is_object(value)) return PL_OK;
    json_object_foreach((json_t *)(uintptr_t)value, key, item) {
        if (!json_is_string(item)) {
            PL_FAIL(err, PL_FORMAT, "%s: chat_template entry %s is no string", PL_SHOWN_C(f->path), PL_SHOWN_C(key));
        }
        PL_TRY(add_template(f, pl_str_from(key), (struct pl_str){json_string_value(item), json_string_length(item)}, err));
    }
    return PL_OK;
}

/* Reads DIR/SUB into the arena under the given name; a file that is not there is no error. */
static enum pl_status add_file(struct pl_file *f, const char *dir, const char *sub, struct pl_str name, struct pl_err *err) {
    struct pl_buf path = {0}, text = {0};
    struct pl_err inner = {0};
    pl_buf_printf(&path, "%s/%s", dir, sub);
    enum pl_status status = pl_buf_ok(&path) ? pl_read_file(pl_buf_cstr(&path), MAX_TEMPLATE_BYTES, &text, &inner)
                                             : pl_err_set(&inner, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for a path");
    if (status == PL_OK) {
        char *copy = pl_arena_strndup(&f->arena, pl_buf_cstr(&text), text.len);
        char *name_copy = pl_arena_strndup(&f->arena, name.data, name.len);
        struct pl_str view = {copy, text.len};
        status = copy != NULL && name_copy != NULL ? add_template(f, (struct pl_str){name_copy, name.len}, view, &inner)
                                                   : pl_err_set(&inner, __FILE__, __LINE__, PL_NO_MEMORY,
                                                                "%s: no memory for chat templates", PL_SHOWN_C(dir));
    }
    pl_buf_deinit(&path);
    pl_buf_deinit(&text);
    if (status == PL_NOT_FOUND) return PL_OK;
    if (status != PL_OK && err != NULL) *err = inner;
    return status;
}

static enum pl_status add_additional(struct pl_file *f, const char *dir, struct pl_err *err) {
    static const char sub[] = "additional_chat_templates", ext[] = ".jinja";
    struct pl_buf path = {0};
    pl_buf_printf(&path, "%s/%s", dir, sub);
    DIR *d = pl_buf_ok(&path) ? opendir(pl_buf_cstr(&path)) : NULL;
    enum pl_status status = PL_OK;
    if (!pl_buf_ok(&path))
        status = pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "%s: no memory for a path", PL_SHOWN_C(dir));
    for (struct dirent *e = d == NULL ? NULL : readdir(d); e != NULL && status == PL_OK; e = readdir(d)) {
        struct pl_str name = pl_str_from(e->d_name);
        if (!pl_str_ends(name, ext) || name.data[0] == '.') continue;
        pl_buf_clear(&path);
        pl_buf_printf(&path, "%s/%s", sub, e->d_name);
        name.len -= sizeof ext - 1;
        status = pl_buf_ok(&path)
                     ? add_file(f, dir, pl_buf_cstr(&path), name, err)
                     : pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "%s: no memory for a path", PL_SHOWN_C(dir));
    }
    if (d != NULL) closedir(d);
    pl_buf_deinit(&path);
    return status;
}

enum pl_status pl_templates_from_dir(struct pl_file *f, const char *dir, struct pl_err *err) {
    PL_TRY(add_file(f, dir, "chat_template.jinja", PL_STR("default"), err));
    PL_TRY(add_additional(f, dir, err));
    return pl_templates_from_json(f, err);
}

enum pl_status pl_templates_from_json(struct pl_file *f, struct pl_err *err) {
    PL_TRY(add_json(f, json_object_get(f->template_json, "chat_template"), err));
    return add_json(f, json_object_get(f->json[PL_JSON_TOKENIZER_CONFIG], "chat_template"), err);
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
