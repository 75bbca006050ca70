/* paged_bed - what tests of decode attention by plan share: a batch with scattered pages, the reference's answer, plans and
 * launches, comparison. on_units: v2 and cascade on tensor cores, where the device has them. */
#ifndef PAGED_BED_H
#define PAGED_BED_H

#include "kit.h"

#include "ops/paged.h"
#include "tensor/kv8.h"

static bool on_units;
enum { ROWS_MAX = 512 };
enum { V1 = 1, V2 = 2, CASCADE = 4, GATHER = 8, ALL = 15 }; /* compiling takes most of the time: not all everywhere */
static const double tolerance = 2e-5; /* the contract's bound is 2e-3; sums of a few thousand f32 stay far below it */

struct bed { /* a batch: what the device holds and what it should give */
    struct pl_paged_shape s;
    uint32_t rows, pages, entries;
    uint64_t fill_seed; /* not 0: what the pools' random numbers start from */
    uint32_t len[ROWS_MAX];
    uint32_t *table[ROWS_MAX]; /* views into tables */
    uint32_t *tables;
    uint32_t window;
    float scale, softcap;
    float *q, *want;
    uint8_t *k, *v; /* host copies of the pools */
    struct pl_device_buffer bq, bk, bv;
    struct pl_paged paged;
    struct pl_plan plan;
};

static float unpack(enum pl_dtype t, const uint8_t *p) {
    uint16_t h;
    float f;
    if (t == PL_F32) {
        memcpy(&f, p, 4);
        return f;
    }
    memcpy(&h, p, 2);
    return t == PL_F16 ? pl_f16_to_f32(h) : pl_bf16_to_f32(h);
}
static void pack(enum pl_dtype t, float v, uint8_t *p) {
    uint16_t h = t == PL_F16 ? pl_f32_to_f16(v) : pl_f32_to_bf16(v);
    if (t == PL_F32)
        memcpy(p, &v, 4);
    else
        memcpy(p, &h, 2);
}
static size_t key_bytes(const struct bed *b) { return pl_kv_key_bytes(b->s.kv, b->s.head_dim); }
static size_t value_bytes(const struct bed *b) { return pl_kv_value_bytes(b->s.kv, b->s.head_dim); }
/* One vector of a token and head, as its pool holds it, and what comes back. */
static void pack_vector(const struct bed *b, bool value, const float *x, uint8_t *to) {
    if (value && b->s.kv == PL_K8V4) {
        pl_kv4_put(x, b->s.head_dim, to);
    } else if (pl_is_kv8(b->s.kv)) {
        pl_kv8_put(b->s.kv, x, b->s.head_dim, to);
    } else {
        for (size_t i = 0; i < b->s.head_dim; i++) pack(b->s.kv, x[i], to + i * pl_dtype_info(b->s.kv)->block_bytes);
    }
}
static void unpack_vector(const struct bed *b, bool value, const uint8_t *from, float *x) {
    if (value && b->s.kv == PL_K8V4) {
        pl_kv4_get(from, b->s.head_dim, x);
        pl_kv4_turn_back(x, b->s.head_dim);
    } else if (pl_is_kv8(b->s.kv)) {
        pl_kv8_get(b->s.kv, from, b->s.head_dim, b->s.head_dim, x);
    } else {
        for (size_t i = 0; i < b->s.head_dim; i++) x[i] = unpack(b->s.kv, from + i * pl_dtype_info(b->s.kv)->block_bytes);
    }
}
/* Nothing was packed there: a number, or in few bits the scale, is NaN. */
static bool is_bare(const struct bed *b, const uint8_t *key) {
    return isnan((double)(pl_is_kv8(b->s.kv) ? unpack(PL_F32, key + b->s.head_dim) : unpack(b->s.kv, key)));
}
static uint32_t pages_for(const struct bed *b, uint32_t len) { return (len + b->s.page_tokens - 1) / b->s.page_tokens; }

/* In few bits values of some tokens are 8 times those of others. */
static void fill_token(struct bed *b, bool value, uint32_t page, uint32_t slot) {
    size_t bytes = value ? value_bytes(b) : key_bytes(b);
    for (size_t g = 0; g < b->s.kv_heads; g++) {
        float x[576], by = value && pl_is_kv8(b->s.kv) && kit_u32() % 9 == 0 ? 8.0f : 1.0f;
        for (size_t i = 0; i < b->s.head_dim; i++) x[i] = by * kit_f32();
        size_t at = ((size_t)page * b->s.page_tokens + slot) * b->s.kv_heads + g;
        pack_vector(b, value, x, (value ? b->v : b->k) + at * bytes);
    }
}

/* Everything starts as NaN; only tokens that some row holds become numbers. */
static void fill_pools(struct bed *b) {
    size_t vectors = (size_t)b->pages * b->s.page_tokens * b->s.kv_heads;
    b->k = malloc(vectors * key_bytes(b));
    b->v = malloc(vectors * value_bytes(b));
    assert_true(b->k != NULL && b->v != NULL);
    memset(b->k, 0xFF, vectors * key_bytes(b));
    memset(b->v, 0xFF, vectors * value_bytes(b));
    for (uint32_t r = 0; r < b->rows; r++) {
        for (uint32_t t = 0; t < b->len[r]; t++) {
            uint32_t page = b->table[r][t / b->s.page_tokens], slot = t % b->s.page_tokens;
            size_t at = ((size_t)page * b->s.page_tokens + slot) * b->s.kv_heads;
            if (!is_bare(b, b->k + at * key_bytes(b))) continue; /* shared: filled already */
            fill_token(b, false, page, slot);
            fill_token(b, true, page, slot);
        }
    }
    if (b->s.value_dim > 0 && b->s.value_dim < b->s.head_dim) memcpy(b->v, b->k, vectors * key_bytes(b)); /* latents */
    b->bk = kit_up(b->k, vectors * key_bytes(b));
    b->bv = kit_up(b->v, vectors * value_bytes(b));
}

/* Tables of scattered pages; the first `shared` pages of all rows are row 0's. physical > 0: so few pages are used again
 * and again. */
static void make_tables(struct bed *b, uint32_t shared, uint32_t physical) {
    uint32_t next = 0, at = 0;
    b->entries = 0;
    for (uint32_t r = 0; r < b->rows; r++) b->entries += pages_for(b, b->len[r]);
    b->pages = physical > 0 ? physical : b->entries + 3;
    uint32_t *order = malloc(b->pages * sizeof *order);
    b->tables = malloc((b->entries + 1) * sizeof *b->tables);
    assert_true(order != NULL && b->tables != NULL);
    for (uint32_t i = 0; i < b->pages; i++) order[i] = i;
    for (uint32_t i = b->pages - 1; i > 0; i--) {
        uint32_t j = kit_u32() % (i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (uint32_t r = 0; r < b->rows; r++) {
        b->table[r] = b->tables + at;
        for (uint32_t p = 0; p < pages_for(b, b->len[r]); p++, at++)
            b->tables[at] = p < shared && r > 0 && p < pages_for(b, b->len[0]) ? b->table[0][p] : order[next++ % b->pages];
    }
    free(order);
}

static void expect(struct bed *b) {
    size_t D = b->s.head_dim, G = b->s.kv_heads, V = b->paged.shape.value_dim, H = b->s.heads;
    for (uint32_t r = 0; r < b->rows; r++) {
        uint32_t first = b->window > 0 && b->len[r] > b->window ? b->len[r] - b->window : 0, n = b->len[r] - first;
        float *ck = malloc((n * G * D + 1) * 4), *cv = malloc((n * G * D + 1) * 4), *out = malloc(H * D * 4);
        double *scores = malloc((n + 1) * sizeof *scores);
        for (uint32_t t = 0; t < n; t++) {
            size_t page = b->table[r][(first + t) / b->s.page_tokens], slot = (first + t) % b->s.page_tokens,
                   at = (page * b->s.page_tokens + slot) * G;
            for (size_t g = 0; g < G; g++) {
                unpack_vector(b, false, b->k + (at + g) * key_bytes(b), ck + (t * G + g) * D);
                unpack_vector(b, true, b->v + (at + g) * value_bytes(b), cv + (t * G + g) * D);
            }
        }
        memset(out, 0, H * D * 4);
        struct pl_ref_attention ref = {
            1, n - 1, H, G, D, 0, (double)b->scale, (double)b->softcap, b->q + r * H * D, ck, cv, H * D, out, H * D, NULL};
        if (n > 0) pl_ref_attention(&ref, scores);
        for (size_t h = 0; h < H; h++) memcpy(b->want + (r * H + h) * V, out + h * D, V * 4);
        free(ck), free(cv), free(out), free(scores);
    }
}

static struct pl_plan_options options(struct bed *b, uint32_t pages_per_chunk, bool cascade) {
    struct pl_plan_options o = {.window = b->window,
                                .pages_per_chunk = pages_per_chunk,
                                .split = true,
                                .cascade = cascade,
                                .cascade_always = cascade,
                                .costs = {.slots = 64, .chunk = 1, .merge = 0.1f, .member = 0.5f}};
    pl_paged_plan_options(&b->paged, &o);
    return o;
}

static void begin(struct bed *b, const struct pl_paged_shape *s, uint32_t rows, const uint32_t *len, uint32_t shared,
                  uint32_t physical) {
    b->s = *s;
    b->rows = rows;
    if (b->scale == 0) b->scale = 1.0f / sqrtf((float)s->head_dim);
    memcpy(b->len, len, rows * sizeof *len);
    make_tables(b, shared, physical);
    if (b->fill_seed != 0) rng = b->fill_seed;
    fill_pools(b);
    b->q = kit_random((size_t)rows * s->heads * s->head_dim, 2);
    b->want = malloc((size_t)rows * s->heads * s->head_dim * 4);
    b->bq = kit_up(b->q, (size_t)rows * s->heads * s->head_dim * 4);
    if (on_units) {
        pl_paged_init_best(&ks, &b->paged, s);
    } else {
        pl_paged_init(&b->paged, s);
    }
    pl_plan_init(&b->plan);
    expect(b);
}
static void finish(struct bed *b) {
    kit_drop(&b->bq), kit_drop(&b->bk), kit_drop(&b->bv);
    free(b->q), free(b->want), free(b->k), free(b->v), free(b->tables);
    pl_paged_free(&ks, &b->paged);
    pl_plan_deinit(&b->plan);
}

static void make_plan(struct bed *b, const struct pl_plan_options *o) {
    struct pl_plan_row rows[ROWS_MAX];
    for (uint32_t r = 0; r < b->rows; r++) rows[r] = (struct pl_plan_row){b->table[r], b->len[r]};
    CHECK(pl_plan_make(&b->plan, o, rows, b->rows, 0));
}

/* Between the partial kernel and the merge a control may spoil what was written. */
typedef void spoil(struct bed *b, float *parts, float *lse);

/* Runs the plan as it stands and returns [rows, H, V]. */
static float *run_plan(struct bed *b, bool cascade, spoil *control) {
    size_t H = b->s.heads, V = b->paged.shape.value_dim, words = pl_plan_words(&b->plan), n = (size_t)b->rows * H * V;
    size_t parts = (size_t)b->plan.part_count * H;
    uint32_t *record = malloc(words * 4);
    pl_plan_write(&b->plan, record);
    struct pl_device_buffer bp = kit_up(record, words * 4), bo = kit_out(n * 4), bparts = kit_out(parts * V * 4),
                            blse = kit_out(parts * 4);
    enum pl_paged_kernel which = cascade ? PL_PAGED_CASCADE : PL_PAGED_V2;
    bool joined = pl_paged_merges(&b->paged) && control == NULL && !cascade; /* merged by the same launch */
    struct pl_device_buffer barrived = {0};
    size_t arrivals = pl_paged_arrived_bytes(&b->paged, b->rows);
    if (joined) {
        void *zeros = calloc(1, arrivals);
        barrived = kit_up(zeros, arrivals);
        free(zeros);
    }
    CHECK(pl_paged_make(&ks, &b->paged, which, &err));
    if (!joined) CHECK(pl_paged_make(&ks, &b->paged, PL_PAGED_MERGE, &err));
    struct pl_paged_launch l = {.arrived = joined ? &barrived : NULL,
                                .fresh = b->plan.chunk_count % 2 == 0 ? 1 : PL_PAGED_ALL_FRESH,
                                .q = &b->bq,
                                .k_pages = &b->bk,
                                .v_pages = &b->bv,
                                .plan = &bp,
                                .out = &bo,
                                .parts = &bparts,
                                .lse = &blse,
                                .rows = b->rows,
                                .chunks = b->plan.chunk_count + kit_u32() % 3, /* a grid larger than the plan */
                                .merges = b->plan.merge_count,
                                .shared = b->plan.shared_count,
                                .scale = b->scale,
                                .softcap = b->softcap};
    CHECK(pl_launch_paged(&ks, &b->paged, which, &l));
    if (control != NULL) {
        float *hp = kit_down(&bparts), *hl = kit_down(&blse);
        control(b, hp, hl);
        bparts = kit_up(hp, parts * V * 4);
        blse = kit_up(hl, parts * 4);
        free(hp), free(hl);
    }
    if (joined) {
        uint8_t *left = kit_down(&barrived);
        for (size_t i = 0; i < arrivals; i++) assert_int_equal(left[i], 0); /* ready for the next launch */
        free(left);
    } else {
        CHECK(pl_launch_paged(&ks, &b->paged, PL_PAGED_MERGE, &l));
    }
    kit_drop(&bp), kit_drop(&bparts), kit_drop(&blse);
    free(record);
    return kit_down(&bo);
}

static float *run_rows(struct bed *b, bool gather) {
    size_t H = b->s.heads, V = b->paged.shape.value_dim, words = pl_plan_words(&b->plan), n = (size_t)b->rows * H * V;
    size_t tokens = (size_t)b->plan.tokens * b->s.kv_heads;
    uint32_t *record = malloc(words * 4), longest = 0;
    pl_plan_write(&b->plan, record);
    for (uint32_t r = 0; r < b->rows; r++) longest = PL_MAX(longest, b->plan.page_start[r + 1] - b->plan.page_start[r]);
    struct pl_device_buffer bp = kit_up(record, words * 4), bo = kit_out(n * 4), dk = {0}, dv = {0};
    struct pl_paged_launch l = {.q = &b->bq,
                                .k_pages = &b->bk,
                                .v_pages = &b->bv,
                                .plan = &bp,
                                .out = &bo,
                                .rows = b->rows,
                                .pages_longest = longest,
                                .scale = b->scale,
                                .softcap = b->softcap};
    if (gather) {
        dk = kit_out(tokens * key_bytes(b));
        dv = kit_out(tokens * value_bytes(b));
        l.dense_k = &dk;
        l.dense_v = &dv;
        CHECK(pl_paged_make(&ks, &b->paged, PL_PAGED_GATHER, &err));
        CHECK(pl_paged_make(&ks, &b->paged, PL_PAGED_DENSE, &err));
        CHECK(pl_launch_paged(&ks, &b->paged, PL_PAGED_GATHER, &l));
        CHECK(pl_launch_paged(&ks, &b->paged, PL_PAGED_DENSE, &l));
        kit_drop(&dk), kit_drop(&dv);
    } else {
        CHECK(pl_paged_make(&ks, &b->paged, PL_PAGED_V1, &err));
        CHECK(pl_launch_paged(&ks, &b->paged, PL_PAGED_V1, &l));
    }
    kit_drop(&bp);
    free(record);
    return kit_down(&bo);
}

static size_t outputs(const struct bed *b) { return (size_t)b->rows * b->s.heads * b->paged.shape.value_dim; }
/* The largest error of a head's output as a whole, as a share of it: what the contract bounds. NaN counts as all of it. */
static double head_off(const struct bed *b, const float *got, size_t *at) {
    size_t width = b->paged.shape.value_dim;
    double worst = 0;
    for (size_t i = 0; i < (size_t)b->rows * b->s.heads; i++) {
        double off = 0, all = 0;
        for (size_t d = i * width; d < (i + 1) * width; d++) {
            double e = (double)got[d] - (double)b->want[d];
            off += isnan(e) ? 1e9 : e * e;
            all += (double)b->want[d] * (double)b->want[d];
        }
        double share = off > 0 ? sqrt(off / (all > 0 ? all : 1e-12)) : 0;
        if (share <= worst) continue;
        worst = share;
        *at = i;
    }
    return worst;
}
/* Where q and weights are rounded to the cache's type. */
static void near_heads(const struct bed *b, const char *what, const float *got, double bound) {
    size_t at = 0;
    double off = head_off(b, got, &at);
    if (off <= bound) return;
    print_message("# %s: head %zu is off by %.3g of it\n", what, at, off);
    fail();
}

static void compare(struct bed *b, const char *what, bool cascade, float *got) {
    char text[96];
    bool units = pl_paged_merges(&b->paged), rounded = units && cascade && b->s.kv == PL_F16;
    snprintf(text, sizeof text, "%s, D %u, H %u, G %u, S %u, %s, %u pages a chunk", what, b->s.head_dim, b->s.heads,
             b->s.kv_heads, b->s.page_tokens, pl_dtype_name(b->s.kv), b->plan.pages_per_chunk);
    if (b->paged.latent && !cascade) {
        near_heads(b, text, got, b->s.kv == PL_F16 ? 6e-3 : 2e-2);
    } else if (rounded) {
        near_heads(b, text, got, 2e-3);
    } else {
        kit_near(text, got, b->want, outputs(b), units ? 2e-4 : tolerance, 0.05);
    }
    free(got);
}
static bool differs(struct bed *b, float *got) {
    size_t at = 0;
    bool off = head_off(b, got, &at) > 2e-3;
    free(got);
    return off;
}

/* The forms in `which`; v2 with every chunk length when `every`, else by cost and with one length. */
static void forms(struct bed *b, bool every, unsigned which) {
    static const uint32_t lengths[] = {0, 3, 1, 2, 4, 7, 16, 64};
    struct pl_plan_options o;
    for (size_t i = 0; i < (every ? PL_COUNT_OF(lengths) : 2); i++) {
        o = options(b, lengths[i], false);
        make_plan(b, &o);
        if (which & V2) compare(b, "v2", false, run_plan(b, false, NULL));
        if (i == 0 && (which & V1)) compare(b, "v1", false, run_rows(b, false));
        if (i == 0 && (which & GATHER)) compare(b, "gather", false, run_rows(b, true));
        if (!(which & CASCADE)) continue;
        o = options(b, lengths[i], true);
        make_plan(b, &o);
        if (b->plan.cascade == PL_CASCADE_USED) compare(b, "cascade", true, run_plan(b, true, NULL));
    }
}

static void one(const struct pl_paged_shape *s, uint32_t window, float softcap, uint32_t shared, bool every,
                unsigned which) {
    uint32_t S = s->page_tokens, len[] = {S + 1, 1, S - 1, S, 3 * S + 5, 0, 5 * S, 2 * S + 1};
    struct bed b = {.window = window, .softcap = softcap};
    begin(&b, s, 8, len, shared, 0);
    forms(&b, every, which);
    finish(&b);
}

/* --- cases that hold for every implementation --- */

static void windows(void) {
    static const uint32_t window[] = {1, 15, 16, 17, 40, 1000};
    struct pl_paged_shape s = {.kv = PL_F16, .head_dim = 64, .page_tokens = 16, .heads = 6, .kv_heads = 2};
    for (size_t i = 0; i < PL_COUNT_OF(window); i += test_small() ? 3 : 1)
        one(&s, window[i], i % 2 == 0 ? 0 : 20, 2, i == 4, ALL);
}

static void batch(void) {
    struct pl_paged_shape s = {.kv = PL_BF16, .head_dim = 32, .page_tokens = 16, .heads = 4, .kv_heads = 2};
    uint32_t len[ROWS_MAX];
    for (uint32_t i = 0; i < ROWS_MAX; i++) len[i] = kit_u32() % 90;
    len[0] = 70;
    for (uint32_t rows = 1; rows <= (test_small() ? 13 : ROWS_MAX); rows = rows * 3 + 1) {
        struct bed b = {0};
        begin(&b, &s, PL_MIN(rows, (uint32_t)ROWS_MAX), len, 3, 0);
        forms(&b, false, ALL);
        finish(&b);
    }
    if (test_small()) return;
    struct bed b = {0};
    begin(&b, &s, ROWS_MAX, len, 3, 0);
    forms(&b, false, ALL);
    finish(&b);
}

/* The same bits again, and whatever stands beside a row. */
static void repeatable(void) {
    struct pl_paged_shape s = {.kv = PL_F16, .head_dim = 64, .page_tokens = 16, .heads = 6, .kv_heads = 2};
    uint32_t len[] = {300, 41, 160};
    struct bed b = {0};
    begin(&b, &s, 3, len, 2, 0);
    struct pl_plan_options o = options(&b, 2, true);
    make_plan(&b, &o);
    float *first = run_plan(&b, true, NULL), *again = run_plan(&b, true, NULL);
    assert_memory_equal(first, again, outputs(&b) * 4);
    free(first), free(again);
    finish(&b);
}

/* Invariant mode: row 0 with 0..20 neighbours of any lengths gives the same bits. */
static void invariant(void) {
    struct pl_paged_shape s = {.kv = PL_F16, .head_dim = 64, .page_tokens = 16, .heads = 6, .kv_heads = 2};
    uint32_t len[21] = {333};
    float *alone = NULL;
    for (uint32_t trial = 0; trial < (test_small() ? 3 : 12); trial++) {
        uint32_t neighbours = trial == 0 ? 0 : 1 + kit_u32() % 20;
        for (uint32_t i = 1; i <= neighbours; i++) len[i] = kit_u32() % 400;
        struct bed b = {.fill_seed = 1234567}; /* row 0's tokens are filled first: the same numbers each time */
        begin(&b, &s, neighbours + 1, len, 0, 0);
        for (size_t i = 0; i < 6 * 64; i++) b.q[i] = sinf((float)i);
        kit_drop(&b.bq);
        b.bq = kit_up(b.q, (size_t)b.rows * 6 * 64 * 4);
        rng = 1000 + trial;
        struct pl_plan_options o = options(&b, 4, false);
        o.invariant = true;
        make_plan(&b, &o);
        float *got = run_plan(&b, false, NULL);
        if (trial == 0) {
            alone = got;
        } else {
            assert_memory_equal(alone, got, 6 * 64 * 4);
            free(got);
        }
        finish(&b);
    }
    free(alone);
}

/* --- negative controls: each of these has to be seen --- */

static void natural_log(struct bed *b, float *parts, float *lse) {
    (void)parts;
    for (size_t i = 0; i < (size_t)b->plan.part_count * b->s.heads; i++) lse[i] *= 0.6931472f;
}
/* Rows of shared chunks as [member][tile][head] instead of [tile][member][head]. */
static void member_major(struct bed *b, float *parts, float *lse) {
    uint32_t H = b->s.heads, V = b->paged.shape.value_dim, R = b->paged.heads_together;
    for (uint32_t i = 0; i < b->plan.chunk_count; i++) {
        const struct pl_plan_chunk *c = &b->plan.chunks[i];
        if (c->members < 2) continue;
        size_t n = (size_t)c->members * H, at = (size_t)c->part_first * H;
        float *p = malloc(n * V * 4), *l = malloc(n * 4);
        for (uint32_t m = 0; m < c->members; m++) {
            for (uint32_t h = 0; h < H; h++) {
                size_t from = at + (size_t)(h / R) * c->members * R + m * R + h % R, to = (size_t)m * H + h;
                memcpy(p + to * V, parts + from * V, V * 4);
                l[to] = lse[from];
            }
        }
        memcpy(parts + at * V, p, n * V * 4);
        memcpy(lse + at, l, n * 4);
        free(p), free(l);
    }
}

static void controls(void) {
    struct pl_paged_shape s = {.kv = PL_F16, .head_dim = 64, .page_tokens = 16, .heads = 6, .kv_heads = 2};
    uint32_t len[] = {100, 90, 77, 120};
    struct bed b = {0};
    begin(&b, &s, 4, len, 3, 0);
    struct pl_plan_options o = options(&b, 2, true);
    make_plan(&b, &o);
    assert_int_equal(b.plan.cascade, PL_CASCADE_USED);
    assert_false(differs(&b, run_plan(&b, true, NULL)));
    assert_true(differs(&b, run_plan(&b, true, natural_log)));
    assert_true(differs(&b, run_plan(&b, true, member_major)));
    o = options(&b, 2, false);
    make_plan(&b, &o);
    struct pl_plan_chunk *c = &b.plan.chunks[1]; /* one token of the chunk before it is seen twice */
    assert_true(c->page_first > b.plan.page_start[c->row]);
    c->page_first--, c->page_count++, c->tokens++;
    c->skip = s.page_tokens - 1;
    assert_true(differs(&b, run_plan(&b, false, NULL)));
    make_plan(&b, &o);
    uint32_t moved = b.plan.page_index[1]; /* a list made before the page moved */
    b.plan.page_index[1] = b.plan.page_index[b.plan.page_start[1]];
    assert_true(moved != b.plan.page_index[1]);
    assert_true(differs(&b, run_plan(&b, false, NULL)));
    assert_true(differs(&b, run_rows(&b, false)));
    assert_true(differs(&b, run_rows(&b, true)));
    finish(&b);
}

#endif
