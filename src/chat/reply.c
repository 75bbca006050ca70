/* reply.c - marks, text and reasoning; what follows a mark goes to reply_call.c. */
#include "chat/reply.h"

#include <string.h>

#include "base/mem.h"
#include "chat/reply_internal.h"

static const char THINK[] = "<think>", END_THINK[] = "</think>";
static const char HERMES[] = "<tool_call>", END_HERMES[] = "</tool_call>";
static const char PYTHON[] = "<|python_tag|>", MISTRAL[] = "[TOOL_CALLS]", ARGS[] = "[ARGS]";
static const char CODE[] = "```tool_code", CALL[] = "```tool_call", JSON[] = "```json", END_FENCE[] = "```";

static bool contains(const char *source, size_t len, const char *what) {
    return len > 0 && memmem(source, len, what, strlen(what)) != NULL;
}

const char *pl_reply_kind_name(enum pl_reply_kind k) {
    static const char *const names[] = {"json", "hermes", "llama", "mistral", "gemma", "xml", "deepseek", "harmony"};
    return names[k];
}

enum pl_reply_kind pl_reply_format(const char *source, size_t len, bool *knows_tools) {
    *knows_tools = contains(source, len, "tools");
    enum pl_reply_kind tags;
    if (reply_tag_kind(source, len, &tags)) return tags;
    if (contains(source, len, HERMES)) return PL_REPLY_HERMES;
    if (contains(source, len, MISTRAL)) return PL_REPLY_MISTRAL;
    if (contains(source, len, PYTHON) || (*knows_tools && contains(source, len, "<|start_header_id|>")))
        return PL_REPLY_LLAMA;
    if (contains(source, len, "tool_code") || contains(source, len, "<start_of_turn>")) return PL_REPLY_GEMMA;
    return PL_REPLY_JSON;
}

bool pl_reply_is_mark(const char *piece, size_t len) {
    static const char *const marks[] = {THINK, END_THINK, HERMES, END_HERMES, PYTHON, MISTRAL, ARGS};
    for (size_t i = 0; i < PL_COUNT_OF(marks); i++)
        if (strlen(marks[i]) == len && memcmp(marks[i], piece, len) == 0) return true;
    return reply_is_tag(piece, len);
}

/* ---------- out ---------- */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* White space at the end waits: it is dropped when a call (or the end of the reasoning) comes next. */
static void send(struct pl_reply *r, const char *data, size_t len, void (*to)(void *, const char *, size_t)) {
    if (r->strip)
        while (len > 0 && is_space(*data)) data++, len--;
    if (len == 0) return;
    r->strip = false;
    size_t solid = len;
    while (solid > 0 && is_space(data[solid - 1])) solid--;
    if (solid > 0) {
        if (r->space.len > 0) to(r->sink.user, r->space.data, r->space.len);
        pl_buf_clear(&r->space);
        to(r->sink.user, data, solid);
    }
    pl_buf_add(&r->space, data + solid, len - solid);
}

void reply_text(struct pl_reply *r, const char *data, size_t len) {
    if (len == 0) return;
    if (r->opt.tools || r->strip || r->space.len > 0)
        send(r, data, len, r->sink.text);
    else
        r->sink.text(r->sink.user, data, len);
}

bool reply_begin(struct pl_reply *r, const char *name, size_t len) {
    bool known = !r->strict;
    for (size_t i = 0; i < r->opt.name_count && !known; i++)
        known = strlen(r->opt.names[i]) == len && memcmp(r->opt.names[i], name, len) == 0;
    if (!known) return false;
    r->muted = r->opt.single && r->calls > 0;
    r->calls++;
    pl_buf_clear(&r->space);
    pl_buf_clear(&r->lead);
    if (!r->muted) r->sink.call(r->sink.user, name, len);
    return true;
}

void reply_arguments(struct pl_reply *r, const char *data, size_t len) {
    if (!r->muted && len > 0) r->sink.arguments(r->sink.user, data, len);
}

void reply_reasoning(struct pl_reply *r, const char *data, size_t len) { send(r, data, len, r->sink.reasoning); }

/* ---------- in ---------- */

static const char *rest(const struct pl_reply *r, size_t *len) {
    *len = r->in.len - r->at;
    return pl_buf_cstr(&r->in) + r->at;
}

size_t reply_partial(const char *data, size_t len, const char *mark) {
    size_t n = PL_MIN(strlen(mark) - 1, len);
    while (n > 0 && memcmp(data + len - n, mark, n) != 0) n--;
    return n;
}

static void enter_objects(struct pl_reply *r, const char *mark, bool strict) {
    r->state = REPLY_OBJECTS;
    r->mark = mark;
    r->strict = strict;
    r->list = false;
    r->fresh = true;
    pl_buf_clear(&r->lead);
    pl_buf_add_c(&r->lead, mark);
    scan_reset(&r->scan);
}

void reply_leave(struct pl_reply *r) {
    pl_buf_clear(&r->lead);
    r->state = REPLY_TEXT;
    r->strip = true;
}

void reply_enter_objects(struct pl_reply *r, const char *mark) {
    enter_objects(r, strcmp(mark, HERMES) == 0 ? HERMES : mark, false);
}

void reply_enter_arguments(struct pl_reply *r) {
    r->state = REPLY_OBJECTS;
    r->list = r->fresh = false;
    scan_args_only(&r->scan);
}

/* Not a call after all: what was read since the mark or the last call comes out as text. */
static void give_back(struct pl_reply *r) {
    if (r->lead.len + r->scan.raw.len > 0) r->strip = false;
    reply_text(r, pl_buf_cstr(&r->lead), r->lead.len);
    reply_text(r, pl_buf_cstr(&r->scan.raw), r->scan.raw.len);
    pl_buf_clear(&r->lead);
    scan_reset(&r->scan);
    r->state = REPLY_TEXT;
}

/* Consumes bytes between objects, remembering them while they may have to be given back. */
static void pass(struct pl_reply *r, size_t n) {
    pl_buf_add(&r->lead, pl_buf_cstr(&r->in) + r->at, n);
    r->at += n;
}

/* Each step_* returns false when it needs more bytes. */

static bool step_start(struct pl_reply *r, bool last) {
    size_t len, skip = 0;
    const char *data = rest(r, &len);
    while (skip < len && is_space(data[skip])) skip++;
    if (skip == len && !last) return false;
    if (r->opt.reasoning && len - skip < sizeof THINK - 1 && memcmp(data + skip, THINK, len - skip) == 0 && !last)
        return false;
    if (r->opt.reasoning && len - skip >= sizeof THINK - 1 && memcmp(data + skip, THINK, sizeof THINK - 1) == 0) {
        r->at += skip + sizeof THINK - 1;
        r->state = REPLY_REASON;
        r->strip = true;
        return true;
    }
    bool bare = r->opt.kind == PL_REPLY_LLAMA || r->opt.kind == PL_REPLY_JSON || r->opt.kind == PL_REPLY_GEMMA;
    r->state = REPLY_TEXT;
    if (r->opt.tools && bare && skip < len && (data[skip] == '{' || data[skip] == '[')) {
        reply_text(r, data, skip);
        r->at += skip;
        enter_objects(r, "", true);
    }
    return true;
}

static bool step_reason(struct pl_reply *r, bool last) {
    size_t len;
    const char *data = rest(r, &len), *end = len == 0 ? NULL : memmem(data, len, END_THINK, sizeof END_THINK - 1);
    size_t n = end != NULL ? (size_t)(end - data) : last ? len : len - reply_partial(data, len, END_THINK);
    send(r, data, n, r->sink.reasoning);
    r->at += n;
    if (end == NULL) return false;
    r->at += sizeof END_THINK - 1;
    pl_buf_clear(&r->space);
    r->strip = true;
    r->state = REPLY_START; /* calls may begin right here; a second <think> is text */
    r->opt.reasoning = false;
    return true;
}

/* Whether the mark found introduces something, and what. */
static void enter(struct pl_reply *r, const char *mark) {
    if (mark == MISTRAL) {
        r->state = REPLY_NAME;
        r->mark = mark;
        r->strict = false;
    } else if (mark == HERMES || mark == PYTHON) {
        enter_objects(r, mark, false);
    } else {
        r->state = REPLY_FENCE;
        r->mark = mark;
        r->strict = mark == JSON;
    }
}

static bool step_text(struct pl_reply *r, bool last) {
    static const char *const marks[] = {HERMES, PYTHON, MISTRAL, CODE, CALL, JSON};
    size_t len, hold = 0;
    const char *data = rest(r, &len), *first = NULL, *mark = NULL;
    bool fences = r->opt.kind == PL_REPLY_GEMMA || r->opt.kind == PL_REPLY_JSON, tags = r->opt.kind >= PL_REPLY_XML;
    const char *const *list = marks;
    size_t count = fences ? PL_COUNT_OF(marks) : 3;
    if (tags) list = reply_tag_marks(r->opt.kind, &count);
    if (len == 0) return false;
    for (size_t i = 0; r->opt.tools && i < count; i++) {
        const char *at = memmem(data, len, list[i], strlen(list[i]));
        size_t n = reply_partial(data, len, list[i]);
        hold = PL_MAX(hold, n);
        if (at == NULL || (first != NULL && at >= first)) continue;
        first = at;
        mark = list[i];
    }
    size_t n = first != NULL ? (size_t)(first - data) : last ? len : len - hold;
    reply_text(r, data, n);
    r->at += n;
    if (first == NULL) return false;
    r->at += strlen(mark);
    if (tags)
        reply_enter_tag(r, mark);
    else
        enter(r, mark);
    return true;
}

/* After [TOOL_CALLS]: a list, an object, or a name that ends at [ARGS] or {. */
static bool step_name(struct pl_reply *r, bool last) {
    size_t len, skip = 0;
    const char *data = rest(r, &len);
    while (skip < len && is_space(data[skip])) skip++;
    if (skip < len && (data[skip] == '[' || data[skip] == '{')) {
        enter_objects(r, MISTRAL, false);
        return true;
    }
    const char *brace = len == 0 ? NULL : memchr(data, '{', len), *args = len == 0 ? NULL : memmem(data, len, ARGS, 6);
    if (brace == NULL && len - skip < 256 && !last) return false;
    const char *end = args != NULL && args < brace ? args : brace;
    size_t n = end == NULL ? 0 : (size_t)(end - data);
    while (n > skip && is_space(data[n - 1])) n--;
    if (end == NULL || n == skip || n - skip > 128) {
        r->state = REPLY_TEXT;
        reply_text(r, r->mark, strlen(r->mark));
        return true;
    }
    (void)reply_begin(r, data + skip, n - skip);
    r->at += (size_t)(brace - data);
    reply_enter_arguments(r);
    return true;
}

/* Between objects: separators, the end of the list, the closing mark, the next object, or something else. */
static bool step_between(struct pl_reply *r, bool last) {
    size_t len, skip = 0, end = sizeof END_HERMES - 1;
    const char *data = rest(r, &len);
    while (skip < len && is_space(data[skip])) skip++;
    if (skip == len) return false;
    data += skip;
    len -= skip;
    bool closing = r->mark == HERMES && memcmp(data, END_HERMES, PL_MIN(len, end)) == 0;
    if (closing && len < end && !last) return false;
    pass(r, skip);
    bool nothing = r->fresh && r->lead.len > 0 && !r->list; /* a mark, and no call after it */
    if (closing && len >= end && !nothing) {
        r->at += end;
        reply_leave(r);
    } else if (*data == '[' && r->fresh && !r->list) {
        pass(r, 1);
        r->list = true;
    } else if (r->list && *data == ']' && !r->fresh) {
        r->at++;
        r->list = false;
        if (r->mark != HERMES) reply_leave(r);
    } else if (!r->fresh && (*data == ',' || *data == ';')) {
        pass(r, 1);
        r->fresh = true;
    } else if (*data == '{' && (r->fresh || !r->list)) {
        scan_reset(&r->scan);
        r->fresh = false;
        r->scan.phase = SCAN_KEY;
        pl_buf_add_char(&r->scan.raw, '{');
        r->at++;
    } else if (r->fresh) {
        give_back(r);
    } else {
        reply_leave(r);
    }
    return true;
}

static bool step_objects(struct pl_reply *r, bool last) {
    struct scan *s = &r->scan;
    if (s->phase == SCAN_OPEN || s->phase == SCAN_DONE) {
        if (s->phase == SCAN_DONE && s->args_only) {
            if (r->opt.kind == PL_REPLY_DEEPSEEK)
                r->state = REPLY_DS_AFTER;
            else
                reply_leave(r);
            return true;
        }
        return step_between(r, last);
    }
    size_t len;
    const char *data = rest(r, &len);
    if (len == 0) return false;
    r->at += scan_push(r, data, len);
    if (s->raw.len + s->args.len + s->value.len > REPLY_HELD_MAX) s->phase = SCAN_BROKEN;
    if (s->phase != SCAN_BROKEN) return true;
    if (s->begun)
        reply_leave(r); /* it was announced: what came stands */
    else
        give_back(r);
    return true;
}

static bool step_fence(struct pl_reply *r, bool last) {
    size_t len;
    const char *data = rest(r, &len), *end = len == 0 ? NULL : memmem(data, len, END_FENCE, 3);
    if (end == NULL && !last && len < REPLY_FENCE_MAX) return false;
    size_t n = end != NULL ? (size_t)(end - data) : len;
    r->state = REPLY_TEXT;
    if (reply_fence(r, data, n)) {
        r->at += n + (end != NULL ? 3 : 0);
        r->strip = true;
        return true;
    }
    r->strip = false;
    reply_text(r, r->mark, strlen(r->mark));
    n += end != NULL ? 3 : 0; /* the closing fence opens nothing */
    reply_text(r, data, n);
    r->at += n;
    return true;
}

static enum pl_status run(struct pl_reply *r, bool last) {
    bool more = true;
    while (more && pl_buf_ok(&r->in)) {
        switch (r->state) {
        case REPLY_START: more = step_start(r, last); break;
        case REPLY_REASON: more = step_reason(r, last); break;
        case REPLY_TEXT: more = step_text(r, last); break;
        case REPLY_NAME: more = step_name(r, last); break;
        case REPLY_OBJECTS: more = step_objects(r, last); break;
        case REPLY_FENCE: more = step_fence(r, last); break;
        default: more = reply_step_tags(r, last);
        }
    }
    bool ok = pl_buf_ok(&r->in) && pl_buf_ok(&r->space) && pl_buf_ok(&r->lead) && pl_buf_ok(&r->scan.raw) &&
              pl_buf_ok(&r->scan.value) && pl_buf_ok(&r->scan.args) && pl_buf_ok(&r->scan.function);
    if (!ok) return PL_NO_MEMORY;
    if (r->at > 0) {
        memmove(r->in.data, r->in.data + r->at, r->in.len - r->at + 1);
        r->in.len -= r->at;
        r->at = 0;
    }
    return PL_OK;
}

enum pl_status pl_reply_push(struct pl_reply *r, const char *data, size_t len) {
    if (len == 0) return PL_OK;
    pl_buf_add(&r->in, data, len);
    return run(r, false);
}

enum pl_status pl_reply_finish(struct pl_reply *r) {
    PL_TRY(run(r, true));
    bool open = r->state == REPLY_OBJECTS && !r->scan.begun;
    if (open && r->lead.len + r->scan.raw.len > 0) {
        give_back(r);
        PL_TRY(run(r, true));
    }
    if (r->state == REPLY_REASON) pl_buf_clear(&r->space);
    bool text = r->state == REPLY_TEXT || ((r->state == REPLY_BODY || r->state == REPLY_HEADER) && r->tag_body == BODY_TEXT);
    if (r->space.len > 0 && text) r->sink.text(r->sink.user, r->space.data, r->space.len);
    pl_buf_clear(&r->space);
    return pl_buf_ok(&r->space) ? PL_OK : PL_NO_MEMORY;
}

enum pl_status pl_reply_create(const struct pl_reply_options *opt, const struct pl_reply_sink *sink, struct pl_reply **out) {
    struct pl_reply *r = pl_calloc(1, sizeof *r);
    if (r == NULL) return PL_NO_MEMORY;
    r->opt = *opt;
    r->sink = *sink;
    r->mark = "";
    r->state = opt->in_reasoning && opt->reasoning ? REPLY_REASON : opt->reasoning || opt->tools ? REPLY_START : REPLY_TEXT;
    if (opt->kind == PL_REPLY_HARMONY) r->state = REPLY_HEADER;
    r->strip = r->state == REPLY_REASON;
    *out = r;
    return PL_OK;
}

bool pl_reply_in_reasoning(const struct pl_reply *r) {
    return r->state == REPLY_REASON || (r->state == REPLY_BODY && r->tag_body == BODY_REASONING);
}

void pl_reply_destroy(struct pl_reply *r) {
    if (r == NULL) return;
    pl_buf_deinit(&r->in);
    pl_buf_deinit(&r->space);
    pl_buf_deinit(&r->lead);
    scan_deinit(&r->scan);
    pl_free(r);
}
