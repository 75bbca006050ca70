/* verify_local - items about this build and this machine that need no model, or only a glance at one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/mem.h"
#include "cpu/cpu.h"
#include "device/device.h"
#include "ops/choose.h"
#include "tune/host_bandwidth.h"
#include "verify/jitcheck.h"
#include "verify/optest.h"
#include "verify/spawn.h"
#include "verify/verify.h"

/* ---------- build ---------- */

/* "key: value" lines as an object. */
static json_t *lines_json(const char *text) {
    json_t *o = json_object();
    for (const char *line = text; *line != '\0';) {
        size_t len = strcspn(line, "\n"), colon = strcspn(line, ":\n");
        if (colon < len && line[colon + 1] == ' ') {
            char key[64];
            snprintf(key, sizeof key, "%.*s", (int)PL_MIN(colon, sizeof key - 1), line);
            for (char *c = key; *c != '\0'; c++)
                if (*c == ' ') *c = '_';
            json_object_set_new(o, key, json_stringn(line + colon + 2, len - colon - 2));
        }
        line += len + (line[len] == '\n');
    }
    return o;
}

static json_t *machine_json(void) {
    struct utsname u;
    char line[300] = "", cpu[200] = "unknown";
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        snprintf(cpu, sizeof cpu, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f != NULL) fclose(f);
    if (uname(&u) != 0) u = (struct utsname){0};
    json_int_t bytes = (json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE);
    return json_pack("{s:s, s:I, s:s, s:s, s:s, s:I}", "cpu", cpu, "cpus", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "isa",
                     pl_isa_name(pl_cpu_best_isa()), "system", u.sysname, "kernel", u.release, "memory_bytes", bytes);
}

/* "hash path" lines as {path: hash}. */
static json_t *sources_json(const char *text) {
    json_t *o = json_object();
    for (const char *line = text; *line != '\0';) {
        size_t len = strcspn(line, "\n"), blank = strcspn(line, " \n");
        char path[200];
        if (blank == 16 && len > 17 && len - 17 < sizeof path) {
            snprintf(path, sizeof path, "%.*s", (int)(len - 17), line + 17);
            json_object_set_new(o, path, json_stringn(line, 16));
        }
        line += len + (line[len] == '\n');
    }
    return o;
}

/* What "PROGRAM version OPTION" says; NULL: it did not answer like plumb. */
static json_t *version_of(const char *program, const char *option, json_t *(*read)(const char *text)) {
    char path[1024], version[] = "version", last[20];
    snprintf(path, sizeof path, "%s", program);
    snprintf(last, sizeof last, "%s", option);
    char *argv[] = {path, version, last, NULL};
    struct pl_spawned run;
    if (pl_spawn(argv, NULL, 0, 30, &run, NULL) != PL_OK) return NULL;
    json_t *o = run.exit_code == 0 ? read(pl_buf_cstr(&run.out)) : NULL;
    pl_spawned_deinit(&run);
    return o;
}

json_t *pl_verify_sources_of(const char *program) { return version_of(program, "--sources", sources_json); }

/* Of kernels: what runs on devices and on the CPU. */
static json_t *kernel_sources(const char *program) {
    json_t *all = pl_verify_sources_of(program), *out = json_object(), *hash;
    const char *path;
    json_object_foreach(all, path, hash) {
        if (strncmp(path, "kernels/", 8) == 0 || strncmp(path, "src/cpu/", 8) == 0) json_object_set(out, path, hash);
    }
    json_decref(all);
    return out;
}

/* What reading runs at: on this machine, and on the device that runs models. */
static json_t *ceilings(const struct pl_verify_options *o) {
    double host = 0;
    struct pl_err err = {0};
    json_t *c = json_object(), *devices = NULL;
    enum pl_backend b = pl_verify_backend_of(o);
    int code = 0;
    if (pl_host_read_bandwidth(0, (size_t)128 << 20, &host, &err) == PL_OK)
        json_object_set_new(c, "host_read_gb_s", json_real(host / 1e9));
    if (b == PL_BACKEND_CPU || o->url != NULL) return c;
    const char *const words[] = {"devices", "--measure", "--json", "--only", pl_backend_name(b), NULL};
    if (pl_verify_self(o, words, &devices, NULL, &code, &err) != PL_OK) devices = NULL;
    for (size_t k = 0; k < json_array_size(devices); k++) {
        const json_t *list = json_object_get(json_array_get(devices, k), "devices");
        for (size_t i = 0; i < json_array_size(list) && i < 1; i++) {
            const json_t *d = json_array_get(list, i);
            json_object_update_new(c, json_pack("{s:O?, s:O?, s:O?, s:O?}", "device", json_object_get(d, "name"),
                                                "device_read_gb_s", json_object_get(d, "read_gb_per_s"), "device_copy_gb_s",
                                                json_object_get(d, "copy_gb_per_s"), "kernel",
                                                json_object_get(d, "read_kernel")));
        }
    }
    json_decref(devices);
    return c;
}

void pl_verify_build(const struct pl_verify_options *o, struct pl_verify_result *r) {
    static const char *const words[] = {"devices", "--json", NULL};
    json_t *build = version_of(o->self, "--verbose", lines_json), *sources = kernel_sources(o->self), *devices = NULL;
    int code = 0;
    struct pl_err err = {0};
    if (pl_verify_self(o, words, &devices, NULL, &code, &err) != PL_OK) devices = NULL;
    const char *id = json_string_value(json_object_get(build, "build_id")),
               *hash = json_string_value(json_object_get(build, "kernel_hash")),
               *compiler = json_string_value(json_object_get(build, "compiler"));
    if (id == NULL || hash == NULL || compiler == NULL || json_object_size(sources) == 0)
        pl_verify_say(r, PL_VERIFY_FAIL, "%s does not say what it is made of", o->self);
    else
        pl_verify_say(r, PL_VERIFY_PASS, "build %s, %zu kernel sources %s, %s", id, json_object_size(sources), hash,
                      compiler);
    r->evidence = json_pack("{s:o*, s:o, s:o*, s:o, s:o}", "build", build, "machine", machine_json(), "devices", devices,
                            "ceilings", ceilings(o), "sources", sources);
}

/* ---------- backend ---------- */

void pl_verify_backend(const struct pl_verify_options *o, struct pl_verify_result *r) {
    const char *const words[] = {"generate", "-m", o->model, "-p", "Hello", "-n", "2", "--temp", "0", NULL};
    static const char mark[] = "plumb: kernel backend: ";
    struct pl_buf said = {0};
    struct pl_err err = {0};
    int code = 0;
    char line[300] = "";
    if (pl_verify_self(o, words, NULL, &said, &code, &err) != PL_OK) {
        pl_verify_say(r, PL_VERIFY_FAIL, "%s", err.text);
    } else {
        const char *at = strstr(pl_buf_cstr(&said), mark);
        if (at != NULL) snprintf(line, sizeof line, "%.*s", (int)strcspn(at + sizeof mark - 1, "\n"), at + sizeof mark - 1);
        size_t kind = strcspn(line, " ");
        const char *want = o->backend;
        if (code != 0)
            pl_verify_say(r, PL_VERIFY_FAIL, "exit code %d: %.400s", code, pl_buf_cstr(&said));
        else if (line[0] == '\0')
            pl_verify_say(r, PL_VERIFY_FAIL, "no backend line was printed: nothing else of this process can be trusted");
        else if (want != NULL && (strlen(want) != kind || strncmp(want, line, kind) != 0))
            pl_verify_say(r, PL_VERIFY_FAIL, "expected %s, got: %s", want, line);
        else
            pl_verify_say(r, PL_VERIFY_PASS, "%s%s", line, want == NULL ? " (no backend was demanded: --backend)" : "");
    }
    r->evidence = json_pack("{s:s}", "line", line);
    pl_buf_deinit(&said);
}

/* ---------- routing ---------- */

static json_t *port_table(void) {
    json_t *rows = json_array();
    for (int op = 0; op < PL_OP_COUNT; op++) {
        json_t *row = json_pack("{s:s}", "op", pl_op_name((enum pl_op)op));
        for (int b = 0; b < PL_BACKEND_COUNT; b++) {
            enum pl_impl list[PL_IMPL_COUNT];
            size_t n = pl_impl_ranked((enum pl_backend)b, (enum pl_op)op, list);
            struct pl_buf text = {0};
            pl_buf_add_c(&text, pl_port_name(pl_ops_port((enum pl_op)op, (enum pl_backend)b)));
            for (size_t i = 0; i < n; i++) pl_buf_printf(&text, "%s%s", i == 0 ? ": " : " > ", pl_impl_name(list[i]));
            json_object_set_new(row, pl_backend_name((enum pl_backend)b), json_string(pl_buf_cstr(&text)));
            pl_buf_deinit(&text);
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

/* What was chosen for this model, and every choice that did not end as planned. */
static json_t *chosen(const struct pl_verify_options *o, struct pl_verify_result *r) {
    char path[1200];
    snprintf(path, sizeof path, "%s/witness.json", o->dir);
    const char *const words[] = {"generate", "-m",        o->model, "-p", pl_verify_prompts[0], "-n", "4", "--temp",
                                 "0",        "--witness", path,     NULL};
    struct pl_buf said = {0};
    struct pl_err err = {0};
    int code = 0;
    enum pl_status st = pl_verify_self(o, words, NULL, &said, &code, &err);
    json_t *witness = st == PL_OK && code == 0 ? json_load_file(path, 0, NULL) : NULL;
    const json_t *outcomes = json_object_get(witness, "outcomes");
    size_t other = 0;
    for (size_t i = 0; i < json_array_size(outcomes); i++) {
        const char *how = json_string_value(json_object_get(json_array_get(outcomes, i), "outcome"));
        const char *why = json_string_value(json_object_get(json_array_get(outcomes, i), "reason"));
        if (how == NULL || strcmp(how, "chosen") == 0) continue;
        if (other++ == 0)
            pl_verify_say(r, PL_VERIFY_FAIL, "not as planned: %s was a %s: %s",
                          json_string_value(json_object_get(json_array_get(outcomes, i), "op")), how,
                          why != NULL ? why : "");
    }
    if (witness == NULL || json_array_size(outcomes) == 0)
        pl_verify_say(r, PL_VERIFY_FAIL, "no witness of what ran (exit code %d): %.300s", code, pl_buf_cstr(&said));
    else if (other == 0)
        pl_verify_say(r, PL_VERIFY_PASS, "%zu choices, all as planned; launches counted by host and device agree",
                      json_array_size(outcomes));
    pl_buf_deinit(&said);
    (void)unlink(path);
    return witness;
}

void pl_verify_routing(const struct pl_verify_options *o, struct pl_verify_result *r) {
    json_t *witness = NULL;
    if (o->model != NULL)
        witness = chosen(o, r);
    else
        pl_verify_say(r, PL_VERIFY_PASS, "%d operations; without a model (-m) only what is planned", PL_OP_COUNT);
    r->evidence = json_pack("{s:o, s:O?}", "ports", port_table(), "chosen", json_object_get(witness, "outcomes"));
    json_decref(witness);
}

/* ---------- operations ---------- */

static bool is_here(enum pl_backend b) {
    static const enum pl_device_kind kinds[PL_BACKEND_COUNT] = {
        [PL_BACKEND_CUDA] = PL_DEVICE_CUDA, [PL_BACKEND_ROCM] = PL_DEVICE_ROCM, [PL_BACKEND_OPENCL] = PL_DEVICE_OPENCL};
    int n = 0;
    if (b == PL_BACKEND_CPU) return true;
    return b != PL_BACKEND_METAL && pl_device_count(kinds[b], &n, NULL) == PL_OK && n > 0;
}

size_t pl_verify_backends(const struct pl_verify_options *o, struct pl_ops_options out[PL_VERIFY_BACKENDS_MAX]) {
    size_t n = 0;
    for (int b = 0; b < PL_BACKEND_COUNT; b++) {
        if (!is_here((enum pl_backend)b)) continue;
        bool wanted = o->backend == NULL || strcmp(o->backend, pl_backend_name((enum pl_backend)b)) == 0;
        if (!wanted && b != PL_BACKEND_CPU) continue;
        for (int isa = 0; isa < PL_ISA_COUNT && n < PL_VERIFY_BACKENDS_MAX; isa++) {
            if (b != PL_BACKEND_CPU && isa > 0) break;
            if (!pl_cpu_isa_available((enum pl_isa)isa)) continue;
            if (o->quick && b == PL_BACKEND_CPU && (enum pl_isa)isa != pl_cpu_best_isa()) continue;
            out[n++] = (struct pl_ops_options){.backend = (enum pl_backend)b,
                                               .isa = b == PL_BACKEND_CPU ? pl_isa_name((enum pl_isa)isa) : NULL};
        }
    }
    return n;
}

/* Of all backends. */
struct op_counts {
    size_t cases, failed, skipped;
};

static void one_backend(const struct pl_ops_options *opt, bool quick, json_t *list, struct op_counts *n,
                        struct pl_verify_result *r) {
    struct pl_optest t;
    struct pl_optest_options how = {.ops = *opt, .quick = quick};
    struct pl_err err = {0};
    const char *name = pl_backend_name(opt->backend);
    if (pl_optest_run(&how, &t, &err) != PL_OK) {
        pl_verify_say(r, PL_VERIFY_FAIL, "%s: %.500s", name, err.text);
        n->failed++;
    }
    for (size_t i = 0; i < t.count && t.failed > 0 && n->failed == 0; i++) {
        const struct pl_optest_case *c = &t.cases[i];
        if (c->passed) continue;
        pl_verify_say(r, PL_VERIFY_FAIL, "%s: %s, %s (%s): error %.3g, bound %.3g %s", name, c->op, c->what, c->kernel,
                      c->error, c->bound, c->why);
        n->failed += t.failed;
    }
    n->cases += t.count;
    n->skipped += t.skipped;
    json_array_append_new(list, pl_optest_json(&t));
    pl_optest_deinit(&t);
}

/* Operations without a case here (rope_append is in those of attention). */
static json_t *not_asked(const json_t *backends) {
    json_t *out = json_array();
    const json_t *cases = json_object_get(json_array_get(backends, 0), "list");
    for (int op = 0; op < PL_OP_COUNT; op++) {
        bool found = op == PL_OP_rope_append;
        for (size_t i = 0; i < json_array_size(cases) && !found; i++) {
            const char *name = json_string_value(json_object_get(json_array_get(cases, i), "op"));
            found = name != NULL && strcmp(name, pl_op_name((enum pl_op)op)) == 0;
        }
        if (!found) json_array_append_new(out, json_string(pl_op_name((enum pl_op)op)));
    }
    return out;
}

void pl_verify_operations(const struct pl_verify_options *o, struct pl_verify_result *r) {
    json_t *list = json_array();
    struct op_counts count = {0};
    struct pl_ops_options backend[PL_VERIFY_BACKENDS_MAX];
    size_t n = pl_verify_backends(o, backend);
    for (size_t i = 0; i < n; i++) one_backend(&backend[i], o->quick, list, &count, r);
    json_t *elsewhere = not_asked(list);
    char rest[100] = "", without[60] = "";
    if (json_array_size(elsewhere) > 0)
        snprintf(rest, sizeof rest, "; %zu further operations are tested by the suite alone", json_array_size(elsewhere));
    if (count.skipped > 0) snprintf(without, sizeof without, ", %zu skipped where there is no port", count.skipped);
    if (count.failed == 0)
        pl_verify_say(r, PL_VERIFY_PASS, "%zu cases on %zu backend%s agree with the oracle%s%s", count.cases - count.skipped,
                      json_array_size(list), json_array_size(list) == 1 ? "" : "s", without, rest);
    r->evidence = json_pack("{s:o, s:o}", "backends", list, "tested_by_the_suite_alone", elsewhere);
}

/* ---------- the kernel cache ---------- */

/* Of several kinds of device a quick pass takes the one that runs the model. */
static bool is_asked(const struct pl_verify_options *o, enum pl_device_kind k) {
    bool cpu = o->backend == NULL || strcmp(o->backend, "cpu") == 0;
    return !o->quick || cpu || strcmp(o->backend, pl_device_kind_name(k)) == 0;
}

void pl_verify_jit(const struct pl_verify_options *o, struct pl_verify_result *r) {
    json_t *list = json_array();
    size_t ran = 0, failed = 0;
    for (int k = 0; k < PL_DEVICE_KIND_COUNT; k++) {
        int n = 0;
        struct pl_err err = {0};
        json_t *checks = json_array();
        if (!is_asked(o, (enum pl_device_kind)k) || pl_device_count((enum pl_device_kind)k, &n, NULL) != PL_OK || n == 0) {
            json_decref(checks);
            continue;
        }
        size_t bad = 0;
        if (pl_jitcheck_run((enum pl_device_kind)k, o->dir, checks, &bad, &err) != PL_OK || bad > 0) {
            failed++;
            pl_verify_say(r, PL_VERIFY_FAIL, "%s: %.400s", pl_device_kind_name((enum pl_device_kind)k),
                          err.text[0] != '\0' ? err.text : "a check failed");
        }
        ran++;
        json_array_append_new(
            list, json_pack("{s:s, s:o}", "device", pl_device_kind_name((enum pl_device_kind)k), "checks", checks));
    }
    if (ran == 0)
        pl_verify_say(r, PL_VERIFY_SKIPPED, "no CUDA, ROCm or OpenCL device is here: nothing is compiled at run time");
    else if (failed == 0)
        pl_verify_say(r, PL_VERIFY_PASS, "%zu device%s: sound, and a weakened key is caught", ran, ran == 1 ? "" : "s");
    r->evidence = json_pack("{s:o}", "devices", list);
}
