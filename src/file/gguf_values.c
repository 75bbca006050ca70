/* GGUF metadata: reading it and asking for it. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "file/gguf.h"

enum { MAX_KEY_BYTES = 65535 };

static const struct {
    const char *name;
    uint32_t bytes; /* of a scalar; 0: not a scalar */
} type_table[PL_GGUF_TYPE_COUNT] = {
    [PL_GGUF_U8] = {"u8", 1},       [PL_GGUF_I8] = {"i8", 1},     [PL_GGUF_U16] = {"u16", 2},
    [PL_GGUF_I16] = {"i16", 2},     [PL_GGUF_U32] = {"u32", 4},   [PL_GGUF_I32] = {"i32", 4},
    [PL_GGUF_F32] = {"f32", 4},     [PL_GGUF_BOOL] = {"bool", 1}, [PL_GGUF_STRING] = {"string", 0},
    [PL_GGUF_ARRAY] = {"array", 0}, [PL_GGUF_U64] = {"u64", 8},   [PL_GGUF_I64] = {"i64", 8},
    [PL_GGUF_F64] = {"f64", 8},
};

const char *pl_gguf_type_name(enum pl_gguf_type t) { return (unsigned)t < PL_GGUF_TYPE_COUNT ? type_table[t].name : "?"; }

static enum pl_status take_type(struct pl_cursor *c, const char *field, enum pl_gguf_type *out) {
    uint64_t at = c->at;
    uint32_t type;
    PL_TRY(pl_take_u32(c, field, &type));
    if (type >= PL_GGUF_TYPE_COUNT) {
        PL_FAIL(c->err, PL_FORMAT, "%s: key %s: %s at byte %s is %u; expected 0 to %d", c->part->label,
                pl_shown(c->subject).s, field, pl_num(at).s, type, PL_GGUF_TYPE_COUNT - 1);
    }
    *out = (enum pl_gguf_type)type;
    return PL_OK;
}

static enum pl_status check_bools(struct pl_cursor *c, const uint8_t *p, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (p[i] <= 1) continue;
        PL_FAIL(c->err, PL_FORMAT, "%s: key %s: bool at byte %s is %u; expected 0 or 1", c->part->label,
                pl_shown(c->subject).s, pl_num((uint64_t)(p - c->part->data) + i).s, p[i]);
    }
    return PL_OK;
}

static enum pl_status take_scalars(struct pl_cursor *c, enum pl_gguf_type type, struct pl_gguf_value *v) {
    uint64_t at = c->at, bytes;
    if (!pl_mul_u64(v->count, type_table[type].bytes, &bytes)) {
        PL_FAIL(c->err, PL_FORMAT, "%s: key %s: array of %s elements of %s before byte %s overflows", c->part->label,
                pl_shown(c->subject).s, pl_num(v->count).s, type_table[type].name, pl_num(at).s);
    }
    const uint8_t *p;
    PL_TRY(pl_take(c, bytes, v->type == PL_GGUF_ARRAY ? "array" : "value", &p));
    if (type == PL_GGUF_BOOL) PL_TRY(check_bools(c, p, v->count));
    v->data = p;
    return PL_OK;
}

/* Two walks: the first proves that all strings are there, so that the table's size can be trusted. */
static enum pl_status take_strings(struct pl_cursor *c, struct pl_arena *arena, struct pl_gguf_value *v) {
    uint64_t first = c->at;
    struct pl_str s;
    for (uint64_t i = 0; i < v->count; i++) PL_TRY(pl_take_string(c, "string", &s));
    struct pl_str *strings = pl_arena_alloc(arena, (size_t)v->count, sizeof *strings);
    if (strings == NULL) return pl_no_memory(c->part, "a string table", c->err);
    c->at = first;
    for (uint64_t i = 0; i < v->count; i++) PL_TRY(pl_take_string(c, "string", &strings[i]));
    v->strings = strings;
    return PL_OK;
}

static enum pl_status take_value(struct pl_cursor *c, struct pl_arena *arena, struct pl_gguf_value *v) {
    PL_TRY(take_type(c, "type", &v->type));
    v->count = 1;
    v->elem_type = v->type;
    if (v->type == PL_GGUF_ARRAY) {
        uint64_t at = c->at;
        PL_TRY(take_type(c, "element type", &v->elem_type));
        if (v->elem_type == PL_GGUF_ARRAY) {
            PL_FAIL(c->err, PL_UNSUPPORTED, "%s: key %s: element type at byte %s is an array; arrays of arrays are not read",
                    c->part->label, pl_shown(c->subject).s, pl_num(at).s);
        }
        PL_TRY(pl_take_u64(c, "element count", &v->count));
    }
    if (v->elem_type == PL_GGUF_STRING) return take_strings(c, arena, v);
    return take_scalars(c, v->elem_type, v);
}

static enum pl_status read_value(struct pl_cursor *c, struct pl_arena *arena, struct pl_gguf_values *out) {
    struct pl_gguf_value v = {0};
    uint64_t at = c->at;
    c->subject = (struct pl_str){0};
    PL_TRY(pl_take_name(c, "key", MAX_KEY_BYTES, &v.key));
    c->subject = v.key;
    bool existed;
    if (pl_grow(&out->at, &out->cap, out->count + 1, sizeof *out->at) != PL_OK ||
        pl_map_put(&out->by_key, v.key.data, v.key.len, (uint32_t)out->count, &existed) != PL_OK) {
        return pl_no_memory(c->part, "metadata", c->err);
    }
    if (existed) {
        PL_FAIL(c->err, PL_FORMAT, "%s: key %s at byte %s appears twice; keys must be unique", c->part->label,
                pl_shown(v.key).s, pl_num(at).s);
    }
    PL_TRY(take_value(c, arena, &v));
    out->at[out->count++] = v;
    return PL_OK;
}

enum pl_status pl_gguf_values_read(struct pl_cursor *c, uint64_t count, struct pl_arena *arena, struct pl_gguf_values *out) {
    if (count >= UINT32_MAX) {
        PL_FAIL(c->err, PL_LIMIT, "%s: metadata count at byte 16 is %s; at most %s are read", c->part->label,
                pl_num(count).s, pl_num(UINT32_MAX - 1).s);
    }
    for (uint64_t i = 0; i < count; i++) PL_TRY(read_value(c, arena, out));
    return PL_OK;
}

void pl_gguf_values_deinit(struct pl_gguf_values *v) {
    pl_free(v->at);
    pl_map_deinit(&v->by_key);
    *v = (struct pl_gguf_values){0};
}

static bool equal_values(const struct pl_gguf_value *a, const struct pl_gguf_value *b) {
    if (a->type != b->type || a->elem_type != b->elem_type || a->count != b->count) return false;
    if (a->elem_type != PL_GGUF_STRING)
        return memcmp(a->data, b->data, (size_t)a->count * type_table[a->elem_type].bytes) == 0;
    for (uint64_t i = 0; i < a->count; i++) {
        if (!pl_str_eq(a->strings[i], b->strings[i])) return false;
    }
    return true;
}

bool pl_gguf_is_integer(enum pl_gguf_type t) {
    return t == PL_GGUF_U8 || t == PL_GGUF_I8 || t == PL_GGUF_U16 || t == PL_GGUF_I16 || t == PL_GGUF_U32 ||
           t == PL_GGUF_I32 || t == PL_GGUF_U64 || t == PL_GGUF_I64;
}

/* An integer of this part's own metadata; absent: *out untouched. */
static enum pl_status part_integer(struct pl_file *f, size_t part, const struct pl_gguf_values *v, const char *key,
                                   uint64_t *out, struct pl_err *err) {
    uint32_t i;
    if (!pl_map_get(&v->by_key, key, strlen(key), &i)) return PL_OK;
    if (!pl_gguf_is_integer(v->at[i].type) || (pl_gguf_elem_i64(&v->at[i], 0) < 0)) {
        PL_FAIL(err, PL_FORMAT, "%s: key %s has type %s or is negative; expected an integer of at least 0",
                f->parts[part].label, key, pl_gguf_type_name(v->at[i].type));
    }
    *out = (uint64_t)pl_gguf_elem_i64(&v->at[i], 0);
    return PL_OK;
}

enum pl_status pl_gguf_values_merge(struct pl_file *f, size_t part, struct pl_gguf_values *v, struct pl_err *err) {
    PL_TRY(part_integer(f, part, v, "split.no", &f->parts[part].split_number, err));
    PL_TRY(part_integer(f, part, v, "split.count", &f->parts[part].split_count, err));
    if (part == 0) {
        f->values = v->at;
        f->value_count = v->count;
        pl_map_deinit(&f->value_by_key);
        f->value_by_key = v->by_key;
        *v = (struct pl_gguf_values){0};
        return PL_OK;
    }
    for (size_t i = 0; i < v->count; i++) {
        const struct pl_gguf_value *mine = &v->at[i];
        uint32_t first;
        if (pl_str_eq_c(mine->key, "split.no") || pl_str_eq_c(mine->key, "general.alignment") ||
            !pl_map_get(&f->value_by_key, mine->key.data, mine->key.len, &first)) {
            continue; /* the first part's metadata is the model's */
        }
        if (equal_values(mine, &f->values[first])) continue;
        PL_FAIL(err, PL_FORMAT, "%s: key %s differs from the same key in %s; expected parts of one model",
                f->parts[part].label, pl_shown(mine->key).s, f->parts[0].label);
    }
    return PL_OK;
}

size_t pl_gguf_count(const struct pl_file *f) { return f->value_count; }

const struct pl_gguf_value *pl_gguf_at(const struct pl_file *f, size_t i) {
    return i < f->value_count ? &f->values[i] : NULL;
}

const struct pl_gguf_value *pl_gguf_find(const struct pl_file *f, const char *key) {
    uint32_t i;
    return pl_map_get(&f->value_by_key, key, strlen(key), &i) ? &f->values[i] : NULL;
}

static enum pl_status wrong_type(const struct pl_file *f, const struct pl_gguf_value *v, const char *want,
                                 struct pl_err *err) {
    const struct pl_part *p = &f->parts[0];
    PL_FAIL(err, PL_FORMAT, "%s: key %s (at byte %s) has type %s%s%s; expected %s", p->label, pl_shown(v->key).s,
            pl_num((uint64_t)((const uint8_t *)v->key.data - p->data)).s, pl_gguf_type_name(v->type),
            v->type == PL_GGUF_ARRAY ? " of " : "", v->type == PL_GGUF_ARRAY ? pl_gguf_type_name(v->elem_type) : "", want);
}

enum pl_status pl_gguf_u64(const struct pl_file *f, const char *key, uint64_t *out, struct pl_err *err) {
    const struct pl_gguf_value *v = pl_gguf_find(f, key);
    if (v == NULL) return PL_NOT_FOUND;
    if (!pl_gguf_is_integer(v->type)) return wrong_type(f, v, "an integer", err);
    int64_t value = pl_gguf_elem_i64(v, 0);
    if (value < 0 && v->type != PL_GGUF_U64) return wrong_type(f, v, "an integer of at least 0", err);
    *out = (uint64_t)value;
    return PL_OK;
}

enum pl_status pl_gguf_f64(const struct pl_file *f, const char *key, double *out, struct pl_err *err) {
    const struct pl_gguf_value *v = pl_gguf_find(f, key);
    if (v == NULL) return PL_NOT_FOUND;
    if (!pl_gguf_is_integer(v->type) && v->type != PL_GGUF_F32 && v->type != PL_GGUF_F64)
        return wrong_type(f, v, "a number", err);
    double value = pl_gguf_elem_f64(v, 0);
    if (!isfinite(value)) return wrong_type(f, v, "a finite number", err);
    *out = value;
    return PL_OK;
}

enum pl_status pl_gguf_bool(const struct pl_file *f, const char *key, bool *out, struct pl_err *err) {
    const struct pl_gguf_value *v = pl_gguf_find(f, key);
    if (v == NULL) return PL_NOT_FOUND;
    if (v->type != PL_GGUF_BOOL) return wrong_type(f, v, "a bool", err);
    *out = *(const uint8_t *)v->data != 0;
    return PL_OK;
}

enum pl_status pl_gguf_str(const struct pl_file *f, const char *key, struct pl_str *out, struct pl_err *err) {
    const struct pl_gguf_value *v = pl_gguf_find(f, key);
    if (v == NULL) return PL_NOT_FOUND;
    if (v->type != PL_GGUF_STRING) return wrong_type(f, v, "a string", err);
    *out = v->strings[0];
    return PL_OK;
}

/* The bytes of element i, widened; sign extended for signed types. */
int64_t pl_gguf_elem_i64(const struct pl_gguf_value *v, uint64_t i) {
    uint32_t bytes = type_table[v->elem_type].bytes;
    PL_ASSERT(i < v->count && bytes > 0);
    double d;
    uint64_t u = 0;
    switch (v->elem_type) {
    case PL_GGUF_F32:
    case PL_GGUF_F64:
        d = pl_gguf_elem_f64(v, i);
        return d >= -0x1p63 && d < 0x1p63 ? (int64_t)d : d > 0 ? INT64_MAX : INT64_MIN;
    case PL_GGUF_I8:
    case PL_GGUF_I16:
    case PL_GGUF_I32:
        memcpy(&u, (const uint8_t *)v->data + i * bytes, bytes);
        return (int64_t)(u << (64 - 8 * bytes)) >> (64 - 8 * bytes);
    default: memcpy(&u, (const uint8_t *)v->data + i * bytes, bytes); return (int64_t)u;
    }
}

double pl_gguf_elem_f64(const struct pl_gguf_value *v, uint64_t i) {
    if (v->elem_type == PL_GGUF_F32) {
        float value;
        PL_ASSERT(i < v->count);
        memcpy(&value, (const uint8_t *)v->data + i * 4, 4);
        return (double)value;
    }
    if (v->elem_type == PL_GGUF_F64) {
        double value;
        PL_ASSERT(i < v->count);
        memcpy(&value, (const uint8_t *)v->data + i * 8, 8);
        return value;
    }
    int64_t value = pl_gguf_elem_i64(v, i);
    return v->elem_type == PL_GGUF_U64 ? (double)(uint64_t)value : (double)value;
}
