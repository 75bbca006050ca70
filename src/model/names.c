/* Where a checkpoint keeps its tensors: the same weights under the names of each file kind. */
#include <stdio.h>
#include <string.h>

#include "model/arch.h"

/* Text models, multimodal ones of either generation, and bare bodies saved without their head. */
static const char *const hf_prefixes[] = {"model.", "language_model.model.", "model.language_model.",
                                          "model.language_model.model.", ""};

/* The state-space families' own words. */
static const char *const hf_backbones[] = {"backbone.", "model.", ""};

const char *pl_hf_prefix(const struct pl_file *f) {
    char name[128];
    for (size_t i = 0; i < PL_COUNT_OF(hf_prefixes); i++) {
        snprintf(name, sizeof name, "%sembed_tokens.weight", hf_prefixes[i]);
        if (pl_file_tensor(f, name) != NULL) return hf_prefixes[i];
    }
    for (size_t i = 0; i < PL_COUNT_OF(hf_backbones); i++) {
        snprintf(name, sizeof name, "%sembeddings.weight", hf_backbones[i]);
        if (pl_file_tensor(f, name) != NULL) return hf_backbones[i];
    }
    return NULL;
}

/* The head stands beside the body: under the multimodal model's name, or alone. */
static void hf_head_name(const struct pl_file *f, const char *tail, char *buf, size_t cap) {
    snprintf(buf, cap, "language_model.%s", tail);
    if (pl_file_tensor(f, buf) == NULL) snprintf(buf, cap, "%s", tail);
}

bool pl_hf_has_head(const struct pl_file *f) {
    char name[64];
    hf_head_name(f, "lm_head.weight", name, sizeof name);
    return pl_file_tensor(f, name) != NULL;
}

static const struct pl_tensor *hf_embeddings(const struct pl_file *f) {
    const char *prefix = pl_hf_prefix(f);
    char name[128];
    if (prefix == NULL) return NULL;
    snprintf(name, sizeof name, "%sembed_tokens.weight", prefix);
    if (pl_file_tensor(f, name) == NULL) snprintf(name, sizeof name, "%sembeddings.weight", prefix);
    return pl_file_tensor(f, name);
}

bool pl_hf_head_differs(const struct pl_file *f) {
    char head[64];
    hf_head_name(f, "lm_head.weight", head, sizeof head);
    const struct pl_tensor *a = pl_file_tensor(f, head), *b = hf_embeddings(f);
    if (a == NULL || b == NULL || a->dtype != b->dtype || a->ndim != 2 || b->ndim != 2) return false;
    if (a->dtype != PL_F32 && a->dtype != PL_F16 && a->dtype != PL_BF16) return false;
    return a->bytes == b->bytes && a->shape[0] == b->shape[0] && memcmp(a->data, b->data, a->bytes) != 0;
}

bool pl_binding_name(const struct pl_file *f, const struct pl_arch_def *def, const char *prefix, const struct pl_binding *b,
                     bool fused, uint32_t layer, char *buf, size_t cap) {
    bool gguf = pl_file_kind(f) == PL_FILE_GGUF;
    const char *tail = gguf ? (fused ? b->gguf_fused : b->gguf) : fused ? b->hf_fused : b->hf;
    int n = 0;
    if (tail == NULL)
        buf[0] = 0;
    else if (gguf)
        n = b->per_layer ? snprintf(buf, cap, "blk.%u.%s", layer, tail) : snprintf(buf, cap, "%s", tail);
    else if (b->per_layer)
        n = snprintf(buf, cap, "%s%s.%u.%s", prefix, def->hf_layers != NULL ? def->hf_layers : "layers", layer, tail);
    else if (strcmp(tail, "lm_head.weight") == 0)
        hf_head_name(f, tail, buf, cap);
    else
        n = snprintf(buf, cap, "%s%s", prefix, tail);
    return n >= 0 && (size_t)n < cap;
}
