/* reply - splits what a model writes into text, reasoning and tool calls, while it is being written.
 *
 * Input may be cut anywhere: the parts that come out do not depend on where. What looks like a call and turns out to be
 * none comes out as text, unchanged; bytes are never lost except white space round calls and reasoning. A call's
 * arguments go out as they arrive, as the model's own bytes, once its name is known.
 *
 * Which marks introduce a call depends on the model: pl_reply_format reads it off the chat template. Calls that are marked
 * by nothing but being JSON (Llama, generic) count only when they name a tool that was offered. */
#ifndef PL_CHAT_REPLY_H
#define PL_CHAT_REPLY_H

#include <jansson.h>

#include "base/str.h"

enum pl_reply_kind {
    PL_REPLY_JSON,          /* a bare JSON object or list, or one in a ```json fence */
    PL_REPLY_HERMES,        /* <tool_call>{"name":..,"arguments":..}</tool_call>: Hermes, Qwen, SmolLM */
    PL_REPLY_LLAMA,         /* {"name":..,"parameters":..}, maybe after <|python_tag|> */
    PL_REPLY_MISTRAL,       /* [TOOL_CALLS][{"name":..,"arguments":..}] or [TOOL_CALLS]name[ARGS]{..} */
    PL_REPLY_GEMMA,         /* ```tool_code fences with JSON or a call in Python's notation */
    PL_REPLY_GRANITE,       /* <|tool_call|>[{..}]: Granite 3; Phi-4-mini closes with <|/tool_call|> */
    PL_REPLY_NEMOTRON,      /* <TOOLCALL>[{..}]</TOOLCALL> */
    PL_REPLY_JAMBA,         /* <tool_calls>[{..}]</tool_calls> */
    PL_REPLY_COMMAND,       /* <|START_ACTION|>[{"tool_name":..,"parameters":..}]<|END_ACTION|>: Command R7B, A */
    PL_REPLY_OLMO,          /* <function_calls>f(a=1)</function_calls> */
    PL_REPLY_FUNCTIONGEMMA, /* <start_function_call>call:f{a:<escape>text<escape>}<end_function_call> */
    PL_REPLY_GLM,           /* the name on a line of its own, then the arguments as an object: GLM-4 */
    PL_REPLY_XML,           /* <tool_call><function=f><parameter=a>..</parameter></function></tool_call>: Qwen3-Coder */
    PL_REPLY_DEEPSEEK,      /* V3, R1 (a fence after the name) and V3.1 (bare arguments) */
    PL_REPLY_HARMONY,       /* gpt-oss: channels, a call is a message with a recipient */
    /* <tool_call>f<arg_key>a</arg_key><arg_value>..</arg_value></tool_call>: GLM-4.5 and later, Ling, Laguna, Spark */
    PL_REPLY_ARG_KEY,
    PL_REPLY_HUNYUAN,     /* the same with tags like <arg_key:opensource>: Hunyuan Hy3 */
    PL_REPLY_SEED,        /* Qwen3-Coder's tags between <seed:tool_call> marks */
    PL_REPLY_MINIMAX,     /* <invoke name="f"><parameter name="a"> between <minimax:tool_call> marks: M2 */
    PL_REPLY_DSML,        /* the same with <|DSML|invoke and a type at the key: DeepSeek V3.2 */
    PL_REPLY_DSML_V4,     /* the section's name differs: DeepSeek V4 */
    PL_REPLY_KIMI,        /* <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{..}: Kimi K2 */
    PL_REPLY_MINICPM,     /* <function name="f"><param name="a">..</param></function>: MiniCPM5 */
    PL_REPLY_APERTUS,     /* <|tools_prefix|>[{"f": {..}}]<|tools_suffix|> */
    PL_REPLY_GIGACHAT,    /* <|function_call|>{..}: GigaChat 3.1 */
    PL_REPLY_FUNCTIONARY, /* >>>f, a line break, {..}; the prompt ends with the first >>>: Functionary 3.2 */
    PL_REPLY_KINDS
};
/* The kind that a template's text shows; *knows_tools says whether it mentions tools at all. */
enum pl_reply_kind pl_reply_format(const char *source, size_t len, bool *knows_tools);

/* A notation whose calls are told by tags; NULL: it has none of these. */
struct pl_reply_tags {
    enum pl_reply_kind kind;
    const char *shows, *shows_too;     /* in a template's text */
    const char *section, *end_section; /* round the calls; NULL: nothing */
    bool each;                         /* a section holds one call */
    bool tight;                        /* no line breaks between tags */
    const char *call, *end_call;       /* a name follows */
    bool prompted;                     /* the first call's mark stands at the prompt's end; only tools' names are names */
    const char *to_all;                /* stands in place of a name before text; left out */
    const char *type;                  /* may stand in place of the name, which then has a line of its own */
    const char *prefix;                /* of the name; left out */
    bool numbered;                     /* :0 after the name; left out */
    const char *end_name;
    const char *key, *end_key;        /* NULL: the arguments are an object */
    const char *text_key, *other_key; /* after end_key: the value is a string, is JSON; NULL: the schema tells */
    const char *value, *end_value;
    bool lines;                    /* the value has lines of its own */
    const char *quote, *end_quote; /* round a string where it needs them; end_quote holds end_value */
};
const struct pl_reply_tags *pl_reply_tags(enum pl_reply_kind kind);

/* Texts of special tokens that a parser must see although they are hidden in ordinary text. */
bool pl_reply_is_mark(const char *piece, size_t len);
/* What ends the reasoning that a prompt opens at its end; NULL: it opens none. */
const char *pl_reply_opens_reasoning(const char *prompt, size_t len);

struct pl_reply_options {
    enum pl_reply_kind kind;
    bool tools;               /* look for calls */
    bool reasoning;           /* split <think>..</think> (and others, reply_marks.c) at the beginning out */
    const char *in_reasoning; /* what ends the reasoning that the prompt has opened already; NULL: it has not */
    bool single;              /* only the first call is wanted: later ones are dropped */
    const char *const *names; /* of the tools; must outlive the parser */
    size_t name_count;
    const json_t *tools_json; /* OpenAI's form, for notations without types (XML); NULL: types are guessed */
};

/* How a parameter's value stands between its tags, told by its schema: a string (also one of several, and behind anyOf and
 * references into the document) as it is, without quotes; where it may be null, too, the word alone is null. Parser and
 * grammar of forced calls go by it. */
enum pl_reply_value { PL_REPLY_VALUE_JSON, PL_REPLY_VALUE_TEXT, PL_REPLY_VALUE_TEXT_OR_NULL };
enum pl_reply_value pl_reply_value(const json_t *document, const json_t *schema);
/* The schema behind its references into the document, as far as they lead. */
const json_t *pl_reply_resolve(const json_t *document, const json_t *schema);

struct pl_reply_sink {
    void *user;
    void (*text)(void *user, const char *data, size_t len);
    void (*reasoning)(void *user, const char *data, size_t len);
    void (*call)(void *user, const char *name, size_t len); /* a call begins; arguments that follow are its own */
    void (*arguments)(void *user, const char *data, size_t len);
};

struct pl_reply;

enum pl_status pl_reply_create(const struct pl_reply_options *opt, const struct pl_reply_sink *sink,
                               struct pl_reply **out) PL_MUST_CHECK;
void pl_reply_destroy(struct pl_reply *r);
/* PL_NO_MEMORY ends it: what was held is lost, what went out stands. */
enum pl_status pl_reply_push(struct pl_reply *r, const char *data, size_t len) PL_MUST_CHECK;
/* What comes now is reasoning, as far as it was read. */
bool pl_reply_in_reasoning(const struct pl_reply *r);
enum pl_status pl_reply_finish(struct pl_reply *r) PL_MUST_CHECK;

#endif
