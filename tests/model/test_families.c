/* docs/families.md is what ran: for each family of models a tiny checkpoint goes through a prompt and token by token on
 * every backend present, and the kernels that its operations launched are those that the table names.
 *
 * PLUMB_FAMILIES=FILE writes the table instead, columns of backends that are not here taken from docs/families.md. The CPU's
 * column is of its scalar table, which every machine has; another OpenCL than PoCL is not compared. CUDA's column is of the
 * sm_90 device that it was last written on, and not compared: which kernel is chosen there depends on more than the sources.
 *
 * test-variants: release (a sanitized build launches the same kernels; their host code is sanitized in
 * tests/model/test_device)
 *
 * test-timeout: 1200 */
#include "golden.h"

#include <unistd.h>

#include "tests/devices.h"

static const struct {
    const char *name, *path;
} families[] = {
    {"Llama", "llama3.gguf"},
    {"Mistral", "mistral"},
    {"Mistral 3", "mistral3"},
    {"Qwen2", "qwen2.gguf"},
    {"Qwen3", "qwen3"},
    {"Gemma", "gemma.gguf"},
    {"Gemma 2", "gemma2"},
    {"Gemma 3", "gemma3.gguf"},
    {"Phi-3", "phi3"},
    {"SmolLM3", "smollm3"},
    {"Granite", "granite"},
    {"EXAONE 4", "exaone4"},
    {"ERNIE 4.5", "ernie4_5"},
    {"Seed-OSS", "seed-oss"},
    {"StableLM", "stablelm"},
    {"Granite 3 with experts", "granitemoe"},
    {"OLMo 2", "olmo2"},
    {"StarCoder2", "starcoder2"},
    {"Command R", "cohere"},
    {"Cohere 2", "cohere2"},
    {"GLM-4-9B", "glm"},
    {"GLM-4-0414", "glm4"},
    {"GLM-4.5", "glm4moe"},
    {"Qwen3-MoE", "qwen3moe"},
    {"Qwen2-MoE", "qwen2moe.gguf"},
    {"Mixtral", "mixtral-q.gguf"},
    {"OLMoE", "olmoe.gguf"},
    {"gpt-oss", "gpt-oss"},
    {"DeepSeek-V2-Lite", "deepseek2-lite"},
    {"DeepSeek-V3", "deepseek3"},
    {"BitNet b1.58", "bitnet"},
    {"Mamba", "mamba"},
    {"Falcon-Mamba", "falcon-mamba"},
    {"Mamba-2", "mamba2"},
    {"Falcon-H1", "falcon-h1"},
    {"Granite 4 hybrids", "granite-hybrid"},
    {"Granite 4 hybrids with experts", "granite-hybrid-moe"},
    {"Jamba", "jamba"},
    {"Qwen3-Next", "qwen3-next"},
    {"Qwen3.5", "qwen3_5.gguf"},
    {"LFM2", "lfm2"},
    {"LFM2 with experts", "lfm2-moe.gguf"},
    {"Nemotron-H", "nemotron-h"},
    {"Nemotron-H with experts", "nemotron-h-moe"},
    {"PLaMo 2", "plamo2"},
};

enum { COLUMNS = 3, ROWS_MAX = 600, CELL = 400, TEXT = 40 };
static const struct {
    const char *head;
    enum pl_backend backend;
    enum pl_device_kind kind;
} columns[COLUMNS] = {{"CPU, scalar", PL_BACKEND_CPU, PL_DEVICE_KIND_COUNT},
                      {"OpenCL, PoCL", PL_BACKEND_OPENCL, PL_DEVICE_OPENCL},
                      {"CUDA, sm_90", PL_BACKEND_CUDA, PL_DEVICE_CUDA}};
struct row {
    char family[TEXT], op[TEXT], cell[COLUMNS][CELL];
};
struct table {
    size_t count;
    struct row rows[ROWS_MAX];
};
static struct table ran, doc;

static struct row *row_of(struct table *t, const char *family, const char *op) {
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->rows[i].family, family) == 0 && strcmp(t->rows[i].op, op) == 0) return &t->rows[i];
    assert_true(t->count < ROWS_MAX);
    struct row *r = &t->rows[t->count++];
    snprintf(r->family, TEXT, "%.*s", TEXT - 1, family);
    snprintf(r->op, TEXT, "%.*s", TEXT - 1, op);
    return r;
}

static int by_name(const void *a, const void *b) {
    const struct pl_ops_launches *x = a, *y = b;
    int op = strcmp(x->op, y->op);
    return op != 0 ? op : strcmp(x->kernel, y->kernel);
}

/* Names within a cell: without the backend in front, which the column says. */
static void note(size_t column, const char *family, struct pl_ops *ops) {
    static struct pl_ops_launches all[256];
    size_t n = pl_ops_witness(ops, all, PL_COUNT_OF(all));
    assert_true(n <= PL_COUNT_OF(all));
    qsort(all, n, sizeof *all, by_name);
    for (size_t i = 0; i < n; i++) {
        if (all[i].launches == 0) continue;
        const char *name = strchr(all[i].kernel, '/');
        char *cell = row_of(&ran, family, all[i].op)->cell[column];
        size_t used = strlen(cell);
        name = name != NULL ? name + 1 : all[i].kernel;
        int more = snprintf(cell + used, CELL - used, "%s%s", used > 0 ? ", " : "", name);
        assert_true(more > 0 && (size_t)more < CELL - used);
    }
}

/* Refused at load: the backend has no port of something. */
static bool refused(const struct pl_ops_options *oo, const char *path) {
    struct pl_err err = {0};
    struct pl_file *file = NULL;
    struct pl_ops *ops = NULL;
    struct pl_model *model = NULL;
    struct pl_model_options mo = {.max_context = 128, .max_rows = GOLD_TOKENS_MAX, .max_logits = GOLD_TOKENS_MAX};
    RIG_OK(pl_file_open(path, &file, &err), err);
    RIG_OK(pl_ops_create(oo, &ops, &err), err);
    enum pl_status st = pl_model_create(file, ops, &mo, &model, &err);
    if (st != PL_OK) assert_true(st == PL_UNSUPPORTED && strstr(err.text, "no port") != NULL);
    pl_model_destroy(model);
    pl_ops_destroy(ops);
    pl_file_close(file);
    return st != PL_OK;
}

static void run_family(size_t column, size_t f, int index) {
    enum { TOKENS = 20 };
    static float logits[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX];
    struct pl_ops_options oo = {.backend = columns[column].backend, .threads = 2, .isa = column == 0 ? "scalar" : NULL};
    if (column > 0) oo.device = index;
    char path[256];
    uint32_t ids[TOKENS];
    struct rig r;
    for (uint32_t i = 0; i < TOKENS; i++) ids[i] = i * 7 % 50;
    snprintf(path, sizeof path, "tests/golden/model/%s", families[f].path);
    if (refused(&oo, path)) {
        snprintf(row_of(&ran, families[f].name, "load")->cell[column], CELL, "refused: no port");
        return;
    }
    rig_open_with(&r, &oo, path, PL_F16, GOLD_TOKENS_MAX);
    pl_ops_witness_reset(r.ops);
    rig_run(&r, ids, TOKENS, TOKENS, logits);
    rig_run(&r, ids, TOKENS, 1, logits);
    note(column, families[f].name, r.ops);
    rig_close(&r);
}

/* Whether the machine has what the column is about. */
static bool present(size_t column, int *index) {
    if (column == 2 && getenv("PLUMB_FAMILIES") == NULL) return false;
    if (column == 0) return getenv("PLUMB_TEST_DEVICE") == NULL;
    *index = test_device_of(columns[column].kind);
    if (*index < 0) return false;
    struct pl_device *d = NULL;
    struct pl_err err = {0};
    if (pl_device_open(columns[column].kind, *index, &d, &err) != PL_OK) return false;
    const struct pl_device_info *info = pl_device_info(d);
    bool is = column == 1 ? info->is_cpu : strncmp(info->target, "sm_90", 5) == 0;
    pl_device_close(d);
    return is;
}

static void read_document(void) {
    FILE *f = fopen("docs/families.md", "r");
    char line[4096], last[TEXT] = "";
    if (f == NULL) return;
    while (fgets(line, sizeof line, f) != NULL) {
        char *field[COLUMNS + 2], *at = line;
        size_t n = 0;
        if (strncmp(line, "| ", 2) != 0 || strncmp(line, "| family", 8) == 0) continue;
        for (at += 2; n < COLUMNS + 2; n++) {
            char *end = strstr(at, " |");
            if (end == NULL) break;
            *end = 0;
            field[n] = at;
            at = end[2] == ' ' ? end + 3 : end + 2;
        }
        if (n < COLUMNS + 2) continue;
        if (field[0][0] != 0) snprintf(last, TEXT, "%.*s", TEXT - 1, field[0]);
        struct row *r = row_of(&doc, last, field[1]);
        for (size_t c = 0; c < COLUMNS; c++) snprintf(r->cell[c], CELL, "%.*s", CELL - 1, field[2 + c]);
    }
    fclose(f);
}

static void write_document(const char *path) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(
        f,
        "# Families, and what ran\n\n"
        "Written by `PLUMB_FAMILIES=docs/families.md build/release/tests/model/test_families` and compared by that "
        "test: for "
        "each family a\ntiny checkpoint, a prompt of 20 tokens and the same token by token, f16 cache. An operation "
        "with several "
        "kernels\nnames them all. CPU and PoCL are compared; CUDA is as last written, on an NVIDIA H200; an empty cell was "
        "not run. Tiny "
        "models are\nnarrower than most of the kernels for tensor cores take: docs/perf has what models of full size "
        "run.\n\n"
        "| family | operation | %s | %s | %s |\n|---|---|---|---|---|\n",
        columns[0].head, columns[1].head, columns[2].head);
    for (size_t i = 0, k; i < PL_COUNT_OF(families); i++) {
        const char *name = families[i].name;
        for (k = 0; k < ran.count; k++) {
            const struct row *r = &ran.rows[k];
            if (strcmp(r->family, families[i].name) != 0) continue;
            if (r->cell[0][0] + r->cell[1][0] + r->cell[2][0] == 0) continue; /* no longer asked for */
            fprintf(f, "| %s | %s | %s | %s | %s |\n", name, r->op, r->cell[0], r->cell[1], r->cell[2]);
            name = "";
        }
    }
    assert_int_equal(fclose(f), 0);
}

static void the_table_is_what_ran(void **state) {
    (void)state;
    const char *to = getenv("PLUMB_FAMILIES");
    bool here[COLUMNS] = {false};
    size_t differ = 0;
    read_document();
    for (size_t c = 0; c < COLUMNS; c++) {
        int index = 0;
        here[c] = present(c, &index);
        for (size_t f = 0; here[c] && f < PL_COUNT_OF(families); f++) run_family(c, f, index);
        if (!here[c]) print_message("# %s: not here, not compared\n", columns[c].head);
    }
    for (size_t i = 0; i < doc.count; i++) { /* operations that nothing here asks for any more, and columns not run */
        struct row *r = row_of(&ran, doc.rows[i].family, doc.rows[i].op);
        for (size_t c = 0; c < COLUMNS; c++)
            if (!here[c]) memcpy(r->cell[c], doc.rows[i].cell[c], CELL);
    }
    if (to != NULL) {
        write_document(to);
        return;
    }
    for (size_t i = 0; i < ran.count; i++) {
        const struct row *r = &ran.rows[i], *d = row_of(&doc, r->family, r->op);
        for (size_t c = 0; c < COLUMNS; c++) {
            if (!here[c] || strcmp(r->cell[c], d->cell[c]) == 0) continue;
            print_message("# %s, %s on %s: ran '%s', the table says '%s'\n", r->family, r->op, columns[c].head, r->cell[c],
                          d->cell[c]);
            differ++;
        }
    }
    if (!here[0] && !here[1] && !here[2]) SKIP("no such device here");
    if (differ > 0) fail_msg("%zu cells differ: PLUMB_FAMILIES=docs/families.md writes them", differ);
}

int main(void) {
    test_own_cache();
    struct CMUnitTest tests[] = {cmocka_unit_test(the_table_is_what_ran)};
    return TEST_RUN("families", tests);
}
