/* The option parser: every accepted form, every refused one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "cmd/args.h"
#include "cmd/cmd.h"

struct values {
    bool flag, on;
    const char *text, *rest[2];
    uint32_t u;
    int32_t i;
    uint64_t big;
    float f;
    size_t rest_count, each_count;
    char each[64];
};

static enum pl_status collect(void *out, const char *value, struct pl_err *err) {
    struct values *v = out;
    if (strcmp(value, "bad") == 0) PL_FAIL(err, PL_USAGE, "bad is bad");
    strncat(v->each, value, sizeof v->each - strlen(v->each) - 1);
    v->each_count++;
    return PL_OK;
}

static int parse(struct values *v, const char *const *words) {
    char *argv[16] = {(char *)"test"};
    int argc = 1;
    *v = (struct values){.on = true};
    for (; words[argc - 1] != NULL; argc++) argv[argc] = (char *)words[argc - 1];
    const struct pl_arg first[] = {
        {'f', "flag", NULL, PL_ARG_FLAG, &v->flag, "", 0, 0, NULL},
        {'o', "off", NULL, PL_ARG_NOFLAG, &v->on, "", 0, 0, NULL},
        {'t', "text", "TEXT", PL_ARG_STR, &v->text, "", 0, 0, NULL},
        {0},
    };
    const struct pl_arg second[] = {
        {'u', "unsigned", "N", PL_ARG_U32, &v->u, "", 0, 0, NULL}, {'i', "int", "N", PL_ARG_I32, &v->i, "", -5, 5, NULL},
        {0, "big", "N", PL_ARG_U64, &v->big, "", 0, 0, NULL},      {0, "real", "X", PL_ARG_F32, &v->f, "", -2, 2, NULL},
        {'e', "each", "V", PL_ARG_EACH, v, "", 0, 0, collect},     {0},
    };
    struct pl_args a = {.command = "test",
                        .synopsis = "",
                        .about = "",
                        .groups = (const struct pl_arg *const[]){first, second, NULL},
                        .positional_max = 2,
                        .positional = v->rest};
    int code = pl_args_parse(&a, argc, argv);
    v->rest_count = a.positional_count;
    return code;
}

#define PARSE(...) parse(&v, (const char *const[]){__VA_ARGS__, NULL})

static void accepted_forms(void **state) {
    (void)state;
    struct values v;
    assert_int_equal(PARSE("--flag", "--off", "--text", "-x", "--unsigned=7", "-i", "-5"), -1);
    assert_true(v.flag && !v.on && v.u == 7 && v.i == -5);
    assert_string_equal(v.text, "-x"); /* a value may begin with a dash */
    assert_int_equal(PARSE("-foths", "-u9", "--text=", "-"), -1);
    assert_true(v.flag && !v.on && v.u == 9 && v.rest_count == 1);
    assert_string_equal(v.text, "");
    assert_int_equal(PARSE("-e", "a", "--each=b", "-ec", "one", "--", "--flag"), -1);
    assert_string_equal(v.each, "abc");
    assert_string_equal(v.rest[1], "--flag");
    assert_false(v.flag);
    assert_int_equal(PARSE("--big", "18446744073709551615", "--real", "-1.5e0", "--unsigned", "4294967295"), -1);
    assert_true(v.big == UINT64_MAX && v.f == -1.5f && v.u == UINT32_MAX);
}

static void refused_forms(void **state) {
    (void)state;
    struct values v;
    const char *const lines[][3] = {
        {"--nonsense"},
        {"--flga"},
        {"-z"},
        {"--flag=1"},
        {"--text"},
        {"-t"},
        {"a", "b", "c"},
        {"--int", "6"},
        {"--int", "-6"},
        {"--int", "1.0"},
        {"--int", ""},
        {"--int", " 1"},
        {"--unsigned=-1"},
        {"-u", "1x"},
        {"--real=nan"},
        {"--real", "inf"},
        {"--real", "2.1"},
        {"--big=-1"},
        {"--big", "1e3"},
        {"--each", "bad"},
        {"--=x"},
        {"---flag"},
        {"-fz"},
        {"--unsigned", "4294967296"},
        {"--big", "18446744073709551616"},
    };
    for (size_t i = 0; i < PL_COUNT_OF(lines); i++) {
        const char *words[4] = {lines[i][0], lines[i][1], lines[i][2], NULL};
        if (parse(&v, words) != PL_EXIT_USAGE) fail_msg("%s %s was accepted", words[0], words[1] != NULL ? words[1] : "");
    }
}

static void suggestions(void **state) {
    (void)state;
    const char *const names[] = {"temp", "top-k", "top-p", "threads", "ignore-eos", "p"};
    assert_string_equal(pl_args_nearest("tmp", names, 6), "temp");
    assert_string_equal(pl_args_nearest("ignore", names, 6), "ignore-eos");
    assert_string_equal(pl_args_nearest("thread", names, 6), "threads");
    assert_null(pl_args_nearest("completely-else", names, 6));
    assert_null(pl_args_nearest("", names, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_forms),
        cmocka_unit_test(refused_forms),
        cmocka_unit_test(suggestions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
