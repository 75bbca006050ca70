/* lex - template source to tokens, with jinja2's whitespace rules for trim_blocks and lstrip_blocks.
 *
 * An error becomes a token, so that a mistake which the parser meets first is the one reported. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/ast.h"
#include "chat/rt.h"

struct lexer {
    struct tj_rt *R;
    struct tj_tokens *out;
    const char *s; /* newlines normalised */
    size_t len, pos;
    uint32_t line;
    bool line_starting, failed;
    char balance[256];
    size_t depth;
};

static void push(struct lexer *x, int type, uint32_t line, struct tj_val val) {
    struct tj_tokens *o = x->out;
    if (o->n == o->cap) {
        size_t cap = o->cap == 0 ? 256 : o->cap * 2;
        struct tj_token *grown = tj_alloc(x->R, cap, sizeof *grown);
        if (o->n > 0) memcpy(grown, o->v, o->n * sizeof *grown);
        o->v = grown;
        o->cap = cap;
    }
    o->v[o->n++] = (struct tj_token){type, line, val};
}

static void fail(struct lexer *x, struct tj_str *message) {
    push(x, TJ_T_ERROR, x->line, tj_strv(message));
    x->failed = true;
}
static void fail_c(struct lexer *x, const char *message) { fail(x, tj_str_new(x->R, message, strlen(message), false)); }

/* \r\n and \r become \n; one newline at the very end goes. */
static void normalise(struct lexer *x, const char *src, size_t len) {
    char *copy = tj_alloc(x->R, len + 1, 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (src[i] == '\r') {
            if (i + 1 < len && src[i + 1] == '\n') continue;
            copy[n++] = '\n';
        } else {
            copy[n++] = src[i];
        }
    }
    if (n > 0 && copy[n - 1] == '\n') n--;
    copy[n] = '\0';
    x->s = copy;
    x->len = n;
}

static bool at(const struct lexer *x, size_t p, const char *text) {
    size_t n = strlen(text);
    return p + n <= x->len && memcmp(x->s + p, text, n) == 0;
}
static size_t skip_space(const struct lexer *x, size_t p) {
    size_t next;
    while (p < x->len && tj_is_space(tj_cp_at(x->s, x->len, p, &next))) p = next;
    return p;
}
static size_t rstrip(const struct lexer *x, size_t begin, size_t end) {
    while (end > begin) {
        size_t p = end - 1, next;
        while (p > begin && ((unsigned char)x->s[p] & 0xC0) == 0x80) p--;
        if (!tj_is_space(tj_cp_at(x->s, x->len, p, &next))) break;
        end = p;
    }
    return end;
}
static uint32_t newlines(const struct lexer *x, size_t from, size_t to) {
    uint32_t n = 0;
    for (size_t i = from; i < to; i++) n += x->s[i] == '\n';
    return n;
}
static bool sign(const struct lexer *x, size_t p) { return p < x->len && (x->s[p] == '-' || x->s[p] == '+'); }

/* Where a tag that is closed by `close` ends, when it stands at p: the optional sign, the tag, and what it swallows.
 * SIZE_MAX: no such tag here. */
static size_t close_tag(const struct lexer *x, size_t p, const char *close, bool plus, bool trim) {
    if (p < x->len && x->s[p] == '-' && at(x, p + 1, close)) return skip_space(x, p + 1 + strlen(close));
    if (plus && p < x->len && x->s[p] == '+' && at(x, p + 1, close)) return p + 1 + strlen(close);
    if (!at(x, p, close)) return SIZE_MAX;
    p += strlen(close);
    return trim && p < x->len && x->s[p] == '\n' ? p + 1 : p;
}

/* {% raw %} or {% endraw %} at p; ends after the tag. */
static size_t raw_tag(const struct lexer *x, size_t p, const char *word, bool end_tag) {
    if (!at(x, p, "{%")) return SIZE_MAX;
    for (int with_sign = 1; with_sign >= 0; with_sign--) {
        size_t q = p + 2;
        if (with_sign && !sign(x, q)) continue;
        q = skip_space(x, q + (size_t)with_sign);
        if (!at(x, q, word)) continue;
        q = skip_space(x, q + strlen(word));
        size_t end = close_tag(x, q, "%}", end_tag, end_tag);
        if (end != SIZE_MAX) return end;
    }
    return SIZE_MAX;
}

/* Text [begin,end) before a tag whose sign stands at sign_at: emitted after stripping what the sign and lstrip say. */
static void emit_data(struct lexer *x, size_t begin, size_t end, size_t sign_at, bool variable) {
    size_t keep = end;
    char c = sign_at < x->len ? x->s[sign_at] : ' ';
    if (c == '-') {
        keep = rstrip(x, begin, end);
    } else if (c != '+' && !variable) {
        size_t l = end;
        while (l > begin && x->s[l - 1] != '\n') l--;
        if ((l > begin || x->line_starting) && l < end && skip_space(x, l) >= end) keep = l;
    }
    if (keep > begin) push(x, TJ_T_DATA, x->line, tj_strv(tj_str_borrow(x->R, x->s + begin, keep - begin, false)));
    x->line += newlines(x, begin, end);
}

static void lex_string(struct lexer *x) {
    char quote = x->s[x->pos];
    size_t p = x->pos + 1;
    while (p < x->len && x->s[p] != quote) p += x->s[p] == '\\' && p + 1 < x->len ? 2 : 1;
    if (p >= x->len) {
        struct tj_str *m = tj_str_printf(x->R, false, "unexpected char %s at %zu", quote == '"' ? "'\"'" : "\"'\"", x->pos);
        fail(x, m);
        return;
    }
    struct tj_sb b;
    tj_sb_init(x->R, &b);
    const char *bad = NULL;
    for (size_t i = x->pos + 1; i < p && bad == NULL;) {
        if (x->s[i] != '\\') {
            size_t j = i;
            while (j < p && x->s[j] != '\\') j++;
            tj_sb_raw(&b, x->s + i, j - i, false);
            i = j;
            continue;
        }
        unsigned char c = (unsigned char)x->s[i + 1];
        static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
        const char *simple = strchr(from, c);
        i += 2;
        if (c == '\n') continue;
        if (simple != NULL && c != 0) {
            tj_sb_char(&b, to[simple - from], false);
        } else if (c >= '0' && c <= '7') {
            uint32_t v = c - '0';
            for (int k = 0; k < 2 && i < p && x->s[i] >= '0' && x->s[i] <= '7'; k++) v = v * 8 + (uint32_t)(x->s[i++] - '0');
            tj_sb_cp(&b, v, false);
        } else if (c == 'x' || c == 'u' || c == 'U') {
            size_t want = c == 'x' ? 2 : c == 'u' ? 4 : 8, k = 0;
            uint32_t v = 0;
            for (; k < want && i < p; k++, i++) {
                char h = x->s[i];
                int d = h >= '0' && h <= '9' ? h - '0' : (h | 32) >= 'a' && (h | 32) <= 'f' ? (h | 32) - 'a' + 10 : -1;
                if (d < 0) break;
                v = v * 16 + (uint32_t)d;
            }
            if (k < want)
                bad = c == 'x'   ? "truncated \\xXX escape"
                      : c == 'u' ? "truncated \\uXXXX escape"
                                 : "truncated \\UXXXXXXXX escape";
            else if (v > 0x10FFFF)
                bad = "illegal Unicode character";
            else if (v >= 0xD800 && v <= 0xDFFF)
                bad = "a lone surrogate cannot be written as UTF-8";
            else
                tj_sb_cp(&b, v, false);
        } else if (c == 'N') {
            bad =
                i < p && x->s[i] == '{' ? "character names (\\N{...}) are not supported" : "malformed \\N character escape";
        } else if (c >= 0x80) { /* Python turns the character into an escape first, whose backslash is then escaped */
            size_t next;
            uint32_t cp = tj_cp_at(x->s, x->len, i - 1, &next);
            char text[16];
            snprintf(text, sizeof text, cp <= 0xFF ? "\\x%02x" : cp <= 0xFFFF ? "\\u%04x" : "\\U%08x", cp);
            tj_sb_c(&b, text, false);
            i = next;
        } else {
            tj_sb_char(&b, '\\', false);
            tj_sb_char(&b, (char)c, false);
        }
    }
    if (bad != NULL) {
        fail_c(x, bad);
        return;
    }
    struct tj_str *s = tj_sb_done(&b);
    tj_str_chars(x->R, s);
    push(x, TJ_T_STRING, x->line, tj_strv(s));
    x->line += newlines(x, x->pos, p);
    x->pos = p + 1;
}

static bool dig(const struct lexer *x, size_t p) { return p < x->len && x->s[p] >= '0' && x->s[p] <= '9'; }

/* (\d+_)*\d+ from p; p itself when there is none. */
static size_t digit_run(const struct lexer *x, size_t p) {
    if (!dig(x, p)) return p;
    for (;;) {
        while (dig(x, p)) p++;
        if (p < x->len && x->s[p] == '_' && dig(x, p + 1))
            p++;
        else
            return p;
    }
}

static size_t float_end(const struct lexer *x) { /* 0: not a float here */
    if (x->pos > 0 && x->s[x->pos - 1] == '.') return 0;
    size_t whole = digit_run(x, x->pos);
    if (whole == x->pos) return 0;
    size_t frac = whole;
    if (whole < x->len && x->s[whole] == '.') {
        frac = digit_run(x, whole + 1);
        if (frac == whole + 1) frac = whole;
    }
    if (frac < x->len && (x->s[frac] | 32) == 'e') {
        size_t e = frac + 1;
        if (sign(x, e)) e++;
        size_t end = digit_run(x, e);
        if (end > e) return end;
    }
    return frac > whole ? frac : 0;
}

static size_t int_end(const struct lexer *x) {
    size_t p = x->pos;
    if (x->s[p] == '0' && p + 1 < x->len) {
        char c = (char)(x->s[p + 1] | 32);
        const char *set = c == 'b' ? "01" : c == 'o' ? "01234567" : c == 'x' ? "0123456789abcdefABCDEF" : NULL;
        if (set != NULL) {
            size_t q = p + 2;
            for (;;) {
                size_t r = q + (q < x->len && x->s[q] == '_');
                if (r >= x->len || strchr(set, x->s[r]) == NULL || x->s[r] == '\0') break;
                q = r + 1;
            }
            if (q > p + 2) return q;
        }
    }
    bool zero = x->s[p] == '0';
    p++;
    for (;;) {
        size_t r = p + (p < x->len && x->s[p] == '_');
        if (!dig(x, r) || (zero && x->s[r] != '0')) return p;
        p = r + 1;
    }
}

static void lex_number(struct lexer *x) {
    size_t end = float_end(x);
    bool is_float = end != 0;
    if (!is_float) end = int_end(x);
    struct tj_sb b;
    tj_sb_init(x->R, &b);
    for (size_t i = x->pos; i < end; i++)
        if (x->s[i] != '_') tj_sb_char(&b, x->s[i], false);
    tj_sb_char(&b, '\0', false);
    struct tj_str *text = tj_sb_done(&b);
    if (is_float) {
        push(x, TJ_T_FLOAT, x->line, tj_float(strtod(text->data, NULL)));
    } else {
        int64_t v;
        bool overflow;
        text->len--;
        if (!tj_parse_int(text, 0, &v, &overflow) || overflow) {
            fail_c(x, "integer literal does not fit 64 bits");
            return;
        }
        push(x, TJ_T_INT, x->line, tj_int(v));
    }
    x->pos = end;
}

static bool lex_name(struct lexer *x) {
    size_t p = x->pos, next;
    uint32_t cp = tj_cp_at(x->s, x->len, p, &next);
    if (!tj_is_id_continue(cp) && !tj_is_alnum(cp)) return false;
    bool ok = tj_is_id_start(cp);
    while (p < x->len) {
        cp = tj_cp_at(x->s, x->len, p, &next);
        if (!tj_is_id_continue(cp) && !tj_is_alnum(cp)) break;
        ok = ok && (p == x->pos || tj_is_id_continue(cp));
        p = next;
    }
    if (!ok) {
        fail_c(x, "Invalid character in identifier");
        return true;
    }
    push(x, TJ_T_NAME, x->line, tj_strv(tj_str_borrow(x->R, x->s + x->pos, p - x->pos, false)));
    x->pos = p;
    return true;
}

static const struct {
    char text[3];
    int type;
} operators[] = {
    {"//", TJ_T_FLOORDIV}, {"**", TJ_T_POW},   {"==", TJ_T_EQ},      {"!=", TJ_T_NE},      {">=", TJ_T_GE},
    {"<=", TJ_T_LE},       {"+", TJ_T_ADD},    {"-", TJ_T_SUB},      {"/", TJ_T_DIV},      {"*", TJ_T_MUL},
    {"%", TJ_T_MOD},       {"~", TJ_T_TILDE},  {"[", TJ_T_LBRACKET}, {"]", TJ_T_RBRACKET}, {"(", TJ_T_LPAREN},
    {")", TJ_T_RPAREN},    {"{", TJ_T_LBRACE}, {"}", TJ_T_RBRACE},   {">", TJ_T_GT},       {"<", TJ_T_LT},
    {"=", TJ_T_ASSIGN},    {".", TJ_T_DOT},    {":", TJ_T_COLON},    {"|", TJ_T_PIPE},     {",", TJ_T_COMMA},
    {";", TJ_T_SEMICOLON},
};

static bool balance_ok(struct lexer *x, char c) {
    char want = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : 0;
    if (want != 0) {
        if (x->depth == sizeof x->balance) {
            fail_c(x, "brackets are nested too deeply");
            return false;
        }
        x->balance[x->depth++] = want;
    } else if (c == ')' || c == ']' || c == '}') {
        if (x->depth == 0) {
            fail(x, tj_str_printf(x->R, false, "unexpected '%c'", c));
            return false;
        }
        char expected = x->balance[--x->depth];
        if (expected != c) {
            fail(x, tj_str_printf(x->R, false, "unexpected '%c', expected '%c'", c, expected));
            return false;
        }
    }
    return true;
}

static bool lex_operator(struct lexer *x) {
    for (size_t i = 0; i < PL_COUNT_OF(operators); i++) {
        if (!at(x, x->pos, operators[i].text)) continue;
        if (!balance_ok(x, operators[i].text[0])) return true;
        push(x, operators[i].type, x->line, tj_none());
        x->pos += strlen(operators[i].text);
        return true;
    }
    return false;
}

/* Inside {{ or {%, up to and including the closing tag. */
static void lex_tag(struct lexer *x, bool variable) {
    x->depth = 0;
    while (!x->failed) {
        if (x->pos >= x->len) return; /* the parser reports the missing end */
        size_t end = x->depth > 0 ? SIZE_MAX : close_tag(x, x->pos, variable ? "}}" : "%}", !variable, !variable);
        if (end != SIZE_MAX) {
            push(x, variable ? TJ_T_VAR_END : TJ_T_BLOCK_END, x->line, tj_none());
            x->line += newlines(x, x->pos, end);
            x->pos = end;
            x->line_starting = x->s[end - 1] == '\n';
            return;
        }
        size_t after = skip_space(x, x->pos);
        if (after > x->pos) {
            x->line += newlines(x, x->pos, after);
            x->pos = after;
            continue;
        }
        char c = x->s[x->pos];
        if (c >= '0' && c <= '9')
            lex_number(x);
        else if (c == '\'' || c == '"')
            lex_string(x);
        else if (!lex_name(x) && !lex_operator(x)) {
            size_t next;
            tj_cp_at(x->s, x->len, x->pos, &next);
            struct tj_str *bad = tj_to_repr(x->R, tj_strv(tj_str_new(x->R, x->s + x->pos, next - x->pos, false)));
            fail(x, tj_str_printf(x->R, false, "unexpected char %.*s at %zu", (int)bad->len, bad->data, x->pos));
        }
    }
}

static void lex_comment(struct lexer *x) {
    for (size_t p = x->pos; p < x->len; p++) {
        size_t end = close_tag(x, p, "#}", true, true);
        if (end == SIZE_MAX) continue;
        x->line += newlines(x, x->pos, end);
        x->pos = end;
        x->line_starting = x->s[end - 1] == '\n';
        return;
    }
    fail_c(x, x->pos >= x->len ? "" : "Missing end of comment tag");
    if (x->pos >= x->len) { /* jinja2 ends quietly when nothing follows the opening */
        x->out->n--;
        x->failed = false;
    }
}

static void lex_raw(struct lexer *x) {
    for (size_t p = x->pos; p < x->len; p++) {
        size_t end = x->s[p] == '{' ? raw_tag(x, p, "endraw", true) : SIZE_MAX;
        if (end == SIZE_MAX) continue;
        emit_data(x, x->pos, p, sign(x, p + 2) ? p + 2 : SIZE_MAX, false);
        x->line += newlines(x, p, end);
        x->pos = end;
        x->line_starting = x->s[end - 1] == '\n';
        return;
    }
    if (x->pos < x->len) fail_c(x, "Missing end of raw directive");
}

/* Text, then the tag that ends it. */
static void lex_root(struct lexer *x) {
    size_t p = x->pos;
    while (p + 1 < x->len && !(x->s[p] == '{' && (x->s[p + 1] == '{' || x->s[p + 1] == '%' || x->s[p + 1] == '#'))) p++;
    if (p + 1 >= x->len) {
        push(x, TJ_T_DATA, x->line, tj_strv(tj_str_borrow(x->R, x->s + x->pos, x->len - x->pos, false)));
        x->pos = x->len;
        return;
    }
    char c = x->s[p + 1];
    size_t begin = x->pos, raw_end = c == '%' ? raw_tag(x, p, "raw", false) : SIZE_MAX;
    emit_data(x, begin, p, sign(x, p + 2) ? p + 2 : SIZE_MAX, c == '{');
    if (raw_end != SIZE_MAX) {
        x->line += newlines(x, p, raw_end);
        x->pos = raw_end;
        x->line_starting = x->s[raw_end - 1] == '\n';
        lex_raw(x);
        return;
    }
    x->pos = p + 2 + (sign(x, p + 2) ? 1 : 0);
    x->line_starting = false;
    if (c == '#') {
        lex_comment(x);
    } else {
        push(x, c == '{' ? TJ_T_VAR_BEGIN : TJ_T_BLOCK_BEGIN, x->line, tj_none());
        lex_tag(x, c == '{');
    }
}

void tj_lex(struct tj_rt *R, const char *source, size_t len, struct tj_tokens *out) {
    struct lexer x = {.R = R, .out = out, .line = 1, .line_starting = true};
    normalise(&x, source, len);
    while (x.pos < x.len && !x.failed) lex_root(&x);
    push(&x, TJ_T_EOF, x.line, tj_none());
}
