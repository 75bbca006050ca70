/* fuzz_grammar - any bytes as a grammar or, when they begin with '{', as a JSON schema; what compiles is walked with the
 * input's own bytes. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>

#include "sample/grammar.h"
#include "sample/schema.h"

static void walk(const struct pl_grammar *g, const uint8_t *data, size_t size) {
    struct pl_grammar_run *r = NULL;
    struct pl_err err = {0};
    if (pl_grammar_run_create(g, &r, &err) != PL_OK) return;
    uint32_t state = pl_grammar_start(r), next = 0;
    for (size_t i = 0; i < size; i++) {
        for (int c = 0; c < 256; c += 51)
            if (pl_grammar_step(r, state, (unsigned char)c, &next) != PL_OK) break;
        if (pl_grammar_step(r, state, data[i], &next) != PL_OK) break;
        state = next == PL_GRAMMAR_DEAD ? state : next;
        (void)pl_grammar_run_trim(r, &state);
    }
    pl_grammar_run_destroy(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pl_buf text = {0};
    struct pl_err err = {0};
    struct pl_grammar *g = NULL;
    if (size == 0 || size > 2048) return 0;
    if (data[0] == '{') {
        json_t *schema = json_loadb((const char *)data, size, 0, NULL);
        pl_buf_add_c(&text, "root ::= answer\n");
        pl_schema_common(&text);
        if (schema != NULL && pl_schema_rules(schema, "answer", &text, &err) != PL_OK) pl_buf_clear(&text);
        json_decref(schema);
    } else {
        pl_buf_add(&text, data, size);
    }
    if (pl_grammar_parse(pl_buf_cstr(&text), text.len, &g, &err) == PL_OK) walk(g, data, size);
    pl_grammar_destroy(g);
    pl_buf_deinit(&text);
    return 0;
}
