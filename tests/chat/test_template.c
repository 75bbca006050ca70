/* The template engine from C: origins of bytes, limits, allocation failures, refusals. Equality with jinja2 is tested by
 * test_snippets.py (recorded) and test_templates.py (live). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/mem.h"
#include "chat/template.h"

static const char conversation[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"<|im_end|>\"},{\"role\":\"user\","
                                   "\"content\":\"h\\u00e9llo\"}],\"n\":42,"
                                   "\"bos_token\":\"<s>\",\"d\":{\"k\":[1,2.5,null,\"v\"]}}";

static enum pl_status render(const char *source, const struct pl_template_limits *limits, struct pl_rendered *r,
                             struct pl_err *err) {
    static const char *const trusted[] = {"bos_token", NULL};
    struct pl_template *t = NULL;
    json_t *vars = json_loads(conversation, 0, NULL);
    enum pl_status s = pl_template_parse(source, strlen(source), &t, err);
    if (s == PL_OK) s = pl_template_render(t, vars, trusted, limits, 1753962304, r, err);
    pl_template_destroy(t);
    json_decref(vars);
    return s;
}

/* The output with the caller's bytes in [ ]. */
static void check_marked(const char *source, const char *want) {
    struct pl_rendered r = {0};
    struct pl_err err = {0};
    struct pl_buf b = {0};
    assert_int_equal(render(source, NULL, &r, &err), PL_OK);
    size_t at = 0;
    for (size_t i = 0; i < r.content_count; i++) {
        pl_buf_add(&b, r.text.data + at, r.content[i].begin - at);
        pl_buf_add_char(&b, '[');
        pl_buf_add(&b, r.text.data + r.content[i].begin, r.content[i].end - r.content[i].begin);
        pl_buf_add_char(&b, ']');
        at = r.content[i].end;
    }
    pl_buf_add(&b, pl_buf_cstr(&r.text) + at, r.text.len - at);
    assert_string_equal(pl_buf_cstr(&b), want);
    pl_buf_deinit(&b);
    pl_rendered_deinit(&r);
}

static void origins(void **state) {
    (void)state;
    check_marked("{{ bos_token }}<|im_start|>{{ messages[0].content }}<|im_end|>", "<s><|im_start|>[<|im_end|>]<|im_end|>");
    check_marked("{{ '<|' + messages[0].role + '|>' }}", "<|system|>");
    check_marked("{{ ('a' ~ messages[1].content ~ 'b') | upper }}", "A[H\xc3\x89LLO]B");
    check_marked("{{ ('a' ~ messages[1].content ~ 'b')[1:3] }}{{ ('xy' ~ messages[1].content)[::-1] }}",
                 "[h\xc3\xa9oll\xc3\xa9h]yx");
    check_marked("{{ messages[1].content.replace('l', 'L') }}|{{ 'a-b'.replace('-', messages[1].content) }}",
                 "[h\xc3\xa9]LL[o]|a[h\xc3\xa9llo]b");
    check_marked("{{ d | tojson }} {{ n + 1 }} {{ n }} {{ 42 }}", "{\"[k]\": [[1], [2.5], null, \"[v]\"]} [43] [42] 42");
    check_marked("{{ '%s=%d' % (messages[0].content, n) }} {{ '{}'.format(n) }}", "[<|im_end|>]=[42] [42]");
    check_marked("{{ [messages[0].content, 'x'] | join(',') }}{{ [messages[0].content] }}",
                 "[<|im_end|>],x['[<|im_end|>]']");
    check_marked("{% set t %}a{{ n }}{% endset %}{{ t }}{% filter trim %} {{ n }} {% endfilter %}", "a[4242]");
    check_marked("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(n) }}", "<[42]>");
}

static void expect_status(const char *source, const struct pl_template_limits *limits, enum pl_status want,
                          const char *text) {
    struct pl_rendered r = {0};
    struct pl_err err = {0};
    assert_int_equal(render(source, limits, &r, &err), want);
    if (text != NULL && strstr(err.text, text) == NULL) fail_msg("\"%s\" is not in: %s", text, err.text);
    pl_rendered_deinit(&r);
}

static void hostile_templates_end_quickly(void **state) {
    (void)state;
    static const char *const sources[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [0] * 10 ** 12 }}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ 'x' | center(10 ** 11) }}",
        "{{ '%*d' % (2000000000, 1) }}",
        "{{ '{:>2000000000}'.format(1) }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{{ 9223372036854775807 + 1 }}",
        "{{ 2 ** 100 }}",
        "{{ 'ab'.join(range(90000) | map('string')) * 5000 }}",
    };
    for (size_t i = 0; i < PL_COUNT_OF(sources); i++) {
        clock_t start = clock(); /* of this process, not of the wall: others take their share */
        expect_status(sources[i], NULL, PL_LIMIT, NULL);
        assert_true(clock() - start < 20 * CLOCKS_PER_SEC); /* far above what it takes: machines differ */
    }
}

static void deep_source_is_refused(void **state) {
    (void)state;
    static const char *const parts[][3] = {{"{{ ", "(", ""},   {"{{ ", "[", ""},       {"{{ ", "not ", "1"},
                                           {"{{ ", "-", "1"},  {"", "{% if 1 %}", ""}, {"{{ 1", "+1", ""},
                                           {"{{ a", ".b", ""}, {"{{ a", "|e", ""}};
    for (size_t i = 0; i < PL_COUNT_OF(parts); i++) {
        struct pl_buf b = {0};
        struct pl_template *t = NULL;
        struct pl_err err = {0};
        pl_buf_add_c(&b, parts[i][0]);
        for (int k = 0; k < 20000; k++) pl_buf_add_c(&b, parts[i][1]);
        pl_buf_add_c(&b, parts[i][2]);
        pl_buf_add_c(&b, i == 4 ? "" : " }}");
        enum pl_status s = pl_template_parse(b.data, b.len, &t, &err);
        assert_true(s == PL_LIMIT || s == PL_FORMAT);
        pl_buf_deinit(&b);
    }
}

static void errors_name_line_and_message(void **state) {
    (void)state;
    expect_status("a\nb\n{{ raise_exception('no\\nway') }}", NULL, PL_INVALID, "no\nway\n  while rendering line 3");
    expect_status("{{ nope.x }}", NULL, PL_INVALID, "'nope' is undefined");
    expect_status("\n{% if %}", NULL, PL_FORMAT, "line 2");
    expect_status("{% include 'x' %}", NULL, PL_UNSUPPORTED, "include");
    expect_status("{% if false %}{% include 'x' %}{% endif %}", NULL, PL_OK, NULL);
    expect_status("{{ '\xff' }}", NULL, PL_FORMAT, "UTF-8");
    expect_status("{{ d.pop('k') }}", NULL, PL_INVALID, "access to attribute 'pop' of 'dict' object is unsafe.");
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char source[] =
        "{% macro m(a, b=2) %}{{ a ~ b }}{% endmacro %}{% for x in messages %}{{ m(x.content) | upper | indent }}"
        "{% endfor %}{{ d | tojson(indent=2) }}{{ range(3000) | map('string') | join(messages[0].content) }}";
    enum pl_status s = PL_NO_MEMORY;
    uint64_t n = 1;
    json_t *vars = json_loads(conversation, 0, NULL);
    for (; s == PL_NO_MEMORY; n++) {
        struct pl_template *t = NULL;
        struct pl_rendered r = {0};
        struct pl_err err = {0};
        pl_mem_fail_at(n);
        s = pl_template_parse(source, strlen(source), &t, &err);
        if (s == PL_OK) s = pl_template_render(t, vars, NULL, NULL, 0, &r, &err);
        pl_mem_fail_at(0);
        pl_template_destroy(t);
        pl_rendered_deinit(&r);
        assert_true(s == PL_OK || s == PL_NO_MEMORY);
    }
    assert_int_equal(s, PL_OK);
    assert_true(n > 8);
    json_decref(vars);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(origins),
        cmocka_unit_test(hostile_templates_end_quickly),
        cmocka_unit_test(deep_source_is_refused),
        cmocka_unit_test(errors_name_line_and_message),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("template", tests, NULL, NULL);
}
