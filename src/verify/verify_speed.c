/* verify_speed - a model's speed, products by rows, forms of attention: all with the ceiling measured in the same run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify/verify.h"

/* ---------- a model ---------- */

/* Speed by how many sequences run at once: where batching begins to pay. */
static json_t *bench_together(const struct pl_verify_options *o) {
    const char *const words[] = {"bench", "-m", o->model,     "-p",      "32",     "-n", "32",
                                 "-r",    "3",  "--parallel", "1,2,4,8", "--json", NULL};
    json_t *out = NULL, *rows = json_array();
    int code = 0;
    if (pl_verify_self(o, words, &out, NULL, &code, NULL) != PL_OK || code != 0) code = 1;
    const json_t *list = json_object_get(out, "parallel");
    for (size_t i = 0; code == 0 && i < json_array_size(list); i++) {
        json_t *row = json_array_get(list, i);
        json_array_append_new(rows, json_pack("{s:O?, s:O?, s:O?, s:O?}", "sequences", json_object_get(row, "sequences"),
                                              "prefill_tok_s", json_object_get(row, "prefill_tok_s"), "decode_tok_s",
                                              json_object_get(row, "decode_tok_s"), "gap_ms_p99",
                                              json_object_get(row, "gap_ms_p99")));
    }
    json_decref(out);
    return rows;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const json_t *list) {
    double v[256];
    size_t n = PL_MIN(json_array_size(list), PL_COUNT_OF(v));
    for (size_t i = 0; i < n; i++) v[i] = json_number_value(json_array_get(list, i));
    qsort(v, n, sizeof *v, by_size);
    return n == 0 ? 0 : (v[(n - 1) / 2] + v[n / 2]) / 2;
}

/* Repeats in one process share its memory and what the machine did meanwhile: further processes are asked, so that what
 * changes from one to the next is in the samples that --against compares. */
static bool ask_again(const struct pl_verify_options *o, const char *const *words, size_t processes, json_t *out) {
    static const char *const keys[2][2] = {{"prefill_tok_s", "prefill_tok_s_all"}, {"decode_tok_s", "decode_tok_s_all"}};
    for (size_t i = 1; i < processes; i++) {
        json_t *more = NULL;
        int code = 0;
        bool ok = pl_verify_self(o, words, &more, NULL, &code, NULL) == PL_OK && code == 0 && json_is_object(more);
        for (int k = 0; ok && k < 2; k++)
            ok = json_array_extend(json_object_get(out, keys[k][1]), json_object_get(more, keys[k][1])) == 0;
        json_decref(more);
        if (!ok) return false;
    }
    for (int k = 0; k < 2; k++) json_object_set_new(out, keys[k][0], json_real(median_of(json_object_get(out, keys[k][1]))));
    json_object_set_new(out, "processes", json_integer((json_int_t)processes));
    return true;
}

void pl_verify_bench(const struct pl_verify_options *o, struct pl_verify_result *r) {
    const char *p = o->quick ? "64" : "256", *n = o->quick ? "16" : "64", *repeats = o->quick ? "3" : "7";
    const char *const words[] = {"bench", "-m", o->model, "-p", p, "-n", n, "-r", repeats, "--json", NULL};
    struct pl_buf said = {0};
    struct pl_err err = {0};
    json_t *out = NULL;
    int code = 0;
    if (pl_verify_self(o, words, &out, &said, &code, &err) != PL_OK || code != 0 || !json_is_object(out)) {
        pl_verify_say(r, PL_VERIFY_FAIL, "plumb bench: exit code %d: %.300s %.200s", code, err.text, pl_buf_cstr(&said));
    } else if (!ask_again(o, words, o->quick ? 2 : 3, out)) {
        pl_verify_say(r, PL_VERIFY_FAIL, "plumb bench ran once and then failed");
    } else {
        double percent = json_number_value(json_object_get(out, "decode_percent_of_ceiling"));
        bool named = json_array_size(json_object_get(out, "kernels")) > 0, low = percent < o->floor;
        pl_verify_say(
            r, named && !low ? PL_VERIFY_PASS : PL_VERIFY_FAIL,
            "prompt %.1f tok/s, decode %.1f tok/s, %.1f%% of the read ceiling of %.1f GB/s measured in the same run%s%s",
            json_number_value(json_object_get(out, "prefill_tok_s")),
            json_number_value(json_object_get(out, "decode_tok_s")), percent,
            json_number_value(json_object_get(out, "read_ceiling_gb_s")), named ? "" : "; no kernel was named",
            low ? "; below the floor" : "");
        if (!o->quick) json_object_set_new(out, "together", bench_together(o));
    }
    r->evidence = out != NULL ? out : json_null();
    pl_buf_deinit(&said);
}

/* ---------- products ---------- */

/* The part of the ceiling that one row's planned products reach, at best and at worst. */
static void one_row(const json_t *rows, double *best, double *worst) {
    *best = 0;
    *worst = 1e9;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *r = json_array_get(rows, i), *p = json_object_get(r, "percent_of_ceiling");
        const char *way = json_string_value(json_object_get(r, "way"));
        if (way == NULL || strcmp(way, "planned") != 0 || json_integer_value(json_object_get(r, "rows")) != 1 || p == NULL)
            continue;
        *best = PL_MAX(*best, json_number_value(p));
        *worst = PL_MIN(*worst, json_number_value(p));
    }
}

static size_t unnamed(const json_t *rows) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const char *kernel = json_string_value(json_object_get(json_array_get(rows, i), "kernel"));
        n += json_object_get(json_array_get(rows, i), "declined") == NULL && (kernel == NULL || kernel[0] == '\0');
    }
    return n;
}

void pl_verify_op_bench(const struct pl_verify_options *o, struct pl_verify_result *r) {
    enum pl_backend b = pl_verify_backend_of(o);
    bool slow = b == PL_BACKEND_CPU || b == PL_BACKEND_OPENCL; /* which may be a CPU too */
    const char *types = o->quick ? "q8_0,q4_k" : "f16,q8_0,q4_0,q4_k,q6_k";
    const char *rows = o->quick ? (slow ? "1,8" : "1,4,16,64") : slow ? "1,2,4,8,32" : "1,2,4,8,16,32,64,128";
    const char *words[] = {"bench",
                           "--op",
                           "linear",
                           "--backend",
                           pl_backend_name(b),
                           "--types",
                           types,
                           "--rows",
                           rows,
                           "--json",
                           "--shape",
                           slow ? "1024x4096" : "4096x4096",
                           o->quick ? "--quick" : NULL,
                           NULL};
    struct pl_buf said = {0};
    struct pl_err err = {0};
    json_t *out = NULL;
    int code = 0;
    enum pl_status st = pl_verify_self(o, words, &out, &said, &code, &err);
    const json_t *list = json_object_get(out, "rows");
    if (st != PL_OK || code != 0 || json_array_size(list) == 0) {
        pl_verify_say(r, PL_VERIFY_FAIL, "plumb bench --op linear: exit code %d: %.300s %.200s", code, err.text,
                      pl_buf_cstr(&said));
    } else if (unnamed(list) > 0) {
        pl_verify_say(r, PL_VERIFY_FAIL, "%zu of %zu rows name no kernel", unnamed(list), json_array_size(list));
    } else {
        double best, worst;
        one_row(list, &best, &worst);
        pl_verify_say(
            r, PL_VERIFY_PASS,
            "%zu rows; one row reads at %.0f to %.0f%% of the ceiling of %.1f GB/s measured in the same run; the plan "
            "takes at most %.2f times as long as the fastest implementation",
            json_array_size(list), worst, best, json_number_value(json_object_get(out, "read_ceiling_gb_s")),
            json_number_value(json_object_get(out, "planned_over_fastest_max")));
    }
    r->evidence = out != NULL ? out : json_null();
    pl_buf_deinit(&said);
}

/* ---------- forms of attention ---------- */

static void say_floors(const json_t *a, struct pl_verify_result *r) {
    json_int_t tokens = json_integer_value(json_object_get(a, "v1_tokens_max")),
               pages = json_integer_value(json_object_get(a, "span_min")),
               members = json_integer_value(json_object_get(a, "members_min"));
    char one[100] = "one pass over the pages was never the fastest", shared[100] = "sharing a beginning never paid";
    if (tokens > 0) snprintf(one, sizeof one, "one pass over the pages is the fastest up to %lld tokens", (long long)tokens);
    if (pages < UINT32_MAX && members < UINT32_MAX)
        snprintf(shared, sizeof shared, "a shared beginning pays from %lld pages and %lld sequences on", (long long)pages,
                 (long long)members);
    pl_verify_say(r, PL_VERIFY_PASS, "at the lengths that were timed %s; %s", one, shared);
}

/* Forms of attention timed on this device, and where one begins to beat another: floors are measured, never carried over. */
void pl_verify_tuner(const struct pl_verify_options *o, struct pl_verify_result *r) {
    enum pl_backend b = pl_verify_backend_of(o);
    if (b == PL_BACKEND_CPU) {
        pl_verify_say(r, PL_VERIFY_SKIPPED, "the CPU has nothing to tune: one form of attention, no launches");
        return;
    }
    const char *const words[] = {"tune",     "--backend", pl_backend_name(b),        "--dry-run",
                                 "--report", "--len",     o->quick ? "256" : "8192", NULL};
    struct pl_buf said = {0};
    struct pl_err err = {0};
    json_t *out = NULL;
    int code = 0;
    enum pl_status st = pl_verify_self(o, words, &out, &said, &code, &err);
    const json_t *a = json_object_get(out, "attention");
    if (st != PL_OK || code != 0 || !json_is_object(a))
        pl_verify_say(r, PL_VERIFY_FAIL, "plumb tune: exit code %d: %.300s %.200s", code, err.text, pl_buf_cstr(&said));
    else
        say_floors(a, r);
    r->evidence = out != NULL ? out : json_null();
    pl_buf_deinit(&said);
}
