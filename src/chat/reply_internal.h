/* reply_internal - shared by reply.c (marks and text), reply_call.c (one call as JSON) and reply_py.c (Python's notation).
 */
#ifndef PL_CHAT_REPLY_INTERNAL_H
#define PL_CHAT_REPLY_INTERNAL_H

#include "chat/reply.h"

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
    bool fresh;  /* between objects: the next may begin */
    uint32_t calls, dropped;
    bool muted; /* the call being read is dropped (single) */
    struct scan scan;
    const char *mark; /* what introduced what is being read */
};

enum { REPLY_HELD_MAX = 4 << 20, REPLY_FENCE_MAX = 64 << 10 };

void reply_text(struct pl_reply *r, const char *data, size_t len);
bool reply_begin(struct pl_reply *r, const char *name, size_t len); /* false: no such tool */
void reply_arguments(struct pl_reply *r, const char *data, size_t len);

void scan_reset(struct scan *s);
void scan_deinit(struct scan *s);
void scan_args_only(struct scan *s);
/* Consumes bytes up to the end of the object; returns how many. */
size_t scan_push(struct pl_reply *r, const char *data, size_t len);

/* A fenced body: JSON calls or name(key=value, ..). False: neither, nothing went out. */
bool reply_fence(struct pl_reply *r, const char *body, size_t len);
bool reply_python(struct pl_reply *r, const char *body, size_t len);

#endif
