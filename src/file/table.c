/* The open file and its tensor table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/mem.h"
#include "file/reader.h"

enum pl_status pl_no_memory(const struct pl_part *part, const char *what, struct pl_err *err) {
    PL_FAIL(err, PL_NO_MEMORY, "%s: no memory for %s", part->label, what);
}

enum pl_status pl_file_create(enum pl_file_kind kind, const char *path, struct pl_file **out, struct pl_err *err) {
    struct pl_file *f = pl_calloc(1, sizeof *f);
    if (f == NULL) PL_FAIL(err, PL_NO_MEMORY, "%s: no memory to open it", PL_SHOWN_C(path));
    f->kind = kind;
    pl_arena_init(&f->arena, 0);
    pl_map_init(&f->tensor_by_name);
    pl_map_init(&f->value_by_key);
    f->path = pl_strdup(path);
    if (f->path == NULL) {
        pl_file_close(f);
        PL_FAIL(err, PL_NO_MEMORY, "%s: no memory to open it", PL_SHOWN_C(path));
    }
    *out = f;
    return PL_OK;
}

void pl_file_close(struct pl_file *f) {
    if (f == NULL) return;
    for (size_t i = 0; i < f->part_count; i++) pl_part_unmap(&f->parts[i]);
    for (int i = 0; i < PL_JSON_COUNT; i++) json_decref(f->json[i]);
    json_decref(f->template_json);
    pl_map_deinit(&f->tensor_by_name);
    pl_map_deinit(&f->value_by_key);
    pl_arena_deinit(&f->arena);
    pl_free(f->parts);
    pl_free(f->tensors);
    pl_free(f->tensor_part);
    pl_free(f->unread);
    pl_free(f->unread_index);
    pl_free(f->templates);
    pl_free(f->values);
    pl_free(f->path);
    pl_free(f);
}

enum pl_status pl_file_add_part(struct pl_file *f, const struct pl_part *part, struct pl_err *err) {
    if (pl_grow(&f->parts, &f->part_cap, f->part_count + 1, sizeof *f->parts) != PL_OK) {
        return pl_no_memory(part, "the list of parts", err);
    }
    f->parts[f->part_count++] = *part;
    return PL_OK;
}

enum pl_status pl_file_add_tensor(struct pl_file *f, const struct pl_tensor *t, size_t part, struct pl_err *err) {
    const struct pl_part *p = &f->parts[part];
    size_t need = f->tensor_count + 1;
    if (f->tensor_count >= UINT32_MAX || pl_grow(&f->tensors, &f->tensor_cap, need, sizeof *f->tensors) != PL_OK ||
        pl_grow(&f->tensor_part, &f->tensor_part_cap, need, sizeof *f->tensor_part) != PL_OK) {
        return pl_no_memory(p, "the tensor table", err);
    }
    bool existed;
    if (pl_map_put(&f->tensor_by_name, t->name, strlen(t->name), (uint32_t)f->tensor_count, &existed) != PL_OK) {
        return pl_no_memory(p, "the tensor table", err);
    }
    if (existed) {
        uint32_t first = 0;
        if (!pl_map_get(&f->tensor_by_name, t->name, strlen(t->name), &first)) first = 0;
        const struct pl_part *other = &f->parts[f->tensor_part[first]];
        PL_FAIL(err, PL_FORMAT, "%s: tensor name %s appears twice (tensor %s of %s has it already); names must be unique",
                p->label, PL_SHOWN_C(t->name), pl_num(first).s, other->label);
    }
    f->tensors[f->tensor_count] = *t;
    f->tensor_part[f->tensor_count++] = (uint32_t)part;
    return PL_OK;
}

/* One tensor's bytes as offsets in its part, for sorting. */
struct span {
    uint64_t begin, end;
    const char *name;
};

static int by_begin(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static enum pl_status check_sorted(const struct pl_part *p, const struct span *s, size_t n, bool no_holes,
                                   struct pl_err *err) {
    uint64_t at = p->data_start;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && s[i].begin < s[i - 1].end) {
            PL_FAIL(err, PL_FORMAT,
                    "%s: tensors %s (bytes %s to %s) and %s (bytes %s to %s) overlap; spans must be disjoint", p->label,
                    PL_SHOWN_C(s[i - 1].name), pl_num(s[i - 1].begin).s, pl_num(s[i - 1].end).s, PL_SHOWN_C(s[i].name),
                    pl_num(s[i].begin).s, pl_num(s[i].end).s);
        }
        if (no_holes && s[i].begin != at) {
            PL_FAIL(err, PL_FORMAT, "%s: tensor %s begins at byte %s; expected %s: the format allows no holes", p->label,
                    PL_SHOWN_C(s[i].name), pl_num(s[i].begin).s, pl_num(at).s);
        }
        at = s[i].end;
    }
    if (no_holes && at != p->len) {
        PL_FAIL(err, PL_FORMAT, "%s: the last tensor ends at byte %s but the file has %s; expected them to be equal",
                p->label, pl_num(at).s, pl_num(p->len).s);
    }
    return PL_OK;
}

enum pl_status pl_file_check_spans(const struct pl_file *f, size_t part, bool no_holes, struct pl_err *err) {
    const struct pl_part *p = &f->parts[part];
    struct span *spans = pl_calloc(f->tensor_count, sizeof *spans);
    if (spans == NULL) return pl_no_memory(p, "checking spans", err);
    size_t n = 0;
    for (size_t i = 0; i < f->tensor_count; i++) {
        if (f->tensor_part[i] != part) continue;
        uint64_t begin = (uint64_t)((const uint8_t *)f->tensors[i].data - p->data);
        spans[n++] = (struct span){begin, begin + f->tensors[i].bytes, f->tensors[i].name};
    }
    qsort(spans, n, sizeof *spans, by_begin);
    enum pl_status status = check_sorted(p, spans, n, no_holes, err);
    pl_free(spans);
    return status;
}

static int append(const char *text, size_t len, void *buf) {
    pl_buf_add(buf, text, len);
    return pl_buf_ok(buf) ? 0 : -1;
}

enum pl_status pl_file_finish(struct pl_file *f, struct pl_err *err) {
    PL_TRY(pl_file_set_aside(f, err));
    struct pl_buf all = {0};
    for (size_t i = 0; i < f->part_count; i++) {
        char hex[33];
        pl_hash128_hex(f->parts[i].data, (size_t)f->parts[i].table_end, hex);
        pl_buf_printf(&all, "%s %llu\n", hex, (unsigned long long)f->parts[i].len);
    }
    const json_t *config = f->json[PL_JSON_CONFIG];
    if (config != NULL && json_dump_callback(config, append, &all, JSON_COMPACT | JSON_SORT_KEYS) != 0) all.failed = true;
    bool ok = pl_buf_ok(&all);
    if (ok) pl_hash128_hex(pl_buf_cstr(&all), all.len, f->fingerprint);
    pl_buf_deinit(&all);
    if (!ok) PL_FAIL(err, PL_NO_MEMORY, "%s: no memory for the fingerprint", PL_SHOWN_C(f->path));
    return PL_OK;
}

void pl_readable_types(bool gguf, char *out, size_t size) {
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < PL_DTYPE_COUNT && at < size; i++) {
        const struct pl_dtype_info *d = pl_dtype_info((enum pl_dtype)i);
        if ((gguf && d->ggml_type < 0) || i == PL_TERNARY || i == PL_K8V4 || i == PL_MLX_MXFP4) continue;
        int n = snprintf(out + at, size - at, "%s%s", at == 0 ? "" : ", ", d->name);
        if (n > 0) at += (size_t)n;
    }
}

enum pl_file_kind pl_file_kind(const struct pl_file *f) { return f->kind; }
const char *pl_file_path(const struct pl_file *f) { return f->path; }
const char *pl_file_fingerprint(const struct pl_file *f) { return f->fingerprint; }
size_t pl_file_tensor_count(const struct pl_file *f) { return f->tensor_count; }

uint64_t pl_file_bytes(const struct pl_file *f) {
    uint64_t sum = 0;
    for (size_t i = 0; i < f->part_count; i++) sum += f->parts[i].len; /* mapped sizes: the sum fits an address space */
    return sum;
}

const struct pl_tensor *pl_file_tensor_at(const struct pl_file *f, size_t i) {
    return i < f->tensor_count ? &f->tensors[i] : NULL;
}

const struct pl_tensor *pl_file_tensor(const struct pl_file *f, const char *name) {
    uint32_t i;
    return pl_map_get(&f->tensor_by_name, name, strlen(name), &i) ? &f->tensors[i] : NULL;
}

void pl_file_will_need(const struct pl_file *f) {
    for (size_t i = 0; i < f->part_count; i++) {
        const struct pl_part *p = &f->parts[i];
        if (p->mapped) madvise((void *)(uintptr_t)p->data, (size_t)p->len, MADV_WILLNEED);
    }
}

enum pl_status pl_file_check_unchanged(const struct pl_file *f, struct pl_err *err) {
    for (size_t i = 0; i < f->part_count; i++) PL_TRY(pl_part_check_unchanged(&f->parts[i], err));
    return PL_OK;
}

/* Whole pages inside the span only: its ends may be shared with neighbours. */
static void forget_span(const struct pl_file *f, const void *data, uint64_t bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)data;
    for (size_t i = 0; i < f->part_count; i++) {
        const struct pl_part *p = &f->parts[i];
        const uintptr_t base = (uintptr_t)p->data;
        if (!p->mapped || at < base || at - base > p->len || bytes > p->len - (at - base)) continue;
        uintptr_t first = (at + page - 1) / page * page, end = (at + (uintptr_t)bytes) / page * page;
        if (end > first) madvise((void *)first, end - first, MADV_DONTNEED);
    }
}

void pl_file_forget(const struct pl_file *f, const struct pl_tensor *t) {
    if (t->data != NULL) forget_span(f, t->data, t->bytes);
    if (t->dtype != PL_MLX && t->dtype != PL_MLX_MXFP4) return;
    uint64_t groups = pl_tensor_rows(t) * (pl_tensor_cols(t) / t->group);
    uint64_t bytes = groups * pl_dtype_info(t->scale_dtype)->block_bytes;
    forget_span(f, t->scales, bytes);
    if (t->dtype == PL_MLX) forget_span(f, t->biases, bytes);
}

const json_t *pl_file_json(const struct pl_file *f, enum pl_file_json which) {
    return (unsigned)which < PL_JSON_COUNT ? f->json[which] : NULL;
}
