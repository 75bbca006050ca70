#include "file/mapped.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include "file/reader.h"

enum { SLOTS = 1024, TAKEN = 1 }; /* TAKEN: no address of a mapping; being filled */

static struct slot {
    _Atomic uintptr_t from; /* 0: free. Written last, so that who sees it sees the rest */
    _Atomic uint64_t len;
    _Atomic(const char *) path;
    char label[PL_LABEL_BYTES];
} slots[SLOTS];

void pl_mapped_note(const void *data, uint64_t len, const char *path, const char *label) {
    for (size_t i = 0; i < SLOTS; i++) {
        uintptr_t free_slot = 0;
        if (!atomic_compare_exchange_strong(&slots[i].from, &free_slot, TAKEN)) continue;
        atomic_store(&slots[i].len, len);
        atomic_store(&slots[i].path, path);
        strncpy(slots[i].label, label, sizeof slots[i].label - 1);
        atomic_store(&slots[i].from, (uintptr_t)data);
        return;
    }
}

void pl_mapped_forget(const void *data) {
    for (size_t i = 0; i < SLOTS; i++) {
        if (atomic_load(&slots[i].from) == (uintptr_t)data) atomic_store(&slots[i].from, 0);
    }
}

bool pl_mapped_find(const void *address, struct pl_mapped_fault *out) {
    for (size_t i = 0; i < SLOTS; i++) {
        uintptr_t from = atomic_load(&slots[i].from);
        uint64_t len = atomic_load(&slots[i].len);
        if (from <= TAKEN || (uintptr_t)address < from || (uintptr_t)address - from >= len) continue;
        *out = (struct pl_mapped_fault){slots[i].label, (uintptr_t)address - from, len, len, PL_MAPPED_UNREADABLE};
        struct stat st;
        if (stat(atomic_load(&slots[i].path), &st) != 0 || (uint64_t)st.st_size >= len) return true;
        out->size_now = (uint64_t)st.st_size;
        out->now = PL_MAPPED_SHORTER;
        return true;
    }
    return false;
}
