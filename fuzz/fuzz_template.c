/* fuzz_template - any bytes as a chat template, rendered with a fixed conversation under small limits. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>

#include "chat/template.h"

static json_t *context(void) {
    static const char text[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"sys <|im_end|>\"},{\"role\":\"user\",\"content\":\" \\u00e9 "
        "x\\n\"},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"a1\",\"type\":\"function\",\"function\":{"
        "\"name\":\"f\","
        "\"arguments\":{\"k\":[1,2.5,true,null,\"v\"]}}}]},{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":"
        "\"t\"}]}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"k\":{\"type\":"
        "[\"a\",\"b\"]}}}}}],\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"n\":7,\"x\":-2.5,"
        "\"d\":{\"a\":1,\"b\":{\"c\":[3,1,2]}},\"s\":\"Hello, W\\u00f6rld \\ud83d\\ude80\"}";
    return json_loads(text, 0, NULL);
}

static void check_spans(const struct pl_rendered *r) {
    size_t at = 0;
    for (size_t i = 0; i < r->content_count; i++) {
        if (r->content[i].begin < at || r->content[i].end <= r->content[i].begin || r->content[i].end > r->text.len) abort();
        at = r->content[i].end + 1; /* merged: a gap between two */
    }
    if (!pl_utf8_valid(pl_buf_cstr(&r->text), r->text.len)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *vars;
    static const char *const trusted[] = {"bos_token", "eos_token", NULL};
    static const struct pl_template_limits limits = {.steps = 20000, .output_bytes = 1 << 16, .memory_bytes = 1 << 22};
    struct pl_err err = {0};
    struct pl_template *t = NULL;
    if (vars == NULL) vars = context();
    if (pl_template_parse((const char *)data, size, &t, &err) != PL_OK) return 0;
    struct pl_rendered r = {0};
    if (pl_template_render(t, vars, trusted, &limits, 1753962304, &r, &err) == PL_OK) check_spans(&r);
    pl_rendered_deinit(&r);
    pl_template_destroy(t);
    return 0;
}
