/* Bounded JSON on top of jansson, which already refuses bad UTF-8, trailing bytes, numbers that do not fit and (with
 * the flag) duplicate keys. Depth is checked before, so that hostile nesting never reaches a recursive parser. */
#include <string.h>

#include "base/mem.h"
#include "file/reader.h"

enum { MAX_DEPTH = 64 };

/* Position of the bracket that opens level MAX_DEPTH + 1, or len. Strings are skipped; broken JSON is left to jansson. */
static size_t too_deep_at(const char *s, size_t len) {
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
            continue;
        }
        if (s[i] == '"') in_string = true;
        if ((s[i] == '[' || s[i] == '{') && ++depth > MAX_DEPTH) return i;
        if ((s[i] == ']' || s[i] == '}') && depth > 0) depth--;
    }
    return len;
}

enum pl_status pl_json_parse(const char *what, const char *data, size_t len, json_t **out, struct pl_err *err) {
    size_t deep = too_deep_at(data, len);
    if (deep < len) {
        PL_FAIL(err, PL_FORMAT, "%s: JSON is nested deeper than %d levels at byte %s", PL_SHOWN_C(what), MAX_DEPTH,
                pl_num(deep).s);
    }
    json_error_t e;
    json_t *root = json_loadb(data, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (root == NULL) {
        bool memory = json_error_code(&e) == json_error_out_of_memory;
        PL_FAIL(err, memory ? PL_NO_MEMORY : PL_FORMAT, "%s: %s at byte %s (line %d): %s", PL_SHOWN_C(what),
                memory ? "no memory for JSON" : "not valid JSON", pl_num((uint64_t)(e.position < 0 ? 0 : e.position)).s,
                e.line, PL_SHOWN_C(e.text));
    }
    *out = root;
    return PL_OK;
}

enum pl_status pl_json_load(const char *path, size_t max_bytes, json_t **out, struct pl_err *err) {
    struct pl_buf text = {0};
    enum pl_status status = pl_read_file(path, max_bytes, &text, err);
    if (status == PL_OK) status = pl_json_parse(path, pl_buf_cstr(&text), text.len, out, err);
    pl_buf_deinit(&text);
    return status;
}
