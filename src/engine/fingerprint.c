/* fingerprint - whether two engines speak of the same tokens and the same conversations. */
#include <inttypes.h>
#include <stdio.h>

#include "base/hash.h"
#include "engine/engine.h"

/* Digits, scripts, blanks, code, an emoji: tokenizers that are not the same hardly agree on all of it. Servers that tell
 * nothing about themselves can still be asked for its ids (docs/verify.md). */
const char pl_fingerprint_probe[] = "The 7th of 12,345 tests:\n\tif (x != 0) { return f(x)[1]; }  naïve Straße, привет мир, "
                                    "你好世界 🙂 don't WE'RE\n\n...";

static uint64_t vocabulary_hash(const struct plumb_engine *e) {
    if (e->tok == NULL) return 0;
    uint32_t n = pl_tokenizer_vocab_size(e->tok);
    uint64_t h = n;
    for (uint32_t id = 0; id < n; id++) {
        struct pl_str piece = {"", 0};
        uint64_t special = pl_tokenizer_is_special(e->tok, id);
        if (pl_tokenizer_piece(e->tok, id, &piece)) h = pl_hash64(piece.data, piece.len, h + special);
        h = pl_hash64(&h, sizeof h, id);
    }
    return h == 0 ? 1 : h;
}

void pl_engine_fingerprint(const struct plumb_engine *e, struct pl_fingerprint *out) {
    struct pl_str text = {"", 0};
    *out = (struct pl_fingerprint){.vocabulary = vocabulary_hash(e)};
    if (pl_file_chat_template(e->file, NULL, &text)) out->chat_template = pl_hash64(text.data, text.len, 0);
}

static uint64_t probe_hash(const struct plumb_engine *e) {
    struct pl_ids ids = {0};
    struct pl_encode_options opt = {0};
    uint64_t h = 0;
    if (e->tok != NULL &&
        pl_tokenizer_encode(e->tok, pl_fingerprint_probe, sizeof pl_fingerprint_probe - 1, &opt, &ids, NULL) == PL_OK)
        h = pl_hash64(ids.data, ids.len * sizeof *ids.data, 0);
    pl_ids_deinit(&ids);
    return h;
}

static json_t *hex(uint64_t h) {
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, h);
    return h == 0 ? json_null() : json_string(text);
}

json_t *pl_engine_fingerprint_json(const struct plumb_engine *e) {
    struct pl_fingerprint f;
    pl_engine_fingerprint(e, &f);
    return json_pack("{s:o, s:o, s:o, s:s}", "vocabulary", hex(f.vocabulary), "chat_template", hex(f.chat_template), "probe",
                     hex(probe_hash(e)), "weights", pl_file_fingerprint(e->file));
}
