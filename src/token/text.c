#include <string.h>

#include "base/mem.h"
#include "token/internal.h"

void pl_tok_text_clear(struct pl_tok_text *t, bool tracked) {
    t->len = 0;
    t->tracked = tracked;
}

enum pl_status pl_tok_text_add(struct pl_tok_text *t, const char *s, size_t len, unsigned taint) {
    if (t->cap - t->len <= len) PL_TRY(pl_grow(&t->data, &t->cap, t->len + len + 1, 1));
    if (t->tracked) {
        PL_TRY(pl_grow(&t->taint, &t->taint_cap, t->len + len, 1));
        memset(t->taint + t->len, taint != 0, len);
    }
    memcpy(t->data + t->len, s, len);
    t->len += len;
    return PL_OK;
}

void pl_ids_deinit(struct pl_ids *ids) {
    pl_free(ids->data);
    *ids = (struct pl_ids){0};
}

enum pl_status pl_ids_add(struct pl_ids *ids, uint32_t id) {
    if (ids->len == ids->cap) PL_TRY(pl_grow(&ids->data, &ids->cap, ids->len + 1, sizeof *ids->data));
    ids->data[ids->len++] = id;
    return PL_OK;
}
