/* reply_tags.c - notations whose calls are told by tags: Qwen's XML, DeepSeek's, and the channels of gpt-oss. Whatever a
 * state waits for is looked for in a bounded window, so that parts do not depend on where the text was cut. */
#include <string.h>

#include "base/json.h"
#include "chat/reply_internal.h"

enum { NAME_WINDOW = 256, HEADER_WINDOW = 512 };

static const char TOOL[] = "<tool_call>", END_TOOL[] = "</tool_call>", FUNCTION[] = "<function=";
static const char END_FUNCTION[] = "</function>", PARAMETER[] = "<parameter=", END_PARAMETER[] = "</parameter>";
#define DS(name) "<\xEF\xBD\x9Ctool\xE2\x96\x81" name "\xEF\xBD\x9C>"
static const char CALLS[] = DS("calls\xE2\x96\x81"
                               "begin"),
                  END_CALLS[] = DS("calls\xE2\x96\x81"
                                   "end");
static const char CALL[] = DS("call\xE2\x96\x81"
                              "begin"),
                  END_CALL[] = DS("call\xE2\x96\x81"
                                  "end"),
                  SEP[] = DS("sep");
static const char CHANNEL[] = "<|channel|>", MESSAGE[] = "<|message|>", START[] = "<|start|>", END[] = "<|end|>";
static const char CALLED[] = "<|call|>", RETURN[] = "<|return|>", CONSTRAIN[] = "<|constrain|>";

const char *const *reply_tag_marks(enum pl_reply_kind kind, size_t *count) {
    static const char *const xml[] = {TOOL, FUNCTION}, *const deepseek[] = {CALLS, CALL};
    *count = kind == PL_REPLY_HARMONY ? 0 : 2;
    if (kind < PL_REPLY_XML) return NULL;
    return kind == PL_REPLY_DEEPSEEK ? deepseek : xml;
}

bool reply_is_tag(const char *piece, size_t len) {
    static const char *const tags[] = {CALLS,   END_CALLS, CALL, END_CALL, SEP,    CHANNEL,
                                       MESSAGE, START,     END,  CALLED,   RETURN, CONSTRAIN};
    for (size_t i = 0; i < PL_COUNT_OF(tags); i++)
        if (strlen(tags[i]) == len && memcmp(tags[i], piece, len) == 0) return true;
    return false;
}

bool reply_tag_kind(const char *source, size_t len, enum pl_reply_kind *kind) {
    const struct {
        const char *mark;
        enum pl_reply_kind kind;
    } kinds[] = {{CHANNEL, PL_REPLY_HARMONY}, {CALLS, PL_REPLY_DEEPSEEK}, {FUNCTION, PL_REPLY_XML}};
    for (size_t i = 0; i < PL_COUNT_OF(kinds) && len > 0; i++) {
        if (memmem(source, len, kinds[i].mark, strlen(kinds[i].mark)) == NULL) continue;
        *kind = kinds[i].kind;
        return true;
    }
    return false;
}

/* ---------- looking ---------- */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static const char *rest(const struct pl_reply *r, size_t *len) {
    *len = r->in.len - r->at;
    return pl_buf_cstr(&r->in) + r->at;
}

static size_t spaces(const char *data, size_t len) {
    size_t n = 0;
    while (n < len && is_space(data[n])) n++;
    return n;
}

enum match { NO, YES, MAYBE }; /* MAYBE: more bytes may make it one */

static enum match begins(const char *data, size_t len, const char *mark) {
    size_t n = strlen(mark);
    if (memcmp(data, mark, PL_MIN(n, len)) != 0) return NO;
    return len >= n ? YES : MAYBE;
}

/* Which of the marks the data begins with; -1: none; -2: more bytes may tell. */
static int which(const char *data, size_t len, const char *const *marks, size_t count, bool last) {
    bool maybe = len == 0;
    for (size_t i = 0; i < count; i++) {
        enum match m = begins(data, len, marks[i]);
        if (m == YES) return (int)i;
        maybe |= m == MAYBE;
    }
    return maybe && !last ? -2 : -1;
}

/* The end of a short text that `mark` closes, inside the window; NULL: not there, *more when it may still come. */
static const char *closes(const char *data, size_t len, const char *mark, size_t window, bool last, bool *more) {
    size_t seen = PL_MIN(len, window);
    const char *at = seen == 0 ? NULL : memmem(data, seen, mark, strlen(mark));
    *more = at == NULL && len < window && !last;
    return at;
}

static size_t earliest(const char *data, size_t len, const char *const *marks, size_t count, size_t *mark, size_t *hold) {
    size_t first = SIZE_MAX;
    *hold = 0;
    for (size_t i = 0; i < count && len > 0; i++) {
        const char *at = memmem(data, len, marks[i], strlen(marks[i]));
        *hold = PL_MAX(*hold, reply_partial(data, len, marks[i]));
        if (at == NULL || (size_t)(at - data) >= first) continue;
        first = (size_t)(at - data);
        *mark = i;
    }
    return first;
}

/* What was read since the mark is text after all. */
static bool as_text(struct pl_reply *r) {
    if (r->lead.len > 0) r->strip = false;
    reply_text(r, pl_buf_cstr(&r->lead), r->lead.len);
    pl_buf_clear(&r->lead);
    r->state = REPLY_TEXT;
    return true;
}

static void eat(struct pl_reply *r, size_t n) {
    pl_buf_add(&r->lead, pl_buf_cstr(&r->in) + r->at, n);
    r->at += n;
}

static bool call(struct pl_reply *r, const char *name, size_t len) {
    size_t skip = spaces(name, len);
    while (len > skip && is_space(name[len - 1])) len--;
    if (len == skip || memchr(name + skip, '\n', len - skip) != NULL || memchr(name + skip, '<', len - skip) != NULL)
        return false;
    r->strict = false;
    pl_buf_clear(&r->scan.function);
    pl_buf_add(&r->scan.function, name + skip, len - skip);
    return reply_begin(r, name + skip, len - skip);
}

/* ---------- Qwen: <tool_call><function=f><parameter=a>value</parameter></function></tool_call> ---------- */

static void add_escaped(struct pl_buf *b, const char *data, size_t len) {
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)data[i];
        if (c == '"' || c == '\\') pl_buf_add_char(b, '\\');
        if (c == '\n')
            pl_buf_add_c(b, "\\n");
        else if (c == '\t')
            pl_buf_add_c(b, "\\t");
        else if (c < 0x20)
            pl_buf_printf(b, "\\u%04x", c);
        else
            pl_buf_add_char(b, (char)c);
    }
}

static void send_string(struct pl_reply *r, const char *before, const char *data, size_t len, const char *after) {
    struct pl_buf b = {0};
    pl_buf_add_c(&b, before);
    add_escaped(&b, data, len);
    pl_buf_add_c(&b, after);
    if (pl_buf_ok(&b))
        reply_arguments(r, b.data, b.len);
    else
        r->in.failed = true;
    pl_buf_deinit(&b);
}

static bool says_string(const json_t *type) {
    const char *word = json_string_value(type);
    if (word != NULL) return strcmp(word, "string") == 0;
    for (size_t i = 0; i < json_array_size(type); i++)
        if (says_string(json_array_get(type, i))) return true;
    return false;
}

/* Whether the tool's schema wants a string here: then the value is taken as it stands. */
static bool wants_text(const struct pl_reply *r, const char *key) {
    for (size_t i = 0; i < json_array_size(r->opt.tools_json); i++) {
        const json_t *f = json_object_get(json_array_get(r->opt.tools_json, i), "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        if (name == NULL || strcmp(name, pl_buf_cstr(&r->scan.function)) != 0) continue;
        const json_t *p = json_object_get(json_object_get(json_object_get(f, "parameters"), "properties"), key);
        return says_string(json_object_get(p, "type"));
    }
    return false;
}

static bool xml_open(struct pl_reply *r, bool last) {
    static const char *const next[] = {FUNCTION, "{", "["};
    size_t len;
    const char *data = rest(r, &len);
    size_t skip = spaces(data, len);
    int w = which(data + skip, len - skip, next, 3, last);
    if (w == -2) return false;
    if (w == 0) {
        eat(r, skip + sizeof FUNCTION - 1);
        r->state = REPLY_XML_NAME;
    } else if (w > 0) {
        reply_enter_objects(r, TOOL, END_TOOL);
    } else {
        return as_text(r);
    }
    return true;
}

static bool xml_name(struct pl_reply *r, bool last) {
    size_t len;
    bool more;
    const char *data = rest(r, &len), *end = closes(data, len, ">", NAME_WINDOW, last, &more);
    if (more) return false;
    if (end == NULL || !call(r, data, (size_t)(end - data))) return as_text(r);
    r->at += (size_t)(end - data) + 1;
    r->tag_count = 0;
    r->state = REPLY_XML_FIRST;
    return true;
}

/* Functionary and others write the arguments as one object instead of parameters. */
static bool xml_first(struct pl_reply *r, bool last) {
    size_t len;
    const char *data = rest(r, &len);
    size_t skip = spaces(data, len);
    if (skip == len && !last) return false;
    r->at += skip;
    r->state = REPLY_XML_PARAMETER;
    if (skip < len && data[skip] == '{')
        reply_enter_arguments(r);
    else
        reply_arguments(r, "{", 1);
    return true;
}

static bool xml_end(struct pl_reply *r, size_t eaten, uint32_t state) {
    r->at += eaten;
    reply_arguments(r, "}", 1);
    if (state == REPLY_TEXT)
        reply_leave(r);
    else
        r->state = state;
    return true;
}

static bool xml_parameter(struct pl_reply *r, bool last) {
    static const char *const next[] = {PARAMETER, END_FUNCTION, END_TOOL};
    size_t len;
    bool more;
    const char *data = rest(r, &len);
    size_t skip = spaces(data, len);
    if (skip == len) return false; /* at the end: cut, what came stands */
    int w = which(data + skip, len - skip, next, 3, last);
    if (w == -2) return false;
    if (w == 1) return xml_end(r, skip + sizeof END_FUNCTION - 1, REPLY_XML_CLOSE);
    if (w != 0) return xml_end(r, w == 2 ? skip + sizeof END_TOOL - 1 : 0, REPLY_TEXT);
    const char *key = data + skip + sizeof PARAMETER - 1;
    const char *end = closes(key, len - (size_t)(key - data), ">", NAME_WINDOW, last, &more);
    if (more) return false;
    if (end == NULL) return xml_end(r, 0, REPLY_TEXT);
    pl_buf_clear(&r->scan.value);
    pl_buf_add(&r->scan.value, key, (size_t)(end - key));
    r->tag_text = wants_text(r, pl_buf_cstr(&r->scan.value));
    r->tag_open = false;
    send_string(r, r->tag_count++ > 0 ? ", \"" : "\"", key, (size_t)(end - key), "\": ");
    r->at += (size_t)(end - data) + 1;
    r->state = REPLY_XML_VALUE;
    return true;
}

/* A value that need not be a string: JSON stands for itself, Python's words for JSON's, anything else is a string. */
static void send_value(struct pl_reply *r, const char *data, size_t len) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    size_t skip = spaces(data, len);
    while (len > skip && is_space(data[len - 1])) len--;
    data += skip;
    len -= skip;
    for (size_t i = 0; i < PL_COUNT_OF(words); i++)
        if (strlen(words[i][0]) == len && memcmp(words[i][0], data, len) == 0) {
            reply_arguments(r, words[i][1], strlen(words[i][1]));
            return;
        }
    json_t *v = len == 0 ? NULL : pl_json_read(data, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (v != NULL)
        reply_arguments(r, data, len);
    else
        send_string(r, "\"", data, len, "\"");
    json_decref(v);
}

static bool xml_value(struct pl_reply *r, bool last) {
    static const char *const ends[] = {END_PARAMETER, PARAMETER, END_FUNCTION};
    size_t len, mark = 0, hold;
    const char *data = rest(r, &len);
    if (!r->tag_open) { /* the line break after the tag belongs to it */
        if (len == 0) return false;
        if (r->tag_text) reply_arguments(r, "\"", 1);
        r->tag_open = true;
        r->at += *data == '\n';
        data = rest(r, &len);
    }
    size_t at = earliest(data, len, ends, 3, &mark, &hold);
    bool found = at != SIZE_MAX;
    if (!found && !r->tag_text && len < REPLY_HELD_MAX) return false;
    size_t n = found ? at : last ? len : len - hold;
    if (n > 0 && data[n - 1] == '\n' && (found || !last)) n--; /* so does the one before the closing tag */
    if (r->tag_text)
        send_string(r, "", data, n, found ? "\"" : "");
    else if (found)
        send_value(r, data, n);
    r->at += found ? at + (mark == 0 ? sizeof END_PARAMETER - 1 : 0) : n;
    if (!found) return false;
    r->state = REPLY_XML_PARAMETER;
    return true;
}

static bool xml_close(struct pl_reply *r, bool last) {
    static const char *const next[] = {END_TOOL, FUNCTION, END_FUNCTION};
    size_t len;
    const char *data = rest(r, &len);
    size_t skip = spaces(data, len);
    if (skip == len) return false;
    int w = which(data + skip, len - skip, next, 3, last);
    if (w == -2) return false;
    if (w == 2) {
        r->at += skip + sizeof END_FUNCTION - 1;
        return true;
    }
    if (w == 1) {
        eat(r, skip + sizeof FUNCTION - 1);
        r->state = REPLY_XML_NAME;
        return true;
    }
    if (w == 0) r->at += skip + sizeof END_TOOL - 1;
    reply_leave(r);
    return true;
}

/* ---------- DeepSeek: calls-begin (call-begin [function sep] name [sep | newline fence] {..} call-end)* calls-end
 * ---------- */

static bool ds_open(struct pl_reply *r, bool last) {
    static const char *const next[] = {CALL, END_CALLS};
    size_t len;
    const char *data = rest(r, &len);
    size_t skip = spaces(data, len);
    if (skip == len && !(last && r->lead.len > 0)) return false;
    int w = which(data + skip, len - skip, next, 2, last);
    if (w == -2) return false;
    if (w == 0) {
        eat(r, skip + sizeof CALL - 1);
        r->state = REPLY_DS_HEAD;
        return true;
    }
    if (r->lead.len > 0) return as_text(r);
    if (w == 1) r->at += skip + sizeof END_CALLS - 1;
    reply_leave(r);
    return true;
}

static bool ds_head(struct pl_reply *r, bool last) {
    static const char function[] = "function";
    size_t len;
    bool more;
    const char *data = rest(r, &len), *end = closes(data, len, SEP, NAME_WINDOW, last, &more);
    if (more) return false;
    if (end == NULL) return as_text(r);
    size_t n = (size_t)(end - data);
    if (n == sizeof function - 1 && memcmp(data, function, n) == 0) {
        eat(r, n + sizeof SEP - 1);
        r->state = REPLY_DS_NAME;
        return true;
    }
    if (!call(r, data, n)) return as_text(r);
    r->at += n + sizeof SEP - 1;
    r->state = REPLY_DS_ARGUMENTS;
    return true;
}

static bool ds_name(struct pl_reply *r, bool last) {
    size_t len;
    bool more;
    const char *data = rest(r, &len), *end = closes(data, len, "\n", NAME_WINDOW, last, &more);
    if (more) return false;
    if (end == NULL || !call(r, data, (size_t)(end - data))) return as_text(r);
    r->at += (size_t)(end - data) + 1;
    r->state = REPLY_DS_ARGUMENTS;
    return true;
}

static bool ds_arguments(struct pl_reply *r, bool last) {
    static const char *const next[] = {"```json", "{", "```", END_CALL};
    size_t len;
    const char *data = rest(r, &len);
    size_t skip = spaces(data, len);
    if (skip == len) return false;
    int w = which(data + skip, len - skip, next, 4, last);
    if (w == 2 && !last && len - skip < 7 && begins(data + skip, len - skip, next[0]) == MAYBE) return false;
    if (w == -2) return false;
    if (w == 0 || w == 2) {
        r->at += skip + strlen(next[w]);
    } else if (w == 1) {
        r->at += skip;
        reply_enter_arguments(r);
    } else {
        reply_arguments(r, "{}", 2);
        r->state = REPLY_DS_AFTER;
    }
    return true;
}

static bool ds_after(struct pl_reply *r, bool last) {
    static const char *const next[] = {"```", END_CALL};
    size_t len;
    const char *data = rest(r, &len);
    size_t skip = spaces(data, len);
    if (skip == len) return false;
    int w = which(data + skip, len - skip, next, 2, last);
    if (w == -2) return false;
    if (w < 0) {
        reply_leave(r);
        return true;
    }
    r->at += skip + strlen(next[w]);
    if (w == 1) r->state = REPLY_DS_OPEN;
    return true;
}

/* ---------- gpt-oss: <|channel|>C [to=NAME] [<|constrain|>json]<|message|>BODY<|end|><|start|>assistant.. ---------- */

static bool plain(struct pl_reply *r) {
    r->state = REPLY_TEXT;
    return true;
}

static const char *find(const char *data, size_t len, const char *what) {
    return len == 0 ? NULL : memmem(data, len, what, strlen(what));
}

/* Where a message goes: analysis is reasoning, a recipient makes it a call, the rest is text. */
static void read_header(struct pl_reply *r, const char *data, size_t len) {
    static const char to[] = "to=", prefix[] = "functions.", analysis[] = "analysis";
    const char *channel = find(data, len, CHANNEL), *name = find(data, len, to);
    r->tag_body = BODY_TEXT;
    r->tag_count = 0;
    if (channel != NULL) channel += sizeof CHANNEL - 1;
    if (channel != NULL && begins(channel, len - (size_t)(channel - data), analysis) == YES && r->opt.reasoning)
        r->tag_body = BODY_REASONING;
    if (name == NULL || !r->opt.tools) return;
    name += sizeof to - 1;
    size_t left = len - (size_t)(name - data), n = 0;
    if (begins(name, left, prefix) == YES) name += sizeof prefix - 1, left -= sizeof prefix - 1;
    while (n < left && !is_space(name[n]) && name[n] != '<') n++;
    if (call(r, name, n)) r->tag_body = BODY_CALL;
}

static bool header(struct pl_reply *r, bool last) {
    static const char *const first[] = {CHANNEL, START, MESSAGE, " to=", "to="};
    size_t len;
    bool more;
    const char *data = rest(r, &len);
    if (len == 0) return false;
    if (!r->tag_open) {
        int w = which(data, len, first, PL_COUNT_OF(first), last);
        if (w == -2) return false;
        if (w == -1) return plain(r);
        r->tag_open = true;
    }
    const char *end = closes(data, len, MESSAGE, HEADER_WINDOW, last, &more);
    if (more) return false;
    if (end == NULL && len >= HEADER_WINDOW) return plain(r);
    if (end == NULL) { /* cut in the middle of a header: nothing was said */
        r->at += len;
        return false;
    }
    read_header(r, data, (size_t)(end - data));
    r->at += (size_t)(end - data) + sizeof MESSAGE - 1;
    r->strip = r->tag_body != BODY_CALL;
    r->state = REPLY_BODY;
    return true;
}

static bool body(struct pl_reply *r, bool last) {
    static const char *const ends[] = {END, CALLED, RETURN, START, CHANNEL};
    size_t len, mark = 0, hold;
    const char *data = rest(r, &len);
    size_t at = earliest(data, len, ends, PL_COUNT_OF(ends), &mark, &hold);
    bool found = at != SIZE_MAX;
    size_t n = found ? at : last ? len : len - hold;
    if (r->tag_body == BODY_CALL) {
        reply_arguments(r, data, n);
        r->tag_count += n > 0;
    } else if (r->tag_body == BODY_REASONING) {
        reply_reasoning(r, data, n);
    } else {
        reply_text(r, data, n);
    }
    r->at += n;
    if (!found) return false;
    if (r->tag_body == BODY_CALL && r->tag_count == 0) reply_arguments(r, "{}", 2);
    if (r->tag_body == BODY_REASONING) pl_buf_clear(&r->space);
    if (mark < 3) r->at += strlen(ends[mark]);
    r->state = REPLY_HEADER;
    return true;
}

void reply_enter_tag(struct pl_reply *r, const char *mark) {
    pl_buf_clear(&r->lead);
    pl_buf_add_c(&r->lead, mark);
    r->mark = mark;
    r->state = mark == TOOL       ? REPLY_XML_OPEN
               : mark == FUNCTION ? REPLY_XML_NAME
               : mark == CALLS    ? REPLY_DS_OPEN
                                  : REPLY_DS_HEAD;
}

bool reply_step_tags(struct pl_reply *r, bool last) {
    switch (r->state) {
    case REPLY_XML_OPEN: return xml_open(r, last);
    case REPLY_XML_NAME: return xml_name(r, last);
    case REPLY_XML_FIRST: return xml_first(r, last);
    case REPLY_XML_PARAMETER: return xml_parameter(r, last);
    case REPLY_XML_VALUE: return xml_value(r, last);
    case REPLY_XML_CLOSE: return xml_close(r, last);
    case REPLY_DS_OPEN: return ds_open(r, last);
    case REPLY_DS_HEAD: return ds_head(r, last);
    case REPLY_DS_NAME: return ds_name(r, last);
    case REPLY_DS_ARGUMENTS: return ds_arguments(r, last);
    case REPLY_DS_AFTER: return ds_after(r, last);
    case REPLY_HEADER: return header(r, last);
    case REPLY_BODY: return body(r, last);
    default: return false;
    }
}
