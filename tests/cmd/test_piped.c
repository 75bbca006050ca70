/* Text that was piped beside a question: what counts as one, how long it is waited for, how both are put together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cmd/piped.h"

static void expect_read(int fd, int wait_ms, const char *want) {
    struct pl_buf text = {0};
    struct pl_err err = {0};
    assert_int_equal(pl_piped_read(fd, wait_ms, 1 << 20, &text, &err), PL_OK);
    assert_string_equal(pl_buf_cstr(&text), want);
    pl_buf_deinit(&text);
}

static void a_pipe_is_read_to_its_end(void **state) {
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "one", 3), 3);
    close(fds[1]);
    expect_read(fds[0], 60000, "one");
    expect_read(fds[0], 60000, "");
    close(fds[0]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(write(fds[1], "two", 3), 3);
    close(fds[1]);
    expect_read(fds[0], 60000, "two");
    close(fds[0]);
}

static void a_silent_pipe_is_left_alone(void **state) {
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    expect_read(fds[0], 20, "");
    close(fds[0]);
    close(fds[1]);
}

static void nothing_else_is_read(void **state) {
    (void)state;
    int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    assert_true(zeros >= 0);
    expect_read(zeros, 60000, "");
    close(zeros);
    expect_read(-1, 60000, "");
}

static void more_than_is_read_is_refused(void **state) {
    (void)state;
    int fds[2];
    struct pl_buf text = {0};
    struct pl_err err = {0};
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "12345", 5), 5);
    close(fds[1]);
    assert_int_equal(pl_piped_read(fds[0], 60000, 4, &text, &err), PL_LIMIT);
    assert_non_null(strstr(err.text, "larger"));
    close(fds[0]);
    pl_buf_deinit(&text);
}

static void text_and_question_are_joined(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"text\n", "ask", "text\n\nask"}, {" a\n b\r\n\n", "ask", " a\n b\n\nask"},
        {" \n\t\r\n", "ask", "ask"},      {"", "ask", "ask"},
        {"text\n", "", "text"},           {"\n", "", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pl_buf text = {0};
        struct pl_err err = {0};
        pl_buf_add_c(&text, cases[i][0]);
        assert_int_equal(pl_piped_join(&text, cases[i][1], &err), PL_OK);
        assert_int_equal(text.len, strlen(cases[i][2]));
        assert_memory_equal(pl_buf_cstr(&text), cases[i][2], text.len);
        pl_buf_deinit(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipe_is_read_to_its_end),    cmocka_unit_test(a_silent_pipe_is_left_alone),
        cmocka_unit_test(nothing_else_is_read),         cmocka_unit_test(more_than_is_read_is_refused),
        cmocka_unit_test(text_and_question_are_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
