/* Digests against published vectors and every split of a message; what -m means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmd/digest.h"
#include "cmd/store.h"

static void digest(enum pl_digest_kind kind, const void *data, size_t len, size_t cut, char out[65]) {
    struct pl_digest d;
    pl_digest_init(&d, kind);
    pl_digest_add(&d, data, cut);
    pl_digest_add(&d, (const char *)data + cut, len - cut);
    pl_digest_hex(&d, out);
}

static void published_vectors(void **state) {
    (void)state; /* the examples of FIPS 180 */
    const struct {
        const char *text, *sha256, *sha1;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
         "a9993e364706816aba3e25717850c26c9cd0d89d"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1", "84983e441c3bd26ebaae4aa1f95129e5e54670f1"},
    };
    for (size_t i = 0; i < PL_COUNT_OF(known); i++) {
        char got[65];
        digest(PL_SHA256, known[i].text, strlen(known[i].text), 0, got);
        assert_string_equal(got, known[i].sha256);
        digest(PL_SHA1, known[i].text, strlen(known[i].text), 0, got);
        assert_string_equal(got, known[i].sha1);
    }
}

static void splits_do_not_matter(void **state) {
    (void)state;
    char text[200], whole[65], parts[65];
    memset(text, 'a', sizeof text);
    for (size_t len = 0; len <= sizeof text; len++) {
        digest(PL_SHA256, text, len, 0, whole);
        for (size_t cut = 0; cut <= len; cut++) {
            digest(PL_SHA256, text, len, cut, parts);
            assert_string_equal(parts, whole);
        }
    }
}

static void a_million_letters(void **state) {
    (void)state;
    char *text = malloc(1000000), got[65];
    memset(text, 'a', 1000000);
    digest(PL_SHA256, text, 1000000, 17, got);
    assert_string_equal(got, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    digest(PL_SHA1, text, 1000000, 17, got);
    assert_string_equal(got, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    free(text);
}

static char home[] = "/tmp/plumb-store-XXXXXX";

static int make_home(void **state) {
    (void)state;
    return mkdtemp(home) == NULL || setenv("PLUMB_HOME", home, 1) != 0;
}
static int remove_home(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", home);
    return system(command);
}

static void write_file(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void resolution(void **state) {
    (void)state;
    struct pl_err err = {0};
    char *path = NULL, *dir = NULL;
    assert_int_equal(pl_store_resolve("/dev/null", &path, &err), PL_OK);
    assert_string_equal(path, "/dev/null");
    pl_free(path);
    assert_int_equal(pl_store_resolve("", &path, &err), PL_INVALID);
    assert_int_equal(pl_store_resolve("absent", &path, &err), PL_NOT_FOUND);
    assert_non_null(strstr(err.text, "plumb list"));
    assert_int_equal(pl_store_resolve("gemma3-270m", &path, &err), PL_NOT_FOUND);
    assert_non_null(strstr(err.text, "plumb pull gemma3-270m"));

    char store[64];
    snprintf(store, sizeof store, "%s/models", home);
    mkdir(store, 0755);
    assert_int_equal(pl_store_model_dir("o/r:q8", &dir, &err), PL_OK);
    mkdir(dir, 0755);
    write_file(dir, "m.gguf", "x");
    assert_int_equal(pl_store_resolve("o/r:q8", &path, &err), PL_NOT_FOUND);
    assert_non_null(strstr(err.text, "not finished"));
    write_file(dir, "plumb.json", "{\"name\": \"o/r:q8\", \"source\": \"\", \"main\": \"m.gguf\"}");
    assert_int_equal(pl_store_resolve("hf:o/r:q8", &path, &err), PL_OK);
    assert_non_null(strstr(path, "/o=r@q8/m.gguf"));
    pl_free(path);
    pl_free(dir);
    for (uint64_t n = 1;; n++) { /* every allocation may fail */
        uint64_t before = pl_mem_calls();
        pl_mem_fail_at(n);
        enum pl_status st = pl_store_resolve("o/r:q8", &path, &err);
        pl_mem_fail_at(0);
        if (st == PL_OK) pl_free(path);
        if (pl_mem_calls() - before < n) break;
        assert_true(st == PL_NO_MEMORY || st == PL_OK || st == PL_NOT_FOUND);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors),
        cmocka_unit_test(splits_do_not_matter),
        cmocka_unit_test(a_million_letters),
        cmocka_unit_test_setup_teardown(resolution, make_home, remove_home),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
