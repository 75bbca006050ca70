#include "file/cursor.h"

#include <string.h>

enum pl_status pl_take(struct pl_cursor *c, uint64_t n, const char *field, const uint8_t **out) {
    uint64_t left = c->part->len - c->at;
    if (n > left) {
        PL_FAIL(c->err, PL_FORMAT,
                "%s: %s%s%s: %s at byte %s needs %s bytes but the file ends after %s: the download is incomplete or "
                "damaged; run 'plumb pull' again",
                c->part->label, c->kind, c->subject.len > 0 ? " " : "", pl_shown(c->subject).s, field, pl_num(c->at).s,
                pl_num(n).s, pl_num(left).s);
    }
    *out = c->part->data + c->at;
    c->at += n;
    return PL_OK;
}

enum pl_status pl_take_u32(struct pl_cursor *c, const char *field, uint32_t *out) {
    const uint8_t *p = NULL;
    PL_TRY(pl_take(c, 4, field, &p));
    memcpy(out, p, 4);
    return PL_OK;
}

enum pl_status pl_take_u64(struct pl_cursor *c, const char *field, uint64_t *out) {
    const uint8_t *p = NULL;
    PL_TRY(pl_take(c, 8, field, &p));
    memcpy(out, p, 8);
    return PL_OK;
}

enum pl_status pl_take_string(struct pl_cursor *c, const char *field, struct pl_str *out) {
    uint64_t len = 0;
    const uint8_t *p = NULL;
    PL_TRY(pl_take_u64(c, field, &len));
    PL_TRY(pl_take(c, len, field, &p));
    *out = (struct pl_str){(const char *)p, (size_t)len};
    return PL_OK;
}

bool pl_is_name(struct pl_str s) {
    for (size_t i = 0; i < s.len; i++) {
        if ((unsigned char)s.data[i] < 0x20 || s.data[i] == 0x7F) return false;
    }
    return pl_utf8_valid(s.data, s.len);
}

enum pl_status pl_take_name(struct pl_cursor *c, const char *field, uint64_t max, struct pl_str *out) {
    uint64_t at = c->at;
    struct pl_str s;
    PL_TRY(pl_take_string(c, field, &s));
    if (s.len == 0 || s.len > max) {
        PL_FAIL(c->err, PL_FORMAT, "%s: %s at byte %s has %s bytes; expected 1 to %s", c->part->label, field, pl_num(at).s,
                pl_num(s.len).s, pl_num(max).s);
    }
    if (!pl_is_name(s)) {
        PL_FAIL(c->err, PL_FORMAT, "%s: %s at byte %s is '%s'; expected UTF-8 without control characters", c->part->label,
                field, pl_num(at).s, pl_shown(s).s);
    }
    *out = s;
    return PL_OK;
}
