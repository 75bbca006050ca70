/* GGUF files in parts: NAME-00001-of-0000N.gguf. Any part may be named; all must be there and belong together. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "file/gguf.h"

struct split_name {
    size_t prefix_len; /* of the path, before "-00001-of-..." */
    uint32_t number, count;
};

static bool five_digits(const char *s, uint32_t *out) {
    uint32_t v = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        v = v * 10 + (uint32_t)(s[i] - '0');
    }
    *out = v;
    return true;
}

/* True when the path ends in -DDDDD-of-DDDDD.gguf. */
static bool parse_name(const char *path, struct split_name *out) {
    static const char shape[] = "-00000-of-00000.gguf";
    size_t len = strlen(path), tail = sizeof shape - 1;
    if (len <= tail) return false;
    const char *s = path + len - tail;
    if (s[0] != '-' || memcmp(s + 6, "-of-", 4) != 0 || memcmp(s + 15, ".gguf", 5) != 0) return false;
    out->prefix_len = len - tail;
    return five_digits(s + 1, &out->number) && five_digits(s + 10, &out->count);
}

enum pl_status pl_gguf_split_check_single(const struct pl_file *f, struct pl_err *err) {
    uint64_t count = 1, number = 0;
    enum pl_status status = pl_gguf_u64(f, "split.count", &count, err);
    if (status == PL_OK) status = pl_gguf_u64(f, "split.no", &number, err);
    if (status != PL_OK && status != PL_NOT_FOUND) return status;
    if (count <= 1) return PL_OK;
    PL_FAIL(err, PL_FORMAT,
            "%s: metadata says part %s of %s (split.no, split.count) but the name does not; expected a name that ends in "
            "-%05u-of-%05u.gguf beside its other parts",
            f->parts[0].label, pl_num(number + 1).s, pl_num(count).s, (unsigned)(number + 1), (unsigned)count);
}

static enum pl_status open_part(struct pl_file *f, const char *path, struct pl_err *err) {
    struct pl_part part;
    PL_TRY(pl_part_map(path, &part, err));
    enum pl_status status = pl_file_add_part(f, &part, err);
    if (status != PL_OK) {
        pl_part_unmap(&part);
        return status;
    }
    return pl_gguf_read_part(f, f->part_count - 1, err);
}

static enum pl_status check_part(const struct pl_file *f, uint32_t number, uint32_t count, struct pl_err *err) {
    const struct pl_part *p = &f->parts[f->part_count - 1];
    if (p->split_count != count || p->split_number != number) {
        PL_FAIL(err, PL_FORMAT, "%s: split.no is %s and split.count %s; expected %u and %u, as the name says: mixed parts",
                p->label, p->split_count == 0 ? "absent" : pl_num(p->split_number).s,
                p->split_count == 0 ? "absent" : pl_num(p->split_count).s, number, count);
    }
    return PL_OK;
}

static enum pl_status open_all(struct pl_file *f, const char *path, const struct split_name *name, struct pl_err *err) {
    struct pl_buf buf = {0};
    enum pl_status status = PL_OK;
    for (uint32_t i = 0; i < name->count && status == PL_OK; i++) {
        pl_buf_clear(&buf);
        pl_buf_add(&buf, path, name->prefix_len);
        pl_buf_printf(&buf, "-%05u-of-%05u.gguf", i + 1, name->count);
        if (!pl_buf_ok(&buf)) {
            status = pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "%s: no memory for a path", PL_SHOWN_C(path));
            break;
        }
        status = open_part(f, pl_buf_cstr(&buf), err);
        if (status == PL_OK) status = check_part(f, i, name->count, err);
        if (status != PL_OK)
            pl_err_note(err, "reading part %u of %u; all parts must be in one directory", i + 1, name->count);
    }
    pl_buf_deinit(&buf);
    return status;
}

static enum pl_status check_total(const struct pl_file *f, struct pl_err *err) {
    uint64_t total;
    enum pl_status status = pl_gguf_u64(f, "split.tensors.count", &total, err);
    if (status == PL_NOT_FOUND) return PL_OK;
    if (status != PL_OK) return status;
    if (total == f->tensor_count) return PL_OK;
    PL_FAIL(err, PL_FORMAT, "%s: split.tensors.count is %s but the %s parts hold %s tensors; expected parts of one model",
            f->parts[0].label, pl_num(total).s, pl_num(f->part_count).s, pl_num(f->tensor_count).s);
}

static enum pl_status open_any(struct pl_file *f, const char *path, struct pl_err *err) {
    struct split_name name;
    if (!parse_name(path, &name) || name.count == 1) {
        PL_TRY(open_part(f, path, err));
        return pl_gguf_split_check_single(f, err);
    }
    if (name.count == 0 || name.number == 0 || name.number > name.count) {
        PL_FAIL(err, PL_INVALID, "%s: the name says part %u of %u; expected 1 to %u", PL_SHOWN_C(path), name.number,
                name.count, name.count);
    }
    PL_TRY(open_all(f, path, &name, err));
    return check_total(f, err);
}

enum pl_status pl_gguf_open(const char *path, struct pl_file **out, struct pl_err *err) {
    struct pl_file *f;
    PL_TRY(pl_file_create(PL_FILE_GGUF, path, &f, err));
    return pl_gguf_finish(f, open_any(f, path, err), out, err);
}
