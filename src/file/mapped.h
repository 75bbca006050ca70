/* mapped - which mapped file an address lies in, and what became of that file: for a handler of SIGBUS, which is how the
 * kernel says that a page of a mapped file cannot be read any more.
 *
 * The library installs no handler: a program that wants a sentence instead of a crash does (cmd/lost_page.c). Files are
 * noted from pl_part_map to pl_part_unmap, 1024 at a time; one more is used like the others and never found.
 * pl_mapped_find takes no lock and no memory and may be called in a signal handler of any thread. */
#ifndef PL_FILE_MAPPED_H
#define PL_FILE_MAPPED_H

#include <stdbool.h>
#include <stdint.h>

enum pl_mapped_now { PL_MAPPED_SHORTER, PL_MAPPED_UNREADABLE }; /* the latter: its length is as it was */
struct pl_mapped_fault {
    const char *label; /* the path or its end, fit for messages; lives as long as the mapping */
    uint64_t at;       /* the byte that was wanted */
    uint64_t size, size_now;
    enum pl_mapped_now now;
};
bool pl_mapped_find(const void *address, struct pl_mapped_fault *out);

/* --- for io.c --- */
/* path stays the caller's and is read until pl_mapped_forget. */
void pl_mapped_note(const void *data, uint64_t len, const char *path, const char *label);
void pl_mapped_forget(const void *data);

#endif
