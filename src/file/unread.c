/* unread - tensors whose type plumb knows by name and size only. They are checked with the others, then set aside. */
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "file/reader.h"

enum pl_status pl_file_note_unread(struct pl_file *f, const struct pl_tensor *t, const char *dtype, struct pl_err *err) {
    size_t need = f->unread_count + 1;
    if (pl_grow(&f->unread, &f->unread_cap, need, sizeof *f->unread) != PL_OK ||
        pl_grow(&f->unread_index, &f->unread_index_cap, need, sizeof *f->unread_index) != PL_OK)
        PL_FAIL(err, PL_NO_MEMORY, "%s: no memory for the tensor table", PL_SHOWN_C(f->path));
    struct pl_unread_tensor *u = &f->unread[f->unread_count];
    *u = (struct pl_unread_tensor){.name = t->name, .dtype = dtype, .ndim = t->ndim, .bytes = t->bytes};
    memcpy(u->shape, t->shape, sizeof u->shape);
    f->unread_index[f->unread_count++] = (uint32_t)f->tensor_count;
    return PL_OK;
}

enum pl_status pl_file_drop_tensors(struct pl_file *f, const bool *drop, struct pl_err *err) {
    size_t n = 0;
    pl_map_deinit(&f->tensor_by_name);
    for (size_t i = 0; i < f->tensor_count; i++) {
        if (drop[i]) continue;
        f->tensors[n] = f->tensors[i];
        f->tensor_part[n] = f->tensor_part[i];
        if (pl_map_put(&f->tensor_by_name, f->tensors[n].name, strlen(f->tensors[n].name), (uint32_t)n, NULL) != PL_OK) {
            PL_FAIL(err, PL_NO_MEMORY, "%s: no memory for the tensor table", PL_SHOWN_C(f->path));
        }
        n++;
    }
    f->tensor_count = n;
    return PL_OK;
}

enum pl_status pl_file_set_aside(struct pl_file *f, struct pl_err *err) {
    if (f->set_aside == f->unread_count) return PL_OK;
    bool *drop = pl_arena_calloc(&f->arena, f->tensor_count, sizeof *drop);
    if (drop == NULL) PL_FAIL(err, PL_NO_MEMORY, "%s: no memory for the tensor table", PL_SHOWN_C(f->path));
    for (size_t i = f->set_aside; i < f->unread_count; i++) drop[f->unread_index[i]] = true;
    f->set_aside = f->unread_count;
    return pl_file_drop_tensors(f, drop, err);
}

size_t pl_file_unread_count(const struct pl_file *f) { return f->unread_count; }
const struct pl_unread_tensor *pl_file_unread_at(const struct pl_file *f, size_t i) {
    return i < f->unread_count ? &f->unread[i] : NULL;
}

enum pl_status pl_file_check_readable(const struct pl_file *f, struct pl_err *err) {
    char readable[400] = "F32, F16, BF16, or MLX affine quantisation";
    if (f->refusal.status != PL_OK) {
        if (err != NULL) *err = f->refusal;
        return f->refusal.status;
    }
    if (f->unread_count == 0) return PL_OK;
    if (f->kind == PL_FILE_GGUF) pl_readable_types(true, readable, sizeof readable);
    PL_FAIL(
        err, PL_UNSUPPORTED,
        "%s: tensor %s is of type %s (%s of %s tensors have a type like it), which plumb cannot compute with; readable are "
        "%s: take another quantisation of this model ('plumb inspect' shows this one)",
        PL_SHOWN_C(f->path), PL_SHOWN_C(f->unread[0].name), f->unread[0].dtype, pl_num(f->unread_count).s,
        pl_num(f->unread_count + f->tensor_count).s, readable);
}
