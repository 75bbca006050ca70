/* Names that by convention end a turn or the text. */
#include <string.h>

#include "token/internal.h"

static const char *const names[] = {"<|eot_id|>",
                                    "<|im_end|>",
                                    "<|end|>",
                                    "<|return|>",
                                    "<|call|>",
                                    "<|flush|>",
                                    "<|calls|>",
                                    "<end_of_turn>",
                                    "<|endoftext|>",
                                    "</s>",
                                    "<|eom_id|>",
                                    "<EOT>",
                                    "_<EOT>",
                                    "[EOT]",
                                    "[EOS]",
                                    "<|end_of_text|>",
                                    "<end_of_utterance>",
                                    "<eos>",
                                    "<turn|>",
                                    "<|tool_response>",
                                    "<｜end▁of▁sentence｜>",
                                    "[e~["};

bool pl_tok_eog_name(struct pl_str text) {
    for (size_t i = 0; i < PL_COUNT_OF(names); i++)
        if (pl_str_eq_c(text, names[i])) return true;
    return false;
}

void pl_tok_mark_eog_by_name(struct pl_tokenizer *t) {
    for (size_t i = 0; i < PL_COUNT_OF(names); i++) {
        uint32_t id = pl_tok_vocab_find(&t->vocab, names[i], strlen(names[i]));
        if (id < t->real_count) t->attr[id] |= PL_ATTR_EOG | PL_ATTR_SPECIAL;
    }
}
