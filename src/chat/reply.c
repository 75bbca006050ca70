/* reply.c - text and reasoning, up to the mark of a call; what follows a mark goes to reply_call.c and reply_py.c. */
#include "chat/reply.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "chat/reply_internal.h"

/* ---------- out ---------- */

/* White space at the end waits: it is dropped when a call (or the end of the reasoning) comes next. */
static void send(struct pl_reply *r, const char *data, size_t len, void (*to)(void *, const char *, size_t)) {
    if (r->strip)
        while (len > 0 && reply_is_space(*data)) data++, len--;
    if (len == 0) return;
    r->strip = false;
    size_t solid = len;
    while (solid > 0 && reply_is_space(data[solid - 1])) solid--;
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

enum { MARKS_MAX = 32 };

/* ---------- in ---------- */

static void enter_objects(struct pl_reply *r, const char *mark, const char *close, bool strict) {
    r->state = REPLY_OBJECTS;
    r->mark = mark;
    r->close = close;
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

void reply_enter_objects(struct pl_reply *r, const char *mark, const char *close) { enter_objects(r, mark, close, false); }

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

/* Whether one of the tools' names stands at the beginning, and `after` behind it. */
static bool name_begins(const struct pl_reply *r, const char *data, size_t len, char after, size_t *name, bool *more) {
    *more = false;
    for (size_t i = 0; i < r->opt.name_count; i++) {
        size_t n = strlen(r->opt.names[i]);
        if (memcmp(data, r->opt.names[i], PL_MIN(n, len)) != 0) continue;
        *more |= len <= n;
        *name = n;
        if (len > n && data[n] == after) return true;
    }
    return false;
}

static void enter_body(struct pl_reply *r, const char *mark, const char *close, bool strict) {
    r->state = REPLY_FENCE;
    r->mark = mark;
    r->close = close;
    r->strict = strict;
}

/* Calls without any mark: an object or a list of them, Python's [f(a=1)], GLM's name on a line of its own. False: wait. */
static bool start_bare(struct pl_reply *r, const char *data, size_t len, bool last) {
    const struct pl_reply_tags *t = pl_reply_tags(r->opt.kind);
    bool bare = r->opt.kind == PL_REPLY_LLAMA || r->opt.kind == PL_REPLY_JSON || r->opt.kind == PL_REPLY_GEMMA, more = false;
    size_t skip = 0, at, name;
    while (skip < len && reply_is_space(data[skip])) skip++;
    r->state = REPLY_TEXT;
    if (t != NULL && t->prompted) {
        reply_enter_tag(r, "");
        return true;
    }
    if (!r->opt.tools || skip == len) return true;
    if (r->opt.kind == PL_REPLY_GLM && name_begins(r, data + skip, len - skip, '\n', &name, &more)) {
        for (at = skip + name; at < len && reply_is_space(data[at]);) at++;
        more = at == len;
        if (at < len && data[at] == '{' && reply_begin(r, data + skip, name)) {
            r->at += at;
            reply_enter_arguments(r);
        }
    } else if (bare && data[skip] == '[') {
        for (at = skip + 1; at < len && reply_is_space(data[at]);) at++;
        bool python = at < len && name_begins(r, data + at, len - at, '(', &name, &more);
        more |= at == len;
        if (python) enter_body(r, "", "", true);
    }
    if (more && !last) {
        r->state = REPLY_START;
        return false;
    }
    if (!bare || r->state != REPLY_TEXT || (data[skip] != '{' && data[skip] != '[')) return true;
    reply_text(r, data, skip);
    r->at += skip;
    enter_objects(r, "", "", true);
    return true;
}

static bool step_start(struct pl_reply *r, bool last) {
    size_t len, skip = 0;
    bool more = false;
    const char *data = reply_rest(r, &len), *mark = NULL;
    while (skip < len && reply_is_space(data[skip])) skip++;
    if (skip == len && !last) return false;
    if (r->opt.reasoning) mark = reply_think_begin(data + skip, len - skip, &r->think_end, &more);
    if (mark == NULL && more && !last) return false;
    if (mark == NULL) return start_bare(r, data, len, last);
    r->at += skip + strlen(mark);
    r->state = REPLY_REASON;
    r->strip = true;
    return true;
}

static bool step_reason(struct pl_reply *r, bool last) {
    size_t len, mark = strlen(r->think_end);
    const char *data = reply_rest(r, &len), *end = len == 0 ? NULL : memmem(data, len, r->think_end, mark);
    size_t n = end != NULL ? (size_t)(end - data) : last ? len : len - reply_partial(data, len, r->think_end);
    send(r, data, n, r->sink.reasoning);
    r->at += n;
    if (end == NULL) return false;
    r->at += mark;
    pl_buf_clear(&r->space);
    r->strip = true;
    r->state = REPLY_START; /* calls may begin right here; a second <think> is text */
    r->opt.reasoning = false;
    return true;
}

/* Whether the mark found introduces something, and what. */
static void enter(struct pl_reply *r, const struct reply_mark *m) {
    switch (m->form) {
    case MARK_OBJECTS: enter_objects(r, m->open, m->close, false); break;
    case MARK_NAME:
        r->state = REPLY_NAME;
        r->mark = m->open;
        r->strict = false;
        break;
    case MARK_BODY:
    case MARK_KEYED:
    case MARK_FENCE:
    case MARK_JSON:
        r->keyed = m->form == MARK_KEYED;
        enter_body(r, m->open, m->close, m->form == MARK_JSON);
        break;
    }
}

/* The i-th mark that introduces calls here; NULL: there are no more. */
static const char *call_mark(const struct pl_reply *r, size_t i) {
    const struct pl_reply_tags *t = pl_reply_tags(r->opt.kind);
    size_t count;
    const struct reply_mark *list = reply_marks(r->opt.kind, &count);
    if (t != NULL) return reply_tag_mark(t, i);
    return i < count ? list[i].open : NULL;
}

static bool step_text(struct pl_reply *r, bool last) {
    const char *open, *marks[MARKS_MAX];
    size_t len, hold, mark = 0, count = 0;
    const char *data = reply_rest(r, &len);
    if (len == 0) return false;
    while (r->opt.tools && count < MARKS_MAX && (open = call_mark(r, count)) != NULL) marks[count++] = open;
    size_t first = reply_earliest(data, len, marks, count, &mark, &hold);
    size_t n = first != SIZE_MAX ? first : last ? len : len - hold;
    reply_text(r, data, n);
    r->at += n;
    if (first == SIZE_MAX) return false;
    r->at += strlen(marks[mark]);
    if (pl_reply_tags(r->opt.kind) != NULL)
        reply_enter_tag(r, marks[mark]);
    else
        enter(r, reply_marks(r->opt.kind, &count) + mark);
    return true;
}

/* After [TOOL_CALLS]: a list, an object, or a name that ends at [CALL_ID], [ARGS] or {. */
static bool step_name(struct pl_reply *r, bool last) {
    static const char ARGS[] = "[ARGS]", CALL_ID[] = "[CALL_ID]";
    size_t len, skip = 0;
    const char *data = reply_rest(r, &len);
    while (skip < len && reply_is_space(data[skip])) skip++;
    if (skip < len && (data[skip] == '[' || data[skip] == '{')) {
        enter_objects(r, r->mark, "", false);
        return true;
    }
    const char *brace = len == 0 ? NULL : memchr(data, '{', len),
               *args = len == 0 ? NULL : memmem(data, len, ARGS, sizeof ARGS - 1);
    if (brace == NULL && len - skip < 256 && !last) return false;
    const char *end = args != NULL && args < brace ? args : brace;
    const char *id = end == NULL ? NULL : memmem(data, (size_t)(end - data), CALL_ID, sizeof CALL_ID - 1);
    if (id != NULL) end = id;
    size_t n = end == NULL ? 0 : (size_t)(end - data);
    while (n > skip && reply_is_space(data[n - 1])) n--;
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
    size_t len, skip = 0, end = strlen(r->close);
    const char *data = reply_rest(r, &len);
    while (skip < len && reply_is_space(data[skip])) skip++;
    if (skip == len) return false;
    data += skip;
    len -= skip;
    bool closing = end > 0 && memcmp(data, r->close, PL_MIN(len, end)) == 0;
    if (closing && len < end && !last) return false;
    pass(r, skip);
    bool nothing = r->fresh && r->lead.len >= strlen(r->mark) &&
                   strncmp(pl_buf_cstr(&r->lead), r->mark, strlen(r->mark)) == 0; /* no call after the mark */
    if (closing && len >= end && !nothing) {
        r->at += end;
        reply_leave(r);
    } else if (*data == '[' && r->fresh && !r->list) {
        pass(r, 1);
        r->list = true;
    } else if (r->list && *data == ']' && !r->fresh) {
        r->at++;
        r->list = false;
        if (end == 0) reply_leave(r);
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
            reply_leave(r);
            if (r->tags != NULL) r->state = REPLY_TAG_AFTER;
            return true;
        }
        return step_between(r, last);
    }
    size_t len;
    const char *data = reply_rest(r, &len);
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
    size_t close = strlen(r->close);
    const char *data = reply_rest(r, &len), *end = len == 0 || close == 0 ? NULL : memmem(data, len, r->close, close);
    if (end == NULL && !last && len < REPLY_FENCE_MAX) return false;
    size_t n = end != NULL ? (size_t)(end - data) : len;
    r->state = REPLY_TEXT;
    if (reply_fence(r, data, n)) {
        r->at += n + (end != NULL ? close : 0);
        r->strip = true;
        return true;
    }
    r->strip = false;
    reply_text(r, r->mark, strlen(r->mark));
    n += end != NULL ? close : 0; /* the closing fence opens nothing */
    reply_text(r, data, n);
    r->at += n;
    return true;
}

/* A call whose JSON found no memory would pass for text: then nothing is. */
static enum pl_status run(struct pl_reply *r, bool last) {
    bool more = true, starved_before = pl_json_starved();
    pl_json_watch();
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
    if (!ok || pl_json_starved()) return PL_NO_MEMORY;
    if (starved_before) pl_json_starve();
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
    r->mark = r->close = "";
    r->think_end = opt->in_reasoning != NULL ? opt->in_reasoning : "";
    r->state = opt->in_reasoning != NULL && opt->reasoning ? REPLY_REASON
               : opt->reasoning || opt->tools              ? REPLY_START
                                                           : REPLY_TEXT;
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
