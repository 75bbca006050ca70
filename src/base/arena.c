#include "base/arena.h"

#include <stdalign.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

struct pl_arena_block {
    struct pl_arena_block *next;
    size_t size, used;
    alignas(16) unsigned char data[];
};

enum { FIRST_BLOCK = 4096 };

void pl_arena_init(struct pl_arena *a, size_t limit_bytes) { *a = (struct pl_arena){.limit_bytes = limit_bytes}; }

static void free_chain(struct pl_arena_block *b) {
    while (b != NULL) {
        struct pl_arena_block *next = b->next;
        pl_free(b);
        b = next;
    }
}

void pl_arena_deinit(struct pl_arena *a) {
    free_chain(a->head);
    a->head = NULL;
    a->used_bytes = 0;
}

void pl_arena_reset(struct pl_arena *a) {
    a->used_bytes = 0;
    if (a->head == NULL) return;
    free_chain(a->head->next); /* the head is the newest and largest block */
    a->head->next = NULL;
    a->head->used = 0;
}

static struct pl_arena_block *add_block(struct pl_arena *a, size_t need) {
    size_t size = a->head == NULL ? FIRST_BLOCK : a->head->size;
    if (!pl_mul_size(size, a->head == NULL ? 1 : 2, &size)) return NULL;
    if (size < need) size = need;
    size_t bytes;
    if (!pl_add_size(size, sizeof(struct pl_arena_block), &bytes)) return NULL;
    struct pl_arena_block *b = pl_alloc(bytes, 1);
    if (b == NULL) return NULL;
    b->next = a->head;
    b->size = size;
    b->used = 0;
    a->head = b;
    return b;
}

void *pl_arena_alloc(struct pl_arena *a, size_t count, size_t size) {
    size_t bytes, total;
    if (!pl_mul_size(count, size, &bytes) || !pl_align_up(bytes == 0 ? 1 : bytes, 16, &bytes)) return NULL;
    if (!pl_add_size(a->used_bytes, bytes, &total)) return NULL;
    if (a->limit_bytes != 0 && total > a->limit_bytes) return NULL;
    struct pl_arena_block *b = a->head;
    if (b == NULL || b->size - b->used < bytes) b = add_block(a, bytes);
    if (b == NULL) return NULL;
    void *p = b->data + b->used;
    b->used += bytes;
    a->used_bytes = total;
    return p;
}

void *pl_arena_calloc(struct pl_arena *a, size_t count, size_t size) {
    void *p = pl_arena_alloc(a, count, size);
    if (p != NULL) memset(p, 0, count * size);
    return p;
}

char *pl_arena_strndup(struct pl_arena *a, const char *s, size_t len) {
    size_t bytes;
    if (!pl_add_size(len, 1, &bytes)) return NULL;
    char *copy = pl_arena_alloc(a, bytes, 1);
    if (copy == NULL) return NULL;
    if (len > 0) memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}
