/* The hand-written scanners give exactly the matches that PCRE2 finds with the patterns they stand for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "token/pretypes.h"
#include "token/split.h"
#include "token/unicode.h"

static const char *const bits[] = {" ",
                                   "  ",
                                   "\t",
                                   "\n",
                                   "\r\n",
                                   "'",
                                   "'s",
                                   "'S",
                                   "'Re",
                                   "'lL",
                                   "a",
                                   "Zebra",
                                   "1",
                                   "12",
                                   "1234567",
                                   "\xC2\xA0",
                                   "\xE3\x80\x80",
                                   "\xC2\x85",
                                   "\xE2\x80\xA8",
                                   "\xE1\xA0\x8E",
                                   "é",
                                   "Ж",
                                   "中文",
                                   "한",
                                   "٣",
                                   "½",
                                   "Ⅷ",
                                   "\xCC\x81",
                                   "\xE0\xA4\xBF",
                                   "\xF0\x9F\x98\x80",
                                   "!",
                                   "?!",
                                   "_",
                                   "\x01",
                                   "\xE2\x80\x8D",
                                   "\xC5\xBF",
                                   "'\xC5\xBF",
                                   "'v",
                                   "r",
                                   "ǅ",
                                   "\xF3\xA0\x80\x81",
                                   "\xEE\x80\x80"};

static uint8_t disputed[0x110000]; /* code points whose class the two libraries see differently: other editions of Unicode */

static size_t fill(uint32_t seed, char *out, size_t cap) {
    size_t n = 0;
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t counter[4] = {seed, i, 0, 0}, key[2] = {7, 9};
        struct pl_philox r = pl_philox4x32(counter, key);
        char any[4];
        const char *s = bits[r.v[0] % PL_COUNT_OF(bits)];
        size_t len = strlen(s);
        if (r.v[1] % 5 == 0) { /* any code point at all */
            uint32_t cp = r.v[2] % 0x110000;
            if ((cp >= 0xD800 && cp < 0xE000) || disputed[cp]) cp = 'x';
            s = any;
            len = pl_uc_encode(cp, any);
        }
        if (n + len > cap || r.v[3] % 24 == 0) break;
        memcpy(out + n, s, len);
        n += len;
    }
    return n;
}

static void compare(enum pl_scan scan, const struct pl_regex *re, struct pl_regex_scratch *scratch, const char *s,
                    size_t len, uint32_t seed) {
    for (size_t i = 0; i <= len;) {
        size_t b = i, e = i, rb = 0, re_end = 0;
        bool found = pl_scan_next(scan, false, s, len, &b, &e);
        enum pl_status st = pl_regex_find(re, scratch, s, len, i, &rb, &re_end, NULL);
        if (found != (st == PL_OK) || (found && (b != rb || e != re_end)))
            fail_msg("%s: seed %u, from byte %zu: scanner [%zu,%zu) %d, PCRE2 [%zu,%zu) %d", pl_scan_pattern(scan), seed, i,
                     b, e, found, rb, re_end, st);
        if (!found) return;
        i = e > b ? e : e < len ? e + pl_uc_lead_len((unsigned char)s[e], len - e) : len + 1;
    }
}

static void scanners(void **state) {
    (void)state;
    pl_uc_init();
    struct pl_regex_scratch scratch = {0};
    for (int k = 0; k < PL_SCAN_NONE; k++) {
        struct pl_regex *re = NULL;
        struct pl_err err = {0};
        const char *pattern = pl_scan_pattern((enum pl_scan)k);
        assert_non_null(pattern);
        assert_int_equal(pl_scan_for_pattern(pl_str_from(pattern)), k);
        if (pl_regex_create(pl_str_from(pattern), &re, &err) != PL_OK) fail_msg("%s", err.text);
        for (uint32_t seed = 0; seed < 20000; seed++) {
            char text[512];
            size_t n = fill(seed, text, sizeof text);
            compare((enum pl_scan)k, re, &scratch, text, n, seed);
        }
        pl_regex_destroy(re);
    }
    pl_regex_scratch_deinit(&scratch);
}

static void classes(void **state) {
    (void)state;
    static const struct {
        const char *pattern;
        unsigned flags;
    } pairs[] = {{"\\p{L}", PL_UC_LETTER}, {"\\p{N}", PL_UC_NUMBER}, {"\\p{M}", PL_UC_MARK},
                 {"\\p{P}", PL_UC_PUNCT},  {"\\s", PL_UC_SPACE},     {"\\d", PL_UC_DIGIT}};
    struct pl_regex_scratch scratch = {0};
    pl_uc_init();
    for (size_t k = 0; k < PL_COUNT_OF(pairs); k++) {
        struct pl_regex *re = NULL;
        size_t differ = 0, b, e;
        assert_int_equal(pl_regex_create(pl_str_from(pairs[k].pattern), &re, NULL), PL_OK);
        for (uint32_t cp = 0; cp < 0x110000; cp++) {
            char s[4];
            if (cp >= 0xD800 && cp < 0xE000) continue;
            size_t n = pl_uc_encode(cp, s);
            bool other =
                (pl_regex_find(re, &scratch, s, n, 0, &b, &e, NULL) == PL_OK) != ((pl_uc_flags(cp) & pairs[k].flags) != 0);
            differ += other;
            disputed[cp] |= other;
        }
        /* the two libraries may know different editions of Unicode, but only a little */
        if (differ > (k < 4 ? 8000u : 120u)) fail_msg("%s: %zu code points differ", pairs[k].pattern, differ);
        pl_regex_destroy(re);
    }
    pl_regex_scratch_deinit(&scratch);
}

/* Every pattern in the table of GGUF pre-types compiles; an unknown name is not found. */
static void pretypes(void **state) {
    (void)state;
    struct pl_buf list = {0};
    pl_pretype_list(&list);
    assert_null(pl_pretype_find(PL_STR("no-such-type")));
    assert_null(pl_pretype_find(PL_STR("")));
    size_t count = 0;
    char *save = NULL;
    for (char *name = strtok_r(list.data, ", ", &save); name != NULL; name = strtok_r(NULL, ", ", &save), count++) {
        const struct pl_pretype *p = pl_pretype_find(pl_str_from(name));
        assert_non_null(p);
        for (size_t i = 0; i < PL_COUNT_OF(p->patterns) && p->patterns[i] != NULL; i++) {
            struct pl_regex *re = NULL;
            struct pl_err err = {0};
            if (pl_regex_create(pl_str_from(p->patterns[i]), &re, &err) != PL_OK) fail_msg("%s: %s", name, err.text);
            pl_regex_destroy(re);
        }
    }
    assert_true(count > 60);
    pl_buf_deinit(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(classes), cmocka_unit_test(scanners), cmocka_unit_test(pretypes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
