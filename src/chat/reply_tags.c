/* reply_tags.c - notations whose calls are told by tags, as one table: it says how they are read (reply_tagged.c) and how a
 * grammar writes them (serve/forced.c). */
#include <string.h>

#include "base/mem.h"
#include "chat/reply_internal.h"

#define BAR            "\xEF\xBD\x9C"
#define GAP            "\xE2\x96\x81"
#define DS(name)       "<" BAR "tool" GAP name BAR ">"
#define DSML(name)     "<" BAR "DSML" BAR name
#define END_DSML(name) "</" BAR "DSML" BAR name
#define HY(name)       "<" name ":opensource>"
#define END_HY(name)   "</" name ":opensource>"

/* In the order in which a template is searched for them. */
static const struct pl_reply_tags tags[] = {
    {.kind = PL_REPLY_DEEPSEEK,
     .shows = DS("calls" GAP "begin"),
     .section = DS("calls" GAP "begin"),
     .end_section = DS("calls" GAP "end"),
     .call = DS("call" GAP "begin"),
     .type = "function",
     .end_name = DS("sep"),
     .end_call = DS("call" GAP "end")},
    {.kind = PL_REPLY_KIMI,
     .shows = "<|tool_calls_section_begin|>",
     .section = "<|tool_calls_section_begin|>",
     .end_section = "<|tool_calls_section_end|>",
     .tight = true,
     .call = "<|tool_call_begin|>",
     .prefix = "functions.",
     .numbered = true,
     .end_name = "<|tool_call_argument_begin|>",
     .end_call = "<|tool_call_end|>"},
    {.kind = PL_REPLY_MINIMAX,
     .shows = "<minimax:tool_call>",
     .section = "<minimax:tool_call>",
     .end_section = "</minimax:tool_call>",
     .call = "<invoke name=\"",
     .end_name = "\">",
     .key = "<parameter name=\"",
     .end_key = "\">",
     .end_value = "</parameter>",
     .end_call = "</invoke>"},
    {.kind = PL_REPLY_DSML,
     .shows = BAR "DSML" BAR,
     .shows_too = "function_calls>",
     .section = DSML("function_calls>"),
     .end_section = END_DSML("function_calls>"),
     .call = DSML("invoke name=\""),
     .end_name = "\">",
     .key = DSML("parameter name=\""),
     .end_key = "\"",
     .text_key = " string=\"true\">",
     .other_key = " string=\"false\">",
     .end_value = END_DSML("parameter>"),
     .end_call = END_DSML("invoke>")},
    {.kind = PL_REPLY_DSML_V4,
     .shows = BAR "DSML" BAR,
     .section = DSML("tool_calls>"),
     .end_section = END_DSML("tool_calls>"),
     .call = DSML("invoke name=\""),
     .end_name = "\">",
     .key = DSML("parameter name=\""),
     .end_key = "\"",
     .text_key = " string=\"true\">",
     .other_key = " string=\"false\">",
     .end_value = END_DSML("parameter>"),
     .end_call = END_DSML("invoke>")},
    {.kind = PL_REPLY_SEED,
     .shows = "<seed:tool_call>",
     .section = "<seed:tool_call>",
     .end_section = "</seed:tool_call>",
     .each = true,
     .call = "<function=",
     .end_name = ">",
     .key = "<parameter=",
     .end_key = ">",
     .end_value = "</parameter>",
     .end_call = "</function>"},
    {.kind = PL_REPLY_ARG_KEY,
     .shows = "<arg_key>",
     .call = "<tool_call>",
     .end_name = "\n",
     .key = "<arg_key>",
     .end_key = "</arg_key>",
     .value = "<arg_value>",
     .end_value = "</arg_value>",
     .end_call = "</tool_call>"},
    {.kind = PL_REPLY_HUNYUAN,
     .shows = "<arg_key{}>", /* the template puts its tags together */
     .section = HY("tool_calls"),
     .end_section = END_HY("tool_calls"),
     .call = HY("tool_call"),
     .end_name = HY("tool_sep"),
     .key = HY("arg_key"),
     .end_key = END_HY("arg_key"),
     .value = HY("arg_value"),
     .end_value = END_HY("arg_value"),
     .end_call = END_HY("tool_call")},
    {.kind = PL_REPLY_MINICPM,
     .shows = "<function name=\"",
     .call = "<function name=\"",
     .tight = true,
     .end_name = "\">",
     .key = "<param name=\"",
     .end_key = "\">",
     .quote = "<![CDATA[",
     .end_quote = "]]></param>",
     .end_value = "</param>",
     .end_call = "</function>"},
    {.kind = PL_REPLY_FUNCTIONARY,
     .shows = ">>>${recipient}",
     .call = ">>>",
     .prompted = true,
     .to_all = "all",
     .end_name = "\n"},
    {.kind = PL_REPLY_XML,
     .shows = "<function=",
     .section = "<tool_call>",
     .end_section = "</tool_call>",
     .each = true,
     .call = "<function=",
     .end_name = ">",
     .key = "<parameter=",
     .end_key = ">",
     .lines = true,
     .end_value = "</parameter>",
     .end_call = "</function>"},
};

const struct pl_reply_tags *pl_reply_tags(enum pl_reply_kind kind) {
    for (size_t i = 0; i < PL_COUNT_OF(tags); i++)
        if (tags[i].kind == kind) return &tags[i];
    return NULL;
}

static bool contains(const char *text, size_t len, const char *what) {
    return what != NULL && len > 0 && memmem(text, len, what, strlen(what)) != NULL;
}

bool reply_is_tag(const char *piece, size_t len) {
    for (size_t i = 0; i < PL_COUNT_OF(tags); i++) {
        const struct pl_reply_tags *t = &tags[i];
        const char *const all[] = {t->section, t->end_section, t->call,  t->end_name,  t->end_call, t->key,
                                   t->end_key, t->text_key,    t->value, t->end_value, t->quote,    t->end_quote};
        for (size_t k = 0; k < PL_COUNT_OF(all); k++)
            if (all[k] != NULL && reply_mark_holds(all[k], piece, len)) return true;
    }
    return reply_is_channel(piece, len);
}

bool reply_tag_kind(const char *source, size_t len, enum pl_reply_kind *kind) {
    if (reply_shows_channels(source, len)) {
        *kind = PL_REPLY_HARMONY;
        return true;
    }
    for (size_t i = 0; i < PL_COUNT_OF(tags); i++) {
        if (!contains(source, len, tags[i].shows)) continue;
        if (tags[i].shows_too != NULL && !contains(source, len, tags[i].shows_too)) continue;
        *kind = tags[i].kind;
        return true;
    }
    return false;
}
