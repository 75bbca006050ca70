/* forced.c - tool_choice required or named: the answer as a grammar of calls in the model's own notation. */
#include "serve/internal.h"

#include <stdio.h>
#include <string.h>

#include "sample/schema.h"

enum { TEXT_MARKS = 4 };

struct forced {
    const struct chat_request *q;
    enum pl_reply_kind kind;
    const struct pl_server *server;
    struct pl_buf *g;
    struct param_error *pe;
    bool one;
};

static bool wanted(const struct forced *f, size_t i) { return f->q->choice != CHOICE_NAMED || i == f->q->named; }

static const json_t *function(const struct forced *f, size_t i) {
    return json_object_get(json_array_get(f->q->tools, i), "function");
}
static const char *name_of(const struct forced *f, size_t i) {
    return json_string_value(json_object_get(function(f, i), "name"));
}

static void literal(struct pl_buf *g, const char *text) { pl_schema_literal(g, text, strlen(text)); }

static enum pl_status of_tools(const struct forced *f, enum pl_status st) {
    if (st != PL_OK) snprintf(f->pe->param, sizeof f->pe->param, "tools");
    return st;
}

static enum pl_status rules(const struct forced *f, const json_t *schema, const char *name) {
    return of_tools(f, pl_schema_rules(schema, name, f->g, &f->pe->err));
}

/* ---------- what stands round the calls ---------- */

#define BAR       "\xEF\xBD\x9C"
#define GAP       "\xE2\x96\x81"
#define TAG(name) "<" BAR "tool" GAP name BAR ">"

static void frame(const struct forced *f, const char *before, const char *between, const char *after) {
    pl_buf_add_c(f->g, "root ::= ");
    literal(f->g, before);
    pl_buf_add_c(f->g, " call");
    if (!f->one) {
        pl_buf_add_c(f->g, " (");
        literal(f->g, between);
        pl_buf_add_c(f->g, " call){0,7}");
    }
    pl_buf_add_char(f->g, ' ');
    literal(f->g, after);
    pl_buf_add_char(f->g, '\n');
}

/* The section round calls told by tags, which may hold one of them or several. */
static void tagged_frame(const struct forced *f, const struct pl_reply_tags *t) {
    const char *line = t->tight ? "" : "\n";
    char before[128], between[256], after[128];
    if (t->section == NULL) {
        frame(f, "", t->prompted ? t->call : line, "");
        return;
    }
    snprintf(before, sizeof before, "%s%s", t->section, line);
    snprintf(after, sizeof after, "%s%s", line, t->end_section);
    snprintf(between, sizeof between, "%s%s%s", t->each ? after : "", line, t->each ? before : "");
    frame(f, before, between, after);
}

static void root_rule(const struct forced *f) {
    const struct pl_reply_tags *t = pl_reply_tags(f->kind);
    if (t != NULL && f->kind != PL_REPLY_DEEPSEEK) {
        tagged_frame(f, t);
        return;
    }
    switch (f->kind) {
    case PL_REPLY_HERMES: frame(f, "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"); break;
    case PL_REPLY_MISTRAL:
        if (f->server->call_args)
            frame(f, "", "", "");
        else
            frame(f, "[TOOL_CALLS][", ", ", "]");
        break;
    case PL_REPLY_LLAMA: frame(f, "", "; ", ""); break;
    case PL_REPLY_GEMMA: frame(f, "```tool_code\n", "\n```\n```tool_code\n", "\n```"); break;
    case PL_REPLY_GRANITE: frame(f, "<|tool_call|>[", ", ", "]"); break;
    case PL_REPLY_NEMOTRON: frame(f, "<TOOLCALL>[", ", ", "]</TOOLCALL>"); break;
    case PL_REPLY_JAMBA: frame(f, "<tool_calls>[\n", ",\n", "\n]</tool_calls>"); break;
    case PL_REPLY_COMMAND: frame(f, "<|START_ACTION|>[\n    ", ",\n    ", "\n]<|END_ACTION|>"); break;
    case PL_REPLY_OLMO: frame(f, "<function_calls>[", ", ", "]</function_calls>"); break; /* JSON, which the tags may hold */
    case PL_REPLY_FUNCTIONGEMMA:
        frame(f, "<start_function_call>", "<end_function_call><start_function_call>", "<end_function_call>");
        break;
    case PL_REPLY_GLM: pl_buf_add_c(f->g, "root ::= call\n"); break; /* its turn ends with the one call */
    case PL_REPLY_DEEPSEEK:
        frame(f, TAG("calls" GAP "begin"), f->server->call_fence ? "\n" : "", TAG("calls" GAP "end"));
        break;
    case PL_REPLY_HARMONY: /* it may think first, and its turn ends with the one call */
        pl_buf_add_c(f->g, "root ::= (\"<|channel|>analysis<|message|>\" ([^<] | \"<\" [^|])* "
                           "\"<|end|><|start|>assistant\")? call\n");
        break;
    case PL_REPLY_APERTUS: frame(f, "<|tools_prefix|>[", ", ", "]<|tools_suffix|>"); break;
    case PL_REPLY_GIGACHAT: pl_buf_add_c(f->g, "root ::= \"<|function_call|>\" call\n"); break;
    default: /* JSON */
        pl_buf_add_c(f->g, f->one ? "root ::= call\n" : "root ::= call | \"[\" call (\", \" call){0,7} \"]\"\n");
        break;
    }
}

/* ---------- one call ---------- */

/* call-<i> ::= "before" arguments-<i> "after" */
static void around_arguments(const struct forced *f, size_t i, const char *after, const char *before, ...) PL_PRINTF(4, 5);
static void around_arguments(const struct forced *f, size_t i, const char *after, const char *before, ...) {
    char text[256]; /* a name has at most 64 characters */
    va_list ap;
    va_start(ap, before);
    vsnprintf(text, sizeof text, before, ap);
    va_end(ap);
    pl_buf_printf(f->g, "call-%zu ::= ", i);
    literal(f->g, text);
    pl_buf_printf(f->g, " arguments-%zu ", i);
    literal(f->g, after);
    pl_buf_add_char(f->g, '\n');
}

/* Kimi K2: calls are numbered, through the whole conversation. */
static void numbered(const struct forced *f, size_t i, const struct pl_reply_tags *t) {
    char text[256];
    snprintf(text, sizeof text, "%s%s%s:", t->call, t->prefix, name_of(f, i));
    pl_buf_printf(f->g, "call-%zu ::= ", i);
    literal(f->g, text);
    pl_buf_add_c(f->g, " [0-9]{1,3} ");
    literal(f->g, t->end_name);
    pl_buf_printf(f->g, " arguments-%zu ", i);
    literal(f->g, t->end_call);
    pl_buf_add_char(f->g, '\n');
}

/* A function without "parameters" takes none, as OpenAI documents. */
static enum pl_status no_arguments(const struct forced *f, const char *rule) {
    json_t *none = json_pack("{s:s, s:{}, s:b}", "type", "object", "properties", "additionalProperties", 0);
    if (none == NULL) return param_bad(f->pe, "tools", PL_NO_MEMORY, "no memory for the tools");
    enum pl_status st = rules(f, none, rule);
    json_decref(none);
    return st;
}

static enum pl_status call_with_object(const struct forced *f, size_t i) {
    const char *name = name_of(f, i);
    const json_t *schema = json_object_get(function(f, i), "parameters");
    char rule[40];
    snprintf(rule, sizeof rule, "arguments-%zu", i);
    if (f->kind == PL_REPLY_DEEPSEEK && f->server->call_fence)
        around_arguments(f, i, "\n```" TAG("call" GAP "end"), TAG("call" GAP "begin") "function" TAG("sep") "%s\n```json\n",
                         name);
    else if (f->kind == PL_REPLY_DEEPSEEK)
        around_arguments(f, i, TAG("call" GAP "end"), TAG("call" GAP "begin") "%s" TAG("sep"), name);
    else if (f->kind == PL_REPLY_KIMI)
        numbered(f, i, pl_reply_tags(f->kind));
    else if (f->kind == PL_REPLY_APERTUS)
        around_arguments(f, i, "}", "{\"%s\": ", name);
    else if (f->kind == PL_REPLY_HARMONY)
        around_arguments(f, i, "", "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>", name);
    else if (f->kind == PL_REPLY_MISTRAL && f->server->call_args)
        around_arguments(f, i, "", "[TOOL_CALLS]%s[ARGS]", name);
    else if (f->kind == PL_REPLY_GLM || f->kind == PL_REPLY_FUNCTIONARY)
        around_arguments(f, i, "", "%s\n", name);
    else if (f->kind == PL_REPLY_FUNCTIONGEMMA)
        around_arguments(f, i, "", "call:%s", name);
    else if (f->kind == PL_REPLY_COMMAND)
        around_arguments(f, i, "}", "{\"tool_call_id\": \"0\", \"tool_name\": \"%s\", \"parameters\": ", name);
    else
        around_arguments(f, i, "}", "{\"name\": \"%s\", \"%s\": ", name,
                         f->kind == PL_REPLY_LLAMA ? "parameters" : "arguments");
    if (schema == NULL || json_is_null(schema)) return no_arguments(f, rule);
    return rules(f, json_object_size(schema) == 0 ? NULL : schema, rule);
}

/* ---------- tags: one for each parameter ---------- */

/* The characters that may follow `begun` in one of the marks; how many: 0 when none begins so. */
static size_t followers(const char *const *marks, size_t count, const char *begun, char out[TEXT_MARKS][8]) {
    size_t n = strlen(begun), found = 0;
    for (size_t i = 0; i < count; i++) {
        if (marks[i] == NULL || strncmp(marks[i], begun, n) != 0 || marks[i][n] == '\0') continue;
        size_t bytes = 1, same = 0;
        while ((marks[i][n + bytes] & 0xC0) == 0x80) bytes++;
        snprintf(out[found], sizeof out[found], "%.*s", (int)bytes, marks[i] + n);
        while (strcmp(out[same], out[found]) != 0) same++;
        found += same == found;
    }
    return found;
}

static bool is_mark(const char *const *marks, size_t count, const char *text) {
    for (size_t i = 0; i < count; i++)
        if (marks[i] != NULL && strcmp(marks[i], text) == 0) return true;
    return false;
}

/* What may follow `begun`, which begins a mark, so that it becomes none: one rule for each of their beginnings. */
static void not_the_mark(struct pl_buf *g, const char *const *marks, size_t count, const char *begun, size_t *rule) {
    char next[TEXT_MARKS][8], more[128];
    size_t n = followers(marks, count, begun, next), first = *rule + 1;
    pl_buf_printf(g, "tag-text-%zu ::= [^<", *rule);
    for (size_t i = 0; i < n; i++) pl_buf_printf(g, "%s%s", strchr("]\\^-", next[i][0]) != NULL ? "\\" : "", next[i]);
    pl_buf_add_c(g, "] | \"<\" tag-text-0");
    struct pl_buf rules = {0};
    *rule = first;
    for (size_t i = 0; i < n; i++) {
        snprintf(more, sizeof more, "%s%s", begun, next[i]);
        if (is_mark(marks, count, more)) continue;
        pl_buf_add_c(g, " | ");
        literal(g, next[i]);
        pl_buf_printf(g, " tag-text-%zu", *rule);
        not_the_mark(&rules, marks, count, more, rule);
    }
    pl_buf_add_char(g, '\n');
    pl_buf_add(g, pl_buf_cstr(&rules), rules.len);
    g->failed |= !pl_buf_ok(&rules);
    pl_buf_deinit(&rules);
}

/* Any text that holds nothing that ends it (chat/reply_tagged.c): '<' stands only at the beginning of those marks. */
static void text_rules(struct pl_buf *g, const struct pl_reply_tags *t) {
    const char *const marks[TEXT_MARKS] = {t->end_value, t->key, t->end_call, t->quote};
    size_t rule = 0;
    pl_buf_add_c(g, "tag-text ::= ([^<] | \"<\" tag-text-0)*\n");
    not_the_mark(g, marks, TEXT_MARKS, "<", &rule);
}

/* One string of the schema's. With a bound a text has no '<' at all, so that its characters can be counted. */
static enum pl_status one_text(const struct forced *f, const json_t *schema) {
    size_t before = f->g->len;
    PL_TRY(of_tools(f, pl_schema_bare_text(schema, f->g, &f->pe->err)));
    if (f->g->len == before) pl_buf_add_c(f->g, "tag-text");
    return PL_OK;
}

static void one_value(const struct forced *f, const json_t *value, bool *any) {
    if (!json_is_string(value)) return;
    if (*any) pl_buf_add_c(f->g, " | ");
    literal(f->g, json_string_value(value));
    *any = true;
}

/* The strings that a schema allows, as alternatives of a rule; what else it allows is no text and left out. */
static enum pl_status texts(const struct forced *f, const json_t *document, const json_t *schema, bool *any) {
    schema = pl_reply_resolve(document, schema);
    if (pl_reply_value(document, schema) == PL_REPLY_VALUE_JSON) return PL_OK;
    const json_t *values = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    const json_t *members = json_object_get(schema, "anyOf");
    for (size_t i = 0; i < json_array_size(values); i++) one_value(f, json_array_get(values, i), any);
    one_value(f, only, any);
    if (values != NULL || only != NULL) return PL_OK;
    if (members == NULL) members = json_object_get(schema, "oneOf");
    if (json_object_get(schema, "type") == NULL) {
        for (size_t i = 0; i < json_array_size(members); i++) PL_TRY(texts(f, document, json_array_get(members, i), any));
        return PL_OK;
    }
    if (*any) pl_buf_add_c(f->g, " | ");
    *any = true;
    return one_text(f, schema);
}

static enum pl_status tag_value(const struct forced *f, const struct pl_reply_tags *t, const json_t *document,
                                const json_t *schema, const char *rule) {
    static const char *const shared[] = {"$defs", "definitions"};
    enum pl_reply_value as = pl_reply_value(document, schema);
    if (as != PL_REPLY_VALUE_JSON) {
        bool any = false;
        pl_buf_printf(f->g, "%s ::= ", rule);
        PL_TRY(texts(f, document, schema, &any));
        if (as == PL_REPLY_VALUE_TEXT_OR_NULL && t->text_key == NULL) {
            pl_buf_add_c(f->g, any ? " | \"null\"" : "\"null\"");
            any = true;
        }
        if (!any)
            return param_bad(f->pe, "tools", PL_INVALID, "a parameter's schema allows no string though its type is one");
        pl_buf_add_char(f->g, '\n');
        return PL_OK;
    }
    json_t *own = json_is_object(schema) ? json_copy((json_t *)(uintptr_t)schema) : json_incref((json_t *)(uintptr_t)schema);
    for (size_t i = 0; i < PL_COUNT_OF(shared) && json_is_object(own); i++)
        if (json_object_get(document, shared[i]) != NULL)
            json_object_set(own, shared[i], json_object_get(document, shared[i]));
    enum pl_status st = rules(f, own, rule);
    json_decref(own);
    return st;
}

/* attribute: what the key's tag says of the value; value: an expression of it. */
static void add_parameter(const struct forced *f, const struct pl_reply_tags *t, const char *key, const char *attribute,
                          const char *value) {
    const char *line = t->tight ? "" : "\n";
    char before[256], after[128];
    literal(f->g, t->key);
    pl_buf_add_char(f->g, ' ');
    literal(f->g, key);
    snprintf(before, sizeof before, "%s%s%s%s%s", t->end_key, attribute != NULL ? attribute : "",
             t->value != NULL ? line : "", t->value != NULL ? t->value : "", t->lines ? "\n" : "");
    snprintf(after, sizeof after, "%s%s%s", t->lines ? "\n" : "", t->end_value, line);
    pl_buf_add_char(f->g, ' ');
    literal(f->g, before);
    pl_buf_printf(f->g, " %s ", value);
    literal(f->g, after);
}

/* Parameters in the schema's order, each on lines of its own. */
static enum pl_status tagged_call(const struct forced *f, const struct pl_reply_tags *t, size_t i) {
    const json_t *schema = json_object_get(function(f, i), "parameters");
    json_t *properties = json_object_get(schema, "properties"), *value, *required = NULL;
    const char *key;
    if (pl_schema_required(schema, &required, &f->pe->err) != PL_OK)
        return param_bad(f->pe, "tools", f->pe->err.status, "parameters of tool %zu: required is no list of names", i);
    char text[256];
    size_t n = 0;
    snprintf(text, sizeof text, "%s%s%s%s", t->call, name_of(f, i), t->end_name,
             t->tight || strcmp(t->end_name, "\n") == 0 ? "" : "\n");
    pl_buf_printf(f->g, "call-%zu ::= ", i);
    literal(f->g, text);
    json_object_foreach(properties, key, value)
        pl_buf_printf(f->g, " parameter-%zu-%zu%s", i, n++, json_object_get(required, key) != NULL ? "" : "?");
    json_decref(required);
    pl_buf_add_char(f->g, ' ');
    literal(f->g, t->end_call);
    pl_buf_add_char(f->g, '\n');
    n = 0;
    json_object_foreach(properties, key, value) {
        char rule[64];
        if (strpbrk(key, "<>\n") != NULL || strstr(key, t->end_key) != NULL)
            return param_bad(f->pe, "tools", PL_INVALID,
                             "tool %zu has a parameter whose name this model cannot write: '%.40s'", i, key);
        snprintf(rule, sizeof rule, "value-%zu-%zu", i, n);
        pl_buf_printf(f->g, "parameter-%zu-%zu ::= ", i, n++);
        enum pl_reply_value as = pl_reply_value(schema, value);
        add_parameter(f, t, key, as == PL_REPLY_VALUE_JSON ? t->other_key : t->text_key, rule);
        if (as == PL_REPLY_VALUE_TEXT_OR_NULL && t->text_key != NULL) {
            pl_buf_add_c(f->g, " | ");
            add_parameter(f, t, key, t->other_key, "\"null\"");
        }
        pl_buf_add_char(f->g, '\n');
        PL_TRY(tag_value(f, t, schema, value, rule));
    }
    return PL_OK;
}

enum pl_status forced_calls(const struct chat_request *q, const struct job *j, struct pl_buf *g, struct param_error *pe) {
    bool one = q->single_call || q->choice == CHOICE_NAMED;
    struct forced f = {q, j->params.reply.kind, j->server, g, pe, one};
    size_t count = json_array_size(q->tools);
    root_rule(&f);
    pl_schema_common(g);
    const struct pl_reply_tags *t = pl_reply_tags(f.kind);
    bool keys = t != NULL && t->key != NULL;
    if (keys) text_rules(g, t);
    pl_buf_add_c(g, "call ::= ");
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        if (!wanted(&f, i)) continue;
        pl_buf_printf(g, "%scall-%zu", any ? " | " : "", i);
        any = true;
    }
    pl_buf_add_char(g, '\n');
    for (size_t i = 0; i < count; i++)
        if (wanted(&f, i)) PL_TRY(keys ? tagged_call(&f, t, i) : call_with_object(&f, i));
    return PL_OK;
}
