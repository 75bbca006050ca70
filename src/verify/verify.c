/* verify.c - the plan, the report, and what items share. */
#include "verify/verify.h"

#include <dirent.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"
#include "device/device.h"
#include "verify/ab.h"
#include "verify/spawn.h"

const char *pl_verify_status_name(enum pl_verify_status s) {
    static const char *const names[PL_VERIFY_STATUSES] = {"pass", "fail", "inconclusive", "skipped"};
    return names[s];
}

const struct pl_verify_item pl_verify_items[] = {
    {"build", "what this build is made of, and the machine", 2, true, false, false, true, pl_verify_build},
    {"backend", "the backend line names what should run", 1, true, false, true, false, pl_verify_backend},
    {"routing", "operation x implementation x why", 5, true, false, false, false, pl_verify_routing},
    {"tests", "the test suite's own results", 3, true, false, false, false, pl_verify_tests},
    {"operations", "operations against the oracle", 3, true, false, false, false, pl_verify_operations},
    {"order", "the same cases shuffled, and each alone", 8, true, false, false, false, pl_verify_order},
    {"jit", "the cache of compiled kernels, with negative controls", 7, true, false, false, false, pl_verify_jit},
    {"forced", "every implementation by force: reached, and the same answer", 5, true, false, true, false, pl_verify_forced},
    {"outputs", "greedy answers over the configuration matrix", 4, true, false, true, false, pl_verify_outputs},
    {"accuracy", "distributions over the configuration matrix", 4, true, false, true, false, pl_verify_accuracy},
    {"counters", "counters under concurrent requests", 6, true, false, true, false, pl_verify_counters},
    {"routes", "kernel routes that requests reach", 5, true, false, true, false, pl_verify_routes},
    {"bench", "speed, and the part of the ceiling", 9, true, false, true, true, pl_verify_bench},
    {"op-bench", "products by rows and implementation, and where one beats another", 9, true, false, false, true,
     pl_verify_op_bench},
    {"tuner", "forms of attention timed, and where one beats another", 9, true, false, false, true, pl_verify_tuner},
    {"server", "health, readiness, metrics and a clean end", 0, true, false, true, false, pl_verify_server},
    {"identity", "who the server says it is", 1, false, true, false, false, pl_verify_outside_identity},
    {"answers", "answers repeat, and do not change in company", 4, false, true, false, false, pl_verify_outside_answers},
    {"outside-counters", "counters under concurrent requests", 6, false, true, false, false, pl_verify_outside_counters},
    {"scoring", "whether its accuracy can be measured", 4, false, true, false, false, pl_verify_outside_scoring},
    {"outside-speed", "speed as a client sees it", 9, false, true, false, true, pl_verify_outside_speed},
    {"outside-health", "health and errors", 0, false, true, false, false, pl_verify_outside_health},
};
const size_t pl_verify_item_count = PL_COUNT_OF(pl_verify_items);

const struct pl_verify_item *pl_verify_item_find(const char *name) {
    for (size_t i = 0; i < pl_verify_item_count; i++)
        if (strcmp(pl_verify_items[i].name, name) == 0) return &pl_verify_items[i];
    return NULL;
}

bool pl_verify_item_planned(const struct pl_verify_options *o, const struct pl_verify_item *i) {
    return o->url != NULL ? i->outside : i->local;
}

void pl_verify_say(struct pl_verify_result *r, enum pl_verify_status s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->summary, sizeof r->summary, fmt, ap);
    va_end(ap);
    r->status = s;
}

void pl_verify_run_item(const struct pl_verify_options *o, const struct pl_verify_item *i, struct pl_verify_result *r) {
    *r = (struct pl_verify_result){.status = PL_VERIFY_INCONCLUSIVE, .summary = "the item said nothing"};
    if (i->needs_model && o->model == NULL)
        pl_verify_say(r, PL_VERIFY_SKIPPED, "no model was given (-m)");
    else
        i->run(o, r);
}

static json_t *text_json(const char *text) {
    json_t *v = json_string(text);
    return v != NULL ? v : json_string("(no UTF-8 text)");
}

json_t *pl_verify_result_json(const struct pl_verify_item *i, const struct pl_verify_result *r, double seconds) {
    return json_pack("{s:s, s:s, s:i, s:s, s:o, s:f, s:O}", "name", i->name, "what", i->what, "question", i->question,
                     "status", pl_verify_status_name(r->status), "summary", text_json(r->summary), "seconds", seconds,
                     "evidence", r->evidence != NULL ? r->evidence : json_null());
}

/* ---------- the report ---------- */

json_t *pl_verify_report_begin(const struct pl_verify_options *o) {
    char when[40] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm) != NULL) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    json_t *models = o->route_model_count > 0 ? json_array() : NULL;
    for (size_t i = 0; i < o->route_model_count; i++) json_array_append_new(models, json_string(o->route_models[i]));
    return json_pack("{s:s, s:s, s:{s:s?, s:s?, s:s?, s:s?, s:b, s:o*}, s:[]}", "schema", "plumb-verify-1", "started", when,
                     "options", "model", o->model, "flags", o->flags, "backend", o->backend, "url", o->url, "quick",
                     o->quick, "route_models", models, "items");
}

/* The nine questions of docs/verify.md; a report says which are open. */
static const char *const questions[10] = {
    "",
    "Which backend did this process resolve?",
    "Are two builds really two builds?",
    "Do the same tests pass?",
    "Are greedy outputs equal?",
    "Was each kernel route actually reached?",
    "What do the counters say?",
    "Is the compiled-kernel cache sound?",
    "Does a test depend on its predecessors?",
    "How fast, and how close to the limit?",
};

static void add_open_questions(const json_t *report, json_t *list) {
    for (int q = 1; q < 10; q++) {
        bool answered = false;
        const json_t *items = json_object_get(report, "items");
        for (size_t i = 0; i < json_array_size(items); i++) {
            const json_t *item = json_array_get(items, i);
            const char *status = json_string_value(json_object_get(item, "status"));
            answered |= json_integer_value(json_object_get(item, "question")) == q && status != NULL &&
                        strcmp(status, "skipped") != 0;
        }
        char text[200];
        snprintf(text, sizeof text, "question %d: %s%s", q, questions[q],
                 q == 8 ? " (the suite in other orders: make check-order)" : "");
        if (!answered) json_array_append_new(list, json_string(text));
    }
}

static bool has_status(const json_t *report, const char *want) {
    const json_t *items = json_object_get(report, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const char *s = json_string_value(json_object_get(json_array_get(items, i), "status"));
        if (s != NULL && strcmp(s, want) == 0) return true;
    }
    return false;
}

int pl_verify_exit_code(const json_t *report) {
    if (has_status(report, "fail")) return 1;
    return has_status(report, "inconclusive") || !has_status(report, "pass") ? 2 : 0;
}

void pl_verify_report_finish(json_t *report) {
    static const char *const verdicts[] = {"PASS", "FAIL", "INCONCLUSIVE"};
    json_t *open = json_array();
    const json_t *items = json_object_get(report, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        if (strcmp(json_string_value(json_object_get(item, "status")), "skipped") != 0) continue;
        char text[700];
        snprintf(text, sizeof text, "%.40s: %.600s", json_string_value(json_object_get(item, "name")),
                 json_string_value(json_object_get(item, "summary")));
        json_array_append_new(open, text_json(text));
    }
    add_open_questions(report, open);
    json_object_set_new(report, "not_measured", open);
    json_object_set_new(report, "exit_code", json_integer(pl_verify_exit_code(report)));
    json_object_set_new(report, "verdict", json_string(verdicts[pl_verify_exit_code(report)]));
}

/* ---------- several at once ---------- */

enum { JOBS_MAX = 16, JOBS_USUAL = 4, CPUS_OF_A_JOB = 4, PROCESSES_MAX = 64 };

/* Bytes of a file, or of the files in a folder. */
static uint64_t bytes_of(const char *path) {
    struct stat st;
    uint64_t sum = 0;
    if (stat(path, &st) != 0) return 0;
    if (!S_ISDIR(st.st_mode)) return (uint64_t)st.st_size;
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (fstatat(dirfd(d), e->d_name, &st, 0) == 0 && S_ISREG(st.st_mode)) sum += (uint64_t)st.st_size;
    if (d != NULL) closedir(d);
    return sum;
}

/* How many processes with the model may run at once: three quarters of the memory that the model lies in. */
uint32_t pl_verify_processes(const struct pl_verify_options *o) {
    static const enum pl_device_kind kinds[PL_BACKEND_COUNT] = {
        [PL_BACKEND_CUDA] = PL_DEVICE_CUDA, [PL_BACKEND_ROCM] = PL_DEVICE_ROCM, [PL_BACKEND_OPENCL] = PL_DEVICE_OPENCL};
    enum pl_backend b = pl_verify_backend_of(o);
    struct pl_device_info info;
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t one = o->model == NULL ? 0 : bytes_of(o->model) + bytes_of(o->model) / 8 + ((uint64_t)1 << 30);
    bool device = b != PL_BACKEND_CPU && b != PL_BACKEND_METAL;
    if (device && pl_device_describe(kinds[b], 0, &info, NULL) == PL_OK) memory = PL_MIN(memory, info.memory_bytes);
    uint64_t n = one == 0 ? PROCESSES_MAX : memory / 4 * 3 / one;
    return (uint32_t)PL_MIN(PL_MAX(n, (uint64_t)1), (uint64_t)PROCESSES_MAX);
}

/* Most of an item's time its processes start, or wait for a device: where there are CPUs and memory to spare, items run
 * beside each other, each with half as many rows at once and two prompts a row. */
uint32_t pl_verify_jobs(const struct pl_verify_options *o) {
    int spare = pl_cpu_count() / CPUS_OF_A_JOB;
    if (o->url != NULL) return 1; /* somebody's server counts everything that it is asked */
    if (o->jobs != 0) return PL_MIN(o->jobs, (uint32_t)JOBS_MAX);
    uint32_t usual = (uint32_t)PL_MIN(PL_MAX(spare, 1), (int)JOBS_USUAL), most = usual > 1 ? pl_verify_processes(o) : 1;
    while (usual > 1 && usual * PL_MAX(usual / 2, 1u) * 2 > most) usual--;
    return usual;
}

struct rows {
    void (*each)(void *user, size_t i);
    void *user;
    size_t count;
    _Atomic size_t next;
};

static void *rows_worker(void *arg) {
    struct rows *r = arg;
    for (size_t i; (i = atomic_fetch_add(&r->next, 1)) < r->count;) r->each(r->user, i);
    return NULL;
}

void pl_verify_each(const struct pl_verify_options *o, size_t count, void (*each)(void *user, size_t i), void *user) {
    struct rows r = {.each = each, .user = user, .count = count};
    pthread_t thread[JOBS_MAX];
    size_t started = 0, want = PL_MIN((size_t)pl_verify_jobs(o) / 2, count);
    for (; started + 1 < want; started++)
        if (pthread_create(&thread[started], NULL, rows_worker, &r) != 0) break;
    rows_worker(&r);
    for (size_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
}

/* ---------- what items share ---------- */

const char *const pl_verify_prompts[PL_VERIFY_PROMPTS] = {
    "The old lighthouse keeper climbed the stairs one last time, and",
    "Water boils at a lower temperature on a mountain because",
    "def median(values):\n    ordered = sorted(values)\n",
    "Three things to remember when you plant a tree:\n1.",
};

const char pl_verify_text[] =
    "A river does not choose its bed. It takes the lowest way that the land offers, and over thousands of years it makes "
    "that way "
    "lower still. Where the rock is hard the valley is narrow and the water fast; where it is soft the banks give way, and "
    "the "
    "stream begins to wander. Each bend grows, because the water on the outside runs faster and carries more of the bank "
    "away, "
    "while the slower water on the inside lets its sand fall. In the end two bends meet, the river takes the short cut, and "
    "a "
    "curved lake is left behind that slowly fills with reeds.\n\n"
    "People have always built beside rivers, and have always been surprised by them. A town that lies too near is flooded, "
    "and "
    "a town that lies too far has nothing to drink. The oldest bridges stand where the stream was shallow enough to be "
    "crossed on foot, for there the roads already met. In 1421 a storm broke the dikes, and 72 villages were lost in one "
    "night; the "
    "survivors built higher ones. Measuring came later: a painted staff, a man who read it every morning at seven, and a "
    "book in "
    "which the numbers were written down. From such books we know how the summers were, long before anybody had a "
    "thermometer.\n\n"
    "If you want to know how much water passes, you need two figures. The first is the area of the cross-section, which you "
    "get "
    "by sounding the depth at regular steps. The second is the mean speed, which is about 0.85 of the speed at the surface. "
    "Multiply one by the other. A brook of 3 square metres that runs at 0.4 metres each second carries 1.2 cubic metres, "
    "enough to "
    "fill a large swimming pool in half an hour. Engineers call it the discharge, and they plot it against the level of the "
    "water, "
    "so that afterwards a glance at the staff is enough.\n";

enum pl_status pl_verify_self(const struct pl_verify_options *o, const char *const *words, json_t **out, struct pl_buf *said,
                              int *exit_code, struct pl_err *err) {
    char *argv[64], **extra = NULL;
    size_t n = 0, flags = 0;
    struct pl_spawned run;
    argv[n++] = (char *)(uintptr_t)o->self;
    for (; *words != NULL && n < 40; words++) argv[n++] = (char *)(uintptr_t)*words;
    bool engine = o->model != NULL && n > 2 && strcmp(argv[2], "-m") == 0;
    if (engine && o->flags != NULL && o->flags[strspn(o->flags, " ")] != '\0') {
        PL_TRY(pl_ab_split(o->flags, &extra, &flags, err));
        for (size_t i = 0; i < flags && n < 63; i++) argv[n++] = extra[i];
    }
    argv[n] = NULL;
    enum pl_status st = pl_spawn(argv, NULL, 0, o->timeout_s, &run, err);
    pl_free((void *)extra);
    PL_TRY(st);
    *exit_code = run.timed_out ? 124 : run.exit_code;
    if (out != NULL) *out = json_loadb(pl_buf_cstr(&run.out), run.out.len, JSON_ALLOW_NUL, NULL);
    if (said != NULL) pl_buf_add(said, pl_buf_cstr(&run.err), run.err.len);
    pl_spawned_deinit(&run);
    return PL_OK;
}

void pl_verify_command(const struct pl_verify_options *o, const char *self, const char *command, const char *extra,
                       struct pl_buf *out) {
    pl_buf_clear(out);
    pl_buf_add_word(out, self);
    pl_buf_printf(out, " %s -m", command);
    pl_buf_add_word(out, o->model);
    if (o->flags != NULL) pl_buf_printf(out, " %s", o->flags);
    if (extra != NULL) pl_buf_printf(out, " %s", extra);
}
