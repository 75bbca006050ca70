#include "ops/ops.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/mem.h"
#include "ops/impl.h"
#include "tensor/kv8.h"

/* --- opening a backend --- */

_Static_assert(PL_BACKEND_COUNT == 5, "a new backend needs its creator, or an explicit NULL, here");
static enum pl_status (*const creators[PL_BACKEND_COUNT])(const struct pl_ops_options *, struct pl_ops **,
                                                          struct pl_err *) = {
    [PL_BACKEND_CPU] = pl_ops_cpu_create,       [PL_BACKEND_METAL] = NULL,
    [PL_BACKEND_CUDA] = pl_ops_cuda_create,     [PL_BACKEND_ROCM] = pl_ops_rocm_create,
    [PL_BACKEND_OPENCL] = pl_ops_opencl_create,
};

static enum pl_status refuse_backend(enum pl_backend b, struct pl_err *err) {
    char have[96] = "", none[160] = "";
    size_t used = 0, missing = 0;
    for (size_t i = 0; i < PL_BACKEND_COUNT; i++) {
        if (creators[i] == NULL) continue;
        int n = snprintf(have + used, sizeof have - used, "%s%s", used > 0 ? ", " : "", pl_backend_name((enum pl_backend)i));
        used += n > 0 && (size_t)n < sizeof have - used ? (size_t)n : 0;
    }
    for (size_t op = 0; op < PL_OP_COUNT; op++) {
        if (pl_ops_port((enum pl_op)op, b) != PL_PORT_NONE) continue;
        int n = snprintf(none + missing, sizeof none - missing, "%s%s", missing > 0 ? ", " : "", pl_op_name((enum pl_op)op));
        missing += n > 0 && (size_t)n < sizeof none - missing ? (size_t)n : 0;
    }
    PL_FAIL(err, PL_UNSUPPORTED, "backend %s is not in this build: no port of %s; backends of this build: %s",
            pl_backend_name(b), missing > 0 ? none : "its device layer", have);
}

/* The table and the function pointers must tell the same story. */
static void check_ports(const struct pl_ops_impl *impl) {
#define CHECK_PORT(op) PL_ASSERT((pl_ops_port(PL_OP_##op, impl->backend) != PL_PORT_NONE) == (impl->op != NULL));
    PL_OP_LIST(CHECK_PORT)
#undef CHECK_PORT
}

enum pl_status pl_ops_create(const struct pl_ops_options *opt, struct pl_ops **out, struct pl_err *err) {
    if ((unsigned)opt->backend >= PL_BACKEND_COUNT)
        PL_FAIL(err, PL_INVALID, "backend number %d is unknown", (int)opt->backend);
    if (creators[opt->backend] == NULL) return refuse_backend(opt->backend, err);
    PL_TRY(creators[opt->backend](opt, out, err));
    check_ports((*out)->impl);
    return PL_OK;
}

void pl_ops_init(struct pl_ops *o, const struct pl_ops_impl *impl) {
    *o = (struct pl_ops){.impl = impl};
    pl_meter_init(&o->meter);
    pl_meter_init(&o->attention);
    pl_outcomes_init(&o->outcomes);
    o->choice.attn = PL_IMPL_NONE;
    for (int op = 0; op < PL_OP_COUNT; op++) o->choice.forced[op] = PL_IMPL_NONE;
}

enum pl_status pl_ops_set_choice(struct pl_ops *o, const struct pl_ops_options *opt, struct pl_err *err) {
    PL_TRY(pl_choice_parse(o->impl->backend, opt->force, opt->disable, opt->strict, &o->choice, err));
    PL_TRY(pl_choice_attention(opt->attn, opt->attn_off, &o->choice, err));
    o->invariant = opt->invariant;
    pl_choice_describe(&o->choice, o->forced, sizeof o->forced);
    for (int op = 0; op < PL_OP_COUNT; op++) {
        enum pl_impl list[PL_IMPL_COUNT];
        size_t n = pl_impl_ranked(o->impl->backend, (enum pl_op)op, list);
        enum pl_impl last = n > 0 ? list[n - 1] : PL_IMPL_NONE;
        o->usual[op] = (struct pl_pick){last, last, ""};
    }
    return PL_OK;
}

void pl_ops_destroy(struct pl_ops *o) {
    if (o == NULL) return;
    pl_meter_deinit(&o->meter);
    pl_meter_deinit(&o->attention);
    pl_outcomes_deinit(&o->outcomes);
    o->impl->destroy(o);
}

const char *pl_ops_describe(const struct pl_ops *o) { return o->describe; }
enum pl_backend pl_ops_backend(const struct pl_ops *o) { return o->impl->backend; }
const char *pl_ops_forced(const struct pl_ops *o) { return o->forced; }
bool pl_ops_strict(const struct pl_ops *o) { return o->choice.strict; }
const char *pl_ops_failure(const struct pl_ops *o) { return o->failure != NULL ? o->failure : ""; }
const char *pl_ops_refusal(const struct pl_ops *o) { return o->refusal; }

/* --- handles --- */

static enum pl_status check_float_dtype(const struct pl_tensor *t, struct pl_err *err) {
    if (t->ndim == 0) PL_FAIL(err, PL_FORMAT, "tensor %s is a scalar; a vector was expected", t->name);
    if (pl_tensor_rows(t) != 1)
        PL_FAIL(err, PL_FORMAT, "tensor %s has %llu rows; a vector was expected", t->name,
                (unsigned long long)pl_tensor_rows(t));
    return PL_OK;
}

enum pl_status pl_ops_weight_create(struct pl_ops *o, const struct pl_tensor *t, enum pl_weight_use use,
                                    struct pl_weight **out, struct pl_err *err) {
    if (use == PL_WEIGHT_VECTOR) PL_TRY(check_float_dtype(t, err));
    if (use == PL_WEIGHT_TERNARY && pl_ops_port(PL_OP_ternary, o->impl->backend) == PL_PORT_NONE)
        PL_FAIL(err, PL_UNSUPPORTED, "tensor %s is ternary: backend %s has no port of ternary; the cpu backend has", t->name,
                pl_backend_name(o->impl->backend));
    PL_ASSERT((use == PL_WEIGHT_TERNARY) == (t->dtype == PL_TERNARY));
    if (t->dtype == PL_I2_S)
        PL_FAIL(err, PL_UNSUPPORTED,
                "tensor %s is of type i2_s, which is known in the ternary products of bitnet models only", t->name);
    struct pl_weight *w;
    PL_TRY(o->impl->weight_create(o, t, use, &w, err));
    w->use = use;
    w->rows = pl_tensor_rows(t);
    w->cols = pl_tensor_cols(t);
    *out = w;
    return PL_OK;
}

enum pl_status pl_ops_experts_create(struct pl_ops *o, const struct pl_tensor *experts, size_t count, struct pl_weight **out,
                                     struct pl_err *err) {
    if (pl_ops_port(PL_OP_moe, o->impl->backend) == PL_PORT_NONE)
        PL_FAIL(err, PL_UNSUPPORTED, "a mixture of %zu experts: backend %s has no port of moe; the cpu backend has", count,
                pl_backend_name(o->impl->backend));
    if (experts[0].dtype == PL_I2_S)
        PL_FAIL(err, PL_UNSUPPORTED, "tensor %s is of type i2_s, which experts of no known model have", experts[0].name);
    for (size_t i = 0; i < count; i++)
        PL_ASSERT(experts[i].ndim == 2 && experts[i].shape[0] == experts[0].shape[0] &&
                  experts[i].shape[1] == experts[0].shape[1]);
    struct pl_weight *w;
    PL_TRY(o->impl->experts_create(o, experts, count, &w, err));
    w->use = PL_WEIGHT_EXPERTS;
    w->experts = count;
    w->rows = experts[0].shape[0];
    w->cols = experts[0].shape[1];
    *out = w;
    return PL_OK;
}

enum pl_status pl_ops_heads_create(struct pl_ops *o, const struct pl_tensor *heads, size_t count, struct pl_weight **out,
                                   struct pl_err *err) {
    if (pl_ops_port(PL_OP_heads_linear, o->impl->backend) == PL_PORT_NONE)
        PL_FAIL(err, PL_UNSUPPORTED,
                "latent attention of %zu heads: backend %s has no port of heads_linear; the cpu backend has", count,
                pl_backend_name(o->impl->backend));
    struct pl_weight *w;
    PL_TRY(o->impl->heads_create(o, heads, count, &w, err));
    w->use = PL_WEIGHT_HEADS;
    w->experts = count;
    w->rows = heads[0].shape[0];
    w->cols = heads[0].shape[1];
    *out = w;
    return PL_OK;
}

enum pl_status pl_ops_heads_reserve(struct pl_ops *o, const struct pl_weight *w, size_t rows, struct pl_err *err) {
    return o->impl->heads_reserve != NULL ? o->impl->heads_reserve(o, w, rows, err) : PL_OK;
}

void pl_ops_weight_destroy(struct pl_ops *o, struct pl_weight *w) {
    if (w != NULL) o->impl->weight_destroy(o, w);
}
bool pl_ops_pack_later(struct pl_ops *o, void (*when_packed)(void *user, const struct pl_tensor *t), void *user) {
    if (o->impl->pack_later == NULL) return false;
    o->impl->pack_later(o, when_packed, user);
    return true;
}
uint64_t pl_ops_weight_bytes_owned(const struct pl_ops *o, const struct pl_weight *w) {
    return o->impl->weight_bytes_owned(o, w);
}
const char *pl_ops_weight_kernel(const struct pl_ops *o, const struct pl_weight *w, size_t rows) {
    return o->impl->weight_kernel(o, w, rows);
}

enum pl_status pl_ops_activation_create(struct pl_ops *o, size_t rows_max, size_t cols, struct pl_activation **out,
                                        struct pl_err *err) {
    if (rows_max == 0 || cols == 0) PL_FAIL(err, PL_INVALID, "an activation of %zu x %zu was asked for", rows_max, cols);
    struct pl_activation *a;
    PL_TRY(o->impl->activation_create(o, rows_max, cols, &a, err));
    a->rows_max = rows_max;
    a->cols = cols;
    a->rows = 0;
    *out = a;
    return PL_OK;
}

void pl_ops_activation_destroy(struct pl_ops *o, struct pl_activation *a) {
    if (a != NULL) o->impl->activation_destroy(o, a);
}

/* Before anything but a product reads them. */
static enum pl_status whole(struct pl_ops *o, const struct pl_activation *const *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (list[i] != NULL && list[i]->rounded) PL_TRY(o->impl->whole(o, (struct pl_activation *)list[i]));
    return PL_OK;
}
#define WHOLE(...)                                                      \
    PL_TRY(whole(o, (const struct pl_activation *const[]){__VA_ARGS__}, \
                 sizeof((const struct pl_activation *const[]){__VA_ARGS__}) / sizeof(struct pl_activation *)))

enum pl_status pl_ops_activation_read(struct pl_ops *o, const struct pl_activation *a, size_t first_row, size_t rows,
                                      float *out) {
    if (rows > a->rows || first_row > a->rows - rows) return PL_INVALID;
    if (rows == 0) return PL_OK;
    WHOLE(a);
    return o->impl->activation_read(o, a, first_row, rows, out);
}

const char *pl_kv_type_name(enum pl_dtype t) { return t == PL_I8 ? "int8" : t == PL_F8 ? "fp8" : pl_dtype_name(t); }
bool pl_kv_type_from_name(const char *name, enum pl_dtype *out) {
    static const enum pl_dtype types[] = {PL_F16, PL_BF16, PL_F32, PL_I8, PL_F8, PL_K8V4};
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        if (strcmp(name, pl_kv_type_name(types[i])) != 0) continue;
        *out = types[i];
        return true;
    }
    return false;
}

size_t pl_kv_token_bytes(const struct pl_kv_shape *s) {
    size_t values = s->value_dim > 0 ? 0 : pl_kv_value_bytes(s->dtype, s->head_dim);
    return pl_kv_key_bytes(s->dtype, s->head_dim) + values;
}

size_t pl_kv_page_bytes(const struct pl_kv_shape *s, size_t side) {
    size_t vector = (side > 0 ? pl_kv_value_bytes : pl_kv_key_bytes)(s->dtype, s->head_dim);
    return vector * s->kv_heads * s->page_tokens; /* pl_kv_pages_bytes has seen that it fits */
}

static size_t windowed_before(const struct pl_kv_shape *s, size_t layer) {
    size_t n = 0;
    if (s->window_page_count == 0) return 0;
    for (size_t w = 0; w < layer / 64; w++) n += (size_t)__builtin_popcountll(s->windowed[w]);
    if (layer % 64 == 0) return n;
    return n + (size_t)__builtin_popcountll(s->windowed[layer / 64] & ((1ull << layer % 64) - 1));
}

size_t pl_kv_windowed_layers(const struct pl_kv_shape *s) {
    return windowed_before(s, PL_MIN(s->layers, (size_t)PL_KV_LAYERS_MAX));
}

size_t pl_kv_pages_before(const struct pl_kv_shape *s, size_t layer) {
    size_t windowed = windowed_before(s, layer);
    return windowed * s->window_page_count + (layer - windowed) * s->page_count;
}

size_t pl_kv_pages_bytes(const struct pl_kv_shape *s) {
    size_t windowed = pl_kv_windowed_layers(s), own, pages, bytes = pl_kv_token_bytes(s);
    bool fits = s->head_dim <= UINT32_MAX && pl_mul_size(bytes, s->kv_heads, &bytes) &&
                pl_mul_size(bytes, s->page_tokens, &bytes) && pl_mul_size(windowed, s->window_page_count, &own) &&
                pl_mul_size(s->layers - windowed, s->page_count, &pages) && pl_add_size(pages, own, &pages) &&
                pl_mul_size(bytes, pages, &bytes);
    return fits ? bytes : 0;
}

size_t pl_kv_state_bytes(const struct pl_kv_shape *s) {
    size_t bytes;
    bool fits = pl_add_size(s->state_conv, s->state_ssm, &bytes) && pl_mul_size(bytes, sizeof(float), &bytes) &&
                pl_mul_size(bytes, s->state_slots, &bytes) && pl_mul_size(bytes, s->state_layers, &bytes);
    return fits ? bytes : 0;
}

size_t pl_kv_shape_bytes(const struct pl_kv_shape *s) {
    size_t pages = pl_kv_pages_bytes(s), state = pl_kv_state_bytes(s), bytes;
    if ((pages == 0 && s->layers > 0) || (state == 0 && s->state_layers > 0)) return 0;
    return pl_add_size(pages, state, &bytes) ? bytes : 0;
}

enum pl_status pl_ops_kv_create(struct pl_ops *o, const struct pl_kv_shape *shape, struct pl_kv_store **out,
                                struct pl_err *err) {
    const bool kv8 = pl_is_kv8(shape->dtype);
    if (shape->dtype != PL_F16 && shape->dtype != PL_BF16 && shape->dtype != PL_F32 && !kv8)
        PL_FAIL(err, PL_UNSUPPORTED, "KV cache of type %s: f16, bf16, f32, int8, fp8 and k8v4 are known",
                pl_dtype_name(shape->dtype));
    if (kv8 && (shape->value_dim > 0 || shape->head_dim % pl_kv_multiple(shape->dtype) != 0))
        PL_FAIL(err, PL_UNSUPPORTED, "KV cache of type %s: keys and values of a latent cache and heads of %zu have none",
                pl_kv_type_name(shape->dtype), shape->head_dim);
    if (pl_kv_shape_bytes(shape) == 0 || shape->value_dim > shape->head_dim || shape->layers > PL_KV_LAYERS_MAX)
        PL_FAIL(err, PL_INVALID, "KV cache of %zu layers, %zu pages of %zu tokens, %zu heads of %zu: empty, or too large",
                shape->layers, shape->page_count, shape->page_tokens, shape->kv_heads, shape->head_dim);
    struct pl_kv_store *kv;
    PL_TRY(o->impl->kv_create(o, shape, &kv, err));
    kv->shape = *shape;
    *out = kv;
    return PL_OK;
}

void pl_ops_kv_destroy(struct pl_ops *o, struct pl_kv_store *kv) {
    if (kv != NULL) o->impl->kv_destroy(o, kv);
}

enum pl_status pl_ops_kv_copy_page(struct pl_ops *o, struct pl_kv_store *kv, bool windowed, uint32_t from, uint32_t to) {
    size_t pages = windowed ? kv->shape.window_page_count : kv->shape.page_count;
    if (from >= pages || to >= pages) return PL_INVALID;
    return from == to ? PL_OK : o->impl->kv_copy_page(o, kv, windowed, from, to);
}

enum pl_status pl_ops_state_copy(struct pl_ops *o, struct pl_kv_store *kv, uint32_t from, uint32_t to) {
    if (from >= kv->shape.state_slots || to >= kv->shape.state_slots) return PL_INVALID;
    return from == to ? PL_OK : o->impl->state_copy(o, kv, from, to);
}

void pl_ops_share(struct pl_ops *o, size_t units, void (*fn)(void *arg, size_t unit), void *arg) {
    if (o->impl->share != NULL && units > 1) {
        o->impl->share(o, units, fn, arg);
        return;
    }
    for (size_t i = 0; i < units; i++) fn(arg, i);
}

enum pl_status pl_ops_rope_create(struct pl_ops *o, const float *cos_sin, size_t positions, size_t dim, bool halves,
                                  struct pl_rope **out, struct pl_err *err) {
    if (positions == 0 || dim == 0 || dim % 2 != 0)
        PL_FAIL(err, PL_INVALID, "a rotary table of %zu positions and %zu dimensions was asked for", positions, dim);
    struct pl_rope *r;
    PL_TRY(o->impl->rope_create(o, cos_sin, positions, dim, halves, &r, err));
    r->positions = positions;
    r->dim = dim;
    r->halves = halves;
    *out = r;
    return PL_OK;
}

void pl_ops_rope_destroy(struct pl_ops *o, struct pl_rope *r) {
    if (r != NULL) o->impl->rope_destroy(o, r);
}

/* --- a step --- */

static bool seq_is_sound(const struct pl_batch *b, const struct pl_kv_shape *kv, uint32_t i, uint32_t row) {
    const struct pl_batch_seq *s = &b->seqs[i];
    if (s->rows == 0 || s->first_row != row || s->rows > b->rows - row) return false;
    if (kv->state_layers > 0 && s->state >= kv->state_slots) return false;
    uint64_t tokens = (uint64_t)s->past + s->rows, pages = (tokens + kv->page_tokens - 1) / kv->page_tokens;
    if (s->page_first > b->page_entries || pages > b->page_entries - s->page_first) return false;
    for (uint64_t p = 0; p < pages; p++)
        if (b->pages[s->page_first + p] >= kv->page_count) return false;
    for (uint64_t p = 0; p < pages && kv->window_page_count > 0; p++)
        if (b->window_pages[s->page_first + p] >= kv->window_page_count) return false;
    return true;
}

static bool batch_is_sound(const struct pl_batch *b, const struct pl_kv_shape *kv) {
    uint32_t row = 0;
    if ((kv->window_page_count > 0) != (b->window_pages != NULL)) return false;
    for (uint32_t i = 0; i < b->seq_count; i++) {
        if (!seq_is_sound(b, kv, i, row)) return false;
        row += b->seqs[i].rows;
    }
    if (row != b->rows || b->logit_count > b->rows) return false;
    for (uint32_t i = 0; i < b->logit_count; i++)
        if (b->logit_rows[i] >= b->rows || (i > 0 && b->logit_rows[i] <= b->logit_rows[i - 1])) return false;
    return true;
}

enum pl_status pl_ops_begin(struct pl_ops *o, const struct pl_batch *b, struct pl_kv_store *kv) {
    PL_ASSERT(o->batch == NULL);
    if (!batch_is_sound(b, &kv->shape)) return PL_INVALID;
    PL_TRY(o->impl->begin(o, b, kv));
    o->batch = b;
    o->kv = kv;
    o->attention_totals.steps += b->rows > 0;
    return PL_OK;
}

enum pl_status pl_ops_end(struct pl_ops *o) {
    PL_ASSERT(o->batch != NULL);
    o->batch = NULL;
    o->kv = NULL;
    return o->impl->end(o);
}

bool pl_ops_plan_begin(struct pl_ops *o) {
    if (o->impl->plan_begin == NULL) return false;
    o->impl->plan_begin(o);
    return true;
}

enum pl_status pl_ops_plan_end(struct pl_ops *o, struct pl_err *err) {
    enum pl_status st = o->impl->plan_end(o, err);
    pl_meter_deinit(&o->meter); /* nothing ran: the rows go too */
    pl_meter_deinit(&o->attention);
    o->attention_totals = (struct pl_ops_attention_totals){0};
    pl_outcomes_deinit(&o->outcomes);
    if (o->batch != NULL) { /* a step that was refused half way */
        o->batch = NULL;
        o->kv = NULL;
    }
    return st;
}

/* --- decisions --- */

enum pl_status pl_ops_end_decision(struct pl_ops *o, enum pl_op op, const struct pl_pick *p, uint64_t n, const char *shape) {
    bool none = p->taken == PL_IMPL_NONE;
    struct pl_outcome how = {.subject = (uint32_t)op,
                             .kind = none                     ? PL_OUTCOME_DECLINED
                                     : p->taken == p->planned ? PL_OUTCOME_CHOSEN
                                                              : PL_OUTCOME_FALLBACK,
                             .taken = pl_impl_name(p->taken),
                             .planned = pl_impl_name(p->planned),
                             .reason = p->reason};
    pl_outcomes_end(&o->outcomes, &how, n);
    if (!none) return PL_OK;
    snprintf(o->refusal, sizeof o->refusal, "%s: %s%s%s on %s cannot take its %s implementation %s: %s",
             o->choice.forced[op] != PL_IMPL_NONE ? "--force-kernel" : "--strict", pl_op_name(op),
             shape[0] != 0 ? " of " : "", shape, pl_backend_name(o->impl->backend),
             o->choice.forced[op] != PL_IMPL_NONE ? "forced" : "planned", pl_impl_name(p->planned), p->reason);
    return PL_UNSUPPORTED;
}

enum pl_status pl_ops_decide(struct pl_ops *o, enum pl_op op, const struct pl_candidate *list, size_t count, uint64_t n,
                             const char *shape, enum pl_impl *taken) {
    struct pl_pick p = pl_choose(&o->choice, op, list, count);
    *taken = p.taken;
    return pl_ops_end_decision(o, op, &p, n, shape);
}

/* What the backend did not end itself ends as usual, or, when the call failed, as declined with that failure. */
static enum pl_status settle(struct pl_ops *o, enum pl_op op, enum pl_status st) {
    uint64_t open = pl_outcomes_open(&o->outcomes, (uint32_t)op);
    struct pl_pick p = o->usual[op];
    if (open == 0) return st;
    if (st == PL_OK) return pl_ops_end_decision(o, op, &p, open, "");
    char why[sizeof o->refusal]; /* the question that was refused has said it; the others only end with it */
    memcpy(why, o->refusal, sizeof why);
    p = (struct pl_pick){PL_IMPL_NONE, p.planned, pl_status_text(st)};
    if (pl_ops_end_decision(o, op, &p, open, "") == PL_UNSUPPORTED && st == PL_UNSUPPORTED && why[0] != 0)
        memcpy(o->refusal, why, sizeof why);
    return st;
}
/* One call into the backend: n questions, each ended exactly once. */
#define RUN_N(op, n, call) (pl_outcomes_ask(&o->outcomes, PL_OP_##op, (n)), settle(o, PL_OP_##op, (call)))
#define RUN(op, call)      RUN_N(op, 1, call)

/* Sets y's row count; false when there is nothing to do. */
static bool take_rows(struct pl_activation *y, size_t rows, size_t cols) {
    PL_ASSERT(rows <= y->rows_max && y->cols == cols);
    y->rows = rows;
    y->rounded = false;
    return rows > 0;
}

bool pl_ops_is_token(const struct pl_ops *o, uint32_t token, uint64_t vocab) {
    return token < vocab || ((token & PL_TOKEN_CHOSEN) != 0 && (token & ~PL_TOKEN_CHOSEN) < o->choices);
}

static bool is_vector(const struct pl_weight *w, size_t n) { return w->use == PL_WEIGHT_VECTOR && w->cols == n; }
static bool is_matrix(const struct pl_weight *w, size_t in, size_t out) {
    return (w->use == PL_WEIGHT_MATRIX || w->use == PL_WEIGHT_HEAD || w->use == PL_WEIGHT_TIED) && w->cols == in &&
           w->rows == out;
}

enum pl_status pl_ops_embed(struct pl_ops *o, const struct pl_weight *table, float scale, struct pl_activation *x) {
    PL_ASSERT(o->batch != NULL && (table->use == PL_WEIGHT_EMBED || table->use == PL_WEIGHT_TIED));
    for (uint32_t i = 0; i < o->batch->rows; i++)
        if (!pl_ops_is_token(o, o->batch->tokens[i], table->rows)) return PL_INVALID;
    return take_rows(x, o->batch->rows, table->cols) ? RUN(embed, o->impl->embed(o, table, scale, x)) : PL_OK;
}

enum pl_status pl_ops_norm(struct pl_ops *o, struct pl_activation *x, const struct pl_weight *w, float eps, float offset,
                           struct pl_activation *y) {
    PL_ASSERT(is_vector(w, x->cols));
    WHOLE(x);
    return take_rows(y, x->rows, x->cols) ? RUN(norm, o->impl->norm(o, x, w, eps, offset, y)) : PL_OK;
}

enum pl_status pl_ops_add_norm(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *add,
                               const struct pl_weight *w, float eps, float offset, struct pl_activation *y) {
    PL_ASSERT(is_vector(w, x->cols) && add->rows == x->rows && add->cols == x->cols);
    WHOLE(x, add);
    return take_rows(y, x->rows, x->cols) ? RUN(add_norm, o->impl->add_norm(o, x, add, w, eps, offset, y)) : PL_OK;
}

enum pl_status pl_ops_layer_norm(struct pl_ops *o, struct pl_activation *x, const struct pl_weight *w,
                                 const struct pl_weight *bias, float eps, struct pl_activation *y) {
    PL_ASSERT(is_vector(w, x->cols) && (bias == NULL || is_vector(bias, x->cols)));
    WHOLE(x);
    return take_rows(y, x->rows, x->cols) ? RUN(layer_norm, o->impl->layer_norm(o, x, w, bias, eps, y)) : PL_OK;
}

enum pl_status pl_ops_add(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *add) {
    PL_ASSERT(add->rows == x->rows && add->cols == x->cols);
    WHOLE(x, add);
    return x->rows > 0 ? RUN(add, o->impl->add(o, x, add)) : PL_OK;
}

enum pl_status pl_ops_linear(struct pl_ops *o, size_t count, const struct pl_weight *const *w,
                             const struct pl_weight *const *bias, const struct pl_activation *x,
                             struct pl_activation *const *y) {
    PL_ASSERT(count >= 1 && count <= PL_OPS_LINEAR_MAX);
    for (size_t i = 0; i < count; i++) {
        PL_ASSERT(is_matrix(w[i], x->cols, y[i]->cols) && y[i] != x);
        PL_ASSERT(bias == NULL || bias[i] == NULL || is_vector(bias[i], y[i]->cols));
        (void)take_rows(y[i], x->rows, y[i]->cols);
    }
    for (int again = 0; x->rows > 0 && again < 2 && pl_fault("slow-product"); again++)
        PL_TRY(RUN_N(linear, count, o->impl->linear(o, count, w, bias, x, y)));
    return x->rows > 0 ? RUN_N(linear, count, o->impl->linear(o, count, w, bias, x, y)) : PL_OK;
}

enum pl_status pl_ops_linear_add(struct pl_ops *o, const struct pl_weight *w, const struct pl_activation *x,
                                 struct pl_activation *y) {
    PL_ASSERT(is_matrix(w, x->cols, y->cols) && y != x && y->rows == x->rows);
    WHOLE(y);
    return x->rows > 0 ? RUN(linear_add, o->impl->linear_add(o, w, x, y)) : PL_OK;
}

enum pl_status pl_ops_ternary(struct pl_ops *o, size_t count, const struct pl_weight *const *w,
                              const struct pl_activation *x, struct pl_activation *const *y) {
    PL_ASSERT(count >= 1 && count <= PL_OPS_LINEAR_MAX);
    WHOLE(x);
    for (size_t i = 0; i < count; i++) {
        PL_ASSERT(w[i]->use == PL_WEIGHT_TERNARY && w[i]->cols == x->cols && w[i]->rows == y[i]->cols && y[i] != x);
        (void)take_rows(y[i], x->rows, y[i]->cols);
    }
    return x->rows > 0 ? RUN_N(ternary, count, o->impl->ternary(o, count, w, x, y)) : PL_OK;
}

enum pl_status pl_ops_rope_append(struct pl_ops *o, const struct pl_qkv *p, struct pl_activation *q, struct pl_activation *k,
                                  struct pl_activation *v) {
    PL_ASSERT(o->batch != NULL);
    const struct pl_kv_shape *s = &o->kv->shape;
    PL_ASSERT(p->layer < s->layers && q->cols == p->heads * s->head_dim && p->heads % s->kv_heads == 0);
    PL_ASSERT(s->value_dim == 0);
    PL_ASSERT(k->cols == s->kv_heads * s->head_dim && v->cols == k->cols);
    PL_ASSERT(q->rows == o->batch->rows && k->rows == q->rows && v->rows == q->rows);
    PL_ASSERT(p->q_norm == NULL || is_vector(p->q_norm, s->head_dim));
    PL_ASSERT(p->k_norm == NULL || is_vector(p->k_norm, s->head_dim));
    PL_ASSERT(p->rope == NULL || p->rope->dim <= s->head_dim);
    WHOLE(q, k, v);
    for (uint32_t i = 0; p->rope != NULL && i < o->batch->seq_count; i++)
        if ((uint64_t)o->batch->seqs[i].past + o->batch->seqs[i].rows > p->rope->positions) return PL_LIMIT;
    return q->rows > 0 ? RUN(rope_append, o->impl->rope_append(o, p, q, k, v)) : PL_OK;
}

enum pl_status pl_ops_latent_append(struct pl_ops *o, const struct pl_latent *p, const struct pl_activation *q,
                                    const struct pl_activation *kv, struct pl_activation *qa) {
    PL_ASSERT(o->batch != NULL);
    const struct pl_kv_shape *s = &o->kv->shape;
    PL_ASSERT(p->layer < s->layers && s->kv_heads == 1 && s->value_dim > 0 && s->value_dim < s->head_dim);
    PL_ASSERT(kv->cols == s->head_dim && qa->cols == p->heads * s->head_dim && is_vector(p->norm, s->value_dim));
    PL_ASSERT(q->cols % p->heads == 0 && p->rope->dim == s->head_dim - s->value_dim && p->rope->dim < q->cols / p->heads);
    PL_ASSERT(q->rows == o->batch->rows && kv->rows == q->rows && q != qa);
    WHOLE(q, kv, qa);
    for (uint32_t i = 0; i < o->batch->seq_count; i++)
        if ((uint64_t)o->batch->seqs[i].past + o->batch->seqs[i].rows > p->rope->positions) return PL_LIMIT;
    return take_rows(qa, q->rows, qa->cols) ? RUN(latent_append, o->impl->latent_append(o, p, q, kv, qa)) : PL_OK;
}

enum pl_status pl_ops_heads_linear(struct pl_ops *o, const struct pl_weight *w, const struct pl_activation *x,
                                   struct pl_activation *y) {
    PL_ASSERT(w->use == PL_WEIGHT_HEADS && x->cols % w->experts == 0 && y->cols % w->experts == 0 && x != y);
    PL_ASSERT(x->cols / w->experts >= w->cols && y->cols / w->experts >= w->rows);
    WHOLE(x, y);
    return take_rows(y, x->rows, y->cols) ? RUN(heads_linear, o->impl->heads_linear(o, w, x, y)) : PL_OK;
}

enum pl_status pl_ops_attention(struct pl_ops *o, const struct pl_attention *p, const struct pl_activation *q,
                                struct pl_activation *out) {
    PL_ASSERT(o->batch != NULL && p->layer < o->kv->shape.layers && q->cols == p->heads * o->kv->shape.head_dim);
    PL_ASSERT(q->rows == o->batch->rows && q != out && (p->sinks == NULL || is_vector(p->sinks, p->heads)));
    PL_ASSERT(p->window > 0 || !pl_kv_is_windowed(&o->kv->shape, p->layer));
    WHOLE(q);
    if (!take_rows(out, q->rows, p->heads * pl_kv_value_dim(&o->kv->shape))) return PL_OK;
    uint64_t counted = o->attention_totals.layer_steps;
    enum pl_status st = RUN(attention, o->impl->attention(o, p, q, out));
    if (st != PL_OK && o->attention_totals.layer_steps == counted)
        pl_ops_count_attention(o, "failed", pl_status_text(st), 0);
    return st;
}

enum pl_status pl_ops_latent_attention(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w,
                                       const struct pl_activation *q, struct pl_activation *qa, struct pl_activation *made,
                                       struct pl_activation *out) {
    PL_ASSERT(o->batch != NULL && p->layer < o->kv->shape.layers && o->kv->shape.value_dim > 0 && p->sinks == NULL);
    PL_ASSERT(q->rows == o->batch->rows && qa->rows == q->rows && q != out && qa != out && p->window == 0 &&
              p->softcap == 0);
    WHOLE(q, qa);
    if (q->rows == 0 || o->impl->expanded == NULL || !o->impl->takes_expanded(o, p, w)) {
        PL_TRY(pl_ops_heads_linear(o, w->k_heads, q, qa));
        PL_TRY(pl_ops_attention(o, p, qa, made));
        return pl_ops_heads_linear(o, w->v_heads, made, out);
    }
    (void)take_rows(out, q->rows, out->cols);
    return RUN(attention, o->impl->expanded(o, p, w, q, qa, out));
}

enum pl_status pl_ops_glu(struct pl_ops *o, enum pl_ops_act act, const struct pl_activation *gate,
                          const struct pl_activation *up, struct pl_activation *y) {
    PL_ASSERT(up == NULL || (up->cols == gate->cols && up->rows == gate->rows));
    PL_ASSERT(act != PL_OPS_SWIGLU_CLAMPED);
    WHOLE(gate, up);
    return take_rows(y, gate->rows, gate->cols) ? RUN(glu, o->impl->glu(o, act, gate, up, y)) : PL_OK;
}

enum pl_status pl_ops_gated(struct pl_ops *o, const struct pl_weight *const *w, const struct pl_weight *const *bias,
                            enum pl_ops_act act, const struct pl_activation *x, struct pl_activation *const *y) {
    bool apart = x->rows == 0 || act == PL_OPS_GELU || o->impl->gated == NULL;
    if (apart || !o->impl->takes_gated(o, w, bias, x)) {
        PL_TRY(pl_ops_linear(o, 2, w, bias, x, y));
        return pl_ops_glu(o, act, y[0], y[1], y[0]);
    }
    for (size_t i = 0; i < 2; i++) {
        PL_ASSERT(is_matrix(w[i], x->cols, y[0]->cols) && y[i] != x);
        PL_ASSERT(bias == NULL || bias[i] == NULL || is_vector(bias[i], y[i]->cols));
        (void)take_rows(y[i], x->rows, y[0]->cols);
    }
    pl_outcomes_ask(&o->outcomes, PL_OP_glu, 1);
    enum pl_status st = RUN_N(linear, 2, o->impl->gated(o, w, bias, act, x, y));
    return settle(o, PL_OP_glu, st);
}

enum pl_status pl_ops_gather_logit_rows(struct pl_ops *o, const struct pl_activation *x, struct pl_activation *y) {
    PL_ASSERT(o->batch != NULL && x->rows == o->batch->rows && x != y);
    WHOLE(x);
    return take_rows(y, o->batch->logit_count, x->cols) ? RUN(gather, o->impl->gather(o, x, y)) : PL_OK;
}

enum pl_status pl_ops_softcap(struct pl_ops *o, struct pl_activation *x, float cap) {
    PL_ASSERT(cap > 0);
    WHOLE(x);
    return x->rows > 0 ? RUN(softcap, o->impl->softcap(o, x, cap)) : PL_OK;
}

enum pl_status pl_ops_scale(struct pl_ops *o, struct pl_activation *x, float scale) {
    WHOLE(x);
    return x->rows > 0 ? RUN(scale, o->impl->scale(o, x, scale)) : PL_OK;
}

enum pl_status pl_ops_gate_rows(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *gate) {
    PL_ASSERT(gate->rows == x->rows && gate->cols == 1);
    WHOLE(x, gate);
    return x->rows > 0 ? RUN(gate_rows, o->impl->gate_rows(o, x, gate)) : PL_OK;
}

static bool is_bias(const struct pl_weight *w, size_t n) { return w == NULL || is_vector(w, n); }
static bool is_experts(const struct pl_weight *w, size_t n, size_t in, size_t out) {
    return w->use == PL_WEIGHT_EXPERTS && w->experts == n && w->cols == in && w->rows == out;
}

enum pl_status pl_ops_moe_reserve(struct pl_ops *o, const struct pl_moe *p, size_t rows, struct pl_err *err) {
    return o->impl->moe_reserve(o, p, rows, err);
}

enum pl_status pl_ops_moe(struct pl_ops *o, const struct pl_moe *p, const struct pl_activation *logits,
                          const struct pl_activation *x, struct pl_activation *y) {
    size_t n = logits->cols, inner = (size_t)p->up->rows;
    PL_ASSERT((p->gate == NULL || is_experts(p->gate, n, x->cols, inner)) && is_experts(p->up, n, x->cols, inner));
    PL_ASSERT(p->gate != NULL || (p->gate_bias == NULL && p->up_bias == NULL));
    PL_ASSERT(is_experts(p->down, n, inner, y->cols) && p->used >= 1 && p->used <= n && x != y);
    PL_ASSERT(logits->rows == x->rows && y->rows == x->rows && x->cols == y->cols);
    PL_ASSERT(is_bias(p->choice_bias, n) && is_bias(p->gate_bias, n * inner) && is_bias(p->up_bias, n * inner) &&
              is_bias(p->down_bias, n * x->cols) && (p->gate_bias != NULL) == (p->up_bias != NULL));
    PL_ASSERT(p->groups == 0 || (n % p->groups == 0 && p->groups_used >= 1 && p->groups_used <= p->groups &&
                                 p->used <= n / p->groups * p->groups_used && p->group_top >= 1 && p->group_top <= 2));
    WHOLE(logits, x, y);
    return x->rows > 0 ? RUN(moe, o->impl->moe(o, p, logits, x, y)) : PL_OK;
}

static void check_conv(const struct pl_ops *o, const struct pl_conv *p, const struct pl_activation *x) {
    PL_ASSERT(o->batch != NULL && p->layer < o->kv->shape.state_layers && x->rows == o->batch->rows);
    PL_ASSERT(p->kernel >= 2 && p->kernel <= PL_OPS_CONV_MAX && is_vector(p->w, p->kernel * x->cols));
    PL_ASSERT(o->kv->shape.state_conv == (p->kernel - 1) * x->cols && is_bias(p->bias, x->cols));
}
enum pl_status pl_ops_causal_conv(struct pl_ops *o, const struct pl_conv *p, const struct pl_activation *x,
                                  struct pl_activation *y) {
    check_conv(o, p, x);
    PL_ASSERT(x != y);
    WHOLE(x);
    return take_rows(y, x->rows, x->cols) ? RUN(causal_conv, o->impl->causal_conv(o, p, x, y)) : PL_OK;
}

static bool holds(const struct pl_activation *a, size_t first, size_t cols, size_t rows) {
    return a->rows == rows && first <= a->cols && cols <= a->cols - first;
}

static void check_ssm(const struct pl_ops *o, const struct pl_ssm *p, const struct pl_activation *y) {
    PL_ASSERT(o->batch != NULL && p->layer < o->kv->shape.state_layers);
    size_t rows = o->batch->rows, inner = (size_t)p->heads * p->head_dim, bc = (size_t)p->groups * p->state;
    PL_ASSERT(o->kv->shape.state_ssm == inner * p->state && p->heads % p->groups == 0);
    PL_ASSERT(p->state <= PL_OPS_STATE_MAX && p->head_dim <= PL_OPS_SSM_HEAD_MAX && (!p->full || p->head_dim == 1));
    PL_ASSERT(holds(p->x, p->x_first, inner, rows) && holds(p->b, p->b_first, bc, rows));
    PL_ASSERT(holds(p->c, p->c_first, bc, rows) && holds(p->dt, 0, p->heads, rows));
    PL_ASSERT(p->z == NULL || (p->z->rows == rows && p->z->cols == inner));
    PL_ASSERT(is_vector(p->a, p->full ? (size_t)p->heads * p->state : p->heads));
    PL_ASSERT(is_bias(p->dt_bias, p->heads) && is_bias(p->skip, p->heads) && y != p->x && y != p->b && y != p->c);
}

enum pl_status pl_ops_ssm(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y) {
    check_ssm(o, p, y);
    WHOLE(p->x, p->b, p->c, p->dt, p->z);
    size_t rows = o->batch->rows;
    if (!take_rows(y, rows, (size_t)p->heads * p->head_dim)) return PL_OK;
    return rows == o->batch->seq_count ? RUN(ssm_update, o->impl->ssm_update(o, p, y))
                                       : RUN(ssm_scan, o->impl->ssm_scan(o, p, y));
}

enum pl_status pl_ops_delta(struct pl_ops *o, const struct pl_delta *p, struct pl_activation *y) {
    PL_ASSERT(o->batch != NULL && p->layer < o->kv->shape.state_layers);
    size_t rows = o->batch->rows, inner = (size_t)p->heads * p->head_dim, keys = (size_t)p->groups * p->state;
    PL_ASSERT(o->kv->shape.state_ssm == inner * p->state && p->heads % p->groups == 0);
    PL_ASSERT(p->state <= PL_OPS_STATE_MAX && p->head_dim <= PL_OPS_SSM_HEAD_MAX);
    PL_ASSERT(holds(p->x, p->q_first, keys, rows) && holds(p->x, p->k_first, keys, rows));
    PL_ASSERT(holds(p->x, p->v_first, inner, rows) && holds(p->dt, 0, p->heads, rows) && holds(p->beta, 0, p->heads, rows));
    PL_ASSERT(is_vector(p->a, p->heads) && is_vector(p->dt_bias, p->heads) && y != p->x && y != p->dt && y != p->beta);
    WHOLE(p->x, p->dt, p->beta);
    return take_rows(y, rows, inner) ? RUN(delta, o->impl->delta(o, p, y)) : PL_OK;
}

enum pl_status pl_ops_conv_ssm(struct pl_ops *o, const struct pl_conv *conv, const struct pl_activation *in,
                               struct pl_activation *made, const struct pl_ssm *p, struct pl_activation *y) {
    PL_ASSERT(o->batch != NULL && p->x == made && p->b == made && p->c == made && p->layer == conv->layer);
    bool one_each = o->batch->rows > 0 && o->batch->rows == o->batch->seq_count;
    if (!one_each || o->impl->conv_ssm == NULL || !o->impl->takes_conv_ssm(o, conv, p)) {
        PL_TRY(pl_ops_causal_conv(o, conv, in, made));
        return pl_ops_ssm(o, p, y);
    }
    WHOLE(in, p->dt, p->z);
    check_conv(o, conv, in);
    (void)take_rows(made, in->rows, in->cols);
    check_ssm(o, p, y);
    PL_ASSERT(in != made && in != y);
    (void)take_rows(y, in->rows, (size_t)p->heads * p->head_dim);
    pl_outcomes_ask(&o->outcomes, PL_OP_causal_conv, 1);
    enum pl_status st = RUN(ssm_update, o->impl->conv_ssm(o, conv, in, p, y));
    return settle(o, PL_OP_causal_conv, st);
}

enum pl_status pl_ops_gated_norm(struct pl_ops *o, const struct pl_gated_norm *p, const struct pl_activation *x,
                                 const struct pl_activation *z, struct pl_activation *y) {
    PL_ASSERT(is_vector(p->w, x->cols) && p->groups >= 1 && x->cols % p->groups == 0);
    PL_ASSERT(z == NULL || (z->rows == x->rows && z->cols == x->cols && z != y));
    WHOLE(x, z);
    return take_rows(y, x->rows, x->cols) ? RUN(gated_norm, o->impl->gated_norm(o, p, x, z, y)) : PL_OK;
}

bool pl_ops_chooses(const struct pl_ops *o) { return o->impl->argmax != NULL; }

uint64_t pl_ops_unconverged(const struct pl_ops *o) { return o->unconverged; }
struct pl_ops_graphs pl_ops_graphs(const struct pl_ops *o) {
    return o->graphs;
}

enum pl_status pl_ops_choose(struct pl_ops *o, const struct pl_activation *x, size_t rows, const struct pl_draw *draws,
                             uint32_t *slot) {
    if (o->impl->argmax == NULL) return PL_UNSUPPORTED;
    if (rows == 0 || rows > x->rows) return PL_INVALID;
    WHOLE(x);
    o->choices = 0;
    *slot = o->choice_slot ^= 1;
    PL_TRY(draws == NULL ? RUN(argmax, o->impl->argmax(o, x, rows, *slot))
                         : RUN(draw, o->impl->draw(o, x, rows, draws, *slot)));
    o->choices = rows;
    return PL_OK;
}

enum pl_status pl_ops_chosen(struct pl_ops *o, uint32_t slot, uint32_t *ids, size_t rows) {
    PL_ASSERT(o->impl->chosen != NULL && slot < 2);
    return o->impl->chosen(o, slot, ids, rows);
}

/* --- witness --- */

void pl_ops_count(struct pl_ops *o, enum pl_op op, const char *kernel, uint64_t launches, uint64_t bytes) {
    if (pl_fault("uncounted") && op == PL_OP_linear) return;
    size_t row = pl_meter_row(&o->meter, pl_op_name(op), kernel, "");
    if (row != PL_METER_NONE) pl_meter_add(&o->meter, row, launches, bytes);
}

void pl_ops_count_attention(struct pl_ops *o, const char *form, const char *reason, uint64_t bytes) {
    size_t row = pl_meter_row(&o->attention, "form", form, reason);
    if (row != PL_METER_NONE) pl_meter_add(&o->attention, row, 1, bytes);
    o->attention_totals.layer_steps++;
}

void pl_ops_count_cascade(struct pl_ops *o, bool used, const char *reason) {
    size_t row = pl_meter_row(&o->attention, "cascade", used ? "used" : "declined", reason);
    if (row != PL_METER_NONE) pl_meter_add(&o->attention, row, 1, 0);
}

static size_t meter_group(const struct pl_meter *m, const char *group, struct pl_ops_attention *out, size_t cap) {
    size_t n = 0;
    for (size_t i = 0; i < m->count; i++) {
        const struct pl_meter_entry *e = &m->rows[i];
        if (strcmp(e->group, group) != 0) continue;
        if (n < cap) out[n] = (struct pl_ops_attention){e->name, e->reason, e->count, e->bytes};
        n++;
    }
    return n;
}
size_t pl_ops_attention_rows(const struct pl_ops *o, struct pl_ops_attention *out, size_t cap) {
    return meter_group(&o->attention, "form", out, cap);
}
size_t pl_ops_cascade_rows(const struct pl_ops *o, struct pl_ops_attention *out, size_t cap) {
    return meter_group(&o->attention, "cascade", out, cap);
}
void pl_ops_attention_totals(const struct pl_ops *o, struct pl_ops_attention_totals *out) {
    *out = o->attention_totals;
    if (o->impl->value_rows != NULL) o->impl->value_rows(o, &out->value_rows, &out->value_rows_skipped);
}
enum pl_status pl_ops_attention_settle(struct pl_ops *o) { return o->impl->settle != NULL ? o->impl->settle(o) : PL_OK; }
bool pl_ops_invariant(const struct pl_ops *o) { return o->invariant; }

size_t pl_ops_witness(const struct pl_ops *o, struct pl_ops_launches *out, size_t cap) {
    for (size_t i = 0; i < o->meter.count && i < cap; i++) {
        const struct pl_meter_entry *e = &o->meter.rows[i];
        out[i] = (struct pl_ops_launches){.op = e->group, .kernel = e->name, .launches = e->count, .bytes = e->bytes};
    }
    return o->meter.count;
}

void pl_ops_witness_reset(struct pl_ops *o) {
    pl_meter_reset(&o->meter);
    pl_outcomes_reset(&o->outcomes);
    pl_meter_reset(&o->attention);
    o->attention_totals = (struct pl_ops_attention_totals){0};
    if (o->impl->kernels_reset != NULL) o->impl->kernels_reset(o);
}

enum pl_status pl_ops_kernels(struct pl_ops *o, struct pl_ops_kernel *out, size_t cap, size_t *count, struct pl_err *err) {
    *count = 0;
    return o->impl->kernels != NULL ? o->impl->kernels(o, out, cap, count, err) : PL_OK;
}

enum pl_status pl_ops_kernels_agree(struct pl_ops *o, struct pl_err *err) {
    size_t count = 0, cap = 0;
    PL_TRY(pl_ops_kernels(o, NULL, 0, &count, err));
    struct pl_ops_kernel *list = pl_calloc(count + 1, sizeof *list);
    if (list == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %zu kernels", count);
    cap = count;
    enum pl_status st = pl_ops_kernels(o, list, cap, &count, err);
    for (size_t i = 0; i < PL_MIN(count, cap) && st == PL_OK; i++) {
        const struct pl_ops_kernel *k = &list[i];
        uint64_t host = k->eager + k->graph;
        if (!k->counted || k->device == (host & UINT32_MAX)) continue; /* the device counts in 32 bits */
        st = pl_err_set(err, __FILE__, __LINE__, PL_INTERNAL,
                        "the kernel %s (%s) was launched %llu times, but counted %llu launches on the device: its results "
                        "cannot be trusted",
                        k->kernel, k->symbol, (unsigned long long)host, (unsigned long long)k->device);
    }
    pl_free(list);
    return st;
}

size_t pl_ops_decisions(const struct pl_ops *o, struct pl_ops_decision *out, size_t cap) {
    for (size_t i = 0; i < o->outcomes.count && i < cap; i++) {
        const struct pl_outcome *r = &o->outcomes.rows[i];
        out[i] = (struct pl_ops_decision){
            pl_op_name((enum pl_op)r->subject), pl_outcome_name(r->kind), r->taken, r->planned, r->reason, r->count};
    }
    return o->outcomes.count;
}
uint64_t pl_ops_asked(const struct pl_ops *o, enum pl_op op) { return o->outcomes.asked[op]; }
bool pl_ops_decisions_add_up(const struct pl_ops *o) { return pl_outcomes_add_up(&o->outcomes); }

bool pl_ops_cache_state(const struct pl_ops *o, struct pl_ops_cache *out) {
    return o->impl->cache_state != NULL && o->impl->cache_state(o, out);
}
