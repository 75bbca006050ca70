/* All scales of a file, on all cores. */
#include <stdatomic.h>

#include "base/pool.h"
#include "file/reader.h"
#include "tensor/quant.h"

enum { UNIT_BYTES = 4 << 20 };

struct job {
    const struct pl_file *file;
    _Atomic size_t first_bad; /* lowest index of a bad tensor so far */
};

static void note_bad(struct job *j, size_t tensor) {
    size_t seen = atomic_load(&j->first_bad);
    while (tensor < seen && !atomic_compare_exchange_weak(&j->first_bad, &seen, tensor)) {}
}

/* Every thread takes its share of the rows of every tensor: tensors differ too much in size to be dealt out whole. */
static void check_share(void *arg, int index, int count) {
    struct job *j = arg;
    for (size_t i = 0; i < j->file->tensor_count && i < atomic_load(&j->first_bad); i++) {
        const struct pl_tensor *t = &j->file->tensors[i];
        size_t begin, end;
        int workers = t->bytes < UNIT_BYTES ? 1 : count;
        int mine = workers == 1 ? (index - (int)(i % (size_t)count) + count) % count : index; /* small ones take turns */
        if (mine >= workers) continue;
        pl_pool_share((size_t)pl_tensor_rows(t), 1, mine, workers, &begin, &end);
        if (pl_tensor_check_scales_rows(t, begin, end, NULL) != PL_OK) note_bad(j, i);
    }
}

enum pl_status pl_file_check_scales(const struct pl_file *f, struct pl_pool *pool, struct pl_err *err) {
    struct job j = {.file = f, .first_bad = f->tensor_count};
    if (pool == NULL)
        check_share(&j, 0, 1);
    else
        pl_pool_run(pool, check_share, &j);
    size_t bad = atomic_load(&j.first_bad);
    if (bad == f->tensor_count) return PL_OK;
    enum pl_status status = pl_tensor_check_scales(&f->tensors[bad], err); /* once more, for the message */
    const struct pl_part *part = &f->parts[f->tensor_part[bad]];
    pl_err_note(err, "checking %s, where this tensor begins at byte %s", part->label,
                pl_num((uint64_t)((const uint8_t *)f->tensors[bad].data - part->data)).s);
    return status;
}
