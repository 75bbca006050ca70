/* Reply parsing: every case gives the same parts wherever the text is cut, and what is no call is text, unchanged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/mem.h"
#include "base/str.h"
#include "chat/reply.h"

/* Parts as one line: text as is, reasoning in (), calls as <name args>. */
struct seen {
    struct pl_buf out;
    char open; /* 0, '(' or '<' */
    bool called;
};

static void close_open(struct seen *s, char next) {
    if (s->open == '(' && next != '(') pl_buf_add_char(&s->out, ')');
    if (s->open == '<' && next != 'a') pl_buf_add_char(&s->out, '>');
    if (next != 'a') s->open = next;
}
static void on_text(void *user, const char *data, size_t len) {
    struct seen *s = user;
    close_open(s, 0);
    pl_buf_add(&s->out, data, len);
}
static void on_reasoning(void *user, const char *data, size_t len) {
    struct seen *s = user;
    if (s->open != '(') {
        close_open(s, '(');
        pl_buf_add_char(&s->out, '(');
    }
    pl_buf_add(&s->out, data, len);
}
static void on_call(void *user, const char *name, size_t len) {
    struct seen *s = user;
    s->called = true;
    close_open(s, '<');
    pl_buf_add_char(&s->out, '<');
    pl_buf_add(&s->out, name, len);
    pl_buf_add_char(&s->out, ' ');
}
static void on_arguments(void *user, const char *data, size_t len) {
    struct seen *s = user;
    assert_int_equal(s->open, '<');
    pl_buf_add(&s->out, data, len);
}

static const char *const names[] = {"f", "weather"};

static enum pl_status parse(const struct pl_reply_options *o, const char *text, size_t len, size_t step, size_t first,
                            struct seen *s) {
    const struct pl_reply_sink sink = {s, on_text, on_reasoning, on_call, on_arguments};
    struct pl_reply *r = NULL;
    enum pl_status st = pl_reply_create(o, &sink, &r);
    for (size_t at = 0, n = first; st == PL_OK && at < len; at += n, n = step) {
        n = PL_MIN(n, len - at);
        st = pl_reply_push(r, text + at, n);
    }
    if (st == PL_OK) st = pl_reply_finish(r);
    close_open(s, 0);
    pl_reply_destroy(r);
    return st;
}

static void check(struct pl_reply_options o, const char *text, const char *expected) {
    size_t len = strlen(text);
    o.names = names;
    o.name_count = PL_COUNT_OF(names);
    for (size_t first = 1; first <= len; first++) {
        for (size_t step = 1; step <= len; step += step < 3 ? 1 : len) {
            struct seen s = {0};
            assert_int_equal(parse(&o, text, len, step, first, &s), PL_OK);
            if (strcmp(pl_buf_cstr(&s.out), expected) != 0)
                fail_msg("'%s' cut at %zu by %zu:\n got '%s'\nwant '%s'", text, first, step, pl_buf_cstr(&s.out), expected);
            pl_buf_deinit(&s.out);
        }
    }
}

#define TOOLS(k) ((struct pl_reply_options){.kind = (k), .tools = true, .reasoning = true})

static void hermes(void **state) {
    (void)state;
    struct pl_reply_options o = TOOLS(PL_REPLY_HERMES);
    check(o, "plain text \n", "plain text \n");
    check(o, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\\\"\"]}}\n</tool_call>",
          "<f {\"a\": [1, \"}\\\"\"]}>");
    check(o,
          "Let "
          "me.\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</"
          "tool_call>\n<tool_call>{\"arguments\":{\"x\":1},\"name\":\"f\"}</tool_call>\n",
          "Let me.<g {}><f {\"x\":1}>");
    check(o, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>ok", "<f {\"a\":1}>ok");
    check(o, "<tool_call>{\"name\":\"f\"}</tool_call>", "<f {}>");
    check(o, "<tool_call>{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":2}}}</tool_call>",
          "<f {\"a\":2}>");
    check(o, "<tool_call>oops</tool_call> x", "<tool_call>oops</tool_call> x");
    check(o, "<tool_call>{\"nome\": 1} </tool_call>", "<tool_call>{\"nome\": 1} </tool_call>");
    check(o, "<tool_call></tool_call>", "<tool_call></tool_call>");
    check(o, "a <tool_", "a <tool_");
    check(o, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":", "<f {\"a\":>"); /* cut by max_tokens: what came stands */
    check(o, "<tool_call> [ {\"name\":\"f\",\"arguments\":{}}, {\"name\":\"g\",\"arguments\":{}} ] </tool_call>",
          "<f {}><g {}>");
    o.single = true;
    check(o,
          "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call><tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>",
          "<f {}>");
}

static void llama_and_json(void **state) {
    (void)state;
    struct pl_reply_options o = TOOLS(PL_REPLY_LLAMA);
    check(o, "{\"name\": \"f\", \"parameters\": {\"q\": \"x\"}}", "<f {\"q\": \"x\"}>");
    check(o, "<|python_tag|>{\"name\": \"any\", \"parameters\": {}}; {\"name\": \"f\", \"parameters\": {}}",
          "<any {}><f {}>");
    check(o, "{\"name\": \"other\", \"parameters\": {}}", "{\"name\": \"other\", \"parameters\": {}}");
    check(o, " {\"answer\": [1, 2]} more", " {\"answer\": [1, 2]} more");
    check(o, "[ 1, {\"a\": 2}]", "[ 1, {\"a\": 2}]");
    check(o, "[ {\"a\": 2}, 3 ]", "[ {\"a\": 2}, 3 ]");
    check(o, "Text {\"name\": \"f\", \"parameters\": {}}", "Text {\"name\": \"f\", \"parameters\": {}}");
    o.kind = PL_REPLY_JSON;
    check(o, "[{\"name\":\"f\",\"arguments\":{\"a\":1}},{\"name\":\"weather\",\"arguments\":{}}]",
          "<f {\"a\":1}><weather {}>");
    check(o, "Sure:\n```json\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n```", "Sure:<f {\"a\":1}>");
    check(o, "Sure:\n```json\n{\"x\": 1}\n```\nbye", "Sure:\n```json\n{\"x\": 1}\n```\nbye");
}

static void mistral(void **state) {
    (void)state;
    struct pl_reply_options o = TOOLS(PL_REPLY_MISTRAL);
    check(o, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
          "<f {\"a\": 1}><g {}>");
    check(o, "[TOOL_CALLS]f[ARGS]{\"a\": {\"b\": 1}}[TOOL_CALLS]g{}", "<f {\"a\": {\"b\": 1}}><g {}>");
    check(o, "see [TOOL_CALL", "see [TOOL_CALL");
    check(o, "[TOOL_CALLS]f[CALL_ID]abc123[ARGS]{\"a\": 1}", "<f {\"a\": 1}>");
    check(o, "[TOOL_CALLS]", "[TOOL_CALLS]");
    check(o, "[1]", "[1]");
}

static void gemma(void **state) {
    (void)state;
    struct pl_reply_options o = TOOLS(PL_REPLY_GEMMA);
    check(o, "```tool_code\nprint(weather(city='Par\\'is \"x\"', days=3, deep=[True, None, {'a': -1.5e3}]))\n```",
          "<weather {\"city\":\"Par'is \\\"x\\\"\",\"days\":3,\"deep\":[true,null,{\"a\":-1.5e3}]}>");
    check(o, "```tool_code\nf()\n```\nthen", "<f {}>then");
    check(o, "```tool_code\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}\n```", "<f {\"a\":1}>");
    check(o, "```tool_code\nimport os; f(\n```", "```tool_code\nimport os; f(\n```");
    check(o, "```python\nf()\n```", "```python\nf()\n```");
}

static void qwen_xml(void **state) {
    (void)state;
    struct pl_reply_options o = TOOLS(PL_REPLY_XML);
    check(o,
          "Let "
          "me.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
          "</function>\n</tool_call>",
          "Let me.<weather {\"city\": \"Paris\", \"days\": 3}>");
    check(o, "<function=f></function></tool_call>ok", "<f {}>ok");
    check(o,
          "<tool_call><function=f><parameter=a>[1, {\"b\": null}]</parameter><parameter=b>True</parameter>"
          "<parameter=c>x "
          "\"y\"\n\tz\n\n</parameter></function></tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
          "<f {\"a\": [1, {\"b\": null}], \"b\": true, \"c\": \"x \\\"y\\\"\\n\\tz\"}><g {}>");
    check(o, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "<f {\"a\": 1}>");
    check(o, "<tool_call> oops</tool_call>", "<tool_call> oops</tool_call>");
    check(o, "a <function=x\ny> b", "a <function=x\ny> b");
    check(o, "<think>\nhm\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>", "(hm)<f {}>");
    json_t *tools =
        json_loads("[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": \"string\"}, "
                   "\"n\": {\"type\": \"integer\"}}}}}]",
                   0, NULL);
    assert_non_null(tools);
    o.tools_json = tools;
    check(o,
          "<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n</function>\n</"
          "tool_call>",
          "<f {\"s\": \"12\", \"n\": 12}>");
    check(o, "<tool_call>\n<function=f>\n<parameter=s>\nline one\n\nline </two>\n", /* cut: what came stands */
          "<f {\"s\": \"line one\\n\\nline </two>\\n>");
    json_decref(tools);
    check(o, "<function=f>{\"a\": [1, {}]}</function><function=g>{}</function> ok", "<f {\"a\": [1, {}]}><g {}>ok");
    check(o, "<function=f>", "<f {>"); /* cut by max_tokens */
}

#define DS(name) "<\xEF\xBD\x9Ctool\xE2\x96\x81" name "\xEF\xBD\x9C>"
#define DS_CALLS           \
    DS("calls\xE2\x96\x81" \
       "begin")
#define DS_END_CALLS       \
    DS("calls\xE2\x96\x81" \
       "end")
#define DS_CALL           \
    DS("call\xE2\x96\x81" \
       "begin")
#define DS_END_CALL       \
    DS("call\xE2\x96\x81" \
       "end")
#define DS_SEP DS("sep")

static void deepseek(void **state) {
    (void)state;
    struct pl_reply_options o = TOOLS(PL_REPLY_DEEPSEEK);
    check(o,
          "Yes.\n" DS_CALLS DS_CALL "function" DS_SEP "weather\n```json\n{\"city\": \"Paris\"}\n```" DS_END_CALL "\n" DS_CALL
          "function" DS_SEP "f\n```json\n{}\n```" DS_END_CALL DS_END_CALLS,
          "Yes.<weather {\"city\": \"Paris\"}><f {}>");
    check(o, DS_CALLS DS_CALL "f" DS_SEP "{\"a\": [1]}" DS_END_CALL DS_CALL "g" DS_SEP "{}" DS_END_CALL DS_END_CALLS,
          "<f {\"a\": [1]}><g {}>"); /* V3.1 */
    check(o, "<think>\nhm\n</think>\n" DS_CALLS DS_CALL "f" DS_SEP "{}" DS_END_CALL DS_END_CALLS, "(hm)<f {}>");
    check(o, DS_CALLS "none", DS_CALLS "none");
    check(o, DS_CALLS DS_CALL "no end", DS_CALLS DS_CALL "no end");
    check(o, "a <\xEF\xBD\x9Ctool", "a <\xEF\xBD\x9Ctool");
}

static void harmony(void **state) {
    (void)state;
    struct pl_reply_options o = TOOLS(PL_REPLY_HARMONY);
    check(o,
          "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
          "<|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
          "(Think.)<weather {\"city\": \"Paris\"}>");
    check(o,
          "<|channel|>analysis<|message|>Think. <|end|><|start|>assistant<|channel|>final<|message|>Hello there. <|return|>",
          "(Think.)Hello there. ");
    check(o,
          "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant to=functions.f<|channel|>commentary "
          "json<|message|>{}",
          "I will look.<f {}>");
    check(o, "<|channel|>commentary to=functions.f<|message|><|call|>", "<f {}>");
    check(o, "plain <|channel|>text", "plain <|channel|>text");
    check(o, "<|channel|>analysis<|message|>cut", "(cut)");
    check(o, "<|channel|>analysis<|message|>a<|end|><|start|>assis", "(a)");
    o.tools = o.reasoning = false;
    check(o, "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", "ab");
}

/* Objects between marks of their own: Granite and Phi-4-mini, Nemotron, Jamba, Command R7B. */
static void wrapped(void **state) {
    (void)state;
    check(TOOLS(PL_REPLY_GRANITE), "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\"}]\n",
          "<f {\"a\": 1}><g {}>");
    check(TOOLS(PL_REPLY_JSON), "Wait. <|tool_call|>[{\"name\":\"f\",\"arguments\":{}}]<|/tool_call|> ok", "Wait.<f {}>ok");
    check(TOOLS(PL_REPLY_NEMOTRON), "<TOOLCALL>[{\"name\":\"f\",\"arguments\":{\"a\":[]}}]</TOOLCALL>", "<f {\"a\":[]}>");
    check(TOOLS(PL_REPLY_JAMBA),
          " <tool_calls>[\n  {\"name\": \"f\", \"arguments\": {}},\n  {\"name\": \"weather\", \"arguments\": "
          "{}}\n]</tool_calls>",
          "<f {}><weather {}>");
    check(TOOLS(PL_REPLY_COMMAND),
          "<|START_THINKING|>I will.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", "
          "\"parameters\": {\"a\": 1}}\n]<|END_ACTION|>",
          "(I will.)<f {\"a\": 1}>");
    check(TOOLS(PL_REPLY_GRANITE), "<|tool_call|> none", "<|tool_call|> none");
    check(TOOLS(PL_REPLY_NEMOTRON), "<TOOLCALL>[]</TOOLCALL>", "<TOOLCALL>[]</TOOLCALL>");
    struct pl_reply_options o = TOOLS(PL_REPLY_GRANITE);
    o.tools = false;
    check(o, "<|tool_call|>[{\"name\":\"f\"}]", "<|tool_call|>[{\"name\":\"f\"}]");
}

/* Bodies that are read whole: OLMo 3's Python, Gemma's own notation. */
static void bodies(void **state) {
    (void)state;
    struct pl_reply_options o = TOOLS(PL_REPLY_OLMO);
    check(o, "<function_calls>f(a=\"x\", b=[1, 2])\ng()</function_calls>", "<f {\"a\":\"x\",\"b\":[1,2]}><g {}>");
    check(o, "<function_calls>[{\"name\": \"f\", \"arguments\": {\"a\":1}}]</function_calls> then", "<f {\"a\":1}>then");
    check(o, "<function_calls>f of x</function_calls>", "<function_calls>f of x</function_calls>");
    o = TOOLS(PL_REPLY_FUNCTIONGEMMA);
    check(o,
          "<start_function_call>call:f{city:<escape>Pa\"ris<escape>,days:2,tags:[<escape>x, y<escape>],in:{deep "
          "key:true}}<end_function_call><start_function_call>call:g{}<end_function_call>",
          "<f {\"city\":\"Pa\\\"ris\",\"days\":2,\"tags\":[\"x, y\"],\"in\":{\"deep key\":true}}><g {}>");
    check(o, "<start_function_call>call:f{\"a\": \"b\"}<end_function_call>", "<f {\"a\":\"b\"}>");
    check(o, "<start_function_call>call:f{a<end_function_call>", "<start_function_call>call:f{a<end_function_call>");
    check(TOOLS(PL_REPLY_JSON), "<|tool_call>call:f{a:<|\"|>b<|\"|>}<tool_call|>", "<f {\"a\":\"b\"}>");
    check(TOOLS(PL_REPLY_JSON), "<|tool_call_start|>[f(a='x'), g()]<|tool_call_end|>", "<f {\"a\":\"x\"}><g {}>");
    check(TOOLS(PL_REPLY_LLAMA), "[f(a='x'), weather(b=None)]", "<f {\"a\":\"x\"}><weather {\"b\":null}>");
    check(TOOLS(PL_REPLY_LLAMA), "[other(a='x')]", "[other(a='x')]");
    check(TOOLS(PL_REPLY_LLAMA), "[f", "[f");
}

#define TEXT_TOOLS                                                                                               \
    "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": \"string\"}, \"n\": " \
    "{\"type\": \"integer\"}}}}}]"
#define DSML(name)  \
    "<\xEF\xBD\x9C" \
    "DSML\xEF\xBD\x9C" name
#define END_DSML(name) \
    "</\xEF\xBD\x9C"   \
    "DSML\xEF\xBD\x9C" name

/* One reply in each notation of tags; f's s is a string, n is not. */
static const struct {
    enum pl_reply_kind kind;
    const char *reply, *expected;
} samples[] = {
    {PL_REPLY_ARG_KEY,
     "Hi.\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>1\n<b></arg_value>\n<arg_key>n</arg_key>\n<arg_value>[1, "
     "{}]</arg_value>\n"
     "</tool_call>\n<tool_call>g</tool_call>",
     "Hi.<f {\"s\": \"1\\n<b>\", \"n\": [1, {}]}><g {}>"},
    {PL_REPLY_ARG_KEY, "<tool_call>f<arg_key>s</arg_key><arg_value></arg_value></tool_call>so", "<f {\"s\": \"\"}>so"},
    {PL_REPLY_ARG_KEY, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "<f {}>"},
    {PL_REPLY_HUNYUAN,
     "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>s</arg_key:opensource>\n"
     "<arg_value:opensource>x</arg_value:opensource>\n</"
     "tool_call:opensource>\n<tool_call:opensource>g<tool_sep:opensource>\n"
     "</tool_call:opensource>\n</tool_calls:opensource>so",
     "<f {\"s\": \"x\"}><g {}>so"},
    {PL_REPLY_SEED,
     "<seed:tool_call>\n<function=f>\n<parameter=s>\n1\n</parameter>\n<parameter=n>2</parameter>\n</function>\n</"
     "seed:tool_call>",
     "<f {\"s\": \"\\n1\\n\", \"n\": 2}>"},
    {PL_REPLY_MINIMAX,
     "Hi.\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">1</parameter>\n<parameter "
     "name=\"n\">2</parameter>\n"
     "</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>so",
     "Hi.<f {\"s\": \"1\", \"n\": 2}><g {}>so"},
    {PL_REPLY_DSML,
     DSML("function_calls>\n") DSML("invoke name=\"g\">\n") DSML("parameter name=\"a\" string=\"true\">1")
         END_DSML("parameter>\n") DSML("parameter name=\"b\" string=\"false\">1") END_DSML("parameter>\n")
             END_DSML("invoke>\n") END_DSML("function_calls>"),
     "<g {\"a\": \"1\", \"b\": 1}>"},
    {PL_REPLY_DSML_V4,
     "Hi.\n\n" DSML("tool_calls>\n") DSML("invoke name=\"g\">\n") END_DSML("invoke>\n") END_DSML("tool_calls>"),
     "Hi.<g {}>"},
    {PL_REPLY_KIMI,
     "Hi.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\": \"1\"}"
     "<|tool_call_end|><|tool_call_begin|>functions.functions.g:12<|tool_call_argument_begin|>{}<|tool_call_end|>"
     "<|tool_calls_section_end|>so",
     "Hi.<f {\"s\": \"1\"}><functions.g {}>so"},
    {PL_REPLY_MINICPM,
     "<function name=\"f\"><param name=\"s\"><![CDATA[<b></param>]]></param><param name=\"n\">2</param></function>\n"
     "<function name=\"f\"><param name=\"s\">1</param></function>so",
     "<f {\"s\": \"<b></param>\", \"n\": 2}><f {\"s\": \"1\"}>so"},
    {PL_REPLY_FUNCTIONARY, "all\nHi.\n>>>f\n{\"s\": \">>>g\\n{}\"}>>>weather\n{}>>>all\nso",
     "Hi.<f {\"s\": \">>>g\\n{}\"}><weather {}>so"},
    {PL_REPLY_XML, "<tool_call>\n<function=f>\n<parameter=s>1 2</parameter>\n</function>\n</tool_call>so",
     "<f {\"s\": \"1 2\"}>so"},
    {PL_REPLY_DEEPSEEK, DS_CALLS DS_CALL "function" DS_SEP "f\n```json\n{\"s\": 1}\n```" DS_END_CALL DS_END_CALLS "so",
     "<f {\"s\": 1}>so"},
};

/* What may be null or stands behind a reference is read by what it may be. */
static void tagged_nullable(void **state) {
    (void)state;
    static const char text[] =
        "[{\"function\": {\"name\": \"f\", \"parameters\": {\"$defs\": {\"k\": {\"enum\": [\"1\", \"2\"]}, \"loop\": "
        "{\"anyOf\": "
        "[{\"$ref\": \"#/$defs/loop\"}, {\"$ref\": \"#/$defs/loop\"}, {\"$ref\": \"#/$defs/loop\"}]}}, \"properties\": {"
        "\"a\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}, \"b\": {\"type\": [\"string\", \"null\"]}, "
        "\"c\": {\"$ref\": \"#/$defs/k\"}, \"d\": {\"allOf\": [{\"$ref\": \"#/$defs/k\"}]}, \"e\": {\"$ref\": "
        "\"#/$defs/loop\"}, "
        "\"f\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"integer\"}]}, \"g\": {\"const\": \"1\"}}}}}]";
    static const char *const cases[][3] = {
        {"a", "12", "\"12\""},
        {"a", "null", "null"},
        {"a", "None", "null"},
        {"a", "nullable", "\"nullable\""},
        {"a", "nul", "\"nul\""},
        {"a", "", "\"\""},
        {"a", "n", "\"n\""},
        {"a", "null, x", "\"null, x\""},
        {"b", "true", "\"true\""},
        {"b", "null", "null"},
        {"c", "1", "\"1\""},
        {"d", "2", "\"2\""},
        {"e", "1", "1"},
        {"f", "12", "12"},
        {"f", "x", "\"x\""},
        {"g", "1", "\"1\""},
        {"a", "null\n\nx", "\"null\\n\\nx\""},
    };
    json_t *tools = json_loads(text, 0, NULL);
    assert_non_null(tools);
    struct pl_reply_options o = TOOLS(PL_REPLY_XML);
    o.tools_json = tools;
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        char reply[256], expected[128];
        snprintf(reply, sizeof reply,
                 "<tool_call>\n<function=f>\n<parameter=%s>\n%s\n</parameter>\n</function>\n</tool_call>", cases[i][0],
                 cases[i][1]);
        snprintf(expected, sizeof expected, "<f {\"%s\": %s}>", cases[i][0], cases[i][2]);
        check(o, reply, expected);
    }
    check(o, "<tool_call><function=f><parameter=a>null\n", "<f {\"a\": null\n>"); /* cut: what came stands */
    json_decref(tools);
}

static void tagged(void **state) {
    (void)state;
    json_t *tools = json_loads(TEXT_TOOLS, 0, NULL);
    assert_non_null(tools);
    for (size_t i = 0; i < PL_COUNT_OF(samples); i++) {
        struct pl_reply_options o = TOOLS(samples[i].kind);
        o.tools_json = tools;
        check(o, samples[i].reply, samples[i].expected);
    }
    struct pl_reply_options o = TOOLS(PL_REPLY_ARG_KEY);
    check(o, "<tool_call>a b\nc</tool_call>", "<a b {}>c</tool_call>"); /* what is no argument is text */
    check(o, "a <tool_call>\n\n</tool_call> b", "a <tool_call>\n\n</tool_call> b");
    check(o, "<tool_call>x<tool_call>f<arg_key>k</arg_key><arg_value>None</arg_value></tool_call>",
          "<tool_call>x<f {\"k\": null}>");
    check(o, "<tool_call>f\n{\"a\": 1}\n</tool_call>so", "<f {\"a\": 1}>so");
    o = TOOLS(PL_REPLY_SEED);
    check(o, "<function=f><parameter=a>{'b': None, \"c\": [True, 'x']}</parameter></function>",
          "<f {\"a\": {\"b\":null,\"c\":[true,\"x\"]}}>");
    check(o, "<function=f><parameter=a>{not so}</parameter></function>", "<f {\"a\": \"{not so}\"}>");
    check(o, "<seed:think>hm</seed:think>ok", "(hm)ok");
    o = TOOLS(PL_REPLY_KIMI);
    check(o, "<|tool_calls_section_begin|><|tool_calls_section_end|>.",
          "<|tool_calls_section_begin|><|tool_calls_section_end|>.");
    json_decref(tools);
}

static void listed(void **state) {
    (void)state;
    check(TOOLS(PL_REPLY_APERTUS), "Hi.<|tools_prefix|>[{\"f\": {\"a\": 1}}, {\"g\": {}}]<|tools_suffix|>so",
          "Hi.<f {\"a\":1}><g {}>so");
    check(TOOLS(PL_REPLY_APERTUS), "<|tools_prefix|>[{\"f\": 1}]<|tools_suffix|>",
          "<|tools_prefix|>[{\"f\": 1}]<|tools_suffix|>");
    check(TOOLS(PL_REPLY_APERTUS), "<|inner_prefix|>hm<|inner_suffix|>ok", "(hm)ok");
    check(TOOLS(PL_REPLY_GIGACHAT), "<|function_call|>{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "<f {\"a\": 1}>");
    check(TOOLS(PL_REPLY_LLAMA), "<|python_start|>[f(a=1), g(b=\"x\")]<|python_end|>", "<f {\"a\":1}><g {\"b\":\"x\"}>");
    check(TOOLS(PL_REPLY_JAMBA),
          "<tool_calls>\n{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": {}}\n</tool_calls>",
          "<f {}><g {}>"); /* MiniMax M1 */
    check(TOOLS(PL_REPLY_JSON), "<|channel>thought\nhm<channel|>ok", "(hm)ok");
}

/* Whether `out` begins as expected and goes on, where the reply was cut in a mark, with the reply's last bytes as text. */
static bool came_through(const char *expected, const char *reply, size_t len, const struct pl_buf *out) {
    const char *got = pl_buf_cstr(out);
    size_t open = out->len > 0 && got[out->len - 1] == '>' ? out->len - 1 : out->len;
    if (strncmp(expected, got, open) == 0) return true;
    for (size_t n = 0; n <= out->len && strncmp(expected, got, n) == 0; n++) {
        for (size_t end = open; end <= out->len; end++) {
            if (n > end || end - n > len || strchr("<>\n", got[n]) == NULL) continue;
            if (memcmp(reply + len - (end - n), got + n, end - n) == 0) return true;
        }
    }
    return out->len == len && memcmp(reply, got, len) == 0;
}

/* A reply that ends anywhere: until a name was read all of it is text, afterwards what came stands. */
static void ends_anywhere(void **state) {
    (void)state;
    json_t *tools = json_loads(TEXT_TOOLS, 0, NULL);
    for (size_t i = 0; i < PL_COUNT_OF(samples); i++) {
        struct pl_reply_options o = TOOLS(samples[i].kind);
        o.tools_json = tools;
        o.names = names;
        o.name_count = PL_COUNT_OF(names);
        for (size_t len = 1; len < strlen(samples[i].reply); len++) {
            struct seen s = {0};
            assert_int_equal(parse(&o, samples[i].reply, len, 3, 3, &s), PL_OK);
            if (!came_through(samples[i].expected, samples[i].reply, len, &s.out))
                fail_msg("'%.*s' gives '%s'", (int)len, samples[i].reply, pl_buf_cstr(&s.out));
            pl_buf_deinit(&s.out);
        }
    }
    json_decref(tools);
}

static void add_solid(struct pl_buf *b, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (strchr(" \t\r\n", text[i]) == NULL) pl_buf_add_char(b, text[i]);
}

/* Marks and what stands between them in any order, cut differently: the same parts, and without a call all of it as text. */
static void any_order(void **state) {
    (void)state;
    static const char *const others[] = {
        "f",  "weather", "\n",  " ",       "{", "}",  "[",  "]",   "\"name\": \"f\"", ", ", "\"arguments\": ", "{\"a\": 1}",
        "so", "f(a=1)",  "```", "```json", "<", "</", ":0", "True"};
    uint64_t seed = 7;
    for (int k = 0; k < PL_REPLY_KINDS; k++) {
        const struct pl_reply_tags *t = pl_reply_tags((enum pl_reply_kind)k);
        const char *marks[] = {"<tool_call>",      "</tool_call>",      "[TOOL_CALLS]", "[ARGS]",        "<|tools_prefix|>",
                               "<|tools_suffix|>", "<|function_call|>", "<tool_calls>", "</tool_calls>", "<|channel|>"};
        const char *tags[] = {
            t == NULL ? NULL : t->section,   t == NULL ? NULL : t->end_section, t == NULL ? NULL : t->call,
            t == NULL ? NULL : t->end_name,  t == NULL ? NULL : t->end_call,    t == NULL ? NULL : t->key,
            t == NULL ? NULL : t->end_key,   t == NULL ? NULL : t->value,       t == NULL ? NULL : t->end_value,
            t == NULL ? NULL : t->end_quote, t == NULL ? NULL : t->quote,       t == NULL ? NULL : t->text_key};
        struct pl_reply_options o = {.kind = (enum pl_reply_kind)k, .tools = true, .names = names, .name_count = 2};
        for (int round = 0; round < 400; round++) {
            struct pl_buf text = {0}, in = {0}, out = {0};
            struct seen whole = {0}, cut = {0};
            for (uint64_t n = 1 + round % 14; n > 0; n--) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                size_t which = (size_t)(seed >> 33);
                const char *piece = which % 2 == 0 ? others[which / 3 % PL_COUNT_OF(others)]
                                    : t != NULL    ? tags[which / 3 % PL_COUNT_OF(tags)]
                                                   : marks[which / 3 % PL_COUNT_OF(marks)];
                if (piece != NULL) pl_buf_add_c(&text, piece);
            }
            assert_int_equal(parse(&o, pl_buf_cstr(&text), text.len, text.len, text.len, &whole), PL_OK);
            assert_int_equal(parse(&o, pl_buf_cstr(&text), text.len, 1 + (size_t)round % 5, 1, &cut), PL_OK);
            if (strcmp(pl_buf_cstr(&whole.out), pl_buf_cstr(&cut.out)) != 0)
                fail_msg("'%s' whole '%s' cut '%s'", pl_buf_cstr(&text), pl_buf_cstr(&whole.out), pl_buf_cstr(&cut.out));
            add_solid(&in, pl_buf_cstr(&text), text.len);
            add_solid(&out, pl_buf_cstr(&whole.out), whole.out.len);
            if (!whole.called && k != PL_REPLY_HARMONY && strcmp(pl_buf_cstr(&in), pl_buf_cstr(&out)) != 0)
                fail_msg("'%s' of kind %d became '%s'", pl_buf_cstr(&text), k, pl_buf_cstr(&whole.out));
            pl_buf_deinit(&text);
            pl_buf_deinit(&in);
            pl_buf_deinit(&out);
            pl_buf_deinit(&whole.out);
            pl_buf_deinit(&cut.out);
        }
    }
}

/* Values beyond what is held back until their end. */
static void huge(void **state) {
    (void)state;
    enum { BYTES = 5 << 20 };
    static const char before[] = "<tool_call>f<arg_key>a</arg_key><arg_value>", after[] = "</arg_value></tool_call>so";
    struct pl_reply_options o = TOOLS(PL_REPLY_ARG_KEY);
    for (int list = 0; list < 2; list++) {
        struct pl_buf in = {0};
        struct seen s = {0};
        pl_buf_add_c(&in, before);
        pl_buf_add_c(&in, list ? "[\"" : "");
        for (int i = 0; i < BYTES; i++) pl_buf_add_char(&in, 'x');
        pl_buf_add_c(&in, list ? "\"]" : "");
        pl_buf_add_c(&in, after);
        assert_int_equal(parse(&o, in.data, in.len, 64 << 10, 1, &s), PL_OK);
        assert_int_equal(s.out.len, BYTES + strlen("<f {\"a\": \"\"}>so") + (list ? 2 : 0));
        assert_string_equal(s.out.data + s.out.len - (list ? 6 : 5), list ? "\"]}>so" : "\"}>so");
        pl_buf_deinit(&in);
        pl_buf_deinit(&s.out);
    }
}

/* The prompt has written the first >>>; only what follows one of them and names a tool is a call. */
static void functionary(void **state) {
    (void)state;
    struct pl_reply_options o = TOOLS(PL_REPLY_FUNCTIONARY);
    check(o, "f\n{\"a\": \"x>>>weather\"}", "<f {\"a\": \"x>>>weather\"}>");
    check(o, ">>>f\n{}", "<f {}>");
    check(o, "all\n>>> x = 1\n>>>f of x\nall\n", ">>> x = 1\n>>>f of x\nall\n");
    check(o, "other\n{}>>>other\n{}", "other\n{}>>>other\n{}");
    check(o, "all of it\nall\n", "all of it\nall\n");
    check(o, "f\n{\"a\": ", "<f {\"a\": >");
    check(o, "f", "f");
    check(o, "allf\n{}", "allf\n{}");
    check(o, "all\nso>", "so>");
    o.single = true;
    check(o, "f\n{}>>>f\n{}", "<f {}>");
    o.tools = o.single = false;
    check(o, "all\nso >>>f\n{}", "so >>>f\n{}");
    check(o, "f\n{}", "f\n{}");
}

/* The name on the first line, as GLM-4 writes it. */
static void glm(void **state) {
    (void)state;
    struct pl_reply_options o = TOOLS(PL_REPLY_GLM);
    check(o, "\nweather\n{\"city\": \"x\"}", "<weather {\"city\": \"x\"}>");
    check(o, "<think>so</think>\nf\n{}", "(so)<f {}>");
    check(o, "weather\nis fine", "weather\nis fine");
    check(o, "other\n{}", "other\n{}");
    check(o, "weather\n", "weather\n");
    o.tools = false;
    check(o, "f\n{}", "f\n{}");
}

static void reasoning(void **state) {
    (void)state;
    struct pl_reply_options o = {.kind = PL_REPLY_HERMES, .reasoning = true};
    check(o, "<think>\nhm \n ok\n</think>\n\nSo: <think>x</think>", "(hm \n ok)So: <think>x</think>");
    check(o, "no <think>x</think> y ", "no <think>x</think> y ");
    check(o, "<thin", "<thin");
    check(o, "<think>never ends \n", "(never ends)");
    check(o, "<think>\n\n</think>\n\nhi \n", "hi \n");
    check(o, "[THINK]hm[/THINK]hi", "(hm)hi");
    check(o, " <reasoning>\nhm</think></reasoning> hi", "(hm</think>)hi");
    check(o, "<thought", "<thought");
    check(o, "<|START_THINKING|>hm</think><|END_THINKING|>hi", "(hm</think>)hi");
    assert_null(pl_reply_opens_reasoning("<think> so", 10));
    assert_string_equal(pl_reply_opens_reasoning("a<think>\n", 9), "</think>");
    assert_string_equal(pl_reply_opens_reasoning("[THINK]", 7), "[/THINK]");
    assert_string_equal(pl_reply_opens_reasoning("Here are my reasoning steps:\n", 29), "[BEGIN FINAL RESPONSE]");
    check(o, "Here are my reasoning steps:\none", "Here are my reasoning steps:\none"); /* the prompt's words only */
    o.in_reasoning = "</think>";
    check(o, "hm\n</think>\n\nhi", "(hm)hi");
    o.tools = true;
    check(o, "hm</think>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "(hm)<f {}>");
}

static void formats(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum pl_reply_kind kind;
        bool tools;
    } cases[] = {{"{% if tools %}<tool_call>", PL_REPLY_HERMES, true},
                 {"{{ tools }}<|python_tag|>", PL_REPLY_LLAMA, true},
                 {"{{ tools }}[TOOL_CALLS]", PL_REPLY_MISTRAL, true},
                 {"<start_of_turn>user", PL_REPLY_GEMMA, false},
                 {"{% if tools %}<tool_call>\\n<function=", PL_REPLY_XML, true},
                 {"{{ tools }}" DS_CALLS, PL_REPLY_DEEPSEEK, true},
                 {"<|channel|>{{ tools }}", PL_REPLY_HARMONY, true},
                 {"{{ tools }}<|tool_call|>", PL_REPLY_GRANITE, true},
                 {"{{ tools }}<TOOLCALL><|start_header_id|>", PL_REPLY_NEMOTRON, true},
                 {"{{ tools }}<tool_calls>", PL_REPLY_JAMBA, true},
                 {"{{ tools }}<|START_ACTION|>", PL_REPLY_COMMAND, true},
                 {"{{ tools }}<function_calls>", PL_REPLY_OLMO, true},
                 {"<start_of_turn><start_function_call>", PL_REPLY_FUNCTIONGEMMA, false},
                 {"<|observation|>", PL_REPLY_GLM, false},
                 {"{{ tools }}<|observation|><tool_call><arg_key>", PL_REPLY_ARG_KEY, true},
                 {"{{ tools }}<|tool_calls_section_begin|>", PL_REPLY_KIMI, true},
                 {"{{ tools }}>>>${recipient}<|start_header_id|>", PL_REPLY_FUNCTIONARY, true},
                 {"{{ tools }}<minimax:tool_call>", PL_REPLY_MINIMAX, true},
                 {"<|im_start|>", PL_REPLY_JSON, false},
                 {"", PL_REPLY_JSON, false}};
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        bool tools;
        assert_int_equal(pl_reply_format(cases[i].text, strlen(cases[i].text), &tools), cases[i].kind);
        assert_int_equal(tools, cases[i].tools);
    }
    assert_true(pl_reply_is_mark("[TOOL_CALLS]", 12));
    assert_true(pl_reply_is_mark("<|END_ACTION|>", 14));
    assert_true(pl_reply_is_mark("<|channel>", 10)); /* of a mark that goes on */
    assert_false(pl_reply_is_mark("<|im_end|>", 10));
    assert_false(pl_reply_is_mark("</s>", 4));
    assert_false(pl_reply_is_mark("", 0));
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char text[] =
        "<think>a</think> hello \n<tool_call>{\"arguments\":{\"a\":1},\"name\":\"f\"}</tool_call> bye ";
    struct pl_reply_options o = TOOLS(PL_REPLY_HERMES);
    bool ended = false;
    for (uint64_t n = 1; !ended; n++) {
        struct seen s = {0};
        pl_mem_fail_at(n);
        enum pl_status st = parse(&o, text, sizeof text - 1, 7, 7, &s);
        pl_mem_fail_at(0);
        ended = st == PL_OK && pl_buf_ok(&s.out);
        if (ended) assert_string_equal(pl_buf_cstr(&s.out), "(a)hello<f {\"a\":1}>bye ");
        if (st != PL_OK) assert_int_equal(st, PL_NO_MEMORY);
        pl_buf_deinit(&s.out);
        assert_true(n < 1000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hermes),    cmocka_unit_test(llama_and_json),
        cmocka_unit_test(mistral),   cmocka_unit_test(gemma),
        cmocka_unit_test(qwen_xml),  cmocka_unit_test(deepseek),
        cmocka_unit_test(harmony),   cmocka_unit_test(reasoning),
        cmocka_unit_test(wrapped),   cmocka_unit_test(bodies),
        cmocka_unit_test(tagged),    cmocka_unit_test(tagged_nullable),
        cmocka_unit_test(listed),    cmocka_unit_test(ends_anywhere),
        cmocka_unit_test(any_order), cmocka_unit_test(huge),
        cmocka_unit_test(glm),       cmocka_unit_test(functionary),
        cmocka_unit_test(formats),   cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
