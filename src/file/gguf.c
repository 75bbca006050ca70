/* GGUF: magic, version, counts, metadata, tensor table, then weights at aligned offsets. Little-endian v2 and v3. */
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "file/cursor.h"
#include "file/gguf.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF is read in place and plumb supports little-endian machines only"
#endif
_Static_assert(sizeof(size_t) == 8, "files are mapped whole: 64-bit address spaces only");

enum {
    MIN_VALUE_BYTES = 8 + 1 + 4 + 1,          /* key length, key, type, value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* name length, name, dimensions, one extent, type, offset */
    MAX_NAME_BYTES = 1024,
    MIN_ALIGNMENT = 8,
    DEFAULT_ALIGNMENT = 32,
};

/* What a tensor's table entry says before the start of the weights is known. */
struct pending {
    uint64_t entry_at, offset;
};

struct table {
    struct pl_file *file;
    size_t part;
    uint64_t value_count, tensor_count, alignment;
    struct pending *pending;
    size_t pending_cap;
    size_t first_tensor; /* of this part, in file->tensors */
};

static enum pl_status read_magic(struct pl_cursor *c) {
    const uint8_t *m = NULL;
    PL_TRY(pl_take(c, 4, "magic", &m));
    if (memcmp(m, "FUGG", 4) == 0) {
        PL_FAIL(c->err, PL_UNSUPPORTED, "%s: magic at byte 0 is 'FUGG': a big-endian GGUF; expected a little-endian one",
                c->part->label);
    }
    if (memcmp(m, "GGUF", 4) != 0) {
        PL_FAIL(c->err, PL_FORMAT,
                "%s: magic at byte 0 is %02x %02x %02x %02x; expected 47 47 55 46 ('GGUF'): not a GGUF file", c->part->label,
                m[0], m[1], m[2], m[3]);
    }
    return PL_OK;
}

static enum pl_status check_count(struct pl_cursor *c, uint64_t at, const char *field, uint64_t count, uint64_t min_bytes) {
    uint64_t left = c->part->len - c->at;
    if (count <= left / min_bytes) return PL_OK;
    PL_FAIL(c->err, PL_FORMAT, "%s: %s at byte %s is %s; the %s bytes that follow hold at most %s: truncated or damaged",
            c->part->label, field, pl_num(at).s, pl_num(count).s, pl_num(left).s, pl_num(left / min_bytes).s);
}

static enum pl_status read_header(struct pl_cursor *c, struct table *t) {
    uint32_t version;
    PL_TRY(read_magic(c));
    PL_TRY(pl_take_u32(c, "version", &version));
    if ((version & 0xFFFFu) == 0 && version != 0) {
        PL_FAIL(c->err, PL_UNSUPPORTED,
                "%s: version at byte 4 is %u in little-endian order, %u in big-endian: a big-endian GGUF; expected a "
                "little-endian one",
                c->part->label, version, __builtin_bswap32(version));
    }
    if (version != 2 && version != 3) {
        PL_FAIL(c->err, PL_UNSUPPORTED, "%s: version at byte 4 is %u; expected 2 or 3", c->part->label, version);
    }
    PL_TRY(pl_take_u64(c, "tensor count", &t->tensor_count));
    PL_TRY(pl_take_u64(c, "metadata count", &t->value_count));
    PL_TRY(check_count(c, 8, "tensor count", t->tensor_count, MIN_TENSOR_BYTES));
    return check_count(c, 16, "metadata count", t->value_count, MIN_VALUE_BYTES);
}

static enum pl_status fail_shape(struct pl_cursor *c, uint64_t at, const char *what) {
    PL_FAIL(c->err, PL_FORMAT, "%s: tensor %s: the extents at byte %s %s", c->part->label, pl_shown(c->subject).s,
            pl_num(at).s, what);
}

/* Extents come fastest first in the file; shape[0] is the slowest. */
static enum pl_status read_shape(struct pl_cursor *c, struct pl_tensor *t) {
    uint64_t at = c->at, elems = 1;
    PL_TRY(pl_take_u32(c, "dimension count", &t->ndim));
    if (t->ndim < 1 || t->ndim > PL_MAX_DIMS) {
        PL_FAIL(c->err, PL_FORMAT, "%s: tensor %s: dimension count at byte %s is %u; expected 1 to %d", c->part->label,
                pl_shown(c->subject).s, pl_num(at).s, t->ndim, PL_MAX_DIMS);
    }
    at = c->at;
    for (uint32_t i = 0; i < PL_MAX_DIMS; i++) t->shape[i] = 1;
    for (uint32_t i = 0; i < t->ndim; i++) {
        uint64_t extent;
        PL_TRY(pl_take_u64(c, "extent", &extent));
        if (extent == 0) return fail_shape(c, at, "contain a zero; expected at least 1 each");
        if (!pl_mul_u64(elems, extent, &elems) || elems > INT64_MAX) return fail_shape(c, at, "overflow when multiplied");
        t->shape[t->ndim - 1 - i] = extent;
    }
    return PL_OK;
}

static enum pl_status fail_type(struct pl_cursor *c, uint64_t at, uint32_t type) {
    char readable[400];
    pl_readable_types(true, readable, sizeof readable);
    const char *name = pl_ggml_type_name(type);
    PL_FAIL(c->err, name == NULL ? PL_FORMAT : PL_UNSUPPORTED,
            "%s: tensor %s: type at byte %s is %u (%s); expected one of: %s", c->part->label, pl_shown(c->subject).s,
            pl_num(at).s, type, name == NULL ? "unknown" : name, readable);
}

/* Sizes of ggml's types that have no reader here. */
static const struct unread_type {
    uint32_t type, block_elems, block_bytes;
} unread_types[] = {{9, 32, 36}, {15, 256, 292}, {40, 64, 36}, {41, 128, 18}, {42, 64, 18}};

static const struct unread_type *find_unread(uint32_t type) {
    for (size_t i = 0; i < PL_COUNT_OF(unread_types); i++)
        if (unread_types[i].type == type) return &unread_types[i];
    return NULL;
}

enum { I2_S_TAIL = 32 }; /* bytes behind a tensor's blocks: its scale, and nothing */

/* unread: NULL, or the name of a type without a reader. */
static enum pl_status read_type(struct pl_cursor *c, struct pl_tensor *t, const char **unread) {
    uint64_t at = c->at, row;
    uint32_t type;
    PL_TRY(pl_take_u32(c, "type", &type));
    const struct unread_type *u = find_unread(type);
    if (!pl_dtype_from_ggml(type, &t->dtype) && u == NULL) return fail_type(c, at, type);
    uint64_t cols = pl_tensor_cols(t);
    struct pl_dtype_info own, *d = &own;
    if (u == NULL) {
        own = *pl_dtype_info(t->dtype);
    } else {
        own = (struct pl_dtype_info){pl_ggml_type_name(type), u->block_elems, u->block_bytes, (int)type};
        *unread = own.name;
        t->dtype = PL_U8; /* only until it is set aside */
    }
    if (cols % d->block_elems != 0) {
        PL_FAIL(c->err, PL_FORMAT, "%s: tensor %s: rows have %s elements (type %s at byte %s); expected a multiple of %u",
                c->part->label, pl_shown(c->subject).s, pl_num(cols).s, d->name, pl_num(at).s, d->block_elems);
    }
    if (!pl_mul_u64(cols / d->block_elems, d->block_bytes, &row) || !pl_mul_u64(row, pl_tensor_rows(t), &t->bytes)) {
        return fail_shape(c, at, "give a byte count that overflows");
    }
    if (u == NULL && t->dtype == PL_I2_S && !pl_add_u64(t->bytes, I2_S_TAIL, &t->bytes)) {
        return fail_shape(c, at, "give a byte count that overflows");
    }
    return PL_OK;
}

static enum pl_status read_tensor(struct pl_cursor *c, struct table *t) {
    struct pl_file *f = t->file;
    struct pl_tensor tensor = {0};
    struct pending pending = {.entry_at = c->at};
    c->subject = (struct pl_str){0};
    struct pl_str name;
    PL_TRY(pl_take_name(c, "tensor name", MAX_NAME_BYTES, &name));
    c->subject = name;
    tensor.name = pl_arena_strndup(&f->arena, name.data, name.len);
    size_t index = f->tensor_count - t->first_tensor;
    if (tensor.name == NULL || pl_grow(&t->pending, &t->pending_cap, index + 1, sizeof *t->pending) != PL_OK) {
        return pl_no_memory(c->part, "the tensor table", c->err);
    }
    PL_TRY(read_shape(c, &tensor));
    const char *unread = NULL;
    PL_TRY(read_type(c, &tensor, &unread));
    uint64_t at = c->at;
    PL_TRY(pl_take_u64(c, "offset", &pending.offset));
    if (pending.offset % t->alignment != 0) {
        PL_FAIL(c->err, PL_FORMAT, "%s: tensor %s: offset at byte %s is %s; expected a multiple of the alignment %s",
                c->part->label, pl_shown(name).s, pl_num(at).s, pl_num(pending.offset).s, pl_num(t->alignment).s);
    }
    if (unread != NULL) PL_TRY(pl_file_note_unread(f, &tensor, unread, c->err));
    PL_TRY(pl_file_add_tensor(f, &tensor, t->part, c->err));
    t->pending[index] = pending;
    return PL_OK;
}

/* Turns offsets into pointers once the start of the weights is known. */
static enum pl_status place_tensors(struct pl_cursor *c, struct table *t) {
    struct pl_part *part = &t->file->parts[t->part];
    size_t start;
    part->table_end = c->at;
    if (!pl_align_up(c->at, t->alignment, &start)) start = SIZE_MAX;
    part->data_start = PL_MIN(start, part->len);
    for (size_t i = t->first_tensor; i < t->file->tensor_count; i++) {
        struct pl_tensor *tensor = &t->file->tensors[i];
        const struct pending *p = &t->pending[i - t->first_tensor];
        uint64_t begin, end;
        if (!pl_add_u64(start, p->offset, &begin) || !pl_add_u64(begin, tensor->bytes, &end)) {
            PL_FAIL(c->err, PL_FORMAT, "%s: tensor %s (table entry at byte %s): offset %s plus %s bytes overflows",
                    part->label, PL_SHOWN_C(tensor->name), pl_num(p->entry_at).s, pl_num(p->offset).s,
                    pl_num(tensor->bytes).s);
        }
        if (end > part->len) {
            PL_FAIL(c->err, PL_FORMAT,
                    "%s: tensor %s ends at byte %s but the file has %s: the download is incomplete; run 'plumb pull' again",
                    part->label, PL_SHOWN_C(tensor->name), pl_num(end).s, pl_num(part->len).s);
        }
        tensor->data = part->data + begin;
    }
    return pl_file_check_spans(t->file, t->part, false, c->err);
}

/* A power of two of at least 8, from the values of this part; 32 when not given. */
static enum pl_status read_alignment(struct pl_cursor *c, const struct pl_gguf_values *values, struct table *t) {
    t->alignment = DEFAULT_ALIGNMENT;
    uint32_t i;
    if (!pl_map_get(&values->by_key, "general.alignment", strlen("general.alignment"), &i)) return PL_OK;
    const struct pl_gguf_value *v = &values->at[i];
    uint32_t a = 0;
    if (v->type == PL_GGUF_U32) memcpy(&a, v->data, 4);
    if (v->type != PL_GGUF_U32 || a < MIN_ALIGNMENT || (a & (a - 1)) != 0) {
        PL_FAIL(
            c->err, PL_FORMAT,
            "%s: key general.alignment (key ends at byte %s) is %s of type %s; expected a u32 power of two of at least %d",
            c->part->label, pl_num((uint64_t)((const uint8_t *)v->key.data - c->part->data) + v->key.len).s,
            v->type == PL_GGUF_U32 ? pl_num(a).s : "a value", pl_gguf_type_name(v->type), MIN_ALIGNMENT);
    }
    t->alignment = a;
    return PL_OK;
}

static enum pl_status read_tables(struct pl_cursor *c, struct table *t, struct pl_gguf_values *values) {
    PL_TRY(read_header(c, t));
    c->kind = "key";
    PL_TRY(pl_gguf_values_read(c, t->value_count, &t->file->arena, values));
    PL_TRY(read_alignment(c, values, t));
    c->kind = "tensor";
    for (uint64_t i = 0; i < t->tensor_count; i++) PL_TRY(read_tensor(c, t));
    PL_TRY(place_tensors(c, t));
    return pl_gguf_values_merge(t->file, t->part, values, c->err);
}

enum pl_status pl_gguf_read_part(struct pl_file *f, size_t part, struct pl_err *err) {
    struct pl_cursor c = {.part = &f->parts[part], .kind = "header", .err = err};
    struct table t = {.file = f, .part = part, .first_tensor = f->tensor_count};
    struct pl_gguf_values values = {0};
    pl_map_init(&values.by_key);
    enum pl_status status = read_tables(&c, &t, &values);
    pl_gguf_values_deinit(&values);
    pl_free(t.pending);
    return status;
}

enum pl_status pl_gguf_finish(struct pl_file *f, enum pl_status status, struct pl_file **out, struct pl_err *err) {
    if (status == PL_OK) status = pl_templates_from_gguf(f, err);
    if (status == PL_OK) status = pl_file_finish(f, err);
    if (status != PL_OK) {
        pl_file_close(f);
        return status;
    }
    *out = f;
    return PL_OK;
}

enum pl_status pl_gguf_open_memory(const void *data, size_t len, struct pl_file **out, struct pl_err *err) {
    struct pl_file *f;
    struct pl_part part;
    PL_TRY(pl_file_create(PL_FILE_GGUF, "memory", &f, err));
    enum pl_status status = pl_part_borrow("memory", data, len, &part, err);
    if (status == PL_OK) {
        status = pl_file_add_part(f, &part, err);
        if (status != PL_OK) pl_part_unmap(&part);
    }
    if (status == PL_OK) status = pl_gguf_read_part(f, 0, err);
    if (status == PL_OK) status = pl_gguf_split_check_single(f, err);
    return pl_gguf_finish(f, status, out, err);
}
