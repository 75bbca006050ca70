/* render - the exact prompt a chat template makes of messages. */
#include <string.h>

#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"

struct render {
    struct pl_model_opts model;
    const char *template_file, *messages_file, *tools_file, *bos, *eos, *name;
    bool generation_prompt;
    json_t *extra; /* --set, and what the messages file has beside messages and tools */
    json_t *messages, *tools;
    struct pl_file *f;
    struct pl_tokenizer *tok;
    struct pl_template *tmpl;
    struct pl_buf source;
    struct pl_rendered out;
};

static enum pl_status set_var(void *out, const char *value, struct pl_err *err) {
    struct render *r = out;
    const char *eq = strchr(value, '=');
    if (eq == NULL || eq == value) PL_FAIL(err, PL_USAGE, "'%.100s' is not NAME=JSON", value);
    json_t *parsed = NULL;
    json_error_t je;
    parsed = json_loads(eq + 1, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (parsed == NULL)
        PL_FAIL(err, PL_USAGE, "the value of %.*s is not JSON: %.100s (a text needs its quotes: '%.*s=\"...\"')",
                (int)(eq - value), value, je.text, (int)(eq - value), value);
    char *key = pl_strndup(value, (size_t)(eq - value));
    if (r->extra == NULL) r->extra = json_object();
    int rc = key == NULL ? -1 : json_object_set_new(r->extra, key, parsed);
    pl_free(key);
    if (rc != 0) PL_FAIL(err, PL_NO_MEMORY, "out of memory for %.100s", value);
    return PL_OK;
}

static enum pl_status read_json(const char *path, json_t **out, struct pl_err *err) {
    struct pl_buf text = {0};
    enum pl_status s = pl_cmd_read_file(path, PL_TEXT_BYTES_MAX, &text, err);
    if (s == PL_OK) s = pl_json_parse(path, pl_buf_cstr(&text), text.len, out, err);
    pl_buf_deinit(&text);
    return s;
}

/* A list of messages, or an object whose other keys are template variables. --set wins over them. */
static enum pl_status read_messages(struct render *r, struct pl_err *err) {
    json_t *doc = NULL;
    PL_TRY(read_json(r->messages_file, &doc, err));
    if (json_is_array(doc)) {
        r->messages = doc;
        return PL_OK;
    }
    json_t *messages = json_object_get(doc, "messages");
    if (!json_is_array(messages)) {
        json_decref(doc);
        PL_FAIL(err, PL_INVALID, "%.300s must be a JSON list of messages, or an object with one under \"messages\"",
                r->messages_file);
    }
    r->messages = json_incref(messages);
    r->tools = json_incref(json_object_get(doc, "tools"));
    json_object_del(doc, "messages");
    json_object_del(doc, "tools");
    if (r->extra != NULL) json_object_update(doc, r->extra);
    json_decref(r->extra);
    r->extra = doc;
    return PL_OK;
}

static enum pl_status read_template(struct render *r, struct pl_err *err) {
    if (r->model.model != NULL) {
        PL_TRY(pl_cmd_open_file(&r->model, &r->f, err));
        enum pl_status s = pl_tokenizer_create(r->f, &r->tok, err);
        if (s != PL_OK && s != PL_NOT_FOUND) return s;
    }
    struct pl_str source;
    bool tools = r->name == NULL && json_array_size(r->tools) > 0 && r->template_file == NULL;
    if (tools && pl_file_chat_template(r->f, "tool_use", &source))
        return pl_template_parse(source.data, source.len, &r->tmpl, err);
    if (r->template_file != NULL) {
        PL_TRY(pl_cmd_read_file(r->template_file, PL_TEXT_BYTES_MAX, &r->source, err));
        source = (struct pl_str){pl_buf_cstr(&r->source), r->source.len};
    } else if (!pl_file_chat_template(r->f, r->name, &source)) {
        PL_FAIL(err, PL_NOT_FOUND, "%.300s has no chat template%s%.60s: give one with --template FILE", r->model.model,
                r->name != NULL ? " named " : "", r->name != NULL ? r->name : "");
    }
    return pl_template_parse(source.data, source.len, &r->tmpl, err);
}

static enum pl_status replace(char **text, const char *with) {
    if (with == NULL) return PL_OK;
    pl_free(*text);
    *text = pl_strdup(with);
    return *text == NULL ? PL_NO_MEMORY : PL_OK;
}

static enum pl_status render(struct render *r, struct pl_err *err) {
    if (r->model.model == NULL && r->template_file == NULL) PL_FAIL(err, PL_USAGE, "-m MODEL or --template FILE is missing");
    if (r->messages_file == NULL) PL_FAIL(err, PL_USAGE, "--messages FILE is missing");
    PL_TRY(read_messages(r, err));
    if (r->tools_file != NULL) {
        json_decref(r->tools);
        r->tools = NULL;
        PL_TRY(read_json(r->tools_file, &r->tools, err));
    }
    PL_TRY(read_template(r, err));
    struct pl_chat_specials sp = {0};
    json_t *vars = NULL;
    bool ok = pl_chat_specials_read(r->tok, &sp) == PL_OK && replace(&sp.bos, r->bos) == PL_OK &&
              replace(&sp.eos, r->eos) == PL_OK;
    if (ok) vars = pl_chat_vars(r->messages, r->tools, r->generation_prompt, &sp, r->extra);
    pl_chat_specials_deinit(&sp);
    if (vars == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for the variables of the template");
    enum pl_status s = pl_template_render(r->tmpl, vars, pl_chat_trusted, NULL, -1, &r->out, err);
    json_decref(vars);
    if (s == PL_OK) pl_out_write(pl_buf_cstr(&r->out.text), r->out.text.len);
    return s;
}

static void release(struct render *r) {
    json_decref(r->extra);
    json_decref(r->messages);
    json_decref(r->tools);
    if (r->tmpl != NULL) pl_template_destroy(r->tmpl);
    if (r->tok != NULL) pl_tokenizer_destroy(r->tok);
    if (r->f != NULL) pl_file_close(r->f);
    pl_buf_deinit(&r->source);
    pl_rendered_deinit(&r->out);
}

int pl_cmd_render(int argc, char **argv) {
    struct render r = {.generation_prompt = true};
    const struct pl_arg own[] = {
        {'m', "model", "MODEL", PL_ARG_STR, &r.model.model, "template and special tokens of this model", 0, 0, NULL},
        {0, "template", "FILE", PL_ARG_STR, &r.template_file, "template text (with -m: instead of the model's)", 0, 0, NULL},
        {0, "name", "NAME", PL_ARG_STR, &r.name, "one of several templates of the model", 0, 0, NULL},
        {0, "messages", "FILE", PL_ARG_STR, &r.messages_file, "JSON list, or object with messages, tools, variables", 0, 0,
         NULL},
        {0, "tools", "FILE", PL_ARG_STR, &r.tools_file, "JSON list of tools", 0, 0, NULL},
        {0, "bos", "TEXT", PL_ARG_STR, &r.bos, "what bos_token is", 0, 0, NULL},
        {0, "eos", "TEXT", PL_ARG_STR, &r.eos, "what eos_token is", 0, 0, NULL},
        {0, "set", "NAME=JSON", PL_ARG_EACH, &r, "a further template variable (repeatable)", 0, 0, set_var},
        {0, "no-generation-prompt", NULL, PL_ARG_NOFLAG, &r.generation_prompt, "do not open the assistant's turn", 0, 0,
         NULL},
        {0},
    };
    struct pl_args args = {
        .command = "render",
        .synopsis = "(-m MODEL | --template FILE) --messages FILE [OPTIONS]",
        .about = "Prints the prompt that a chat template makes of messages, byte for byte, nothing added.",
        .examples = "  plumb render -m smollm2.gguf --messages chat.json\n"
                    "  plumb render --template chat_template.jinja --messages chat.json --bos '<s>' --eos '</s>'\n"
                    "  plumb render -m qwen3 --messages chat.json --set enable_thinking=false\n",
        .groups = (const struct pl_arg *const[]){own, NULL},
    };
    struct pl_err err = {0};
    int code = pl_args_parse(&args, argc, argv);
    if (code == -1) {
        err.status = render(&r, &err);
        code = err.status == PL_OK ? pl_out_close() : pl_cmd_fail("render", &err);
    }
    release(&r);
    return code;
}
