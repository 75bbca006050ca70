/* text - tokenizer and chat template of an engine. */
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

const char *const pl_chat_trusted[] = {"bos_token", "eos_token", "unk_token", "pad_token", NULL};

enum pl_status pl_engine_need_text(const struct plumb_engine *e, struct pl_err *err) {
    if (e->tok != NULL) return PL_OK;
    PL_FAIL(err, PL_UNSUPPORTED,
            "%.300s has no tokenizer (of a directory tokenizer.json is read, not tekken.json or tokenizer.model): only "
            "token ids can "
            "be used with it",
            e->model_path);
}

static bool set_text(json_t *o, const char *key, const char *text) {
    return text == NULL || json_object_set_new(o, key, json_string(text)) == 0;
}

json_t *pl_chat_vars(const json_t *messages, const json_t *tools, bool generation_prompt, const struct pl_chat_specials *sp,
                     const json_t *extra) {
    json_t *o = json_object();
    if (o == NULL) return NULL;
    bool ok = json_object_set(o, "messages", (json_t *)messages) == 0;
    ok = ok && json_object_set(o, "tools", tools != NULL ? (json_t *)tools : json_null()) == 0;
    ok = ok && json_object_set_new(o, "documents", json_null()) == 0;
    ok = ok && json_object_set_new(o, "add_generation_prompt", json_boolean(generation_prompt)) == 0;
    ok = ok && set_text(o, "bos_token", sp->bos) && set_text(o, "eos_token", sp->eos);
    ok = ok && set_text(o, "unk_token", sp->unk) && set_text(o, "pad_token", sp->pad);
    ok = ok && (extra == NULL || json_object_update(o, (json_t *)extra) == 0);
    if (ok) return o;
    json_decref(o);
    return NULL;
}

/* As transformers chooses: where there are tools, the template "tool_use", if the file has one of that name. */
bool pl_engine_chat_template(const struct plumb_engine *e, bool tools, struct pl_str *source) {
    return (tools && pl_file_chat_template(e->file, "tool_use", source)) || pl_file_chat_template(e->file, NULL, source);
}

static enum pl_status need_template(struct plumb_engine *e, bool tools, const struct pl_template **out, struct pl_err *err) {
    struct pl_str source;
    struct pl_template **kept = tools && pl_file_chat_template(e->file, "tool_use", &source) ? &e->tmpl_tools : &e->tmpl;
    *out = *kept;
    if (*out != NULL) return PL_OK;
    if (!pl_engine_chat_template(e, tools, &source))
        PL_FAIL(err, PL_UNSUPPORTED,
                "%.300s has no chat template, so it completes text only (plumb generate -m MODEL -p TEXT); plumb render "
                "shows a template of your own",
                e->model_path);
    enum pl_status s = pl_template_parse(source.data, source.len, kept, err);
    if (s != PL_OK) pl_err_note(err, "reading the chat template of %.200s", e->model_path);
    *out = *kept;
    return s;
}

enum pl_status pl_engine_need_chat(struct plumb_engine *e, struct pl_err *err) {
    const struct pl_template *t;
    PL_TRY(pl_engine_need_text(e, err));
    return need_template(e, false, &t, err);
}

static enum pl_status special_text(const struct pl_tokenizer *tok, int64_t id, char **out) {
    struct pl_str piece;
    if (id < 0 || !pl_tokenizer_piece(tok, (uint32_t)id, &piece)) return PL_OK;
    *out = pl_strndup(piece.data, piece.len);
    return *out == NULL ? PL_NO_MEMORY : PL_OK;
}

enum pl_status pl_chat_specials_read(const struct pl_tokenizer *tok, struct pl_chat_specials *out) {
    struct pl_chat_specials sp = {0};
    if (tok == NULL) {
        *out = sp;
        return PL_OK;
    }
    enum pl_status s = special_text(tok, pl_tokenizer_bos(tok), &sp.bos);
    if (s == PL_OK) s = special_text(tok, pl_tokenizer_eos(tok), &sp.eos);
    if (s == PL_OK) s = special_text(tok, pl_tokenizer_unk(tok), &sp.unk);
    if (s == PL_OK) s = special_text(tok, pl_tokenizer_pad(tok), &sp.pad);
    if (s == PL_OK)
        *out = sp;
    else
        pl_chat_specials_deinit(&sp);
    return s;
}

void pl_chat_specials_deinit(struct pl_chat_specials *sp) {
    pl_free(sp->bos);
    pl_free(sp->eos);
    pl_free(sp->unk);
    pl_free(sp->pad);
    *sp = (struct pl_chat_specials){0};
}

enum pl_status pl_engine_render(struct plumb_engine *e, const json_t *messages, const json_t *tools, bool generation_prompt,
                                const json_t *extra, struct pl_rendered *out, struct pl_err *err) {
    const struct pl_template *t;
    PL_TRY(need_template(e, tools != NULL, &t, err));
    struct pl_chat_specials sp = {0};
    json_t *vars = NULL;
    if (pl_chat_specials_read(e->tok, &sp) == PL_OK) vars = pl_chat_vars(messages, tools, generation_prompt, &sp, extra);
    pl_chat_specials_deinit(&sp);
    if (vars == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for the variables of the chat template");
    enum pl_status s = pl_template_render(t, vars, pl_chat_trusted, NULL, -1, out, err);
    json_decref(vars);
    return s;
}

enum pl_status pl_engine_chat_encode(struct plumb_engine *e, const json_t *messages, const json_t *tools,
                                     bool generation_prompt, const json_t *extra, struct pl_ids *ids, struct pl_err *err) {
    struct pl_rendered r = {0};
    PL_TRY(pl_engine_need_text(e, err));
    PL_TRY(pl_engine_render(e, messages, tools, generation_prompt, extra, &r, err));
    _Static_assert(sizeof(struct pl_span) == sizeof(struct pl_text_span), "the same pair of offsets");
    struct pl_encode_options opt = {.add_special = false, /* the template wrote what belongs there */
                                    .parse_special = true,
                                    .untrusted = (const struct pl_span *)r.content,
                                    .untrusted_count = r.content_count};
    enum pl_status s = pl_tokenizer_encode(e->tok, r.text.data == NULL ? "" : r.text.data, r.text.len, &opt, ids, err);
    pl_rendered_deinit(&r);
    return s;
}

static enum pl_status render_for_traits(void *user, const json_t *messages, const json_t *tools, struct pl_rendered *out,
                                        struct pl_err *err) {
    return pl_engine_render(user, messages, tools, true, NULL, out, err);
}

void pl_engine_chat_traits(struct plumb_engine *e, struct pl_traits *out) {
    struct pl_str source = {"", 0};
    (void)pl_engine_chat_template(e, true, &source);
    pl_traits_read(out, source, render_for_traits, e);
}
