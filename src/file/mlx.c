/* MLX quantisation. Affine: x.weight (u32), x.scales and x.biases become one tensor x.weight of dtype PL_MLX; mode mxfp4:
 * x.weight and x.scales (u8) one of dtype PL_MLX_MXFP4. Mode, bits and group size come from config.json and are checked
 * against the shapes. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "file/reader.h"

/* JSON's strings may hold zero bytes. */
static struct pl_str text_of(const json_t *string) {
    return (struct pl_str){json_string_value(string), json_string_length(string)};
}

static bool is_text(const json_t *v, const char *text) { return json_is_string(v) && pl_str_eq_c(text_of(v), text); }

static enum pl_status refuse_method(const struct pl_file *f, const char *field, struct pl_str method, struct pl_err *err) {
    PL_FAIL(err, PL_UNSUPPORTED,
            "%s: config.json: %s is '%s'; expected unquantised weights, or MLX affine or mxfp4 quantisation, or a GGUF of "
            "this model",
            PL_SHOWN_C(f->path), field, pl_shown(method).s);
}

/* A field of the whole, or of the text part of a multimodal model. */
static const json_t *on_either_level(const struct pl_file *f, const char *name) {
    const json_t *config = f->json[PL_JSON_CONFIG], *v = json_object_get(config, name);
    return v != NULL ? v : json_object_get(json_object_get(config, "text_config"), name);
}

/* The object with group_size and bits, NULL when the model is not quantised. */
static const json_t *settings(const struct pl_file *f) {
    const json_t *q = on_either_level(f, "quantization");
    return q != NULL ? q : on_either_level(f, "quantization_config");
}

/* Methods of one family each: bytes, and scales beside them, which its model knows. */
static bool is_known_to_model(const struct pl_file *f, const json_t *method) {
    const char *family = is_text(method, "mxfp4") ? "gpt_oss" : is_text(method, "bitnet") ? "bitnet" : NULL;
    const json_t *config = f->json[PL_JSON_CONFIG], *text = json_object_get(config, "text_config");
    return family != NULL &&
           (is_text(json_object_get(config, "model_type"), family) || is_text(json_object_get(text, "model_type"), family));
}

enum pl_status pl_mlx_check_config(struct pl_file *f, struct pl_err *err) {
    const json_t *other = on_either_level(f, "quantization_config"), *q = settings(f);
    const json_t *method = json_object_get(other, "quant_method");
    if (is_known_to_model(f, method)) return PL_OK;
    if (method != NULL && !json_is_null(method)) {
        f->refusal.status = refuse_method(f, "quantization_config.quant_method",
                                          json_is_string(method) ? text_of(method) : pl_str_from("?"), &f->refusal);
        return PL_OK;
    }
    if (q == NULL || json_is_null(q)) return PL_OK;
    if (!json_is_object(q)) {
        PL_FAIL(err, PL_FORMAT, "%s: config.json: quantization is no object; expected {group_size, bits}",
                PL_SHOWN_C(f->path));
    }
    if (json_object_get(q, "group_size") == NULL || json_object_get(q, "bits") == NULL) {
        f->refusal.status =
            refuse_method(f, "quantization", pl_str_from("an object without group_size and bits"), &f->refusal);
    }
    return PL_OK;
}

static const char *type_name(const json_t *v) {
    if (v == NULL) return "missing";
    static const char *const names[] = {"an object",     "an array", "a string", "an integer",
                                        "a real number", "true",     "false",    "null"};
    return names[json_typeof(v)];
}

/* A whole number, also one written as a real. */
static enum pl_status read_whole(const struct pl_file *f, const char *where, const char *name, const json_t *v,
                                 const char *expected, json_int_t *out, struct pl_err *err) {
    double real = json_real_value(v);
    bool whole = json_is_real(v) && real >= -1e9 && real <= 1e9 && real == (double)(json_int_t)real;
    if (!whole && !json_is_integer(v)) {
        char value[112] = "";
        if (json_is_string(v)) snprintf(value, sizeof value, " '%s'", pl_shown(text_of(v)).s);
        if (json_is_real(v)) snprintf(value, sizeof value, " %g", real);
        PL_FAIL(err, PL_UNSUPPORTED, "%s: config.json: %s of quantization of %s is %s%s; expected %s", PL_SHOWN_C(f->path),
                name, PL_SHOWN_C(where), type_name(v), value, expected);
    }
    *out = whole ? (json_int_t)real : json_integer_value(v);
    return PL_OK;
}

/* Reads {group_size, bits, mode}; where names the object in messages. An object without a mode is affine, whatever the
 * others are. */
static enum pl_status read_settings(const struct pl_file *f, const char *where, const json_t *q, struct pl_tensor *t,
                                    struct pl_err *err) {
    const json_t *mode = json_object_get(q, "mode"), *g = json_object_get(q, "group_size"), *b = json_object_get(q, "bits");
    bool mxfp4 = is_text(mode, "mxfp4");
    if (mode != NULL && !mxfp4 && !is_text(mode, "affine"))
        return refuse_method(f, "quantization mode", json_is_string(mode) ? text_of(mode) : pl_str_from("?"), err);
    t->dtype = mxfp4 ? PL_MLX_MXFP4 : PL_MLX;
    json_int_t group, bits;
    PL_TRY(read_whole(f, where, "group_size", g, "32, 64 or 128", &group, err));
    PL_TRY(read_whole(f, where, "bits", b, "2, 3, 4, 5, 6 or 8", &bits, err));
    if (mxfp4 && (group != 32 || bits != 4)) {
        PL_FAIL(err, PL_UNSUPPORTED,
                "%s: config.json: quantization of %s is mxfp4 with group_size %lld and bits %lld; that is 32 and 4",
                PL_SHOWN_C(f->path), PL_SHOWN_C(where), (long long)group, (long long)bits);
    }
    if (group != 32 && group != 64 && group != 128) {
        PL_FAIL(err, PL_UNSUPPORTED, "%s: config.json: group_size of quantization of %s is %lld; expected 32, 64 or 128",
                PL_SHOWN_C(f->path), PL_SHOWN_C(where), (long long)group);
    }
    if (bits != 2 && bits != 3 && bits != 4 && bits != 5 && bits != 6 && bits != 8) {
        PL_FAIL(err, PL_UNSUPPORTED, "%s: config.json: bits of quantization of %s is %lld; expected 2, 3, 4, 5, 6 or 8",
                PL_SHOWN_C(f->path), PL_SHOWN_C(where), (long long)bits);
    }
    t->group = (uint32_t)group;
    t->bits = (uint32_t)bits;
    return PL_OK;
}

/* A weight's own settings, the model's where it has none. False is MLX's word for a weight that is not packed. */
static enum pl_status settings_of(const struct pl_file *f, const json_t *q, const struct pl_tensor *w, struct pl_tensor *t,
                                  struct pl_err *err) {
    char layer[1100];
    snprintf(layer, sizeof layer, "%.*s", (int)(strlen(w->name) - strlen(".weight")), w->name);
    const json_t *own = json_object_get(q, layer);
    bool packed = w->dtype == PL_U32;
    if (own != NULL && !json_is_object(own) && (packed || !json_is_false(own))) {
        PL_FAIL(err, PL_FORMAT, "%s: config.json: quantization of %s is %s; expected %s", PL_SHOWN_C(f->path),
                PL_SHOWN_C(layer), type_name(own),
                packed ? "{group_size, bits}, as its weight is packed" : "false, or {group_size, bits} of a packed weight");
    }
    if (!packed) return PL_OK;
    return own != NULL ? read_settings(f, layer, own, t, err) : read_settings(f, "the model", q, t, err);
}

/* The tensor BASE + suffix, where BASE is name without ".weight". */
static const struct pl_tensor *sibling(const struct pl_file *f, const char *name, const char *suffix, uint32_t *index) {
    char full[1100];
    int base = (int)(strlen(name) - strlen(".weight"));
    int n = snprintf(full, sizeof full, "%.*s%s", base, name, suffix);
    if (n < 0 || (size_t)n >= sizeof full || !pl_map_get(&f->tensor_by_name, full, (size_t)n, index)) return NULL;
    return &f->tensors[*index];
}

/* Type of a sibling that has no reader, so was set aside; NULL: there is none. */
static const char *unread_sibling(const struct pl_file *f, const char *name, const char *suffix) {
    size_t base = strlen(name) - strlen(".weight");
    for (size_t i = 0; i < f->unread_count; i++) {
        const char *other = f->unread[i].name;
        if (strncmp(other, name, base) == 0 && strcmp(other + base, suffix) == 0) return f->unread[i].dtype;
    }
    return NULL;
}

/* The weight's scales or biases are not in the table. */
static enum pl_status refuse_missing(const struct pl_file *f, const struct pl_tensor *w, enum pl_dtype mode,
                                     const char *suffix, struct pl_err *err) {
    const char *unread = unread_sibling(f, w->name, suffix);
    bool mxfp4 = mode == PL_MLX_MXFP4;
    if (unread != NULL) {
        PL_FAIL(err, PL_FORMAT, "%s: tensor %s has %s of type %s; expected %s", PL_SHOWN_C(f->path), PL_SHOWN_C(w->name),
                suffix + 1, unread, mxfp4 ? "u8, as its mode is mxfp4" : "f16, bf16 or f32");
    }
    PL_FAIL(err, PL_FORMAT, "%s: tensor %s is u32 but has no %s; expected %s", PL_SHOWN_C(f->path), PL_SHOWN_C(w->name),
            suffix + 1, mxfp4 ? "MLX mxfp4 weight and scales" : "MLX affine weight, scales and biases");
}

struct shape_text {
    char s[PL_MAX_DIMS * 22 + 3];
};
static struct shape_text shape_text(const struct pl_tensor *t) {
    struct shape_text out = {"["};
    for (uint32_t i = 0; i < t->ndim; i++) {
        size_t at = strlen(out.s);
        snprintf(out.s + at, sizeof out.s - at, "%s%llu", i > 0 ? ", " : "", (unsigned long long)t->shape[i]);
    }
    size_t at = strlen(out.s);
    snprintf(out.s + at, sizeof out.s - at, "]");
    return out;
}

static bool same_shape(const struct pl_tensor *a, const struct pl_tensor *b) {
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

static enum pl_status check_triplet(const struct pl_file *f, const struct pl_tensor *w, const struct pl_tensor *s,
                                    const struct pl_tensor *b, struct pl_tensor *t, struct pl_err *err) {
    uint64_t words = pl_tensor_cols(w), cols;
    struct pl_tensor expect = *w;
    bool mxfp4 = t->dtype == PL_MLX_MXFP4;
    if (mxfp4 && (b != NULL || s->dtype != PL_U8)) {
        PL_FAIL(err, PL_FORMAT, "%s: tensor %s has scales of type %s%s; in mode mxfp4 u8 and no biases were expected",
                PL_SHOWN_C(f->path), PL_SHOWN_C(w->name), pl_dtype_name(s->dtype), b != NULL ? " and biases" : "");
    }
    if (!mxfp4 && b == NULL) return refuse_missing(f, w, t->dtype, ".biases", err);
    if (!mxfp4 && (s->dtype != b->dtype || (s->dtype != PL_F16 && s->dtype != PL_BF16 && s->dtype != PL_F32))) {
        PL_FAIL(err, PL_FORMAT, "%s: tensor %s has scales of type %s and biases of type %s; expected both f16, bf16 or f32",
                PL_SHOWN_C(f->path), PL_SHOWN_C(w->name), pl_dtype_name(s->dtype), pl_dtype_name(b->dtype));
    }
    if (w->ndim < 2 || !pl_mul_u64(words, 32, &cols) || cols % t->bits != 0 || cols / t->bits % t->group != 0) {
        PL_FAIL(err, PL_FORMAT, "%s: tensor %s has rows of %s words; expected whole groups of %u elements of %u bits",
                PL_SHOWN_C(f->path), PL_SHOWN_C(w->name), pl_num(words).s, t->group, t->bits);
    }
    cols /= t->bits;
    expect.shape[w->ndim - 1] = cols / t->group;
    if (!same_shape(s, &expect) || (!mxfp4 && !same_shape(b, &expect))) {
        PL_FAIL(err, PL_FORMAT,
                "%s: tensor %s: scales have shape %s%s%s; expected %s (%s elements of %u bits in groups of %u)",
                PL_SHOWN_C(f->path), PL_SHOWN_C(w->name), shape_text(s).s, mxfp4 ? "" : " and biases ",
                mxfp4 ? "" : shape_text(b).s, shape_text(&expect).s, pl_num(cols).s, t->bits, t->group);
    }
    t->shape[w->ndim - 1] = cols;
    return PL_OK;
}

/* Makes tensors[i] one tensor and marks its scales and biases as used. */
static enum pl_status join_one(struct pl_file *f, uint32_t i, bool *used, struct pl_err *err) {
    struct pl_tensor *w = &f->tensors[i], t = *w;
    uint32_t si = 0, bi = 0;
    const struct pl_tensor *s = sibling(f, w->name, ".scales", &si), *b = sibling(f, w->name, ".biases", &bi);
    const json_t *q = settings(f);
    if (!json_is_object(q)) {
        PL_FAIL(err, PL_FORMAT, "%s: tensor %s is packed but config.json has no quantization {group_size, bits}",
                PL_SHOWN_C(f->path), PL_SHOWN_C(w->name));
    }
    PL_TRY(settings_of(f, q, w, &t, err));
    if (s == NULL) return refuse_missing(f, w, t.dtype, ".scales", err);
    PL_TRY(check_triplet(f, w, s, b, &t, err));
    t.scales = s->data;
    t.biases = b != NULL ? b->data : NULL;
    t.scale_dtype = s->dtype;
    *w = t;
    used[si] = true;
    if (b != NULL) used[bi] = true;
    return PL_OK;
}

/* Every tensor's settings, before any is joined: false when plumb does not know one of them. */
static enum pl_status check_settings(struct pl_file *f, struct pl_err *err) {
    const json_t *q = settings(f);
    for (uint32_t i = 0; json_is_object(q) && i < f->tensor_count; i++) {
        const struct pl_tensor *w = &f->tensors[i];
        struct pl_tensor ignored;
        if (pl_str_ends(pl_str_from(w->name), ".weight")) PL_TRY(settings_of(f, q, w, &ignored, err));
    }
    return PL_OK;
}

enum pl_status pl_mlx_join(struct pl_file *f, struct pl_err *err) {
    PL_TRY(pl_file_set_aside(f, err));
    bool any = false;
    if (f->refusal.status == PL_OK) f->refusal.status = check_settings(f, &f->refusal);
    if (f->refusal.status != PL_OK) return PL_OK; /* shown as it lies */
    bool *used = pl_arena_calloc(&f->arena, f->tensor_count, sizeof *used);
    if (used == NULL) PL_FAIL(err, PL_NO_MEMORY, "%s: no memory for the tensor table", PL_SHOWN_C(f->path));
    for (uint32_t i = 0; i < f->tensor_count; i++) {
        if (f->tensors[i].dtype != PL_U32 || !pl_str_ends(pl_str_from(f->tensors[i].name), ".weight")) continue;
        PL_TRY(join_one(f, i, used, err));
        any = true;
    }
    return any ? pl_file_drop_tensors(f, used, err) : PL_OK;
}
