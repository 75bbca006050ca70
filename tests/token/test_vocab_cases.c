/* llama.cpp's published vocabulary cases, when tools/fetch_vocab_cases.py has fetched them; skipped otherwise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "token/token.h"
#include "tests/skip.h"

static char *slurp(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) return NULL;
    struct pl_buf b = {0};
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) pl_buf_add(&b, part, n);
    (void)fclose(f);
    return b.data;
}

static struct pl_tokenizer *open_vocab(const char *path) {
    struct pl_file *f = NULL;
    struct pl_tokenizer *t = NULL;
    struct pl_err err = {0};
    if (pl_file_open(path, &f, &err) != PL_OK) fail_msg("%s", err.text);
    if (pl_tokenizer_create(f, &t, &err) != PL_OK) fail_msg("%s", err.text);
    pl_file_close(f); /* the tokenizer keeps no view into it */
    return t;
}

static size_t run_cases(const char *gguf) {
    static const char mark[] = "\n__ggml_vocab_test__\n";
    char path[1024];
    (void)snprintf(path, sizeof path, "%s.inp", gguf);
    char *in = slurp(path);
    (void)snprintf(path, sizeof path, "%s.out", gguf);
    char *want = slurp(path), *line = want;
    struct pl_tokenizer *t = open_vocab(gguf);
    size_t cases = 0;
    for (char *text = in; text != NULL && want != NULL; cases++) {
        char *end = strstr(text, mark), *stop = strchr(line, '\n');
        struct pl_ids ids = {0};
        struct pl_encode_options opt = {0};
        size_t n = end == NULL ? strlen(text) : (size_t)(end - text), i = 0;
        assert_int_equal(pl_tokenizer_encode(t, text, n, &opt, &ids, NULL), PL_OK);
        if (stop != NULL) *stop = '\0';
        for (char *next = line;; i++) {
            char *before = next;
            unsigned long id = strtoul(before, &next, 10);
            if (next == before) break;
            if (i >= ids.len || ids.data[i] != id)
                fail_msg("%s: case %zu ('%.*s'): id %zu differs", gguf, cases, (int)n, text, i);
        }
        if (i != ids.len) fail_msg("%s: case %zu: %zu ids, expected %zu", gguf, cases, ids.len, i);
        pl_ids_deinit(&ids);
        text = end == NULL ? NULL : end + sizeof mark - 1;
        line = stop == NULL ? line + strlen(line) : stop + 1;
    }
    pl_tokenizer_destroy(t);
    pl_free(in);
    pl_free(want);
    return cases;
}

static void published(void **state) {
    (void)state;
    const char *chosen = getenv("PLUMB_VOCAB_CASES"), *home = getenv("HOME");
    char pattern[1024];
    if (chosen != NULL)
        (void)snprintf(pattern, sizeof pattern, "%s/ggml-vocab-*.gguf", chosen);
    else
        (void)snprintf(pattern, sizeof pattern, "%s/.cache/plumb/vocab-cases/ggml-vocab-*.gguf", home == NULL ? "" : home);
    glob_t g = {0};
    if (glob(pattern, 0, NULL, &g) != 0) {
        globfree(&g);
        print_message("# no vocabularies at %s: run tools/fetch_vocab_cases.py\n", pattern);
        SKIP("the published cases are not here: tools/fetch_vocab_cases.py fetches them");
    }
    size_t cases = 0;
    for (size_t i = 0; i < g.gl_pathc; i++) cases += run_cases(g.gl_pathv[i]);
    globfree(&g);
    assert_true(cases >= 700);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
