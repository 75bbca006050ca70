#include "ops/cuda_fast.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GEMV_GROUP = 256, GEMV_PER_WARP = 2, SPLIT_GROUP = 128, MERGE_GROUP = 128, SPLIT_TOKENS_MIN = 64 };
enum { WHOLE_GROUP = 256, WHOLE_VALUES = 1024 }; /* threads where a group's values fit shared memory for so many warps */

static bool is_cuda(const struct pl_kernels *ks) { return pl_device_info(ks->device)->kind == PL_DEVICE_CUDA; }
uint32_t pl_cuda_capability(const struct pl_kernels *ks) {
    const struct pl_device_info *info = pl_device_info(ks->device);
    if (ks->jit != NULL && pl_jit_shipped(ks->jit)) return 0;
    bool named = info->kind == PL_DEVICE_CUDA && strncmp(info->target, "sm_", 3) == 0;
    return named ? (uint32_t)atoi(info->target + 3) : 0;
}
static bool is_plain(enum pl_dtype t) { return t == PL_F32 || t == PL_F16 || t == PL_BF16; }

static uint32_t shared_bytes(const struct pl_device_weight *w, size_t rows) {
    return is_plain(w->dtype) ? 0 : (uint32_t)(rows * (w->cols + w->cols / 8 + w->cols / 4));
}

const char *pl_gemv_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t rows) {
    if (!is_cuda(ks)) return "no port to this backend";
    if (w->strips) return "rearranged weights";
    rows = PL_MIN(rows, (size_t)PL_GEMV_ROWS_MAX); /* more go in blocks of that many */
    switch (w->dtype) {
    case PL_F32:
    case PL_F16:
    case PL_BF16: return w->cols % 8 != 0 || w->row_bytes % 16 != 0 ? "rows are no multiple of 16 bytes" : NULL;
    case PL_Q4_0:
    case PL_Q4_1:
    case PL_Q5_0:
    case PL_Q8_0:
    case PL_Q4_K:
    case PL_Q6_K: break;
    default: return "weight type";
    }
    if (shared_bytes(w, rows) > pl_device_info(ks->device)->shared_optin_bytes - 1024)
        return "input too wide for shared memory";
    return NULL;
}

void pl_kernel_gemv_name(const struct pl_device_weight *w, uint32_t rows, char out[48]) {
    snprintf(out, 48, "cuda/gemv/%s/r%u", pl_dtype_name(w->dtype), rows);
}

enum pl_status pl_kernel_gemv(struct pl_kernels *ks, const struct pl_device_weight *w, uint32_t rows, struct pl_kernel *out,
                              struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/gemv.k.c", .entry = "pk_gemv"};
    pl_jit_set_u32(&s, "GROUP", GEMV_GROUP);
    pl_jit_set_u32(&s, "PER_WARP", GEMV_PER_WARP);
    pl_jit_set_u32(&s, "ROWS", rows);
    pl_jit_set_weight(&s, w);
    snprintf(name, sizeof name, "gemv/%s/r%u", pl_dtype_name(w->dtype), rows);
    return pl_kernel_make(ks, &s, GEMV_GROUP, name, out, err);
}

static uint32_t blocks_of(uint32_t out) {
    enum { OUTPUTS = GEMV_GROUP / 32 * GEMV_PER_WARP };
    return (out + OUTPUTS - 1) / OUTPUTS;
}

/* A buffer from row `row` on: CUDA's handles are addresses. */
static struct pl_device_buffer rows_from(pl_buffer_in *b, uint64_t row, uint64_t cols) {
    uint64_t skip = row * cols * sizeof(float);
    return (struct pl_device_buffer){(char *)b->handle + skip, b->bytes - skip};
}

enum pl_status pl_launch_gemv(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_gemv *g) {
    static const struct pl_device_buffer none;
    struct pl_device_buffer y[PL_GEMV_MATRICES_MAX], x = rows_from(g->x, g->row0, g->w[0]->cols);
    struct pl_device_arg args[12];
    uint32_t out[PL_GEMV_MATRICES_MAX] = {0}, blocks = 0;
    for (size_t i = 0; i < PL_GEMV_MATRICES_MAX; i++) {
        bool here = i < g->count;
        args[i] = PL_ARG_BUFFER(here ? &g->w[i]->data : &none);
        args[3 + i] = PL_ARG_BUFFER(here && g->bias[i] != NULL ? g->bias[i] : &none);
        if (here) y[i] = rows_from(g->y[i], g->row0, g->w[i]->rows);
        args[6 + i] = PL_ARG_BUFFER(here ? &y[i] : &none);
        out[i] = here ? (uint32_t)g->w[i]->rows : 0;
        blocks += blocks_of(out[i]);
    }
    struct pl_args_gemv a = {(u32)g->w[0]->cols, g->add ? PL_LINEAR_ADD : 0u, out[0], out[1], out[2], 0, g->w[0]->row_bytes};
    args[9] = PL_ARG_BUFFER(&x);
    args[10] = PL_ARG_BUFFER(&k->counter);
    args[11] = PL_ARG_VALUE(a);
    return pl_kernel_launch(ks, k, blocks, 1, shared_bytes(g->w[0], g->rows), args, PL_COUNT_OF(args));
}

/* --- decode attention --- */

uint32_t pl_heads_together(size_t group) {
    for (uint32_t n = 8; n > 1; n--) {
        if (group % n == 0) return n;
    }
    return 1;
}

uint32_t pl_whole_heads(size_t group) { return group % 8 == 0 ? 4 : pl_heads_together(group); }

const char *pl_split_declines(const struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t heads, size_t kv_heads,
                              size_t rows) {
    if (!is_cuda(ks)) return "no port to this backend";
    if (kv != PL_F16 && kv != PL_BF16) return "cache type";
    if (head_dim != 64 && head_dim != 128 && head_dim != 256) return "head size";
    if (kv_heads == 0 || heads % kv_heads != 0) return "head groups";
    if (rows * heads > 65535) return "too many rows for one grid";
    return NULL;
}

enum pl_status pl_kernel_split(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens, size_t group,
                               bool exact, struct pl_split_attention *out, struct pl_err *err) {
    struct pl_split_attention p = {.heads_together = pl_heads_together(group)};
    struct pl_jit_spec s = {.file = "cuda/attention_split.k.c", .entry = "pk_attention_split"};
    bool units = !exact && pl_cuda_capability(ks) >= 80; /* 16-bit matrix units */
    char name[40];
    pl_jit_set_u32(&s, "GROUP", SPLIT_GROUP);
    pl_jit_set_u32(&s, "HEADS", p.heads_together);
    if (pl_jit_set_kv(&s, kv, head_dim, page_tokens) != PL_OK) PL_FAIL(err, PL_UNSUPPORTED, "cache type of split attention");
    if (units) s.file = "cuda/attention_group.k.c", s.entry = "pk_attention_group";
    snprintf(name, sizeof name, "attention_%s/%s/d%zu/h%u", units ? "group" : "split", pl_dtype_name(kv), head_dim,
             p.heads_together);
    PL_TRY(pl_kernel_make(ks, &s, SPLIT_GROUP, name, &p.split, err));
    s.file = "cuda/attention_split.k.c";
    s.entry = "pk_attention_merge";
    enum pl_status st = pl_kernel_make(ks, &s, MERGE_GROUP, "attention_merge", &p.merge, err);
    if (st != PL_OK) {
        pl_kernel_free(ks, &p.split);
        return st;
    }
    *out = p;
    return PL_OK;
}

uint32_t pl_split_count(const struct pl_kernels *ks, uint32_t rows, uint32_t groups, uint32_t tokens) {
    uint32_t wanted = 6 * pl_device_info(ks->device)->units, splits = 1;
    while (splits < PL_SPLITS_MAX && rows * groups * splits < wanted && splits * SPLIT_TOKENS_MIN < tokens) splits *= 2;
    return splits;
}

enum pl_status pl_launch_split(struct pl_kernels *ks, struct pl_split_attention *k, const struct pl_launch_attention *p,
                               uint32_t splits, pl_buffer_in *parts, pl_buffer_in *lse) {
    struct pl_args_attention a = {p->heads, p->kv_heads, p->window, p->stride, p->scale, p->softcap, splits, 0};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(p->q),
                                   PL_ARG_BUFFER(p->k_pages),
                                   PL_ARG_BUFFER(p->v_pages),
                                   PL_ARG_BUFFER(p->step),
                                   PL_ARG_BUFFER(splits > 1 ? parts : p->out),
                                   PL_ARG_BUFFER(lse),
                                   PL_ARG_BUFFER(&k->split.counter),
                                   PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, &k->split, splits, p->rows * (p->heads / k->heads_together), 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_merge(struct pl_kernels *ks, struct pl_split_attention *k, const struct pl_launch_attention *p,
                               uint32_t splits, pl_buffer_in *parts, pl_buffer_in *lse) {
    struct pl_args_attention a = {p->heads, p->kv_heads, p->window, p->stride, p->scale, p->softcap, splits, 0};
    struct pl_device_arg merge[] = {PL_ARG_BUFFER(parts), PL_ARG_BUFFER(lse), PL_ARG_BUFFER(p->out),
                                    PL_ARG_BUFFER(&k->merge.counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, &k->merge, p->heads, p->rows, 0, merge, PL_COUNT_OF(merge));
}

/* --- norms of many rows --- */

enum { NORM_ROWS_GROUP = 128, NORM_ROWS_COLS = 8192 };
bool pl_norm_rows(const struct pl_kernels *ks, size_t cols) {
    return pl_cuda_capability(ks) >= 80 && cols % 4 == 0 && cols <= NORM_ROWS_COLS;
}
enum pl_status pl_kernel_norm_rows(struct pl_kernels *ks, size_t cols, struct pl_kernel *out, struct pl_err *err) {
    struct pl_jit_spec s = {.file = "cuda/norm_rows.k.c", .entry = "pk_norm_rows"};
    uint32_t per = (uint32_t)((cols + 4 * NORM_ROWS_GROUP - 1) / (4 * NORM_ROWS_GROUP));
    char name[40];
    pl_jit_set_u32(&s, "GROUP", NORM_ROWS_GROUP);
    pl_jit_set_u32(&s, "PER", per);
    snprintf(name, sizeof name, "norm_rows/%u", per * 4 * NORM_ROWS_GROUP);
    return pl_kernel_make(ks, &s, NORM_ROWS_GROUP, name, out, err);
}

/* --- with the rotation and the append --- */

const char *pl_whole_declines(const struct pl_kernels *ks, struct pl_rope_kind kind, size_t head_dim, size_t rope_dim,
                              bool exact) {
    if (exact) return "exact products were asked for";
    if (pl_cuda_capability(ks) < 80) return "no 16-bit matrix units, or no compiler";
    if (head_dim != 64 && head_dim != 128 && head_dim != 256) return "head size";
    return kind.rope && rope_dim != head_dim ? "heads are rotated in part" : NULL;
}

bool pl_whole_clusters(const struct pl_kernels *ks, size_t head_dim, size_t group) {
    return pl_cuda_capability(ks) >= 90 && pl_whole_heads(group) * head_dim <= WHOLE_VALUES;
}
enum pl_status pl_kernel_whole(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens, size_t group,
                               struct pl_rope_kind kind, bool cluster, struct pl_kernel *out, struct pl_err *err) {
    struct pl_jit_spec s = {.file = "cuda/attention_group.k.c", .entry = "pk_attention_group"};
    char name[40];
    uint32_t heads = pl_whole_heads(group), threads = heads * head_dim <= WHOLE_VALUES ? WHOLE_GROUP : SPLIT_GROUP;
    pl_jit_set_u32(&s, "GROUP", threads);
    pl_jit_set_u32(&s, "HEADS", heads);
    pl_jit_set(&s, "WHOLE", "1");
    if (cluster) pl_jit_set_u32(&s, "CLUSTER", PL_WHOLE_CLUSTER);
    if (pl_jit_set_kv(&s, kv, head_dim, page_tokens) != PL_OK) PL_FAIL(err, PL_UNSUPPORTED, "cache type of split attention");
    if (kind.q_norm) pl_jit_set(&s, "Q_NORM", "1");
    if (kind.k_norm) pl_jit_set(&s, "K_NORM", "1");
    if (kind.rope) pl_jit_set(&s, kind.halves ? "ROPE_HALVES" : "ROPE_PAIRS", "1");
    snprintf(name, sizeof name, "attention_whole/%s/d%zu/h%u%s", pl_dtype_name(kv), head_dim, heads, cluster ? "/c8" : "");
    return pl_kernel_make(ks, &s, threads, name, out, err);
}

enum pl_status pl_launch_whole(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_whole *l) {
    static const struct pl_device_buffer none;
    const struct pl_launch_attention *p = l->a;
    const struct pl_launch_rope *r = l->rope;
    struct pl_args_whole a = {
        {p->heads, p->kv_heads, p->window, p->stride, p->scale, p->softcap, l->splits, 0}, r->norm_eps, r->norm_offset};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(p->q),
                                   PL_ARG_BUFFER(p->k_pages),
                                   PL_ARG_BUFFER(p->v_pages),
                                   PL_ARG_BUFFER(p->step),
                                   PL_ARG_BUFFER(l->splits > 1 ? l->parts : p->out),
                                   PL_ARG_BUFFER(l->lse),
                                   PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_BUFFER(r->k),
                                   PL_ARG_BUFFER(r->v),
                                   PL_ARG_BUFFER(r->q_norm != NULL ? r->q_norm : &none),
                                   PL_ARG_BUFFER(r->k_norm != NULL ? r->k_norm : &none),
                                   PL_ARG_BUFFER(r->cos_sin != NULL ? r->cos_sin : &none),
                                   PL_ARG_BUFFER(p->out),
                                   PL_ARG_BUFFER(l->splits > 1 && l->arrived != NULL ? l->arrived : &none),
                                   PL_ARG_VALUE(a)};
    uint32_t together = pl_whole_heads(p->heads / p->kv_heads);
    return pl_kernel_launch(ks, k, l->splits, p->rows * (p->heads / together), 0, args, PL_COUNT_OF(args));
}
