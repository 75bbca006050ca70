#include <sys/mman.h>
#include "base/mem.h"
#include "cpu/tile.h"

const struct cpu_tile_format *cpu_tile_format(const struct pl_tensor *t) {
    (void)t;
    return NULL;
}
size_t cpu_tile_bytes(const struct cpu_tile_format *f, size_t in) {
    (void)f;
    (void)in;
    return 0;
}
void cpu_tile_pack(const struct cpu_tile_format *f, const struct pl_tensor *t, size_t tile, unsigned char *dst) {
    (void)f;
    (void)t;
    (void)tile;
    (void)dst;
}

void *cpu_huge_alloc(size_t bytes) {
    const size_t page = (size_t)2 << 20;
    void *p = pl_alloc_aligned(bytes, bytes >= page ? page : 64);
#ifdef MADV_HUGEPAGE
    if (p != NULL && bytes >= page) (void)madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}
