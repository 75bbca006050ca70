/* fuzz_reply - any bytes as what a model wrote: the first says how it is read, the second how it is cut. Whole and cut must
 * give the same parts. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "chat/reply.h"

static void add(void *user, char kind, const char *data, size_t len) {
    struct pl_buf *b = user;
    if (len == 0) return;
    for (size_t i = 0; i < len; i++) { /* byte by byte, so that pieces do not show */
        pl_buf_add_char(b, kind);
        pl_buf_add_char(b, data[i]);
    }
}
static void on_text(void *user, const char *data, size_t len) { add(user, 't', data, len); }
static void on_reasoning(void *user, const char *data, size_t len) { add(user, 'r', data, len); }
static void on_call(void *user, const char *data, size_t len) {
    pl_buf_add_char(user, '\n');
    add(user, 'c', data, len);
}
static void on_arguments(void *user, const char *data, size_t len) { add(user, 'a', data, len); }

static void parse(const struct pl_reply_options *o, const char *data, size_t size, size_t step, struct pl_buf *out) {
    struct pl_reply *r = NULL;
    const struct pl_reply_sink sink = {out, on_text, on_reasoning, on_call, on_arguments};
    if (pl_reply_create(o, &sink, &r) != PL_OK) abort();
    for (size_t at = 0; at < size; at += step)
        if (pl_reply_push(r, data + at, PL_MIN(step, size - at)) != PL_OK) abort();
    if (pl_reply_finish(r) != PL_OK) abort();
    pl_reply_destroy(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"f", "weather"};
    if (size < 2 || size > 4096) return 0;
    struct pl_reply_options o = {.kind = (enum pl_reply_kind)((data[0] % 8 + 8 * (data[1] / 64)) % PL_REPLY_KINDS),
                                 .tools = (data[0] & 8) != 0,
                                 .reasoning = (data[0] & 16) != 0,
                                 .in_reasoning = (data[0] & 32) != 0 ? "</think>" : NULL,
                                 .single = (data[0] & 64) != 0,
                                 .names = names,
                                 .name_count = PL_COUNT_OF(names)};
    struct pl_buf whole = {0}, cut = {0};
    parse(&o, (const char *)data + 2, size - 2, size, &whole);
    parse(&o, (const char *)data + 2, size - 2, 1 + data[1] % 7, &cut);
    if (whole.len != cut.len || (whole.len > 0 && memcmp(whole.data, cut.data, whole.len) != 0)) abort();
    pl_buf_deinit(&whole);
    pl_buf_deinit(&cut);
    return 0;
}
