/* status - one list of everything that can go wrong, and the context that travels with it.
 *
 * Promise: every fallible function returns enum pl_status and writes its out-pointers only on PL_OK. Cold paths take
 * a last argument struct pl_err *, owned by the caller, fixed size, never NULL-checked away: passing NULL is allowed
 * and simply loses the text. The first failure writes the sentence; callers on the way up add "while ..." notes with
 * pl_err_note. Hot paths return the bare status.
 *
 * A message says what was found, what was expected and what to do. */
#ifndef PL_BASE_STATUS_H
#define PL_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/*      name            text                         HTTP  exit */
#define PL_STATUS_LIST(X)                      \
    X(PL_OK, "ok", 200, 0)                     \
    X(PL_USAGE, "wrong usage", 400, 64)        \
    X(PL_INVALID, "invalid value", 400, 1)     \
    X(PL_FORMAT, "malformed data", 400, 1)     \
    X(PL_NOT_FOUND, "not found", 404, 1)       \
    X(PL_UNSUPPORTED, "not supported", 501, 1) \
    X(PL_IO, "input/output error", 500, 1)     \
    X(PL_NO_MEMORY, "out of memory", 503, 1)   \
    X(PL_LIMIT, "limit exceeded", 400, 1)      \
    X(PL_BUSY, "busy", 429, 1)                 \
    X(PL_CANCELLED, "cancelled", 499, 1)       \
    X(PL_DEVICE, "device failure", 503, 1)     \
    X(PL_INTERNAL, "internal error", 500, 1)

enum pl_status {
#define PL_STATUS_ENUM(name, text, http, code) name,
    PL_STATUS_LIST(PL_STATUS_ENUM)
#undef PL_STATUS_ENUM
        PL_STATUS_COUNT
};

#define PL_MUST_CHECK         __attribute__((warn_unused_result))
#define PL_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))

/* Fixed-size error context. Zero-initialise before use (struct pl_err err = {0}). */
struct pl_err {
    enum pl_status status;
    int line;         /* where the sentence was written */
    const char *file; /* static string */
    char text[1024];  /* the sentence, then notes, each on its own line; always terminated */
};

const char *pl_status_name(enum pl_status status); /* "PL_FORMAT" */
const char *pl_status_text(enum pl_status status); /* "malformed data" */
int pl_status_http(enum pl_status status);
int pl_status_exit(enum pl_status status);

/* Writes the sentence and returns status, so that "return pl_err_set(...)" reads as one step. err may be NULL. */
enum pl_status pl_err_set(struct pl_err *err, const char *file, int line, enum pl_status status, const char *fmt, ...)
    PL_PRINTF(5, 6);
/* Appends "\n  while ..." context; err may be NULL. Returns err's status (PL_INTERNAL when err is NULL). */
enum pl_status pl_err_note(struct pl_err *err, const char *fmt, ...) PL_PRINTF(2, 3);

/* The two macros that may hide control flow. */
#define PL_FAIL(err, status, ...) return pl_err_set((err), __FILE__, __LINE__, (status), __VA_ARGS__)
#define PL_TRY(expr)                                        \
    do {                                                    \
        enum pl_status pl_try_status_ = (expr);             \
        if (pl_try_status_ != PL_OK) return pl_try_status_; \
    } while (0)

/* Programmer errors: checked in release builds too. */
#define PL_ASSERT(cond)                                                        \
    do {                                                                       \
        if (__builtin_expect(!(cond), 0)) pl_panic(__FILE__, __LINE__, #cond); \
    } while (0)
_Noreturn void pl_panic(const char *file, int line, const char *what);

#define PL_COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define PL_MIN(a, b)   ((a) < (b) ? (a) : (b))
#define PL_MAX(a, b)   ((a) > (b) ? (a) : (b))

#endif
