/* bench_matmul [options] - products of every weight type: GB/s of weights and GOP/s, beside the read ceiling of the
 * same run, with the name of the kernel that ran.
 *   --isa NAME   only this table (default: all of this machine)     --type NAME  only this weight type
 *   --rows LIST  row counts (default 1,4,16,64,512)                 --threads N  (default all)
 *   --out N --in N  shape of a matrix (default 4096 x 4096)         --mib N      weights walked for 1 row (default 512)
 *   --repeats N  best of (default 5)                               --fine 1     inputs in two terms, as the output product
 *   --wide 1     products of many rows may be in bf16
 *   --packing 1  how fast one thread packs the weights
 *   --clock cpu  CPU seconds of all threads instead of time (for a shared machine; use it with --threads 1) */
#include <stdlib.h>
#include <string.h>

#include "bench/bandwidth.h"
#include "cpu/internal.h"
#define PL_TEST_REAL_ONLY
#include "tests/cpu/support.h"

struct options {
    const char *isa, *type;
    size_t rows[16], row_count, out, in, mib;
    int threads, repeats;
    bool fine, packing, wide;
};

static struct options parse(int argc, char **argv) {
    struct options o = {.rows = {1, 4, 16, 64, 512}, .row_count = 5, .out = 4096, .in = 4096, .mib = 512, .repeats = 5};
    static const char *const names[] = {"--isa", "--type",    "--rows", "--threads", "--out",     "--in",
                                        "--mib", "--repeats", "--fine", "--wide",    "--packing", "--clock"};
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

static void bench_type(const struct options *o, struct pl_cpu *c, const struct weight_case *wc, double ceiling) {
    char type[48];
    snprintf(type, sizeof type, "mlx%u/g%u/%s", wc->bits, wc->group, pl_dtype_name(wc->scale_dtype));
    if (wc->dtype != PL_MLX) snprintf(type, sizeof type, "%s", pl_dtype_name(wc->dtype));
    if (o->type != NULL && strncmp(o->type, type, strlen(o->type)) != 0) return;
    struct pl_tensor t = tensor_random(wc, o->out, o->in, 1);
    size_t count = (o->mib << 20) / (size_t)t.bytes + 1, max_rows = 1;
    for (size_t i = 0; i < o->row_count; i++) max_rows = PL_MAX(max_rows, o->rows[i]);
    struct pl_cpu_weight **w = calloc(count, sizeof *w);
    struct pl_err err = {0};
    for (size_t i = 0; i < count; i++)
        if (pl_cpu_weight_create(c, &t, &w[i], &err) != PL_OK) exit(1);
    double pack = o->packing ? time_packing(w[0], o) : 0;
    float *x = aligned_alloc(64, (max_rows * o->in + 15) / 16 * 64),
          *y = aligned_alloc(64, (max_rows * o->out + 15) / 16 * 64);
    uint64_t s = 1;
    for (size_t r = 0; r < max_rows; r++) rng_fill(&s, x + r * o->in, o->in);
    if (pl_cpu_reserve(c, max_rows, o->in, 128, &err) != PL_OK) exit(1);
    for (size_t i = 0; i < o->row_count; i++) {
        size_t n = o->rows[i];
        double t1 = time_products(c, w, n < 64 ? count : PL_MIN(count, (size_t)2), x, n, y, o);
        double gbs = (double)pl_cpu_weight_bytes_read(w[0]) / t1 * 1e-9;
        printf("%-14s %-32s rows %4zu  %9.1f us  %6.1f GB/s (%3.0f%%)  %7.1f GOP/s\n", type,
               pl_cpu_weight_kernel(c, w[0], n), n, t1 * 1e6, gbs, 100 * gbs / ceiling,
               2e-9 * (double)(o->out * o->in * n) / t1);
    }
    if (pack > 0)
        printf("%-14s packing: %.2f GB/s of file bytes a thread, %zu bytes owned of %zu\n", type,
               (double)t.bytes / pack * 1e-9, pl_cpu_weight_bytes_owned(w[0]), (size_t)t.bytes);
    fflush(stdout);
    for (size_t i = 0; i < count; i++) pl_cpu_weight_destroy(w[i]);
    free(w), free(x), free(y);
    tensor_free(&t);
}

int main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    bool shown = false;
    FOR_EACH_ISA(isa) {
        if (o.isa != NULL && strcmp(o.isa, pl_isa_name(isa)) != 0) continue;
        struct pl_cpu *c = cpu_make(isa, o.threads);
        pl_cpu_allow_wide(c, o.wide);
        double ceiling = read_bandwidth(pl_cpu_pool(c), o.mib << 20, 5) * 1e-9;
        printf("table %s, %d threads: reads %.1f GB/s\n", pl_isa_name(isa), pl_pool_threads(pl_cpu_pool(c)), ceiling);
        for (size_t k = 0; k < WEIGHT_CASES; k++) bench_type(&o, c, &weight_cases[k], ceiling);
        pl_cpu_destroy(c);
        shown = true;
    }
    if (!shown) fprintf(stderr, "bench_matmul: this CPU has no table '%s'\n", o.isa);
    return shown ? 0 : 1;
}
