/* reply_marks.c - what introduces calls and reasoning, what ends them, and which notation a chat template shows. */
#include <string.h>

#include "base/mem.h"
#include "chat/reply_internal.h"

static const struct reply_mark marks[] = {
    {"<tool_call>", "</tool_call>", MARK_OBJECTS},               /* Hermes, Qwen */
    {"<|python_tag|>", "", MARK_OBJECTS},                        /* Llama */
    {"<|tool_call|>", "<|/tool_call|>", MARK_OBJECTS},           /* Granite 3 (which does not close it), Phi-4-mini */
    {"<TOOLCALL>", "</TOOLCALL>", MARK_OBJECTS},                 /* Nemotron */
    {"<tool_calls>", "</tool_calls>", MARK_OBJECTS},             /* Jamba */
    {"<|START_ACTION|>", "<|END_ACTION|>", MARK_OBJECTS},        /* Command R7B, Command A */
    {"<|function_call|>", "", MARK_OBJECTS},                     /* GigaChat 3.1 */
    {"[TOOL_CALLS]", "", MARK_NAME},                             /* Mistral */
    {"<function_calls>", "</function_calls>", MARK_BODY},        /* OLMo 3 */
    {"<start_function_call>", "<end_function_call>", MARK_BODY}, /* FunctionGemma */
    {"<|tool_call>", "<tool_call|>", MARK_BODY},                 /* Gemma 4 */
    {"<|tool_call_start|>", "<|tool_call_end|>", MARK_BODY},     /* LFM2 */
    {"<|python_start|>", "<|python_end|>", MARK_BODY},           /* Llama 4 */
    {"<|tools_prefix|>", "<|tools_suffix|>", MARK_KEYED},        /* Apertus */
    {"```tool_code", "```", MARK_FENCE},                         /* Gemma 3 */
    {"```tool_call", "```", MARK_FENCE},
    {"```json", "```", MARK_JSON},
};

static const struct {
    const char *begin, *end;
    bool prompted; /* only the prompt begins it so */
} thinks[] = {{"<think>", "</think>", false},
              {"[THINK]", "[/THINK]", false},                    /* Magistral */
              {"<|START_THINKING|>", "<|END_THINKING|>", false}, /* Command A */
              {"<reasoning>", "</reasoning>", false},            /* Reka Flash 3 */
              {"<thought>", "</thought>", false},
              {"<seed:think>", "</seed:think>", false},
              {"<mm:think>", "</mm:think>", false},                              /* MiniMax M3 */
              {"<think:opensource>", "</think:opensource>", false},              /* Hunyuan Hy3 */
              {"<|inner_prefix|>", "<|inner_suffix|>", false},                   /* Apertus */
              {"<|channel>thought", "<channel|>", false},                        /* Gemma 4 */
              {"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", true}}; /* Apriel */

static const char ARGS[] = "[ARGS]", CALL_ID[] = "[CALL_ID]";

static bool contains(const char *source, size_t len, const char *what) {
    return len > 0 && memmem(source, len, what, strlen(what)) != NULL;
}

static bool same(const char *mark, const char *piece, size_t len) {
    return strlen(mark) == len && memcmp(mark, piece, len) == 0;
}

enum pl_reply_kind pl_reply_format(const char *source, size_t len, bool *knows_tools) {
    static const struct {
        const char *mark;
        enum pl_reply_kind kind;
    } kinds[] = {{"<tool_call>", PL_REPLY_HERMES},       {"[TOOL_CALLS]", PL_REPLY_MISTRAL},
                 {"<|tool_call|>", PL_REPLY_GRANITE},    {"<TOOLCALL>", PL_REPLY_NEMOTRON},
                 {"<tool_calls>", PL_REPLY_JAMBA},       {"<|START_ACTION|>", PL_REPLY_COMMAND},
                 {"<function_calls>", PL_REPLY_OLMO},    {"<start_function_call>", PL_REPLY_FUNCTIONGEMMA},
                 {"<|tools_prefix|>", PL_REPLY_APERTUS}, {"<|function_call|>", PL_REPLY_GIGACHAT},
                 {"<|python_tag|>", PL_REPLY_LLAMA}};
    *knows_tools = contains(source, len, "tools");
    enum pl_reply_kind tags;
    if (reply_tag_kind(source, len, &tags)) return tags;
    for (size_t i = 0; i < PL_COUNT_OF(kinds); i++)
        if (contains(source, len, kinds[i].mark)) return kinds[i].kind;
    if (*knows_tools && contains(source, len, "<|start_header_id|>")) return PL_REPLY_LLAMA;
    if (contains(source, len, "tool_code") || contains(source, len, "<start_of_turn>")) return PL_REPLY_GEMMA;
    if (contains(source, len, "<|observation|>")) return PL_REPLY_GLM;
    return PL_REPLY_JSON;
}

bool pl_reply_is_mark(const char *piece, size_t len) {
    for (size_t i = 0; i < PL_COUNT_OF(marks); i++)
        if (same(marks[i].open, piece, len) || same(marks[i].close, piece, len)) return len > 0;
    for (size_t i = 0; i < PL_COUNT_OF(thinks); i++)
        if (reply_mark_holds(thinks[i].begin, piece, len) || reply_mark_holds(thinks[i].end, piece, len)) return true;
    return same(ARGS, piece, len) || same(CALL_ID, piece, len) || reply_is_tag(piece, len);
}

const struct reply_mark *reply_marks(enum pl_reply_kind kind, size_t *count) {
    size_t n = 0;
    bool fences = kind == PL_REPLY_GEMMA || kind == PL_REPLY_JSON;
    while (n < PL_COUNT_OF(marks) && (fences || marks[n].form < MARK_FENCE)) n++;
    *count = n;
    return marks;
}

const char *reply_think_begin(const char *data, size_t len, const char **end, bool *more) {
    *more = false;
    for (size_t i = 0; i < PL_COUNT_OF(thinks); i++) {
        size_t n = strlen(thinks[i].begin);
        if (thinks[i].prompted || memcmp(data, thinks[i].begin, PL_MIN(n, len)) != 0) continue;
        *more |= len < n;
        *end = thinks[i].end;
        if (len >= n) return thinks[i].begin;
    }
    return NULL;
}

const char *pl_reply_opens_reasoning(const char *prompt, size_t len) {
    while (len > 0 && (prompt[len - 1] == '\n' || prompt[len - 1] == ' ')) len--;
    for (size_t i = 0; i < PL_COUNT_OF(thinks); i++) {
        size_t n = strlen(thinks[i].begin);
        if (len >= n && memcmp(prompt + len - n, thinks[i].begin, n) == 0) return thinks[i].end;
    }
    return NULL;
}
