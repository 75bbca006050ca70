/* bench_matmul [options] - products of every weight type: GB/s of weights and GOP/s, beside the read ceiling of the
 * same run, with the name of the kernel that ran.
 *   --isa NAME   only this table (default: all of this machine)     --type NAME  only this weight type
 *   --rows LIST  row counts (default 1,4,16,64,512)                 --threads N  (default all)
 *   --out N --in N  shape of a matrix (default 4096 x 4096)         --mib N      weights walked for 1 row (default 512)
 *   --repeats N  best of (default 5)                               --fine 1     inputs in two terms, as the output product
 *   --table 1    a table of type by instruction set in Markdown, with parts of the limits: of one row what as many bytes are
 *                read with, from memory (4096 x 4096, --mib) and from the cache (512 x 1024); of 8 and 64 rows what a loop
 *                of the same instructions does (limit.h). One thread, unless --threads says more
 *   --wide 1     products of many rows may be in bf16
 *   --packing 1  how fast one thread packs the weights
 *   --clock cpu  CPU seconds of all threads instead of time (for a shared machine; use it with --threads 1) */
#include <stdlib.h>
#include <string.h>

#include "bench/bandwidth.h"
#include "bench/limit.h"
#include "cpu/internal.h"
#define PL_TEST_REAL_ONLY
#include "tests/cpu/support.h"

struct options {
    const char *isa, *type;
    size_t rows[16], row_count, out, in, mib;
    int threads, repeats;
    bool fine, packing, wide, table;
};

static struct options parse(int argc, char **argv) {
    struct options o = {.rows = {1, 4, 16, 64, 512}, .row_count = 5, .out = 4096, .in = 4096, .mib = 512, .repeats = 5};
    static const char *const names[] = {"--isa",     "--type", "--rows", "--threads", "--out",   "--in",   "--mib",
                                        "--repeats", "--fine", "--wide", "--packing", "--clock", "--table"};
    for (int i = 1; i < argc; i += 2) {
        const char *k = argv[i], *v = argv[i + 1];
        size_t known = 0;
        while (known < PL_COUNT_OF(names) && strcmp(k, names[known]) != 0) known++;
        if (known == PL_COUNT_OF(names) || v == NULL) {
            fprintf(stderr,
                    known == PL_COUNT_OF(names) ? "bench_matmul: unknown option '%s' (its file says which there are)\n"
                                                : "bench_matmul: %s needs a value\n",
                    k);
            exit(64);
        }
        if (strcmp(k, "--isa") == 0) o.isa = v;
        if (strcmp(k, "--type") == 0) o.type = v;
        if (strcmp(k, "--out") == 0) o.out = strtoul(v, NULL, 10);
        if (strcmp(k, "--in") == 0) o.in = strtoul(v, NULL, 10);
        if (strcmp(k, "--mib") == 0) o.mib = strtoul(v, NULL, 10);
        if (strcmp(k, "--threads") == 0) o.threads = atoi(v);
        if (strcmp(k, "--repeats") == 0) o.repeats = atoi(v);
        if (strcmp(k, "--packing") == 0) o.packing = atoi(v) != 0;
        if (strcmp(k, "--wide") == 0) o.wide = atoi(v) != 0;
        if (strcmp(k, "--fine") == 0) o.fine = atoi(v) != 0;
        if (strcmp(k, "--table") == 0) o.table = atoi(v) != 0;
        if (strcmp(k, "--clock") == 0) bench_clock = strcmp(v, "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
        if (strcmp(k, "--rows") != 0) continue;
        o.row_count = 0;
        for (char *p = argv[i + 1], *end; o.row_count < 16 && *p != 0; p = *end == ',' ? end + 1 : end)
            o.rows[o.row_count++] = strtoul(p, &end, 10);
    }
    return o;
}

/* Seconds of one product per matrix, best of the repeats; all `count` matrices are walked so that they come from memory. */
static double time_products(struct pl_cpu *c, struct pl_cpu_weight **w, size_t count, const float *x, size_t rows, float *y,
                            const struct options *o) {
    double best = 1e9;
    for (int r = 0; r < o->repeats; r++) {
        double t = bench_now();
        for (size_t i = 0; i < count; i++) {
            const struct pl_cpu_weight *one = w[i];
            size_t y_stride = o->out;
            struct pl_cpu_matmul m = {.count = 1,
                                      .rows = rows,
                                      .w = &one,
                                      .x = x,
                                      .x_stride = o->in,
                                      .y = &y,
                                      .y_stride = &y_stride,
                                      .fine = o->fine};
            pl_cpu_matmul(c, &m);
        }
        t = (bench_now() - t) / (double)count;
        if (t < best) best = t;
    }
    return best;
}

/* Seconds one thread needs to pack a weight into memory that it has written before; 0 for a view. */
static double time_packing(const struct pl_cpu_weight *w, const struct options *o) {
    double best = 1e9;
    for (int r = 0; w->kind == KIND_Q8 && r < o->repeats; r++) {
        double t = bench_now();
        for (size_t i = 0; i * TILE_ROWS < w->out; i++)
            cpu_tile_pack(w->format, &w->layout, &w->t, i, w->tiles + i * w->layout.bytes);
        best = PL_MIN(best, bench_now() - t);
    }
    return w->kind == KIND_Q8 ? best : 0;
}

static void type_name(const struct weight_case *wc, char *text, size_t size) {
    snprintf(text, size, "mlx%u/g%u/%s", wc->bits, wc->group, pl_dtype_name(wc->scale_dtype));
    if (wc->dtype != PL_MLX) snprintf(text, size, "%s", pl_dtype_name(wc->dtype));
}

static bool is_view(const struct weight_case *wc) {
    return wc->dtype == PL_F32 || wc->dtype == PL_F16 || wc->dtype == PL_BF16;
}

/* A tensor, `count` weights of it, inputs and outputs of up to `rows` rows. */
struct set {
    struct pl_tensor t;
    struct pl_cpu_weight **w;
    size_t count;
    float *x, *y;
};
static void set_make(struct set *s, const struct options *o, struct pl_cpu *c, const struct weight_case *wc, size_t rows) {
    struct pl_err err = {0};
    s->t = tensor_random(wc, o->out, o->in, 1);
    s->count = (o->mib << 20) / (size_t)s->t.bytes + 1;
    s->w = calloc(s->count, sizeof(*s->w));
    for (size_t i = 0; i < s->count; i++) {
        struct pl_tensor own = s->t; /* a view must have bytes of its own, or all would be read from the cache */
        if (i > 0 && is_view(wc)) own.data = memcpy(malloc((size_t)s->t.bytes), s->t.data, (size_t)s->t.bytes);
        if (pl_cpu_weight_create(c, &own, &s->w[i], &err) != PL_OK) exit(1);
    }
    s->x = aligned_alloc(64, (rows * o->in + 15) / 16 * 64);
    s->y = aligned_alloc(64, (rows * o->out + 15) / 16 * 64);
    uint64_t seed = 1;
    for (size_t r = 0; r < rows; r++) rng_fill(&seed, s->x + r * o->in, o->in);
    if (pl_cpu_reserve(c, rows, o->in, 128, &err) != PL_OK) exit(1);
}
static void set_free(struct set *s) {
    for (size_t i = 0; i < s->count; i++) {
        if (s->w[i]->t.data != s->t.data) free((void *)(uintptr_t)s->w[i]->t.data);
        pl_cpu_weight_destroy(s->w[i]);
    }
    free(s->w), free(s->x), free(s->y);
    tensor_free(&s->t);
}

static void bench_type(const struct options *o, struct pl_cpu *c, const struct weight_case *wc, const char *type,
                       double ceiling) {
    size_t max_rows = 1;
    for (size_t i = 0; i < o->row_count; i++) max_rows = PL_MAX(max_rows, o->rows[i]);
    struct set s;
    set_make(&s, o, c, wc, max_rows);
    double pack = o->packing ? time_packing(s.w[0], o) : 0;
    for (size_t i = 0; i < o->row_count; i++) {
        size_t n = o->rows[i];
        const char *kernel = pl_cpu_weight_kernel(c, s.w[0], n);
        double t1 = time_products(c, s.w, n < 64 ? s.count : PL_MIN(s.count, (size_t)2), s.x, n, s.y, o);
        double gbs = (double)pl_cpu_weight_bytes_read(s.w[0]) / t1 * 1e-9, gops = 2e-9 * (double)(o->out * o->in * n) / t1;
        double limit = product_limit(kernel, s.w[0]) * pl_pool_threads(pl_cpu_pool(c));
        printf("%-14s %-32s rows %4zu  %9.1f us  %6.1f GB/s (%3.0f%%)  %7.1f GOP/s", type, kernel, n, t1 * 1e6, gbs,
               100 * gbs / ceiling, gops);
        printf(limit > 0 ? " (%3.0f%%)\n" : "\n", 100 * gops / limit);
    }
    if (pack > 0)
        printf("%-14s packing: %.2f GB/s of file bytes a thread, %zu bytes owned of %zu\n", type,
               (double)s.t.bytes / pack * 1e-9, pl_cpu_weight_bytes_owned(s.w[0]), (size_t)s.t.bytes);
    fflush(stdout);
    set_free(&s);
}

/* Cells of the table. One row: GB/s, and of the reading of as many bytes. */
static void table_read(const struct options *o, struct pl_cpu *c, struct pl_cpu_weight **w, size_t count, bool cached,
                       const struct set *s) {
    const size_t bytes = pl_cpu_weight_bytes_read(w[0]) * (cached ? 1 : count);
    const double most =
        read_bandwidth(pl_cpu_pool(c), bytes, cached ? (int)count : 1, cached ? 20 * o->repeats : o->repeats);
    const double got = (double)pl_cpu_weight_bytes_read(w[0]) / time_products(c, w, count, s->x, 1, s->y, o);
    printf(" %.1f of %.1f | %.0f |", got * 1e-9, most * 1e-9, 100 * got / most);
}
static void table_arithmetic(const struct options *o, struct pl_cpu *c, struct pl_cpu_weight **w, size_t count, size_t rows,
                             const struct set *s) {
    const double limit = product_limit(pl_cpu_weight_kernel(c, w[0], rows), w[0]) * pl_pool_threads(pl_cpu_pool(c));
    const double got = 2e-9 * (double)(o->out * o->in * rows) / time_products(c, w, count, s->x, rows, s->y, o);
    if (limit > 0)
        printf(" %.0f of %.0f | %.0f |", got, limit, 100 * got / limit);
    else
        printf(" %.0f | |", got);
}

static void table_type(const struct options *o, struct pl_cpu *c, const struct weight_case *wc, const char *type) {
    enum { AGAIN = 16 }; /* the same small weight so often in a row */
    struct set s;
    set_make(&s, o, c, wc, 1);
    printf("| %s | %s |", type, pl_cpu_weight_kernel(c, s.w[0], 64));
    table_read(o, c, s.w, s.count, false, &s);
    set_free(&s);
    struct options small = *o;
    small.out = 512, small.in = 1024, small.mib = 0, small.repeats = 8 * o->repeats;
    set_make(&s, &small, c, wc, 64);
    struct pl_cpu_weight *same[AGAIN];
    for (size_t i = 0; i < AGAIN; i++) same[i] = s.w[0];
    table_read(&small, c, same, AGAIN, true, &s);
    table_arithmetic(&small, c, same, AGAIN, 8, &s);
    table_arithmetic(&small, c, same, AGAIN / 4, 64, &s);
    printf("\n");
    fflush(stdout);
    set_free(&s);
}

static void table_head(struct pl_cpu *c) {
    printf("\n%s, %d threads:\n\n| type | kernel of 64 rows | 1 row from memory, GB/s | %% | from the cache | %% | 8 rows, "
           "GOP/s | "
           "%% | 64 rows, GOP/s | %% |\n|---|---|---|---|---|---|---|---|---|---|\n",
           pl_isa_name(pl_cpu_isa(c)), pl_pool_threads(pl_cpu_pool(c)));
}

/* What a machine with more instructions would add. */
static void table_missing(void) {
    printf("\nNot on this CPU, so without rows here:");
    for (enum pl_isa isa = PL_ISA_SCALAR; isa < PL_ISA_COUNT; isa++)
        if (!pl_cpu_isa_available(isa)) printf(" %s", pl_isa_name(isa));
    printf("\n");
}

int main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    bool shown = false;
    if (o.table && o.threads == 0) o.threads = 1;
    FOR_EACH_ISA(isa) {
        if (o.isa != NULL && strcmp(o.isa, pl_isa_name(isa)) != 0) continue;
        struct pl_cpu *c = cpu_make(isa, o.threads);
        pl_cpu_allow_wide(c, o.wide);
        double ceiling = o.table ? 0 : read_bandwidth(pl_cpu_pool(c), o.mib << 20, 1, 5) * 1e-9;
        if (o.table)
            table_head(c);
        else
            printf("table %s, %d threads: reads %.1f GB/s\n", pl_isa_name(isa), pl_pool_threads(pl_cpu_pool(c)), ceiling);
        for (size_t k = 0; k < WEIGHT_CASES; k++) {
            char type[48];
            type_name(&weight_cases[k], type, sizeof type);
            if (o.type != NULL && strncmp(o.type, type, strlen(o.type)) != 0) continue;
            if (o.table)
                table_type(&o, c, &weight_cases[k], type);
            else
                bench_type(&o, c, &weight_cases[k], type, ceiling);
        }
        pl_cpu_destroy(c);
        shown = true;
    }
    if (o.table) table_missing();
    if (!shown) fprintf(stderr, "bench_matmul: this CPU has no table '%s'\n", o.isa);
    return shown ? 0 : 1;
}
