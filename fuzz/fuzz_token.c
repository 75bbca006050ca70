/* Two targets in one, chosen by the first byte: an input as tokenizer.json (then a text through what it makes), or as a text
 * with untrusted spans for fixed vocabularies: ids in range, streaming equals whole, valid UTF-8, special tokens kept out.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "token/token.h"

static struct pl_tokenizer *fixed[11];
static const char *const names[] = {"gpt2",   "cl100k", "o200k",   "falcon",    "fallback",       "metaspace",
                                    "suffix", "split",  "unigram", "wordpiece", "wordpiece_cased"};

static void need(int ok) {
    if (!ok) abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    for (size_t i = 0; i < PL_COUNT_OF(names); i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "tests/golden/token/%s.json", names[i]);
        json_t *j = json_load_file(path, JSON_ALLOW_NUL, NULL);
        need(j != NULL &&
             pl_tokenizer_from_json(json_object_get(j, "tokenizer"), NULL, NULL, NULL, &fixed[i], NULL) == PL_OK);
        json_decref(j);
    }
    return 0;
}

static void stream(const struct pl_tokenizer *t, const struct pl_ids *ids, bool show) {
    struct pl_buf whole = {0}, parts = {0};
    struct pl_decoder d;
    pl_decoder_init(&d, t, show);
    need(pl_tokenizer_decode(t, ids->data, ids->len, show, &whole) == PL_OK);
    for (size_t i = 0; i < ids->len; i++) {
        size_t before = parts.len;
        need(pl_decoder_push(&d, ids->data[i], &parts) == PL_OK);
        need(parts.len == before || pl_utf8_valid(parts.data + before, parts.len - before));
    }
    pl_decoder_flush(&d, &parts);
    need(whole.len == parts.len && memcmp(pl_buf_cstr(&whole), pl_buf_cstr(&parts), whole.len) == 0);
    pl_buf_deinit(&whole);
    pl_buf_deinit(&parts);
}

static void run_text(const struct pl_tokenizer *t, const char *s, size_t len, unsigned flags) {
    struct pl_span span = {len / 4, len - len / 4};
    struct pl_encode_options opt = {.add_special = flags & 1, .parse_special = flags & 2};
    struct pl_ids ids = {0};
    if (flags & 4) {
        opt.untrusted = &span;
        opt.untrusted_count = 1;
    }
    enum pl_status st = pl_tokenizer_encode(t, s, len, &opt, &ids, NULL);
    need(st == PL_OK || ids.len == 0);
    for (size_t i = 0; i < ids.len; i++) {
        need(ids.data[i] < pl_tokenizer_vocab_size(t));
        if (!opt.parse_special && !opt.add_special)
            need(!pl_tokenizer_is_special(t, ids.data[i]) || pl_tokenizer_unk(t) == ids.data[i]);
    }
    if (st == PL_OK) stream(t, &ids, flags & 8);
    pl_ids_deinit(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const char *s = (const char *)data + 2;
    size_t len = size - 2;
    if (data[0] != '{') {
        run_text(fixed[data[0] % PL_COUNT_OF(names)], s, len, data[1]);
        return 0;
    }
    json_t *j = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    struct pl_tokenizer *t = NULL;
    struct pl_err err = {0};
    if (j != NULL && pl_tokenizer_from_json(j, j, j, j, &t, &err) == PL_OK) {
        static const char text[] = " Hello, wor\xff"
                                   "ld ab 123 <s>\n \xE4\xB8\xAD";
        run_text(t, text, sizeof text - 1, 3);
        run_text(t, text, sizeof text - 1, 14);
        pl_tokenizer_destroy(t);
    }
    json_decref(j);
    return 0;
}
