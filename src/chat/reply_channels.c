/* reply_channels.c - the channels of gpt-oss: <|channel|>C [to=NAME]
 * [<|constrain|>json]<|message|>BODY<|end|><|start|>assistant.. */
#include <string.h>

#include "base/mem.h"
#include "chat/reply_internal.h"

enum { HEADER_WINDOW = 512 };

static const char CHANNEL[] = "<|channel|>", MESSAGE[] = "<|message|>", START[] = "<|start|>", END[] = "<|end|>";
static const char CALLED[] = "<|call|>", RETURN[] = "<|return|>", CONSTRAIN[] = "<|constrain|>";

bool reply_is_channel(const char *piece, size_t len) {
    static const char *const all[] = {CHANNEL, MESSAGE, START, END, CALLED, RETURN, CONSTRAIN};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++)
        if (strlen(all[i]) == len && memcmp(all[i], piece, len) == 0) return true;
    return false;
}

bool reply_shows_channels(const char *source, size_t len) {
    return len > 0 && memmem(source, len, CHANNEL, sizeof CHANNEL - 1) != NULL;
}

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
    if (channel != NULL && reply_begins(channel, len - (size_t)(channel - data), analysis) == REPLY_YES && r->opt.reasoning)
        r->tag_body = BODY_REASONING;
    if (name == NULL || !r->opt.tools) return;
    name += sizeof to - 1;
    size_t left = len - (size_t)(name - data), n = 0;
    if (reply_begins(name, left, prefix) == REPLY_YES) name += sizeof prefix - 1, left -= sizeof prefix - 1;
    while (n < left && !reply_is_space(name[n]) && name[n] != '<') n++;
    if (reply_tagged_call(r, name, n)) r->tag_body = BODY_CALL;
}

bool reply_header(struct pl_reply *r, bool last) {
    static const char *const first[] = {CHANNEL, START, MESSAGE, " to=", "to="};
    size_t len;
    bool more;
    const char *data = reply_rest(r, &len);
    if (len == 0) return false;
    if (!r->tag_open) {
        int w = reply_which(data, len, first, PL_COUNT_OF(first), last);
        if (w == -2) return false;
        if (w == -1) return plain(r);
        r->tag_open = true;
    }
    const char *end = reply_closes(data, len, MESSAGE, HEADER_WINDOW, last, &more);
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

bool reply_body(struct pl_reply *r, bool last) {
    static const char *const ends[] = {END, CALLED, RETURN, START, CHANNEL};
    size_t len, mark = 0, hold;
    const char *data = reply_rest(r, &len);
    size_t at = reply_earliest(data, len, ends, PL_COUNT_OF(ends), &mark, &hold);
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
