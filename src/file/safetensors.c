/* safetensors: u64 header length, a JSON object {name: {dtype, shape, data_offsets}}, then the tensors back to back. */
#include <string.h>

#include "base/check.h"
#include "file/cursor.h"

enum { MAX_HEADER_BYTES = 100000000, MAX_NAME_BYTES = 1024, EXTENTS_MAX = 8 }; /* the format's own limit; ours */

static const struct {
    const char *name;
    enum pl_dtype dtype;
} type_names[] = {
    {"F32", PL_F32}, {"F16", PL_F16}, {"BF16", PL_BF16}, {"I8", PL_I8},   {"U8", PL_U8},
    {"I16", PL_I16}, {"I32", PL_I32}, {"U32", PL_U32},   {"I64", PL_I64}, {"F64", PL_F64},
};

/* Types of the format that have no reader here. */
static const struct {
    const char *name;
    uint32_t bits;
} unread_names[] = {
    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"BOOL", 8},
    {"U16", 16},    {"U64", 64},    {"C64", 64},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6},
};

/* One entry while it is checked. */
struct entry {
    const struct pl_part *part;
    const char *name;
    const json_t *json;
    struct pl_err *err;
};

static enum pl_status fail_field(const struct entry *e, const char *field, const char *found, const char *expected) {
    PL_FAIL(e->err, PL_FORMAT, "%s: tensor %s (header at byte 8): %s %s; expected %s", e->part->label, PL_SHOWN_C(e->name),
            field, found, expected);
}

/* unread: NULL, or the name of a type without a reader. */
static enum pl_status read_dtype(const struct entry *e, enum pl_dtype *out, uint32_t *bits, const char **unread) {
    const json_t *dtype = json_object_get(e->json, "dtype");
    if (!json_is_string(dtype)) return fail_field(e, "dtype", "is missing or not a string", "a string");
    struct pl_str name = {json_string_value(dtype), json_string_length(dtype)};
    for (size_t i = 0; i < PL_COUNT_OF(type_names); i++) {
        if (!pl_str_eq_c(name, type_names[i].name)) continue;
        *out = type_names[i].dtype;
        *bits = pl_dtype_info(*out)->block_bytes * 8;
        return PL_OK;
    }
    for (size_t i = 0; i < PL_COUNT_OF(unread_names); i++) {
        if (!pl_str_eq_c(name, unread_names[i].name)) continue;
        *out = PL_U8; /* only until it is set aside */
        *bits = unread_names[i].bits;
        *unread = unread_names[i].name;
        return PL_OK;
    }
    PL_FAIL(e->err, PL_UNSUPPORTED,
            "%s: tensor %s (header at byte 8): dtype is %s; expected one of F32, F16, BF16, I8, U8, I16, I32, U32, I64, F64",
            e->part->label, PL_SHOWN_C(e->name), pl_shown(name).s);
}

/* Of more than PL_MAX_DIMS extents (convolutions over time in vision parts) the first ones become one: no model here
 * computes with such a tensor, and what kind of model it belongs to is the better thing to say. */
static enum pl_status read_shape(const struct entry *e, uint32_t bits, struct pl_tensor *t) {
    const json_t *shape = json_object_get(e->json, "shape");
    uint64_t elems = 1;
    if (!json_is_array(shape)) return fail_field(e, "shape", "is missing or not an array", "an array of extents");
    if (json_array_size(shape) > EXTENTS_MAX) return fail_field(e, "shape", "has too many dimensions", "at most 8");
    uint32_t extents = (uint32_t)json_array_size(shape), merged = extents > PL_MAX_DIMS ? extents - PL_MAX_DIMS : 0;
    t->ndim = extents - merged;
    for (uint32_t i = 0; i < PL_MAX_DIMS; i++) t->shape[i] = 1;
    for (uint32_t i = 0; i < extents; i++) {
        const json_t *extent = json_array_get(shape, i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 1) {
            return fail_field(e, "shape", "has an extent that is no integer of at least 1", "integers of at least 1");
        }
        if (!pl_mul_u64(elems, (uint64_t)json_integer_value(extent), &elems) || elems > INT64_MAX) {
            return fail_field(e, "shape", "overflows when multiplied", "a product below 2^63");
        }
        t->shape[i > merged ? i - merged : 0] *= (uint64_t)json_integer_value(extent);
    }
    if (!pl_mul_u64(elems, bits, &t->bytes)) {
        return fail_field(e, "shape", "gives a byte count that overflows", "a bit count below 2^64");
    }
    if (t->bytes % 8 != 0) return fail_field(e, "shape", "ends in the middle of a byte", "whole bytes");
    t->bytes /= 8;
    return PL_OK;
}

static enum pl_status fail_span(const struct entry *e, uint64_t begin, uint64_t end, const char *why) {
    PL_FAIL(e->err, PL_FORMAT, "%s: tensor %s (header at byte 8): data_offsets are [%s, %s]; %s", e->part->label,
            PL_SHOWN_C(e->name), pl_num(begin).s, pl_num(end).s, why);
}

static enum pl_status read_span(const struct entry *e, struct pl_tensor *t) {
    const json_t *span = json_object_get(e->json, "data_offsets"), *b = json_array_get(span, 0),
                 *n = json_array_get(span, 1);
    const struct pl_part *p = e->part;
    if (json_array_size(span) != 2 || !json_is_integer(b) || !json_is_integer(n) || json_integer_value(b) < 0 ||
        json_integer_value(n) < 0) {
        return fail_field(e, "data_offsets", "are missing or no pair of integers", "[begin, end] of at least 0");
    }
    uint64_t begin = (uint64_t)json_integer_value(b), end = (uint64_t)json_integer_value(n);
    if (end < begin) return fail_span(e, begin, end, "the end comes before the beginning");
    if (end - begin != t->bytes) {
        PL_FAIL(e->err, PL_FORMAT,
                "%s: tensor %s (header at byte 8): data_offsets [%s, %s] hold %s bytes; expected %s from dtype "
                "and shape",
                p->label, PL_SHOWN_C(e->name), pl_num(begin).s, pl_num(end).s, pl_num(end - begin).s, pl_num(t->bytes).s);
    }
    if (end > p->len - p->data_start) {
        PL_FAIL(e->err, PL_FORMAT,
                "%s: tensor %s ends at byte %s but the file has %s: the download is incomplete; run 'plumb pull' again",
                p->label, PL_SHOWN_C(e->name), pl_num(p->data_start + end).s, pl_num(p->len).s);
    }
    /* No alignment is asked for: MLX writes headers of any length, so its tensors lie anywhere. */
    t->data = p->data + p->data_start + begin;
    return PL_OK;
}

static enum pl_status read_entry(struct pl_file *f, size_t part, const char *name, const json_t *json, struct pl_err *err) {
    struct entry e = {&f->parts[part], name, json, err};
    struct pl_tensor t = {0};
    struct pl_str n = pl_str_from(name);
    if (n.len == 0 || n.len > MAX_NAME_BYTES || !pl_is_name(n)) {
        return fail_field(&e, "name", "is empty, too long or has control characters", "1 to 1,024 bytes of plain text");
    }
    if (!json_is_object(json)) return fail_field(&e, "entry", "is not an object", "{dtype, shape, data_offsets}");
    uint32_t bits = 0;
    const char *unread = NULL;
    PL_TRY(read_dtype(&e, &t.dtype, &bits, &unread));
    PL_TRY(read_shape(&e, bits, &t));
    PL_TRY(read_span(&e, &t));
    t.name = pl_arena_strndup(&f->arena, name, n.len);
    if (t.name == NULL) return pl_no_memory(e.part, "the tensor table", err);
    if (unread != NULL) PL_TRY(pl_file_note_unread(f, &t, unread, err));
    return pl_file_add_tensor(f, &t, part, err);
}

static enum pl_status read_header(struct pl_file *f, size_t part, json_t **out, struct pl_err *err) {
    struct pl_part *p = &f->parts[part];
    struct pl_cursor c = {.part = p, .kind = "header", .err = err};
    uint64_t len;
    const uint8_t *text = NULL;
    PL_TRY(pl_take_u64(&c, "length", &len));
    if (len > MAX_HEADER_BYTES || len < 2) {
        PL_FAIL(err, PL_FORMAT, "%s: header length at byte 0 is %s; expected 2 to %s: not a safetensors file", p->label,
                pl_num(len).s, pl_num(MAX_HEADER_BYTES).s);
    }
    PL_TRY(pl_take(&c, len, "JSON", &text));
    if (text[0] != '{') {
        PL_FAIL(err, PL_FORMAT, "%s: the header at byte 8 begins with byte %02x; expected 7b ('{')", p->label, text[0]);
    }
    p->table_end = p->data_start = c.at;
    enum pl_status status = pl_json_parse(p->label, (const char *)text, (size_t)len, out, err);
    if (status != PL_OK) pl_err_note(err, "reading the header (bytes 8 to %s)", pl_num(c.at).s);
    return status;
}

static enum pl_status read_entries(struct pl_file *f, size_t part, json_t *header, struct pl_err *err) {
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") != 0) {
            PL_TRY(read_entry(f, part, name, entry, err));
        } else if (!json_is_object(entry) && !json_is_null(entry)) { /* MLX writes null */
            PL_FAIL(err, PL_FORMAT, "%s: __metadata__ (header at byte 8) is not an object; expected an object of strings",
                    f->parts[part].label);
        }
    }
    return pl_file_check_spans(f, part, true, err);
}

enum pl_status pl_safetensors_read_part(struct pl_file *f, size_t part, struct pl_err *err) {
    json_t *header;
    PL_TRY(read_header(f, part, &header, err));
    enum pl_status status = read_entries(f, part, header, err);
    json_decref(header);
    return status;
}

enum pl_status pl_safetensors_open_memory(const void *data, size_t len, struct pl_file **out, struct pl_err *err) {
    struct pl_file *f;
    struct pl_part part;
    PL_TRY(pl_file_create(PL_FILE_HF, "memory", &f, err));
    enum pl_status status = pl_part_borrow("memory", data, len, &part, err);
    if (status == PL_OK) {
        status = pl_file_add_part(f, &part, err);
        if (status != PL_OK) pl_part_unmap(&part);
    }
    if (status == PL_OK) status = pl_safetensors_read_part(f, 0, err);
    if (status == PL_OK) status = pl_file_finish(f, err);
    if (status != PL_OK) {
        pl_file_close(f);
        return status;
    }
    *out = f;
    return PL_OK;
}
