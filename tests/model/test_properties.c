/* What must hold whatever the weights are: chunking, causality, neighbours, pages, and zero wanted logits.
 * test-variants: release (the same code runs sanitized in test_golden) */
#include "golden.h"

#include "cpu/cpu.h"
#include "tests/skip.h"

static const char *const models[] = {"llama3",
                                     "mistral.gguf",
                                     "qwen2-window",
                                     "qwen3-mlx3",
                                     "gemma3.gguf",
                                     "llama2-q.gguf",
                                     "starcoder2",
                                     "cohere2.gguf",
                                     "qwen2moe.gguf",
                                     "mixtral-q.gguf",
                                     "deepseek2-lite",
                                     "deepseek3-q.gguf",
                                     "mamba",
                                     "falcon-mamba.gguf",
                                     "mamba2",
                                     "granite-hybrid.gguf",
                                     "granite-hybrid-moe",
                                     "falcon-h1",
                                     "jamba",
                                     "nemotron-h",
                                     "plamo2-window",
                                     "nemotron-h-moe",
                                     "lfm2",
                                     "lfm2-moe.gguf",
                                     "qwen3-next",
                                     "qwen3_5.gguf"};
static float whole[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX], parts[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX];

/* Invariant: products of many rows in bf16 (AMX) are let alone. */
static void open_model_as(struct rig *r, struct gold *g, size_t i, const char *isa, bool invariant) {
    char path[256], stem[64];
    snprintf(path, sizeof path, "tests/golden/model/%s", models[i]);
    snprintf(stem, sizeof stem, "%.*s", (int)strcspn(models[i], "."), models[i]);
    if (!gold_read(stem, g)) fail_msg("cannot read tests/golden/model/%s.bin", stem);
    const struct pl_ops_options oo = {.backend = PL_BACKEND_CPU, .threads = 2, .isa = isa, .invariant = invariant};
    rig_open_with(r, &oo, path, PL_F32, GOLD_TOKENS_MAX);
}
static void open_model(struct rig *r, struct gold *g, size_t i, const char *isa) { open_model_as(r, g, i, isa, true); }

static void for_each_table(void (*body)(const char *isa, size_t model)) {
    for (int isa = 0; isa < PL_ISA_COUNT; isa++)
        for (size_t i = 0; pl_cpu_isa_available((enum pl_isa)isa) && i < PL_COUNT_OF(models); i++)
            body(pl_isa_name((enum pl_isa)isa), i);
}

/* Every table sums a row's products in one order, however many rows there are: bit for bit. A kernel that cannot keep
 * this needs a bound of its own here, with its measurement. */
static const double limit = 0;

/* Token by token against chunks of every kind. */
static void chunks_of(const char *isa, size_t model) {
    static const uint32_t chunks[] = {2, 3, 7, 16, GOLD_TOKENS_MAX};
    struct gold g;
    struct rig r;
    open_model(&r, &g, model, isa);
    rig_run(&r, g.ids, g.tokens, 1, whole);
    double worst = 0;
    for (size_t c = 0; c < PL_COUNT_OF(chunks); c++) {
        rig_run(&r, g.ids, g.tokens, chunks[c], parts);
        worst = fmax(worst, gold_distance(parts, whole, (size_t)g.tokens * g.vocab));
    }
    rig_close(&r);
    print_message("# %-12s %-14s chunks against single tokens: %.1e\n", isa, models[model], worst);
    assert_true(worst <= limit);
}
static void chunks_equal_single_tokens(void **state) {
    (void)state;
    for_each_table(chunks_of);
}

/* Changes the last token: no earlier logit may move by one bit. Then the first: the last logits must move. */
static void future_of(const char *isa, size_t model) {
    struct gold g;
    struct rig r;
    open_model(&r, &g, model, isa);
    rig_run(&r, g.ids, g.tokens, GOLD_TOKENS_MAX, whole);
    for (uint32_t change = 1; change < g.tokens; change += 5) {
        uint32_t ids[GOLD_TOKENS_MAX];
        memcpy(ids, g.ids, sizeof ids);
        for (uint32_t t = change; t < g.tokens; t++) ids[t] = (ids[t] + 1) % g.vocab;
        rig_run(&r, ids, g.tokens, GOLD_TOKENS_MAX, parts);
        assert_memory_equal(parts, whole, (size_t)change * g.vocab * sizeof(float));
        assert_memory_not_equal(parts + (size_t)change * g.vocab, whole + (size_t)change * g.vocab, g.vocab * sizeof(float));
    }
    rig_close(&r);
}
static void the_future_is_unseen(void **state) {
    (void)state;
    for_each_table(future_of);
}

/* Logits of a prompt whose products were made wide, beside those of the same kernels that keep every bit: rms, as a part of
 * theirs. Float weights: activations in 16 bits. Quantised ones: both round, and in a mixture other experts may win. */
static void wide_products_move_little(void **state) {
    (void)state;
    if (!pl_cpu_isa_available(PL_ISA_AMX)) SKIP("this CPU has no AMX");
    for (size_t i = 0; i < PL_COUNT_OF(models); i++) {
        struct gold g;
        struct rig r;
        open_model_as(&r, &g, i, "avx512-amx", true);
        rig_run(&r, g.ids, g.tokens, GOLD_TOKENS_MAX, whole);
        rig_close(&r);
        open_model_as(&r, &g, i, "avx512-amx", false);
        rig_run(&r, g.ids, g.tokens, GOLD_TOKENS_MAX, parts);
        rig_close(&r);
        double off = 0, size = 0;
        for (size_t k = 0; k < (size_t)g.tokens * g.vocab; k++) {
            off += pow((double)parts[k] - (double)whole[k], 2);
            size += pow((double)whole[k], 2);
        }
        const double rms = sqrt(off / size);
        print_message("# %-14s %u rows, wide: rms %.1e\n", models[i], g.tokens, rms);
        const bool rounds = strchr(models[i], '-') != NULL && strstr(models[i], "window") == NULL;
        assert_true(rms > 0 &&
                    rms <= (!rounds                                                                         ? 1e-4
                            : strstr(models[i], "mixtral") != NULL || strstr(models[i], "deepseek") != NULL ? 1e-1
                                                                                                            : 3e-2));
    }
}

/* A token out of every layer's reach changes nothing; one within reach does. Mistral: 2 layers x window 8. */
static void windows_end(void **state) {
    (void)state;
    struct gold g;
    struct rig r;
    open_model(&r, &g, 1, "scalar");
    rig_run(&r, g.ids, g.tokens, GOLD_TOKENS_MAX, whole);
    uint32_t last = g.tokens - 1, reach = 2 * (8 - 1), ids[GOLD_TOKENS_MAX];
    for (uint32_t far = 0; far < 2; far++) {
        memcpy(ids, g.ids, sizeof ids);
        ids[last - reach - far] = (ids[last - reach - far] + 1) % g.vocab;
        rig_run(&r, ids, g.tokens, GOLD_TOKENS_MAX, parts);
        bool same = memcmp(parts + (size_t)last * g.vocab, whole + (size_t)last * g.vocab, g.vocab * sizeof(float)) == 0;
        assert_true(same == (far == 1));
    }
    rig_close(&r);
}

/* Two sequences of different length and past, pages interleaved, against each alone. */
static void neighbours_of(const char *isa, size_t model) {
    enum { A = 21, B = 9, PAST_B = 6, SKIP = 10 };
    struct gold g;
    struct rig r;
    open_model(&r, &g, model, isa);
    rig_run(&r, g.ids, A, GOLD_TOKENS_MAX, whole);
    rig_run(&r, g.ids + SKIP, PAST_B + B, GOLD_TOKENS_MAX, parts);
    const float *alone_b = parts + (size_t)PAST_B * g.vocab;

    uint32_t pages[GOLD_PAGES], tokens[A + B], wanted[A + B];
    for (uint32_t i = 0; i < GOLD_PAGES; i++) pages[i] = i % 2 == 0 ? i / 2 : GOLD_PAGES - 1 - i / 2;
    memcpy(tokens, g.ids, A * sizeof *tokens);
    memcpy(tokens + A, g.ids + SKIP + PAST_B, B * sizeof *tokens);
    for (uint32_t i = 0; i < A + B; i++) wanted[i] = i;
    const struct pl_activation *logits;
    struct pl_batch_seq first = {.first_row = 0, .rows = PAST_B, .past = 0, .page_first = 32, .state = 2};
    struct pl_batch before = {
        .rows = PAST_B, .tokens = g.ids + SKIP, .seq_count = 1, .seqs = &first, .pages = pages, .page_entries = GOLD_PAGES};
    assert_int_equal(pl_model_forward(r.model, &before, r.kv, &logits), PL_OK); /* no logits wanted */
    struct pl_batch_seq seqs[2] = {{.first_row = 0, .rows = A, .past = 0, .page_first = 0},
                                   {.first_row = A, .rows = B, .past = PAST_B, .page_first = 32, .state = 2}};
    struct pl_batch both = {.rows = A + B,
                            .tokens = tokens,
                            .seq_count = 2,
                            .seqs = seqs,
                            .pages = pages,
                            .page_entries = GOLD_PAGES,
                            .logit_count = A + B,
                            .logit_rows = wanted};
    static float got[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX];
    assert_int_equal(pl_model_forward(r.model, &both, r.kv, &logits), PL_OK);
    assert_int_equal(pl_ops_activation_read(r.ops, logits, 0, A + B, got), PL_OK);
    rig_close(&r);
    double a = gold_distance(got, whole, (size_t)A * g.vocab),
           b = gold_distance(got + (size_t)A * g.vocab, alone_b, (size_t)B * g.vocab);
    print_message("# %-12s %-14s in a batch against alone: %.1e %.1e\n", isa, models[model], a, b);
    assert_true(a <= limit && b <= limit);
}
static void neighbours_do_not_matter(void **state) {
    (void)state;
    for_each_table(neighbours_of);
}

/* Some logit rows only: exactly the rows of the full answer. */
static void wanted_rows_of(const char *isa, size_t model) {
    struct gold g;
    struct rig r;
    open_model(&r, &g, model, isa);
    rig_run(&r, g.ids, g.tokens, GOLD_TOKENS_MAX, whole);
    uint32_t wanted[] = {0, 3, 4, g.tokens - 1};
    struct pl_batch_seq seq = {.first_row = 0, .rows = g.tokens, .past = 0, .page_first = 0};
    struct pl_batch b = {.rows = g.tokens,
                         .tokens = g.ids,
                         .seq_count = 1,
                         .seqs = &seq,
                         .pages = r.pages,
                         .page_entries = GOLD_PAGES,
                         .logit_count = 4,
                         .logit_rows = wanted};
    const struct pl_activation *logits;
    assert_int_equal(pl_model_forward(r.model, &b, r.kv, &logits), PL_OK);
    assert_int_equal(pl_ops_activation_read(r.ops, logits, 0, 4, parts), PL_OK);
    assert_int_equal(pl_ops_activation_read(r.ops, logits, 1, 4, parts + 4 * GOLD_VOCAB_MAX), PL_INVALID);
    double worst = 0;
    for (size_t i = 0; i < 4; i++)
        worst = fmax(worst, gold_distance(parts + i * g.vocab, whole + (size_t)wanted[i] * g.vocab, g.vocab));
    rig_close(&r);
    assert_true(worst <= limit);
}
static void only_wanted_rows(void **state) {
    (void)state;
    for_each_table(wanted_rows_of);
}

/* Everything a step may get wrong is refused before any work. */
static void bad_steps_are_refused(void **state) {
    (void)state;
    struct gold g;
    struct rig r;
    open_model(&r, &g, 0, "scalar");
    const struct pl_activation *logits;
    uint32_t ids[4] = {1, 2, 3, g.vocab}, rows[4] = {0, 1, 2, 3}, bad_page[1] = {GOLD_PAGES};
    struct pl_batch_seq seq = {.first_row = 0, .rows = 3, .past = 0, .page_first = 0};
    const struct pl_batch good = {.rows = 3,
                                  .tokens = ids,
                                  .seq_count = 1,
                                  .seqs = &seq,
                                  .pages = r.pages,
                                  .page_entries = GOLD_PAGES,
                                  .logit_count = 1,
                                  .logit_rows = rows};
    struct pl_batch b = good;
    assert_int_equal(pl_model_forward(r.model, &b, r.kv, &logits), PL_OK);
    b = good, b.tokens = ids + 1;
    assert_int_equal(pl_model_forward(r.model, &b, r.kv, &logits), PL_INVALID); /* outside the vocabulary */
    b = good, b.pages = bad_page, b.page_entries = 1;
    assert_int_equal(pl_model_forward(r.model, &b, r.kv, &logits), PL_INVALID); /* a page that does not exist */
    b = good, b.page_entries = 0;
    assert_int_equal(pl_model_forward(r.model, &b, r.kv, &logits), PL_INVALID); /* block table too short */
    b = good, b.rows = 2;
    assert_int_equal(pl_model_forward(r.model, &b, r.kv, &logits), PL_INVALID); /* rows do not add up */
    b = good, b.logit_count = 1, b.logit_rows = rows + 3;
    assert_int_equal(pl_model_forward(r.model, &b, r.kv, &logits), PL_INVALID); /* a logit of no row */
    seq.past = 126;
    assert_int_equal(pl_model_forward(r.model, &good, r.kv, &logits), PL_LIMIT); /* past the rotary tables */
    seq.past = 0;
    assert_int_equal(pl_model_forward(r.model, &good, r.kv, &logits), PL_OK); /* and nothing is broken by it */
    rig_close(&r);
}

int main(void) {
    if (!pl_cpu_isa_available(PL_ISA_AMX)) pl_cpu_emulate_amx(true); /* tiles in C where AVX-512 is */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_equal_single_tokens),
        cmocka_unit_test(the_future_is_unseen),
        cmocka_unit_test(windows_end),
        cmocka_unit_test(neighbours_do_not_matter),
        cmocka_unit_test(only_wanted_rows),
        cmocka_unit_test(wide_products_move_little),
        cmocka_unit_test(bad_steps_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
