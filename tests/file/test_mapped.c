/* Files that change while they are mapped: what is noticed, and which file an address lies in. */
#include "tests/file/craft.h"

#include <signal.h>

#include "file/mapped.h"

static struct pl_file *open_valid(struct temp *t) {
    struct craft c;
    struct pl_buf b = {0};
    struct pl_file *f = NULL;
    temp_make(t);
    c = craft_new();
    craft_string(&c, "general.architecture", "llama");
    craft_tensor(&c, "q", 64, 3, PL_Q8_0);
    craft_bytes(&c, &b);
    temp_buf(t, "m.gguf", &b);
    assert_int_equal(pl_file_open(temp_path(t, "m.gguf"), &f, NULL), PL_OK);
    return f;
}

static void set_time(const char *path, time_t seconds) {
    const struct timespec times[2] = {{seconds, 0}, {seconds, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void expect_written(const struct pl_file *f, const char *said) {
    struct pl_err err = {0};
    assert_int_equal(pl_file_check_unchanged(f, &err), PL_IO);
    if (strstr(err.text, said) == NULL) fail_msg("'%s' does not say '%s'", err.text, said);
}

static void a_file_that_is_written_to_is_noticed(void **state) {
    (void)state;
    struct temp t;
    struct pl_file *f = open_valid(&t);
    struct stat st;
    assert_int_equal(stat(t.path, &st), 0);
    assert_int_equal(pl_file_check_unchanged(f, NULL), PL_OK);
    assert_int_equal(chmod(t.path, 0400), 0); /* the same bytes still */
    assert_int_equal(pl_file_check_unchanged(f, NULL), PL_OK);
    set_time(t.path, st.st_mtim.tv_sec + 7);
    expect_written(f, "may be of two files");
    const struct timespec as_before[2] = {st.st_mtim, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, t.path, as_before, 0), 0);
    assert_int_equal(pl_file_check_unchanged(f, NULL), PL_OK);
    assert_int_equal(truncate(t.path, st.st_size + 1000000), 0);
    expect_written(f, pl_num((uint64_t)st.st_size + 1000000).s);
    pl_file_close(f);
    temp_drop(&t);
}

static void a_file_that_took_the_name_is_no_change(void **state) {
    (void)state;
    struct temp t;
    struct pl_file *f = open_valid(&t);
    char path[512];
    snprintf(path, sizeof path, "%s", t.path);
    temp_text(&t, "other", "x");
    assert_int_equal(rename(t.path, path), 0);
    assert_int_equal(pl_file_check_unchanged(f, NULL), PL_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(pl_file_check_unchanged(f, NULL), PL_OK);
    pl_file_close(f);
    temp_drop(&t);
}

static void an_address_leads_to_its_file(void **state) {
    (void)state;
    struct temp t;
    struct pl_file *f = open_valid(&t);
    struct pl_mapped_fault m;
    const uint8_t *data = pl_file_tensor_at(f, 0)->data;
    assert_true(pl_mapped_find(data, &m));
    const uint8_t *first = data - m.at;
    const uint64_t size = m.size;
    assert_true(pl_str_ends(pl_str_from(m.label), "/m.gguf") && m.at > 0 && m.now == PL_MAPPED_UNREADABLE);
    assert_int_equal(size, pl_file_bytes(f));
    assert_true(pl_mapped_find(first, &m) && m.at == 0);
    assert_true(pl_mapped_find(first + size - 1, &m) && m.at == size - 1);
    assert_false(pl_mapped_find(first - 1, &m) || pl_mapped_find(first + size, &m));
    assert_false(pl_mapped_find(&t, &m) || pl_mapped_find(NULL, &m));
    assert_int_equal(truncate(t.path, 100), 0);
    assert_true(pl_mapped_find(data, &m) && m.now == PL_MAPPED_SHORTER && m.size_now == 100 && m.size == size);
    pl_file_close(f);
    assert_false(pl_mapped_find(data, &m));
    temp_drop(&t);
}

static void more_files_than_are_noted_are_mapped_all_the_same(void **state) {
    (void)state;
    enum { MANY = 1100 };
    static struct pl_part parts[MANY];
    struct temp t;
    struct pl_mapped_fault m;
    size_t found = 0;
    temp_make(&t);
    temp_text(&t, "small", "content");
    for (size_t i = 0; i < MANY; i++) assert_int_equal(pl_part_map(t.path, &parts[i], NULL), PL_OK);
    for (size_t i = 0; i < MANY; i++) found += pl_mapped_find(parts[i].data, &m);
    assert_int_equal(found, 1024);
    for (size_t i = 0; i < MANY; i++) pl_part_unmap(&parts[i]);
    assert_int_equal(pl_part_map(t.path, &parts[0], NULL), PL_OK); /* places are free again */
    assert_true(pl_mapped_find(parts[0].data, &m));
    pl_part_unmap(&parts[0]);
    temp_drop(&t);
}

static void the_library_leaves_the_signal_alone(void **state) {
    (void)state;
    struct temp t;
    struct sigaction before, after;
    assert_int_equal(sigaction(SIGBUS, NULL, &before), 0);
    struct pl_file *f = open_valid(&t);
    assert_int_equal(sigaction(SIGBUS, NULL, &after), 0);
    assert_true(before.sa_handler == after.sa_handler);
    pl_file_close(f);
    temp_drop(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_is_written_to_is_noticed),
        cmocka_unit_test(a_file_that_took_the_name_is_no_change),
        cmocka_unit_test(an_address_leads_to_its_file),
        cmocka_unit_test(more_files_than_are_noted_are_mapped_all_the_same),
        cmocka_unit_test(the_library_leaves_the_signal_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
