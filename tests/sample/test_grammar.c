/* Grammars: what they accept, what is refused, schemas, bounds; every allocation may fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/mem.h"
#include "sample/grammar.h"
#include "sample/schema.h"

enum verdict { NO, PREFIX, YES };

static enum verdict run_text(struct pl_grammar_run *r, const char *text, size_t len) {
    uint32_t state = pl_grammar_start(r);
    for (size_t i = 0; i < len; i++) {
        assert_int_equal(pl_grammar_step(r, state, (unsigned char)text[i], &state), PL_OK);
        (void)pl_grammar_run_trim(r, &state);
    }
    return state == PL_GRAMMAR_DEAD ? NO : pl_grammar_accepts(r, state) ? YES : PREFIX;
}

static enum verdict judge(const char *grammar, const char *text) {
    struct pl_grammar *g = NULL;
    struct pl_grammar_run *r = NULL;
    struct pl_err err = {0};
    if (pl_grammar_parse(grammar, strlen(grammar), &g, &err) != PL_OK) fail_msg("%s: %s", grammar, err.text);
    assert_int_equal(pl_grammar_run_create(g, &r, &err), PL_OK);
    enum verdict v = run_text(r, text, strlen(text));
    pl_grammar_run_destroy(r);
    pl_grammar_destroy(g);
    return v;
}

static void accepts(void **state) {
    (void)state;
    static const struct {
        const char *grammar, *text;
        enum verdict want;
    } cases[] = {
        {"root ::= \"ab\" | \"ac\"", "ac", YES},
        {"root ::= \"ab\" | \"ac\"", "a", PREFIX},
        {"root ::= \"ab\" | \"ac\"", "ad", NO},
        {"root ::= \"ab\" | \"ac\"", "abc", NO},
        {"root ::= [a-c]+ # letters\n", "abcabc", YES},
        {"root ::= [a-c]+", "", PREFIX},
        {"root ::= [^a-c]*", "xyz\xC3\xA9\xF0\x9F\x98\x80", YES},
        {"root ::= [^a-c]*", "xb", NO},
        {"root ::= [^a-c]", "\xC3", PREFIX},
        {"root ::= [^a-c]", "\xED\xA0\x80", NO}, /* a surrogate is no character */
        {"root ::= [\\u00e0-\\u00ff]", "\xC3\xA9", YES},
        {"root ::= [\\u00e0-\\u00ff]", "\xC3\x9F", NO},
        {"root ::= [\\U0001F600-\\U0001F64F]", "\xF0\x9F\x98\x80", YES},
        {"root ::= .", "\xE2\x82\xAC", YES},
        {"root ::= \"a\"{2,3}", "aa", YES},
        {"root ::= \"a\"{2,3}", "aaaa", NO},
        {"root ::= \"a\"{2}", "a", PREFIX},
        {"root ::= \"a\"{2,} \"b\"", "aaaaab", YES},
        {"root ::= (\"a\" | \"b\"\n \"c\")? \"d\"", "bcd", YES},
        {"root ::= \"(\" root \")\" | \"\"", "((()))", YES},
        {"root ::= \"(\" root \")\" | \"\"", "((())", PREFIX},
        {"root ::= \"(\" root \")\" | \"\"", "(()))", NO},
        {"root ::= x*\nx ::= \"\" | \"a\"", "aaa", YES}, /* loops over what matches nothing */
        {"root ::= (\"\"*)* \"a\"", "a", YES},
        {"root ::= item (\",\" item)* |\n  \"none\"\nitem ::= [0-9]+", "1,22,3", YES},
        {"root ::= item (\",\" item)* |\n  \"none\"\nitem ::= [0-9]+", "none", YES},
        {"root ::= \"\\\"\\\\\\n\\x41\"", "\"\\\nA", YES},
        {"root ::= [\\]\\-^]+", "]-^", YES},
    };
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++)
        if (judge(cases[i].grammar, cases[i].text) != cases[i].want) fail_msg("%s on '%s'", cases[i].grammar, cases[i].text);
}

static void refuses(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "no rule named root"},
        {"root = 1", "::="},
        {"root ::= x", "'x' is used but not defined"},
        {"root ::= \"a", "not closed"},
        {"root ::= [a", "not closed"},
        {"root ::= (\"a\"", "not closed"},
        {"root ::= root \"a\" | \"b\"", "on its left"},
        {"root ::= a\na ::= e b\nb ::= a \"x\" | \"y\"\ne ::= \"\" | \"z\"", "on its left"},
        {"root ::= \"a\"{3,2}", "allows nothing"},
        {"root ::= \"a\"{9999}", "beyond 4096"},
        {"root ::= \"a\"\nroot ::= \"b\"", "defined twice"},
        {"root ::= [b-a]", "ends before"},
        {"root ::= \"\\q\"", "escape"},
        {"root ::= \"\\ud800\"", "no Unicode"},
        {"root ::= \"\xFF\"", "UTF-8"},
        {"root ::= []", "matches nothing"},
        {"root ::= ((((\"a\"{4096}){4096}){4096}){4096})", "too large"},
        {"root ::= \"a\" )", "rule"},
    };
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        struct pl_grammar *g = NULL;
        struct pl_err err = {0};
        if (pl_grammar_parse(cases[i][0], strlen(cases[i][0]), &g, &err) == PL_OK) fail_msg("accepted: %s", cases[i][0]);
        if (strstr(err.text, cases[i][1]) == NULL) fail_msg("%s: %s", cases[i][0], err.text);
    }
}

static void deep_groups_end_soon(void **state) {
    (void)state;
    char text[1024];
    size_t n = (size_t)snprintf(text, sizeof text, "root ::= ");
    for (int i = 0; i < 199; i++) text[n++] = '(';
    n += (size_t)snprintf(text + n, sizeof text - n, "\"a\"");
    for (int i = 0; i < 199; i++) text[n++] = ')';
    struct pl_grammar *g = NULL;
    struct pl_err err = {0};
    enum pl_status st = pl_grammar_parse(text, n, &g, &err);
    assert_true(st == PL_OK || st == PL_LIMIT);
    pl_grammar_destroy(g);
}

static char *schema_grammar(const char *schema) {
    struct pl_buf b = {0};
    struct pl_err err = {0};
    json_t *v = json_loads(schema, JSON_DECODE_ANY, NULL);
    assert_non_null(v);
    pl_buf_add_c(&b, "root ::= js-ws answer\n");
    pl_schema_common(&b);
    if (pl_schema_rules(v, "answer", &b, &err) != PL_OK) fail_msg("%s: %s", schema, err.text);
    json_decref(v);
    return b.data;
}

static void schemas(void **state) {
    (void)state;
    static const struct {
        const char *schema, *text;
        enum verdict want;
    } cases[] = {
        {"{\"type\":\"object\"}", "{\"a\": [1, -2.5e3, \"\\u00e9\\n\", null, {}]}", YES},
        {"{\"type\":\"object\"}", "{\"a\": 01}", NO},
        {"{\"type\":\"object\"}", "{\"a\" 1}", NO},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":["
         "\"b\"]}",
         "{\"b\":\"x\"}", YES},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":["
         "\"b\"]}",
         "{\"a\":1,\"b\":\"x\"}", YES},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":["
         "\"b\"]}",
         "{\"a\":1}", NO},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}}}", "{}", YES},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}}}", "{\"b\": true}", YES},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}}}", "{,", NO},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "[1, 2,3]", YES},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "[1]", NO},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "[1,2,3,4", NO},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2}", "[1,2,3,4]", YES},
        {"{\"type\":\"array\",\"maxItems\":0}", "[]", YES},
        {"{\"enum\":[\"a\",1,null,{\"x\":[]}]}", "{\"x\":[]}", YES},
        {"{\"const\":\"q\\\"\\u00e9\"}", "\"q\\\"\xC3\xA9\"", YES},
        {"{\"type\":[\"string\",\"null\"]}", "null", YES},
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"boolean\"}]}", "true", YES},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"ab\"", YES},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"abcd", NO},
        {"{\"type\":\"integer\",\"minimum\":1,\"maximum\":12}", "12", YES},
        {"{\"type\":\"integer\",\"minimum\":1,\"maximum\":12}", "13", NO},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":0}", "10", YES},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":0}", "0", NO},
        {"{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"n\":{\"anyOf\":[{\"$ref\":\"#/"
         "$defs/t\"},{\"type\":\"null\"}]}},\"required\":[\"n\"]}}}",
         "{\"n\":{\"n\":null}}", YES},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}", "{\"x\":1, \"y\":2}", YES},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}", "{\"x\":\"", NO},
        {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", "[1,\"a\"]", YES},
        {"{\"type\":\"integer\",\"minimum\":-120,\"maximum\":9999}", "-120", YES},
        {"{\"type\":\"integer\",\"minimum\":-120,\"maximum\":9999}", "-121", NO},
        {"{\"type\":\"integer\",\"minimum\":-120,\"maximum\":9999}", "9999", YES},
        {"{\"type\":\"integer\",\"minimum\":-120,\"maximum\":9999}", "10000", NO},
        {"{\"type\":\"integer\",\"minimum\":-120,\"maximum\":9999}", "-0", NO},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", "0.75", YES},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", "1.000", YES},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", "1.01", NO},
        {"{\"type\":\"number\",\"exclusiveMinimum\":-2.5,\"maximum\":0.25}", "-2.49", YES},
        {"{\"type\":\"number\",\"exclusiveMinimum\":-2.5,\"maximum\":0.25}", "-2.5", NO},
        {"{\"type\":\"number\",\"exclusiveMinimum\":-2.5,\"maximum\":0.25}", "0.26", NO},
        {"{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-\\\\d+(x|yz)?$\"}", "\"AB-12yz\"", YES},
        {"{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-\\\\d+(x|yz)?$\"}", "\"AB-\"", NO},
        {"{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-\\\\d+(x|yz)?$\"}", "\"AB-1 ", NO},
        {"{\"type\":\"string\",\"pattern\":\"b+\"}", "\"abbc\"", YES},
        {"{\"type\":\"string\",\"pattern\":\"b+\"}", "\"ac\"", NO},
        {"{\"type\":\"string\",\"pattern\":\"^a|z$\"}", "\"xyz\"", YES},
        {"{\"type\":\"string\",\"pattern\":\"^[^a]$\"}", "\"\\\"\"", YES},
        {"{\"type\":\"string\",\"pattern\":\"^[^a]$\"}", "\"\\n\"", YES},
        {"{\"type\":\"string\",\"pattern\":\"^[^a]$\"}", "\"a", NO},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\u00e9.$\"}", "\"\xC3\xA9\xF0\x9F\x98\x80\"", YES},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-28\"", YES},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-30", NO},
        {"{\"type\":\"string\",\"format\":\"date-time\"}", "\"1999-12-31T23:59:59.5+01:00\"", YES},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}", "\"255.0.10.1\"", YES},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}", "\"256", NO},
        {"{\"type\":\"string\",\"format\":\"email\"}", "\"a.b@example.org\"", YES},
        {"{\"type\":\"string\",\"format\":\"color\"}", "\"anything\"", YES},
    };
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        char *g = schema_grammar(cases[i].schema);
        if (judge(g, cases[i].text) != cases[i].want) fail_msg("%s on '%s'\n%s", cases[i].schema, cases[i].text, g);
        pl_free(g);
    }
}

/* Strings without quotes and escapes. */
static void schemas_bare(void **state) {
    (void)state;
    static const struct {
        const char *schema, *text;
        enum verdict want;
    } cases[] = {
        {"{\"pattern\":\"^[A-Z]{2}\\\"\\\\\\\\$\"}", "AB\"\\", YES},
        {"{\"pattern\":\"^[A-Z]{2}\\\"\\\\\\\\$\"}", "AB\\\"", NO},
        {"{\"pattern\":\"^[^a]$\"}", "\n", YES},
        {"{\"pattern\":\"^[^a]$\"}", "<", NO},
        {"{\"pattern\":\"b+\"}", "\"abbc\n", YES},
        {"{\"pattern\":\"b+\"}", "ac", PREFIX},
        {"{\"pattern\":\"b+\"}", "b<", NO},
        {"{\"format\":\"date\"}", "2024-02-28", YES},
        {"{\"format\":\"date\"}", "\"", NO},
        {"{\"minLength\":2}", "a\"", YES},
        {"{\"minLength\":2}", "a", PREFIX},
        {"{\"minLength\":2}", "ab<", NO},
        {"{\"minLength\":1,\"maxLength\":2}", "abc", NO},
        {"{\"maxLength\":0}", "", YES},
    };
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        struct pl_buf b = {0};
        struct pl_err err = {0};
        json_t *v = json_loads(cases[i].schema, 0, NULL);
        assert_non_null(v);
        pl_buf_add_c(&b, "root ::= ");
        if (pl_schema_bare_text(v, &b, &err) != PL_OK) fail_msg("%s: %s", cases[i].schema, err.text);
        json_decref(v);
        if (judge(b.data, cases[i].text) != cases[i].want)
            fail_msg("%s on '%s'\n%s", cases[i].schema, cases[i].text, b.data);
        pl_buf_deinit(&b);
    }
    json_t *v = json_loads("[{\"type\":\"string\"},{\"pattern\":\"<\"},{\"pattern\":1},{\"minLength\":-1}]", 0, NULL);
    struct pl_buf b = {0};
    struct pl_err err = {0};
    assert_int_equal(pl_schema_bare_text(json_array_get(v, 0), &b, &err), PL_OK);
    assert_int_equal(b.len, 0);
    for (size_t i = 1; i < 4; i++) assert_int_equal(pl_schema_bare_text(json_array_get(v, i), &b, &err), PL_INVALID);
    pl_buf_deinit(&b);
    json_decref(v);
}

static void schemas_joined(void **state) {
    (void)state;
    static const struct {
        const char *schema, *text;
        enum verdict want;
    } cases[] = {
        {"{\"allOf\":[{\"enum\":[1,\"1\",{\"a\":1,\"b\":2}]},{\"enum\":[\"1\",{\"b\":2,\"a\":1}]}]}", "{\"a\":1,\"b\":2}",
         YES},
        {"{\"allOf\":[{\"enum\":[1,\"1\"]},{\"enum\":[\"1\"]}]}", "1", NO},
        {"{\"allOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\",\"a\",\"b\"]}]}", "{\"a\":1,\"b\":2}", YES},
        {"{\"allOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\",\"a\",\"b\"]}]}", "{\"a\":1,\"b\":2,\"b\":2}", NO},
        {"{\"required\":[\"a\",\"a\"]}", "{\"a\":1}", YES},
        {"{\"required\":[\"a\",\"a\"]}", "{\"a\":1,\"a\":1}", NO},
        {"{\"type\":\"integer\",\"multipleOf\":5}", "-125", YES},
        {"{\"type\":\"integer\",\"multipleOf\":5}", "0", YES},
        {"{\"type\":\"integer\",\"multipleOf\":5}", "12", PREFIX},
        {"{\"type\":\"integer\",\"multipleOf\":25}", "175", YES},
        {"{\"type\":\"integer\",\"multipleOf\":25}", "170", PREFIX},
        {"{\"type\":\"integer\",\"multipleOf\":8}", "1016", YES},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1,\"exclusiveMaximum\":28}", "21", YES},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1,\"exclusiveMaximum\":28}", "28", NO},
        {"{\"type\":\"number\",\"multipleOf\":0.25}", "-3.75", YES},
        {"{\"type\":\"number\",\"multipleOf\":0.25}", "3.3", NO},
        {"{\"type\":\"number\",\"multipleOf\":0.01}", "3.07", YES},
        {"{\"multipleOf\":1}", "7", YES},
        {"{\"minimum\":5}", "4", PREFIX},
        {"{\"minLength\":2}", "\"a\"", NO},
        {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"}},\"required\":[\"a\"]},"
         "{\"properties\":{\"b\":{\"type\":\"boolean\"},\"a\":{\"type\":\"integer\",\"maximum\":9}},\"required\":[\"b\"]}]}",
         "{\"a\":7,\"b\":true}", YES},
        {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"}},\"required\":[\"a\"]},"
         "{\"properties\":{\"b\":{\"type\":\"boolean\"},\"a\":{\"type\":\"integer\",\"maximum\":9}},\"required\":[\"b\"]}]}",
         "{\"a\":7.5", NO},
        {"{\"$defs\":{\"p\":{\"properties\":{\"x\":{\"type\":\"null\"}}}},\"allOf\":[{\"$ref\":\"#/$defs/"
         "p\"}],\"required\":[\"x\"]}",
         "{\"x\":null}", YES},
        {"{\"$defs\":{\"p\":{\"properties\":{\"x\":{\"type\":\"null\"}}}},\"allOf\":[{\"$ref\":\"#/$defs/"
         "p\"}],\"required\":[\"x\"]}",
         "{}", NO},
        {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]}],\"type\":\"integer\"}", "3", YES},
        {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]}],\"type\":\"integer\"}", "1", NO},
        {"{\"anyOf\":[{\"properties\":{\"k\":{\"const\":1}}},{\"properties\":{\"k\":{\"const\":2}}}],\"required\":[\"k\"]}",
         "{\"k\":2}", YES},
        {"{\"anyOf\":[{\"properties\":{\"k\":{\"const\":1}}},{\"properties\":{\"k\":{\"const\":2}}}],\"required\":[\"k\"]}",
         "{}", NO},
        {"{\"enum\":[1,\"a\"],\"type\":\"string\"}", "1", NO},
    };
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        char *g = schema_grammar(cases[i].schema);
        if (judge(g, cases[i].text) != cases[i].want) fail_msg("%s on '%s'\n%s", cases[i].schema, cases[i].text, g);
        pl_free(g);
    }
}

static void schemas_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"not\":{}}", "'not'"},
        {"{\"type\":\"string\",\"pattern\":\"(a\"}", "not closed"},
        {"{\"type\":\"string\",\"pattern\":\"a)\"}", "not opened"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "look-around"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "\\1"},
        {"{\"type\":\"string\",\"pattern\":\"a\\\\b\"}", "\\b"},
        {"{\"type\":\"string\",\"pattern\":\"a^b\"}", "beginning"},
        {"{\"type\":\"string\",\"pattern\":\"*a\"}", "repeats nothing"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":3}", "maxLength"},
        {"{\"type\":\"integer\",\"multipleOf\":7}", "multipleOf 7"},
        {"{\"type\":\"integer\",\"multipleOf\":0}", "multipleOf"},
        {"{\"type\":\"number\",\"multipleOf\":0.3}", "multipleOf 0.3"},
        {"{\"type\":\"integer\",\"multipleOf\":5,\"minimum\":0}", "multipleOf 5"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", "'type'"},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "'pattern'"},
        {"{\"allOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}},\"additionalProperties\":false}]}", "'a'"},
        {"{\"allOf\":[3]}", "no object"},
        {"{\"allOf\":[{\"$ref\":\"#\"},{\"type\":\"object\"}]}", "allOf"},
        {"{\"enum\":[\"a\"],\"minLength\":3}", "'minLength' beside 'enum'"},
        {"{\"enum\":[1],\"type\":\"string\"}", "no list"},
        {"{\"type\":\"thing\"}", "'thing'"},
        {"{\"$ref\":\"#/x\"}", "nowhere"},
        {"{\"$ref\":\"http://x\"}", "same document"},
        {"{\"$ref\":\"#\"}", "left"},
        {"{\"anyOf\":[]}", "no list"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "no integer"},
        {"{\"type\":\"number\",\"minimum\":5,\"exclusiveMaximum\":5}", "no number"},
        {"{\"type\":\"array\",\"minItems\":9999}", "4096"},
        {"{\"items\":3}", "no object"},
    };
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        struct pl_buf b = {0};
        struct pl_err err = {0};
        struct pl_grammar *g = NULL;
        json_t *v = json_loads(cases[i][0], 0, NULL);
        pl_buf_add_c(&b, "root ::= answer\n");
        pl_schema_common(&b);
        enum pl_status st = pl_schema_rules(v, "answer", &b, &err);
        if (st == PL_OK) st = pl_grammar_parse(b.data, b.len, &g, &err);
        if (st == PL_OK || strstr(err.text, cases[i][1]) == NULL) fail_msg("%s: %s", cases[i][0], err.text);
        pl_buf_deinit(&b);
        json_decref(v);
    }
}

/* Each of these took minutes where an entry was compared with every other one; the time limit of this program sees it. */
static void large_lists_are_looked_up(void **state) {
    (void)state;
    enum { CLASS = 500000, VALUES = 200000 };
    struct pl_buf b = {0};
    pl_buf_add_c(&b, "root ::= [");
    for (int i = 0; i < 2 * CLASS; i++) pl_buf_add_char(&b, i < CLASS ? 'b' : 'a');
    pl_buf_add_c(&b, "]");
    assert_int_equal(judge(b.data, "a"), YES);
    assert_int_equal(judge(b.data, "c"), NO);
    pl_buf_clear(&b);
    for (int part = 0; part < 2; part++) {
        pl_buf_add_c(&b, part == 0 ? "{\"allOf\":[{\"enum\":[-1" : "]},{\"enum\":[-2");
        for (int i = 0; i < VALUES; i++) pl_buf_printf(&b, ",%d", part * (VALUES - 1) + i); /* one is in both */
    }
    pl_buf_add_c(&b, "]}]}");
    char *g = schema_grammar(b.data);
    assert_int_equal(judge(g, "199999"), YES);
    assert_int_equal(judge(g, "199998"), NO);
    pl_free(g);
    pl_buf_clear(&b);
    for (int i = 0; i < PL_GRAMMAR_TEXT_MAX + 1; i++) pl_buf_add_char(&b, 'a');
    struct pl_err err = {0};
    json_t *v = json_pack("{s:s}", "pattern", b.data), *full = json_pack("{s:[]}", "anyOf");
    struct pl_buf out = {0};
    assert_int_equal(pl_schema_rules(v, "answer", &out, &err), PL_LIMIT);
    assert_true(out.len < 100); /* it was not written out first */
    json_decref(v);
    v = json_pack("{s:s%}", "pattern", b.data, (size_t)PL_GRAMMAR_TEXT_MAX); /* this one is, as far as it may be */
    assert_int_equal(pl_schema_rules(v, "answer", &out, &err), PL_LIMIT);
    assert_non_null(strstr(err.text, "too large"));
    json_decref(v);
    for (int i = 0; i < 20; i++)
        json_array_append_new(json_object_get(full, "anyOf"), json_pack("{s:s%}", "const", b.data, (size_t)100000));
    assert_int_equal(pl_schema_rules(full, "answer", &out, &err), PL_LIMIT);
    assert_non_null(strstr(err.text, "too large"));
    json_decref(full);
    pl_buf_deinit(&out);
    pl_buf_deinit(&b);
}

static void long_texts_stay_small(void **state) {
    (void)state;
    struct pl_grammar *g = NULL;
    struct pl_grammar_run *r = NULL;
    static const char text[] = "root ::= \"(\" root \")\" root | [a-z] root | \"\"";
    assert_int_equal(pl_grammar_parse(text, sizeof text - 1, &g, NULL), PL_OK);
    assert_int_equal(pl_grammar_run_create(g, &r, NULL), PL_OK);
    uint32_t state_now = pl_grammar_start(r), depth = 0, trims = 0;
    for (uint32_t i = 0; i < 60000; i++) { /* deep enough that the store is emptied several times */
        bool open = i % 3 != 2 || depth == 0;
        pl_grammar_run_refill(r);
        depth += open ? 1 : UINT32_MAX;
        assert_int_equal(pl_grammar_step(r, state_now, open ? '(' : ')', &state_now), PL_OK);
        assert_int_not_equal(state_now, PL_GRAMMAR_DEAD);
        trims += pl_grammar_run_trim(r, &state_now);
    }
    assert_true(trims > 0);
    for (; depth > 0; depth--) {
        assert_false(pl_grammar_accepts(r, state_now));
        pl_grammar_run_refill(r);
        assert_int_equal(pl_grammar_step(r, state_now, ')', &state_now), PL_OK);
        (void)pl_grammar_run_trim(r, &state_now);
    }
    assert_true(pl_grammar_accepts(r, state_now));
    assert_int_equal(pl_grammar_step(r, state_now, ')', &state_now), PL_OK);
    assert_int_equal(state_now, PL_GRAMMAR_DEAD);
    pl_grammar_run_destroy(r);
    pl_grammar_destroy(g);
}

/* Every text of a's and b's can be cut into parts in very many ways: work is counted, and ends in an error, not in time. */
static void too_many_ways_are_an_error(void **state) {
    (void)state;
    struct pl_grammar *g = NULL;
    struct pl_grammar_run *r = NULL;
    static const char text[] = "root ::= ([ab]{0,60} \"a\"?){0,60} \"!\"";
    assert_int_equal(pl_grammar_parse(text, sizeof text - 1, &g, NULL), PL_OK);
    assert_int_equal(pl_grammar_run_create(g, &r, NULL), PL_OK);
    uint32_t now = pl_grammar_start(r), i = 0;
    enum pl_status st = PL_OK;
    for (; i < 100000 && st == PL_OK; i++) st = pl_grammar_step(r, now, i % 3 == 0 ? 'a' : 'b', &now);
    assert_int_equal(st, PL_LIMIT);
    assert_true(i < 100000);
    pl_grammar_run_refill(r);
    assert_int_equal(pl_grammar_step(r, now, '!', &now), PL_OK);
    assert_true(pl_grammar_accepts(r, now));
    pl_grammar_run_destroy(r);
    pl_grammar_destroy(g);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char text[] = "root ::= (x | [^a-c]{1,3})+ y*\nx ::= \"abc\" y\ny ::= \"d\"?";
    for (uint64_t n = 1; n < 10000; n++) {
        struct pl_grammar *g = NULL;
        struct pl_grammar_run *r = NULL;
        struct pl_err err = {0};
        uint32_t at = 0;
        pl_mem_fail_at(n);
        enum pl_status st = pl_grammar_parse(text, sizeof text - 1, &g, &err);
        if (st == PL_OK) st = pl_grammar_run_create(g, &r, &err);
        if (st == PL_OK) at = pl_grammar_start(r);
        for (const char *c = "xyabcdd"; st == PL_OK && *c != '\0'; c++) st = pl_grammar_step(r, at, (unsigned char)*c, &at);
        pl_mem_fail_at(0);
        if (st == PL_OK) assert_true(pl_grammar_accepts(r, at));
        pl_grammar_run_destroy(r);
        pl_grammar_destroy(g);
        if (st == PL_OK) return;
        assert_int_equal(st, PL_NO_MEMORY);
    }
    fail();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts),
        cmocka_unit_test(refuses),
        cmocka_unit_test(schemas),
        cmocka_unit_test(schemas_joined),
        cmocka_unit_test(schemas_bare),
        cmocka_unit_test(schemas_refused),
        cmocka_unit_test(deep_groups_end_soon),
        cmocka_unit_test(large_lists_are_looked_up),
        cmocka_unit_test(long_texts_stay_small),
        cmocka_unit_test(too_many_ways_are_an_error),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
