/* Bounded JSON on top of base/json.h, which already refuses bad UTF-8, trailing bytes, numbers that do not fit and (with
 * the flag) duplicate keys. Depth is checked before, so that hostile nesting never reaches a recursive parser. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
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
    struct pl_json_fault why;
    json_t *root = pl_json_read(data, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (root == NULL && why.no_memory) PL_FAIL(err, PL_NO_MEMORY, "%s: no memory for its JSON", PL_SHOWN_C(what));
    if (root == NULL) {
        PL_FAIL(err, PL_FORMAT, "%s: not valid JSON at byte %s (line %d): %s", PL_SHOWN_C(what), pl_num(why.at).s, why.line,
                PL_SHOWN_C(why.text));
    }
    *out = root;
    return PL_OK;
}

/* Python writes integers of any size, and nearly every tokenizer_config.json has one: a model_max_length of 10^30. jansson
 * refuses what does not fit 64 bits, so such a number becomes a real one in place: its last two digits give way to "e2".
 * Positions in later messages stay true. Where an integer is needed the reader of that field still refuses a real. */
void pl_json_soften_integers(char *s, size_t len) {
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '"') in_string = !in_string;
        if (in_string && s[i] == '\\') i++;
        if (in_string || s[i] < '0' || s[i] > '9') continue;
        size_t end = i;
        while (end < len && s[end] >= '0' && s[end] <= '9') end++;
        bool whole = (end == len || (s[end] != '.' && s[end] != 'e' && s[end] != 'E')) &&
                     (i == 0 || (s[i - 1] != '.' && s[i - 1] != '+' && s[i - 1] != 'e' && s[i - 1] != 'E'));
        /* 2^63 has 19 digits; comparing text of equal length is comparing numbers. */
        bool big = end - i > 19 || (end - i == 19 && memcmp(s + i, "9223372036854775807", 19) > 0);
        if (whole && big) memcpy(s + end - 2, "e2", 2);
        i = end - 1;
    }
}

/* Python also writes Infinity, which is no JSON: in time_step_limit of every Mamba-2 model. It becomes 1e308 in place. */
static void soften_infinities(char *s, size_t len) {
    static const char word[] = "Infinity";
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '"') in_string = !in_string;
        if (in_string && s[i] == '\\') i++;
        if (in_string || len - PL_MIN(i, len) < sizeof word - 1 || memcmp(s + i, word, sizeof word - 1) != 0) continue;
        memcpy(s + i, "1e308   ", sizeof word - 1);
    }
}

enum pl_status pl_json_load(const char *path, size_t max_bytes, json_t **out, struct pl_err *err) {
    struct pl_buf text = {0};
    enum pl_status status = pl_read_file(path, max_bytes, &text, err);
    if (status == PL_OK && text.len > 0) pl_json_soften_integers(text.data, text.len);
    if (status == PL_OK && text.len > 0) soften_infinities(text.data, text.len);
    if (status == PL_OK) status = pl_json_parse(path, pl_buf_cstr(&text), text.len, out, err);
    pl_buf_deinit(&text);
    return status;
}
