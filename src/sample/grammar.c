/* grammar.c - GBNF text to nodes. Expressions are built backwards: every part is told which node comes after it, so a
 * repetition is the same source text read again, with no tree in between. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"

struct reader {
    struct pl_grammar *g;
    const char *text, *at, *end;
    struct pl_err *err;
    uint32_t depth;
    uint64_t work;   /* source bytes read, repetitions included */
    uint32_t *index; /* [slots] open addressing by name: a rule's number + 1, 0 = free */
    size_t slots;
};

#define SYNTAX(p, ...) return syntax((p), __VA_ARGS__)
static enum pl_status syntax(struct reader *p, const char *what) {
    size_t line = 1;
    for (const char *c = p->text; c < p->at; c++) line += *c == '\n';
    return pl_err_set(p->err, __FILE__, __LINE__, PL_INVALID, "grammar line %zu: %s", line, what);
}

/* ---------- nodes and rules ---------- */

static enum pl_status add_node(struct reader *p, struct node n, uint32_t *out) {
    struct pl_grammar *g = p->g;
    if (g->node_count == PL_GRAMMAR_NODES_MAX)
        PL_FAIL(p->err, PL_LIMIT, "the grammar is too large: more than %d nodes", PL_GRAMMAR_NODES_MAX);
    if (pl_grow(&g->nodes, &g->node_cap, g->node_count + 1, sizeof *g->nodes) != PL_OK)
        PL_FAIL(p->err, PL_NO_MEMORY, "no memory for the grammar");
    g->nodes[g->node_count] = n;
    *out = (uint32_t)g->node_count++;
    return PL_OK;
}

static size_t place_of(const struct reader *p, const char *name, size_t len) {
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)name[i]) * 1099511628211u;
    size_t at = (size_t)(h ^ h >> 32) & (p->slots - 1);
    for (; p->index[at] != 0; at = (at + 1) & (p->slots - 1)) {
        const char *other = p->g->rules[p->index[at] - 1].name;
        if (strncmp(other, name, len) == 0 && other[len] == '\0') break;
    }
    return at;
}

static enum pl_status grow_names(struct reader *p) {
    struct pl_grammar *g = p->g;
    size_t slots = p->slots == 0 ? 64 : p->slots * 2;
    uint32_t *fresh = pl_calloc(slots, sizeof *fresh);
    if (fresh == NULL) PL_FAIL(p->err, PL_NO_MEMORY, "no memory for the grammar");
    pl_free(p->index);
    p->index = fresh;
    p->slots = slots;
    for (size_t i = 0; i < g->rule_count; i++)
        fresh[place_of(p, g->rules[i].name, strlen(g->rules[i].name))] = (uint32_t)i + 1;
    return PL_OK;
}

static enum pl_status find_rule(struct reader *p, const char *name, size_t len, uint32_t *out) {
    struct pl_grammar *g = p->g;
    if ((g->rule_count + 1) * 2 > p->slots) PL_TRY(grow_names(p));
    size_t at = place_of(p, name, len);
    if (p->index[at] != 0) {
        *out = p->index[at] - 1;
        return PL_OK;
    }
    if (g->rule_count == PL_GRAMMAR_RULES_MAX)
        PL_FAIL(p->err, PL_LIMIT, "the grammar has more than %d rules", PL_GRAMMAR_RULES_MAX);
    char *copy = pl_strndup(name, len);
    if (copy == NULL || pl_grow(&g->rules, &g->rule_cap, g->rule_count + 1, sizeof *g->rules) != PL_OK) {
        pl_free(copy);
        PL_FAIL(p->err, PL_NO_MEMORY, "no memory for the grammar");
    }
    g->rules[g->rule_count] = (struct rule){copy, NODE_NONE};
    *out = (uint32_t)g->rule_count++;
    p->index[at] = *out + 1;
    return PL_OK;
}

/* ---------- characters ---------- */

static bool name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Spaces and comments; new lines too when asked. */
static void skip(struct reader *p, bool lines) {
    for (; p->at < p->end; p->at++) {
        if (*p->at == '#')
            while (p->at + 1 < p->end && p->at[1] != '\n') p->at++;
        else if (*p->at != ' ' && *p->at != '\t' && (!lines || (*p->at != '\n' && *p->at != '\r')))
            return;
    }
}

static enum pl_status read_hex(struct reader *p, int digits, uint32_t *out) {
    uint32_t v = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        char c = p->at < p->end ? *p->at : '\0';
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d == 16) SYNTAX(p, "an escape lacks hexadecimal digits");
        v = v << 4 | d;
    }
    if (v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) SYNTAX(p, "an escape is no Unicode character");
    *out = v;
    return PL_OK;
}

static enum pl_status read_char(struct reader *p, uint32_t *out) {
    if (p->at == p->end) SYNTAX(p, "the text ends inside a literal or class");
    if (*p->at != '\\') {
        size_t n = pl_utf8_len(p->at, (size_t)(p->end - p->at));
        if (n == 0) SYNTAX(p, "invalid UTF-8");
        *out = pl_utf8_decode(p->at, n);
        p->at += n;
        return PL_OK;
    }
    if (++p->at == p->end) SYNTAX(p, "the text ends inside an escape");
    char c = *p->at++;
    switch (c) {
    case 'n': *out = '\n'; return PL_OK;
    case 'r': *out = '\r'; return PL_OK;
    case 't': *out = '\t'; return PL_OK;
    case 'x': return read_hex(p, 2, out);
    case 'u': return read_hex(p, 4, out);
    case 'U': return read_hex(p, 8, out);
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^': *out = (unsigned char)c; return PL_OK;
    default: p->at--; SYNTAX(p, "unknown escape, expected one of \\n \\r \\t \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH");
    }
}

/* ---------- ranges of characters as sequences of bytes ---------- */

static enum pl_status either(struct reader *p, uint32_t more, uint32_t *node) {
    if (*node == NODE_NONE) {
        *node = more;
        return PL_OK;
    }
    return add_node(p, (struct node){.kind = NODE_SPLIT, .a = more, .b = *node}, node);
}

/* Sequences of n bytes from lo to hi, where all bytes after the first cover their full range or both ends are equal. */
static enum pl_status add_sequence(struct reader *p, const unsigned char *lo, const unsigned char *hi, size_t n,
                                   uint32_t next, uint32_t *node) {
    uint32_t at = next;
    for (size_t i = n; i-- > 0;)
        PL_TRY(add_node(p, (struct node){.kind = NODE_BYTES, .low = lo[i], .high = hi[i], .a = at}, &at));
    return either(p, at, node);
}

static size_t encode(uint32_t c, unsigned char out[4]) {
    if (c < 0x80) return out[0] = (unsigned char)c, 1;
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6) out[i] = (unsigned char)(0x80 | (c & 0x3F));
    out[0] = (unsigned char)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

/* Splits lo..hi where the encoded length changes and where the low bits do not cover their range. */
static enum pl_status add_range(struct reader *p, uint32_t lo, uint32_t hi, uint32_t next, uint32_t *node) {
    static const uint32_t last[] = {0x7F, 0x7FF, 0xD7FF, 0xFFFF};
    for (size_t i = 0; i < PL_COUNT_OF(last); i++) {
        if (lo > last[i] || hi <= last[i]) continue;
        PL_TRY(add_range(p, lo, last[i], next, node));
        return add_range(p, PL_MAX(last[i] + 1, last[i] == 0xD7FF ? 0xE000u : 0u), hi, next, node);
    }
    unsigned char a[4], b[4];
    size_t n = encode(lo, a);
    for (uint32_t bits = 6; bits < 6 * n; bits += 6) {
        uint32_t mask = (1u << bits) - 1;
        if (lo >> bits == hi >> bits) break;
        if ((lo & mask) != 0) {
            PL_TRY(add_range(p, lo, lo | mask, next, node));
            return add_range(p, (lo | mask) + 1, hi, next, node);
        }
        if ((hi & mask) != mask) {
            PL_TRY(add_range(p, lo, (hi & ~mask) - 1, next, node));
            return add_range(p, hi & ~mask, hi, next, node);
        }
    }
    (void)encode(hi, b);
    return add_sequence(p, a, b, n, next, node);
}

int pl_range_order(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;
    return (x[0] > y[0]) - (x[0] < y[0]);
}

struct ranges {
    uint32_t (*list)[2];
    size_t count, cap;
};

static enum pl_status read_ranges(struct reader *p, struct ranges *r) {
    while (p->at < p->end && *p->at != ']') {
        uint32_t lo = 0, hi = 0;
        PL_TRY(read_char(p, &lo));
        hi = lo;
        if (p->at + 1 < p->end && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            PL_TRY(read_char(p, &hi));
            if (hi < lo) SYNTAX(p, "a range in a class ends before it begins");
        }
        if (pl_grow(&r->list, &r->cap, r->count + 1, sizeof *r->list) != PL_OK)
            PL_FAIL(p->err, PL_NO_MEMORY, "no memory for the grammar");
        r->list[r->count][0] = lo;
        r->list[r->count++][1] = hi;
    }
    if (p->at == p->end) SYNTAX(p, "a character class is not closed");
    p->at++;
    if (r->count > 0) qsort(r->list, r->count, sizeof *r->list, pl_range_order);
    return PL_OK;
}

static enum pl_status emit_ranges(struct reader *p, const struct ranges *r, bool inverted, uint32_t next, uint32_t *node) {
    uint32_t from = 0;
    *node = NODE_NONE;
    for (size_t i = 0; i < r->count; i++) {
        uint32_t lo = r->list[i][0], hi = r->list[i][1];
        if (inverted && lo > from) PL_TRY(add_range(p, from, lo - 1, next, node));
        if (!inverted && hi >= from) PL_TRY(add_range(p, PL_MAX(lo, from), hi, next, node));
        from = PL_MAX(from, hi + 1);
    }
    if (inverted && from <= 0x10FFFF) PL_TRY(add_range(p, from, 0x10FFFF, next, node));
    if (*node == NODE_NONE) SYNTAX(p, "a character class matches nothing");
    return PL_OK;
}

static enum pl_status read_class(struct reader *p, uint32_t next, uint32_t *node) {
    struct ranges r = {0};
    bool inverted = p->at < p->end && *p->at == '^';
    p->at += inverted;
    enum pl_status st = read_ranges(p, &r);
    if (st == PL_OK) st = emit_ranges(p, &r, inverted, next, node);
    pl_free(r.list);
    return st;
}

static enum pl_status read_literal(struct reader *p, uint32_t next, uint32_t *node) {
    struct pl_buf b = {0};
    enum pl_status st = PL_OK;
    while (st == PL_OK && p->at < p->end && *p->at != '"') {
        uint32_t c = 0;
        st = read_char(p, &c);
        if (st == PL_OK) pl_buf_add_utf8(&b, c);
        if (st == PL_OK && c == 0) pl_buf_add_char(&b, '\0');
    }
    if (st == PL_OK && p->at == p->end) st = syntax(p, "a literal is not closed");
    p->at += st == PL_OK;
    if (st == PL_OK && b.failed) st = pl_err_set(p->err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for the grammar");
    *node = next;
    for (size_t i = b.len; st == PL_OK && i-- > 0;)
        st = add_node(
            p, (struct node){.kind = NODE_BYTES, .low = (uint8_t)b.data[i], .high = (uint8_t)b.data[i], .a = *node}, node);
    pl_buf_deinit(&b);
    return st;
}

/* ---------- expressions ---------- */

static enum pl_status read_alternatives(struct reader *p, bool group, uint32_t next, uint32_t *node);

static bool starts_item(const struct reader *p) {
    return p->at < p->end && (*p->at == '"' || *p->at == '[' || *p->at == '(' || *p->at == '.' || name_char(*p->at));
}

/* A name that ::= follows begins the next rule. */
static bool starts_rule(const struct reader *p) {
    struct reader q = *p;
    while (q.at < q.end && name_char(*q.at)) q.at++;
    if (q.at == p->at) return false;
    skip(&q, false);
    return q.end - q.at >= 3 && memcmp(q.at, "::=", 3) == 0;
}

static enum pl_status read_item(struct reader *p, uint32_t next, uint32_t *node) {
    char c = *p->at;
    if (c == '"') return p->at++, read_literal(p, next, node);
    if (c == '[') return p->at++, read_class(p, next, node);
    if (c == '.') {
        p->at++;
        *node = NODE_NONE;
        return add_range(p, 0, 0x10FFFF, next, node);
    }
    if (c == '(') {
        if (++p->depth > PL_GRAMMAR_DEPTH_MAX) SYNTAX(p, "groups are nested too deep");
        p->at++;
        PL_TRY(read_alternatives(p, true, next, node));
        p->depth--;
        if (p->at == p->end || *p->at != ')') SYNTAX(p, "a group is not closed");
        p->at++;
        return PL_OK;
    }
    const char *begin = p->at;
    uint32_t rule = 0;
    while (p->at < p->end && name_char(*p->at)) p->at++;
    PL_TRY(find_rule(p, begin, (size_t)(p->at - begin), &rule));
    return add_node(p, (struct node){.kind = NODE_CALL, .a = rule, .b = next}, node);
}

static enum pl_status read_count(struct reader *p, uint32_t *out) {
    uint32_t v = 0;
    const char *begin = p->at;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
        v = v * 10 + (uint32_t)(*p->at - '0');
        if (v > PL_GRAMMAR_REPEAT_MAX) SYNTAX(p, "a repetition counts beyond 4096");
    }
    if (p->at == begin) SYNTAX(p, "a repetition lacks its count");
    *out = v;
    return PL_OK;
}

/* After an item: min and max (UINT32_MAX: any). */
static enum pl_status read_repetition(struct reader *p, uint32_t *min, uint32_t *max) {
    *min = *max = 1;
    skip(p, p->depth > 0);
    char c = p->at < p->end ? *p->at : '\0';
    if (c == '*') *min = 0, *max = UINT32_MAX;
    if (c == '+') *max = UINT32_MAX;
    if (c == '?') *min = 0;
    if (c == '*' || c == '+' || c == '?') p->at++;
    if (c != '{') return PL_OK;
    p->at++;
    skip(p, false);
    PL_TRY(read_count(p, min));
    *max = *min;
    skip(p, false);
    if (p->at < p->end && *p->at == ',') {
        p->at++;
        skip(p, false);
        *max = UINT32_MAX;
        if (p->at < p->end && *p->at != '}') PL_TRY(read_count(p, max));
        skip(p, false);
    }
    if (p->at == p->end || *p->at != '}') SYNTAX(p, "a repetition is not closed");
    p->at++;
    if (*max < *min || *max == 0) SYNTAX(p, "a repetition allows nothing");
    return PL_OK;
}

/* Reads the item at `begin` once more, to be followed by next. */
static enum pl_status item_again(struct reader *p, const char *begin, uint32_t next, uint32_t *node) {
    p->at = begin;
    enum pl_status st = read_item(p, next, node);
    if (st != PL_OK) return st;
    p->work += (uint64_t)(p->at - begin);
    if (p->work > PL_GRAMMAR_WORK_MAX) PL_FAIL(p->err, PL_LIMIT, "the grammar's repetitions are too large");
    return PL_OK;
}

static enum pl_status repeat(struct reader *p, const char *begin, uint32_t min, uint32_t max, uint32_t next,
                             uint32_t *node) {
    uint32_t at = next;
    if (max == UINT32_MAX) { /* a loop: split -> item -> split */
        uint32_t split = 0, item = 0;
        PL_TRY(add_node(p, (struct node){.kind = NODE_SPLIT, .a = next, .b = next}, &split));
        PL_TRY(item_again(p, begin, split, &item));
        p->g->nodes[split].a = item;
        at = split;
    } else {
        for (uint32_t i = min; i < max; i++) { /* (x (x (x)?)?)? */
            uint32_t item = 0;
            PL_TRY(item_again(p, begin, at, &item));
            PL_TRY(add_node(p, (struct node){.kind = NODE_SPLIT, .a = item, .b = next}, &at));
        }
    }
    for (uint32_t i = 0; i < min; i++) PL_TRY(item_again(p, begin, at, &at));
    *node = at;
    return PL_OK;
}

/* Items are read first to last but built last to first, so their places are kept. */
struct items {
    struct item {
        const char *begin;
        uint32_t min, max;
    } * list;
    size_t count, cap;
};

static enum pl_status scan_items(struct reader *p, bool group, struct items *items) {
    for (;;) {
        skip(p, group || p->depth > 0);
        if (!starts_item(p) || (p->depth == 0 && starts_rule(p))) return PL_OK;
        struct item it = {.begin = p->at};
        size_t nodes = p->g->node_count;
        uint32_t ignored = 0;
        PL_TRY(read_item(p, 0, &ignored)); /* checks it and finds its end; these nodes are dropped again */
        p->g->node_count = nodes;
        PL_TRY(read_repetition(p, &it.min, &it.max));
        if (pl_grow(&items->list, &items->cap, items->count + 1, sizeof *items->list) != PL_OK)
            PL_FAIL(p->err, PL_NO_MEMORY, "no memory for the grammar");
        items->list[items->count++] = it;
    }
}

static enum pl_status read_sequence(struct reader *p, bool group, uint32_t next, uint32_t *node) {
    struct items items = {0};
    enum pl_status st = scan_items(p, group, &items);
    const char *end = p->at;
    *node = next;
    for (size_t i = items.count; st == PL_OK && i-- > 0;)
        st = repeat(p, items.list[i].begin, items.list[i].min, items.list[i].max, *node, node);
    if (st == PL_OK) p->at = end;
    pl_free(items.list);
    return st;
}

static enum pl_status read_alternatives(struct reader *p, bool group, uint32_t next, uint32_t *node) {
    *node = NODE_NONE;
    for (;;) {
        uint32_t one = 0;
        /* Re-reading a group inside a group doubles with each level; the budget ends that. */
        const char *begin = p->at;
        PL_TRY(read_sequence(p, group, next, &one));
        p->work += (uint64_t)(p->at - begin) + 1;
        if (p->work > PL_GRAMMAR_WORK_MAX) PL_FAIL(p->err, PL_LIMIT, "the grammar's groups are nested too deep");
        PL_TRY(either(p, one, node));
        skip(p, true);
        if (p->at == p->end || *p->at != '|') return PL_OK;
        p->at++;
        skip(p, true);
    }
}

/* ---------- rules ---------- */

static enum pl_status read_rule(struct reader *p) {
    const char *begin = p->at;
    uint32_t rule = 0, ret = 0, start = 0;
    while (p->at < p->end && name_char(*p->at)) p->at++;
    if (p->at == begin) SYNTAX(p, "expected a rule: name ::= ...");
    PL_TRY(find_rule(p, begin, (size_t)(p->at - begin), &rule));
    if (p->g->rules[rule].start != NODE_NONE) SYNTAX(p, "a rule is defined twice");
    skip(p, false);
    if (p->end - p->at < 3 || memcmp(p->at, "::=", 3) != 0) SYNTAX(p, "expected ::= after a rule's name");
    p->at += 3;
    skip(p, true);
    PL_TRY(add_node(p, (struct node){.kind = NODE_RETURN}, &ret));
    PL_TRY(read_alternatives(p, false, ret, &start));
    p->g->rules[rule].start = start;
    skip(p, true);
    return PL_OK;
}

static enum pl_status check_defined(struct reader *p) {
    bool root = false;
    for (size_t i = 0; i < p->g->rule_count; i++) {
        const struct rule *r = &p->g->rules[i];
        if (r->start == NODE_NONE)
            PL_FAIL(p->err, PL_INVALID, "the grammar's rule '%.60s' is used but not defined", r->name);
        if (strcmp(r->name, "root") != 0) continue;
        p->g->root = (uint32_t)i;
        root = true;
    }
    if (!root) PL_FAIL(p->err, PL_INVALID, "the grammar has no rule named root");
    return PL_OK;
}

/* What can be reached without a byte. Explicit stacks and a budget, as grammars are hostile. */
struct walk {
    uint32_t *seen, epoch; /* [nodes]: epoch of the last visit */
    uint32_t *stack;       /* [2 * nodes + 2] */
    uint8_t *nullable;     /* [rules] */
    uint32_t *calls;       /* rules called on the left, of all rules one after the other */
    size_t call_count, call_cap;
    size_t *first; /* [rules + 1] */
    uint8_t *colour;
    uint64_t work;
    bool failed;
};

/* True when the rule can match nothing. keep: its left calls are added to w->calls. */
static bool walk_rule(const struct pl_grammar *g, struct walk *w, uint32_t rule, bool keep) {
    size_t top = 0;
    bool empty = false;
    w->epoch++;
    w->stack[top++] = g->rules[rule].start;
    while (top > 0) {
        uint32_t at = w->stack[--top];
        const struct node *n = &g->nodes[at];
        if (w->seen[at] == w->epoch) continue;
        w->seen[at] = w->epoch;
        w->work++;
        if (n->kind == NODE_RETURN) empty = true;
        if (n->kind == NODE_SPLIT) w->stack[top++] = n->a, w->stack[top++] = n->b;
        if (n->kind != NODE_CALL) continue;
        if (w->nullable[n->a]) w->stack[top++] = n->b;
        if (!keep) continue;
        w->failed |= pl_grow(&w->calls, &w->call_cap, w->call_count + 1, sizeof *w->calls) != PL_OK;
        if (!w->failed) w->calls[w->call_count++] = n->a;
    }
    return empty;
}

/* A depth-first search over rules; grey rules are on the path. Returns a rule that reaches itself, or NODE_NONE. */
static uint32_t find_cycle(const struct pl_grammar *g, struct walk *w, size_t *next) {
    for (uint32_t r = 0; r < g->rule_count; r++) {
        size_t top = 0;
        if (w->colour[r] != 0) continue;
        w->stack[top++] = r;
        w->colour[r] = 1;
        next[r] = w->first[r];
        while (top > 0) {
            uint32_t at = w->stack[top - 1];
            if (next[at] == w->first[at + 1]) {
                w->colour[at] = 2;
                top--;
                continue;
            }
            uint32_t to = w->calls[next[at]++];
            if (w->colour[to] == 1) return to;
            if (w->colour[to] == 2) continue;
            w->colour[to] = 1;
            next[to] = w->first[to];
            w->stack[top++] = to;
        }
    }
    return NODE_NONE;
}

static enum pl_status check_left(struct reader *p, struct walk *w, size_t *next) {
    const struct pl_grammar *g = p->g;
    for (bool more = true; more;) {
        more = false;
        for (uint32_t i = 0; i < g->rule_count; i++) {
            if (w->nullable[i] || !walk_rule(g, w, i, false)) continue;
            w->nullable[i] = 1;
            more = true;
        }
        if (w->work > PL_GRAMMAR_WORK_MAX / 4) PL_FAIL(p->err, PL_LIMIT, "the grammar is too tangled to be checked");
    }
    for (uint32_t i = 0; i < g->rule_count; i++) {
        w->first[i] = w->call_count;
        (void)walk_rule(g, w, i, true);
        if (w->work > PL_GRAMMAR_WORK_MAX / 2) PL_FAIL(p->err, PL_LIMIT, "the grammar is too tangled to be checked");
    }
    w->first[g->rule_count] = w->call_count;
    if (w->failed) PL_FAIL(p->err, PL_NO_MEMORY, "no memory for the grammar");
    uint32_t left = find_cycle(g, w, next);
    if (left == NODE_NONE) return PL_OK;
    PL_FAIL(p->err, PL_INVALID, "the grammar's rule '%.60s' calls itself on its left: move the call to the right",
            g->rules[left].name);
}

static enum pl_status check_left_recursion(struct reader *p) {
    size_t nodes = p->g->node_count, rules = p->g->rule_count;
    struct walk w = {.seen = pl_calloc(nodes, sizeof(uint32_t)),
                     .stack = pl_alloc(2 * nodes + rules + 2, sizeof(uint32_t)),
                     .nullable = pl_calloc(rules, 1),
                     .first = pl_calloc(rules + 1, sizeof(size_t)),
                     .colour = pl_calloc(rules, 1)};
    size_t *next = pl_calloc(rules, sizeof *next);
    enum pl_status st = PL_NO_MEMORY;
    if (w.seen != NULL && w.stack != NULL && w.nullable != NULL && w.first != NULL && w.colour != NULL && next != NULL)
        st = check_left(p, &w, next);
    else
        (void)pl_err_set(p->err, __FILE__, __LINE__, st, "no memory for the grammar");
    pl_free(w.seen);
    pl_free(w.stack);
    pl_free(w.nullable);
    pl_free(w.first);
    pl_free(w.colour);
    pl_free(w.calls);
    pl_free(next);
    return st;
}

enum pl_status pl_grammar_parse(const char *text, size_t len, struct pl_grammar **out, struct pl_err *err) {
    if (len > PL_GRAMMAR_TEXT_MAX)
        PL_FAIL(err, PL_LIMIT, "the grammar has %zu bytes, at most %d are taken", len, PL_GRAMMAR_TEXT_MAX);
    struct pl_grammar *g = pl_calloc(1, sizeof *g);
    if (g == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the grammar");
    struct reader p = {.g = g, .text = text, .at = text, .end = text + len, .err = err};
    enum pl_status st = PL_OK;
    skip(&p, true);
    while (st == PL_OK && p.at < p.end) st = read_rule(&p);
    if (st == PL_OK) st = check_defined(&p);
    if (st == PL_OK) st = check_left_recursion(&p);
    pl_free(p.index);
    if (st != PL_OK) {
        pl_grammar_destroy(g);
        return st;
    }
    *out = g;
    return PL_OK;
}

struct pl_grammar *pl_grammar_ref(struct pl_grammar *g) {
    atomic_fetch_add(&g->more, 1);
    return g;
}

void pl_grammar_destroy(struct pl_grammar *g) {
    if (g == NULL || atomic_fetch_sub(&g->more, 1) != 0) return;
    for (size_t i = 0; i < g->rule_count; i++) pl_free(g->rules[i].name);
    pl_free(g->rules);
    pl_free(g->nodes);
    pl_free(g);
}
