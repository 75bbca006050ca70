/* reply_internal - shared by reply_marks.c and reply_tags.c (what introduces what), reply.c (text and reasoning),
 * reply_tagged.c (calls told by tags), reply_channels.c (gpt-oss), reply_call.c (one call as JSON) and reply_py.c (whole
 * bodies: JSON, Python's notation, Gemma's); reply_look.c looks for marks. */
#ifndef PL_CHAT_REPLY_INTERNAL_H
#define PL_CHAT_REPLY_INTERNAL_H

#include "chat/reply.h"

enum reply_state {
    REPLY_START,
    REPLY_REASON,
    REPLY_TEXT,
    REPLY_OBJECTS,
    REPLY_NAME,
    REPLY_FENCE,
    /* reply_tagged.c */
    REPLY_TAG_SECTION,
    REPLY_TAG_NAME,
    REPLY_TAG_FIRST,
    REPLY_TAG_AFTER,
    REPLY_TAG_KEY,
    REPLY_TAG_VALUE,
    /* reply_channels.c */
    REPLY_HEADER,
    REPLY_BODY
};

/* What follows a mark: objects, which stream; a name; a body that is read when it has ended, fenced or not (keyed:
 * names are the keys of its objects). */
enum mark_form { MARK_OBJECTS, MARK_NAME, MARK_BODY, MARK_KEYED, MARK_FENCE, MARK_JSON };
struct reply_mark {
    const char *open, *close; /* "": nothing closes it */
    enum mark_form form;
};

enum scan_phase {
    SCAN_OPEN,
    SCAN_KEY,
    SCAN_IN_KEY,
    SCAN_COLON,
    SCAN_VALUE,
    SCAN_IN_VALUE,
    SCAN_AFTER,
    SCAN_DONE,
    SCAN_BROKEN
};
enum scan_field { FIELD_OTHER, FIELD_NAME, FIELD_ARGUMENTS, FIELD_FUNCTION };

/* One object that may be a call, read byte by byte. */
struct scan {
    enum scan_phase phase;
    enum scan_field field;
    bool begun;     /* the call was announced */
    bool streams;   /* the value being read goes straight out */
    bool has_args;  /* arguments went out */
    bool args_only; /* the object is the arguments themselves */
    bool in_string, escape, value_string;
    uint32_t depth;
    struct pl_buf raw;   /* all of it, until the call begins */
    struct pl_buf value; /* key, or value that is kept */
    struct pl_buf args, function;
};

struct pl_reply {
    struct pl_reply_options opt;
    struct pl_reply_sink sink;
    struct pl_buf in;    /* not understood yet */
    size_t at;           /* of it, what was consumed */
    struct pl_buf space; /* white space that goes out only when text follows */
    struct pl_buf lead;  /* mark and separators since the last call: given back when none follows */
    uint32_t state;
    bool strip;  /* white space at the beginning of the next text is dropped */
    bool list;   /* inside [..] of calls */
    bool strict; /* unknown names make it text */
    bool keyed;  /* {"name": {arguments}} is a call */
    bool fresh;  /* between objects: the next may begin */
    uint32_t calls, dropped;
    bool muted; /* the call being read is dropped (single) */
    struct scan scan;
    const char *mark, *close; /* what introduced what is being read, and what ends it ("": nothing) */
    const char *think_end;
    const struct pl_reply_tags *tags; /* of the call being read; NULL: it is not told by tags */
    bool tag_open;                    /* inside a value, past a name's type or past the first header */
    bool tag_marked, tag_quoted;      /* the mark before a value was passed; the value stands between quotes */
    /* kept until it ends; a string; goes out as it is; a string or null, not known yet */
    enum { VALUE_HELD, VALUE_TEXT, VALUE_RAW, VALUE_NULLABLE } tag_value;
    size_t tag_seen;    /* of the value, where no end begins */
    uint32_t tag_count; /* keys, or whether arguments came */
    enum { BODY_TEXT, BODY_REASONING, BODY_CALL } tag_body;
};

enum { REPLY_HELD_MAX = 4 << 20, REPLY_FENCE_MAX = 64 << 10, PIECE_MIN = 4 };

/* reply_look.c */
bool reply_is_space(char c);
const char *reply_rest(const struct pl_reply *r, size_t *len); /* what was not consumed */
size_t reply_spaces(const char *data, size_t len);
enum reply_match { REPLY_NO, REPLY_YES, REPLY_MAYBE };                         /* REPLY_MAYBE: more bytes may make it one */
enum reply_match reply_begins(const char *data, size_t len, const char *mark); /* NULL: none */
/* Which of the marks the data begins with, the first that does; -1: none; -2: more bytes may tell. */
int reply_which(const char *data, size_t len, const char *const *marks, size_t count, bool last);
/* The end of a short text that `mark` closes, inside the window; NULL: not there, *more when it may still come. */
const char *reply_closes(const char *data, size_t len, const char *mark, size_t window, bool last, bool *more);
/* Where the first of the marks stands (SIZE_MAX: nowhere), and how many bytes at the end may begin one. */
size_t reply_earliest(const char *data, size_t len, const char *const *marks, size_t count, size_t *mark, size_t *hold);
/* Length of the longest end of data that begins mark without being all of it. */
size_t reply_partial(const char *data, size_t len, const char *mark);
bool reply_mark_holds(const char *mark, const char *piece, size_t len); /* a token may be a part of a mark */

void reply_text(struct pl_reply *r, const char *data, size_t len);
bool reply_begin(struct pl_reply *r, const char *name, size_t len); /* false: no such tool */
void reply_arguments(struct pl_reply *r, const char *data, size_t len);

void reply_reasoning(struct pl_reply *r, const char *data, size_t len);
void reply_leave(struct pl_reply *r); /* the calls are over */
void reply_enter_objects(struct pl_reply *r, const char *mark, const char *close);
void reply_enter_arguments(struct pl_reply *r); /* of a call that was announced: one object */

/* What introduces calls in text: of notations of tags (NULL after the last), of all others. */
const char *reply_tag_mark(const struct pl_reply_tags *t, size_t i);
const struct reply_mark *reply_marks(enum pl_reply_kind kind, size_t *count);
/* The mark that data begins with and what ends its reasoning; NULL: none, *more when it may still become one. */
const char *reply_think_begin(const char *data, size_t len, const char **end, bool *more);
bool reply_is_tag(const char *piece, size_t len);
bool reply_tag_kind(const char *source, size_t len, enum pl_reply_kind *kind);
void reply_enter_tag(struct pl_reply *r, const char *mark);
bool reply_step_tags(struct pl_reply *r, bool last);
bool reply_tagged_call(struct pl_reply *r, const char *name, size_t len); /* false: that is no name */

bool reply_is_channel(const char *piece, size_t len);
bool reply_shows_channels(const char *source, size_t len);
bool reply_header(struct pl_reply *r, bool last);
bool reply_body(struct pl_reply *r, bool last);

void scan_reset(struct scan *s);
void scan_deinit(struct scan *s);
void scan_args_only(struct scan *s);
/* Consumes bytes up to the end of the object; returns how many. */
size_t scan_push(struct pl_reply *r, const char *data, size_t len);

/* A body: JSON calls, name(key=value, ..), or call:name{key:value, ..}. False: none of them, nothing went out. */
bool reply_fence(struct pl_reply *r, const char *body, size_t len);
bool reply_python(struct pl_reply *r, const char *body, size_t len);
/* One list, dictionary or other literal of Python, as JSON. */
bool reply_literal(const char *data, size_t len, struct pl_buf *json);

#endif
