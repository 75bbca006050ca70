/* Where vendors' libraries are looked for: the user's folder, known folders, beside the program, pip's packages; and what is
 * said when one is missing or has no such function. The libraries are made here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/driver.h"
#include "tests/skip.h"

static char top[64];
static int (*answer)(void);
static struct pl_err err;
static const char *const names[] = {"libplumbtest.so.9", "libplumbtest.so", NULL};

/* A library whose answer() is n, at top/where. */
static bool make(const char *where, int n) {
    char command[1000];
    snprintf(command, sizeof command,
             "mkdir -p $(dirname '%s/%s') && echo 'int answer(void) { return %d; }' > '%s/a.c' && "
             "${CC:-cc} -shared -fPIC -o '%s/%s' '%s/a.c'",
             top, where, n, top, top, where, top);
    return system(command) == 0;
}

static int setup(void **state) {
    (void)state;
    snprintf(top, sizeof top, "/tmp/plumb-library-XXXXXX");
    err = (struct pl_err){0};
    answer = NULL;
    unsetenv("PLUMB_TEST_LIBRARY");
    unsetenv("VIRTUAL_ENV");
    return mkdtemp(top) == NULL || setenv("HOME", top, 1) != 0;
}
static int teardown(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", top);
    return system(command);
}

static enum pl_status open_it(const char *symbol, const char *folder) {
    const char *const folders[] = {folder, NULL};
    struct pl_library lib = {.what = "the test library",
                             .help = "install libplumbtest",
                             .names = names,
                             .folders = folder != NULL ? folders : NULL,
                             .env = "PLUMB_TEST_LIBRARY",
                             .pip = "vendor/*"};
    struct pl_library_symbol symbols[] = {{symbol, (void **)(void *)&answer, false}};
    void *handle = NULL;
    return pl_library_open(&lib, symbols, 1, &handle, &err);
}

static void missing_names_it_and_the_help(void **state) {
    (void)state;
    assert_int_equal(open_it("answer", NULL), PL_NOT_FOUND);
    assert_non_null(strstr(err.text, "the test library (libplumbtest.so.9) was not found: install libplumbtest"));
}

static void the_users_folder_comes_first(void **state) {
    (void)state;
    char user[128], known[128];
    if (!make("user/lib64/libplumbtest.so.9", 1) || !make("known/lib/libplumbtest.so.9", 2))
        SKIP("no compiler or no place for a library of its own here");
    snprintf(user, sizeof user, "%s/user", top);
    snprintf(known, sizeof known, "%s/kno*", top); /* patterns are allowed */
    assert_int_equal(open_it("answer", known), PL_OK);
    assert_int_equal(answer(), 2);
    setenv("PLUMB_TEST_LIBRARY", user, 1);
    assert_int_equal(open_it("answer", known), PL_OK);
    assert_int_equal(answer(), 1);
}

static void pip_packages(void **state) {
    (void)state;
    char venv[128];
    if (!make(".local/lib/python3.99/site-packages/vendor/rtc/lib/libplumbtest.so", 3))
        SKIP("no compiler or no place for a library of its own here");
    assert_int_equal(open_it("answer", NULL), PL_OK);
    assert_int_equal(answer(), 3);
    if (!make("venv/lib/python3.99/site-packages/vendor/rtc/lib/libplumbtest.so.9", 4))
        SKIP("no compiler or no place for a library of its own here");
    snprintf(venv, sizeof venv, "%s/venv", top);
    setenv("VIRTUAL_ENV", venv, 1);
    assert_int_equal(open_it("answer", NULL), PL_OK);
    assert_int_equal(answer(), 4);
}

static void beside_the_program(void **state) {
    (void)state;
    char self[PATH_MAX], beside[PATH_MAX + 40], command[2 * PATH_MAX + 100];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    *strrchr(self, '/') = 0;
    if (!make("libplumbtest.so.9", 5)) SKIP("no compiler or no place for a library of its own here");
    snprintf(beside, sizeof beside, "%s/libplumbtest.so.9", self);
    snprintf(command, sizeof command, "cp '%s/libplumbtest.so.9' '%s'", top, beside);
    if (system(command) != 0) SKIP("no compiler or no place for a library of its own here");
    enum pl_status st = open_it("answer", NULL);
    unlink(beside);
    assert_int_equal(st, PL_OK);
    assert_int_equal(answer(), 5);
}

static void a_function_that_is_missing(void **state) {
    (void)state;
    if (!make("known/libplumbtest.so.9", 6)) SKIP("no compiler or no place for a library of its own here");
    char known[128];
    snprintf(known, sizeof known, "%s/known", top);
    assert_int_equal(open_it("question", known), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "has no function question: it is too old"));
}

int main(void) {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {CASE(missing_names_it_and_the_help), CASE(the_users_folder_comes_first),
                                       CASE(pip_packages), CASE(beside_the_program), CASE(a_function_that_is_missing)};
    return cmocka_run_group_tests_name("libraries", tests, NULL, NULL);
}
