/* format.c - response_format, grammar and forced tool calls (forced.c), as one GBNF grammar for the answer. */
#include "serve/internal.h"

#include <string.h>

#include "base/mem.h"
#include "sample/constraint.h"
#include "sample/schema.h"

static enum pl_status schema_failed(struct param_error *pe, const char *param) {
    snprintf(pe->param, sizeof pe->param, "%s", param);
    return pe->err.status;
}

/* {"type":"text"}, {"type":"json_object"[,"schema":..]} or {"type":"json_schema","json_schema":{"schema":..}}. */
static enum pl_status response_format(const json_t *f, struct pl_buf *g, struct param_error *pe) {
    const char *type = json_string_value(json_object_get(f, "type"));
    const json_t *holder = json_object_get(f, "json_schema"), *schema = json_object_get(f, "schema");
    if (type == NULL) return param_bad(pe, "response_format", PL_INVALID, "response_format is no object with a type");
    if (strcmp(type, "text") == 0) return PL_OK;
    if (strcmp(type, "json_schema") == 0) {
        if (schema == NULL) schema = json_object_get(holder, "schema");
        if (!json_is_object(schema))
            return param_bad(pe, "response_format", PL_INVALID, "response_format.json_schema has no schema object");
    } else if (strcmp(type, "json_object") != 0) {
        return param_bad(pe, "response_format", PL_INVALID,
                         "response_format is of type '%.40s', expected text, json_object or json_schema", type);
    }
    pl_buf_add_c(g, "root ::= js-ws answer\n");
    pl_schema_common(g);
    if (pl_schema_rules(schema, "answer", g, &pe->err) != PL_OK) return schema_failed(pe, "response_format");
    return PL_OK;
}

enum pl_status answer_grammar(const struct chat_request *q, const json_t *grammar, struct job *j, struct param_error *pe) {
    struct pl_buf *g = &j->params.grammar;
    bool forced = q != NULL && (q->choice == CHOICE_REQUIRED || q->choice == CHOICE_NAMED);
    const json_t *format = q == NULL ? NULL : q->response_format;
    const char *param = forced ? "tools" : grammar != NULL ? "grammar" : "response_format";
    if (grammar != NULL && !json_is_string(grammar)) return param_bad(pe, "grammar", PL_INVALID, "grammar is no string");
    if (forced + (format != NULL) + (grammar != NULL) > 1 && (forced || grammar != NULL))
        return param_bad(pe, param, PL_INVALID,
                         "only one of response_format, grammar and a forced tool_choice can be given");
    if (grammar != NULL) pl_buf_add(g, json_string_value(grammar), json_string_length(grammar));
    if (forced) PL_TRY(forced_calls(q, j, g, pe));
    if (format != NULL) PL_TRY(response_format(format, g, pe));
    if (!pl_buf_ok(g)) return param_bad(pe, param, PL_NO_MEMORY, "no memory for the grammar");
    if (g->len == 0) return PL_OK;
    return pl_grammar_parse(g->data, g->len, &j->params.compiled, &pe->err) == PL_OK ? PL_OK : schema_failed(pe, param);
}

enum pl_status make_constraint(const struct job *j, struct pl_constraint **out, struct pl_err *err) {
    const struct gen_params *p = &j->params;
    if (p->compiled == NULL) return PL_OK;
    struct pl_grammar *g = pl_grammar_ref(p->compiled);
    const char *after = p->reply.reasoning ? p->reply.in_reasoning : NULL;
    enum pl_status st = pl_constraint_create(j->server->vocab, g, after, out, err);
    if (st != PL_OK) pl_grammar_destroy(g);
    return st;
}
