/* run - chat in the terminal; with -p one answer. Answers go to stdout, everything else to stderr. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmd/chat.h"
#include "cmd/cmd.h"
#include "cmd/interrupt.h"
#include "cmd/line.h"
#include "cmd/out.h"
#include "cmd/piped.h"
#include "cmd/store.h"

#define DEMO_MODEL "smollm2-135m-instruct"

struct run {
    struct pl_model_opts model;
    struct pl_sampling_opts sampling;
    struct pl_arg sampling_rows[PL_SAMPLING_ARG_ROWS];
    const char *prompt, *file, *system, *witness, *counters;
    uint32_t count;
    bool verbose, once;
    struct pl_buf question; /* with once: all of it */
    struct plumb_engine *engine;
    struct pl_chat chat;
    char *history;
};

/* The one conversation a signal can stop. */
static struct pl_chat *interruptible;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    if (interruptible == NULL) return;
    atomic_store(&interruptible->stop, true);
    atomic_store(&interruptible->engine->cancel, true);
}

/* Ends as by default, but not with the terminal as the line editor left it. */
static void on_end(int signal_number) {
    pl_line_restore();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* Not where it was ignored: that is nohup, or a background job of a shell without job control. */
static void catch_signal(int signal_number, void (*handler)(int)) {
    struct sigaction old, now = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&now.sa_mask);
    if (sigaction(signal_number, NULL, &old) == 0 && old.sa_handler != SIG_IGN) sigaction(signal_number, &now, NULL);
}

static void clear_interrupt(struct run *r) {
    atomic_store(&r->chat.stop, false);
    atomic_store(&r->engine->cancel, false);
}

static double per_second(uint64_t count, uint64_t ns) { return ns == 0 ? 0.0 : (double)count * 1e9 / (double)ns; }

static void print_stats(struct run *r) {
    const struct pl_chat *c = &r->chat;
    const char *why = c->finish == PLUMB_FINISH_CONTEXT  ? "; the context is full (/reset starts anew)"
                      : c->finish == PLUMB_FINISH_LENGTH ? "; -n reached"
                                                         : "";
    fprintf(stderr, "plumb: prompt %u token%s (%u reused), %.1f tok/s; answer %u token%s, %.1f tok/s%s\n", c->prompt_tokens,
            pl_cmd_s(c->prompt_tokens), c->reused_tokens, per_second(c->prompt_tokens - c->reused_tokens, c->prompt_ns),
            c->generated, pl_cmd_s(c->generated), per_second(c->generated, c->decode_ns), why);
    if (!r->verbose) return;
    char start[PL_ENGINE_START_TEXT];
    pl_engine_start_text(r->engine, start);
    fprintf(stderr, "plumb: start %s\n", start);
    pl_cmd_print_kernels(r->engine);
}

static enum pl_status ask(struct run *r, const char *text, size_t len, struct pl_err *err) {
    clear_interrupt(r);
    enum pl_status s = pl_chat_ask(&r->chat, text, len, err);
    pl_progress_end();
    if (s != PL_OK) return s;
    pl_out_str("\n");
    pl_out_flush();
    print_stats(r);
    return PL_OK;
}

/* --- slash commands: return PL_CANCELLED to leave --- */
static enum pl_status do_quit(struct run *r, const char *arg, struct pl_err *err) {
    (void)r, (void)arg, (void)err;
    return PL_CANCELLED;
}
static enum pl_status do_reset(struct run *r, const char *arg, struct pl_err *err) {
    (void)arg, (void)err;
    PL_TRY(pl_chat_reset(&r->chat));
    fprintf(stderr, "plumb: the conversation starts anew\n");
    return PL_OK;
}
static enum pl_status do_system(struct run *r, const char *arg, struct pl_err *err) {
    PL_TRY(pl_chat_system(&r->chat, arg, err));
    fprintf(stderr, "plumb: %s; the conversation starts anew\n", arg[0] != '\0' ? "system text set" : "no system text");
    return PL_OK;
}
static enum pl_status do_save(struct run *r, const char *arg, struct pl_err *err) {
    if (arg[0] == '\0') PL_FAIL(err, PL_INVALID, "/save needs a file name");
    PL_TRY(pl_chat_save(&r->chat, arg, err));
    fprintf(stderr, "plumb: saved as %s\n", arg);
    return PL_OK;
}
static enum pl_status do_load(struct run *r, const char *arg, struct pl_err *err) {
    if (arg[0] == '\0') PL_FAIL(err, PL_INVALID, "/load needs a file name");
    PL_TRY(pl_chat_load(&r->chat, arg, err));
    fprintf(stderr, "plumb: loaded %s\n", arg);
    return PL_OK;
}

static enum pl_status do_set(struct run *r, const char *arg, struct pl_err *err) {
    char name[64];
    const char *names[PL_SAMPLING_ARG_ROWS + 1];
    size_t len = strcspn(arg, " "), count = 0;
    snprintf(name, sizeof name, "%.*s", (int)PL_MIN(len, sizeof name - 1), arg);
    const char *value = arg + len + strspn(arg + len, " ");
    const struct pl_arg n_row = {'n', "count", "N", PL_ARG_U32, &r->chat.max_tokens, "", 0, 0, NULL};
    if (strcmp(name, "count") == 0) return pl_arg_store(&n_row, value, err);
    names[count++] = "count";
    for (const struct pl_arg *o = r->sampling_rows; o->name != NULL; o++) {
        names[count++] = o->name;
        if (strcmp(o->name, name) != 0) continue;
        struct plumb_sampling before = r->sampling.s;
        PL_TRY(pl_arg_store(o, value, err));
        enum pl_status s = pl_sampling_opts_check(&r->sampling, err);
        if (s != PL_OK) r->sampling.s = before;
        return s;
    }
    const char *near = pl_args_nearest(name, names, count);
    PL_FAIL(err, PL_INVALID, "/set does not know '%s'%s%s; known: count and the sampling options of 'plumb run --help'",
            name, near != NULL ? ": did you mean " : "", near != NULL ? near : "");
}

static enum pl_status do_help(struct run *r, const char *arg, struct pl_err *err);

static const struct slash {
    const char *name, *arg, *about;
    enum pl_status (*run)(struct run *r, const char *arg, struct pl_err *err);
} slashes[] = {
    {"reset", "", "forget the conversation (the system text stays)", do_reset},
    {"system", "TEXT", "set the system text and start anew", do_system},
    {"save", "FILE", "write the conversation as JSON", do_save},
    {"load", "FILE", "continue a saved conversation", do_load},
    {"set", "NAME VALUE", "change a sampling option: temp, top-p, seed, count ...", do_set},
    {"help", "", "this list", do_help},
    {"quit", "", "leave (as Ctrl-D does)", do_quit},
};

static enum pl_status do_help(struct run *r, const char *arg, struct pl_err *err) {
    (void)r, (void)arg, (void)err;
    for (size_t i = 0; i < PL_COUNT_OF(slashes); i++)
        fprintf(stderr, "  /%-8s %-12s %s\n", slashes[i].name, slashes[i].arg, slashes[i].about);
    fprintf(stderr, "  a line that ends in \\ goes on in the next one; Ctrl-C stops an answer\n");
    return PL_OK;
}

static enum pl_status slash(struct run *r, const char *line, struct pl_err *err) {
    size_t len = strcspn(line + 1, " ");
    const char *arg = line + 1 + len + strspn(line + 1 + len, " ");
    for (size_t i = 0; i < PL_COUNT_OF(slashes); i++) {
        if (strlen(slashes[i].name) == len && memcmp(slashes[i].name, line + 1, len) == 0)
            return slashes[i].run(r, arg, err);
    }
    PL_FAIL(err, PL_INVALID, "unknown command %.60s (/help lists them)", line);
}

/* A failed turn is told and the talk goes on; a broken device or a lost stdout ends it. */
static enum pl_status talk(struct run *r, struct pl_err *err) {
    struct pl_buf line = {0};
    enum pl_status s = PL_OK;
    pl_line_init(r->history, &r->chat.stop);
    while (s == PL_OK) {
        clear_interrupt(r);
        bool got = pl_line_read("> ", &line);
        if (atomic_load(&r->chat.stop)) { /* Ctrl-C at the prompt drops the line, not the talk */
            fputc('\n', stderr);
            continue;
        }
        if (!got) break;
        if (line.len == 0) continue;
        *err = (struct pl_err){0};
        s = line.data[0] == '/' ? slash(r, line.data, err) : ask(r, line.data, line.len, err);
        if (s == PL_OK || s == PL_DEVICE) continue;
        if (s == PL_CANCELLED && line.data[0] == '/') break;
        pl_sampling_opts_name(err);
        fprintf(stderr, "plumb: %s\n", err->text[0] != '\0' ? err->text : pl_status_text(s));
        s = PL_OK;
    }
    pl_line_deinit(r->history);
    pl_buf_deinit(&line);
    return s == PL_CANCELLED ? PL_OK : s;
}

/* Beside the store; NULL when there is no home. */
static char *history_file(void) {
    char *dir = NULL;
    struct pl_err ignored = {0};
    if (!isatty(STDIN_FILENO) || pl_store_dir(&dir, &ignored) != PL_OK) return NULL;
    char *slash_at = strrchr(dir, '/');
    char *path = NULL;
    if (slash_at != NULL) {
        *slash_at = '\0';
        struct pl_buf b = {0};
        pl_buf_printf(&b, "%s/history", dir);
        path = b.data;
    }
    pl_free(dir);
    return path;
}

static enum pl_status need_chat(void *user, struct plumb_engine *e, struct pl_err *err) {
    (void)user;
    return pl_engine_need_chat(e, err);
}

static enum pl_status session(struct run *r, struct pl_err *err) {
    PL_TRY(pl_chat_init(&r->chat, r->engine, &r->sampling.s, err));
    r->chat.max_tokens = r->count;
    r->chat.on_terminal = isatty(STDOUT_FILENO);
    interruptible = &r->chat;
    catch_signal(SIGINT, on_interrupt);
    catch_signal(SIGTERM, on_end);
    catch_signal(SIGHUP, on_end);
    if (r->system != NULL) PL_TRY(pl_chat_system(&r->chat, r->system, err));
    if (r->once)
        PL_TRY(ask(r, r->question.data, r->question.len, err));
    else
        PL_TRY(talk(r, err));
    if (r->counters != NULL) PL_TRY(pl_cmd_write_counters(r->engine, r->counters, err));
    return r->witness == NULL ? PL_OK : pl_cmd_write_witness(r->engine, r->witness, err);
}

static bool input_closed(void) { return (fcntl(STDIN_FILENO, F_GETFL) & O_ACCMODE) == O_WRONLY; } /* in its place */

/* A file's text, or what was piped beside -p, comes before the question. */
static enum pl_status read_question(struct run *r, struct pl_err *err) {
    if (!r->once && input_closed())
        PL_FAIL(err, PL_IO, "standard input is closed: there is nobody to chat with; -p asks once");
    if (!r->once) return PL_OK;
    if (r->file != NULL)
        PL_TRY(pl_cmd_read_file(r->file, PL_TEXT_BYTES_MAX, &r->question, err));
    else if (!input_closed())
        PL_TRY(pl_piped_read(STDIN_FILENO, PL_PIPED_WAIT_MS, PL_TEXT_BYTES_MAX, &r->question, err));
    PL_TRY(pl_piped_join(&r->question, r->prompt != NULL ? r->prompt : "", err));
    if (r->question.len == 0) PL_FAIL(err, PL_INVALID, "the prompt is empty: ask something");
    return PL_OK;
}

static int run(struct run *r) {
    struct pl_err err = {0};
    int code = PL_EXIT_OK;
    r->once = r->prompt != NULL || r->file != NULL;
    enum pl_status s = pl_sampling_opts_check(&r->sampling, &err);
    if (s == PL_OK) s = pl_cmd_can_record(r->witness, r->counters, &err);
    if (s == PL_OK) s = read_question(r, &err);
    if (s == PL_OK) {
        pl_sampling_opts_seed(&r->sampling);
        if (r->model.model == NULL) r->model.model = DEMO_MODEL;
        r->engine = pl_cmd_open_engine("run", &r->model, &(struct pl_cmd_need){need_chat, NULL}, &code);
        if (r->engine == NULL) return code;
        r->history = r->once ? NULL : history_file();
        s = session(r, &err);
    }
    interruptible = NULL;
    bool stopped = r->once && atomic_load(&r->chat.stop);
    if (stopped && (s == PL_OK || s == PL_CANCELLED)) {
        (void)pl_out_close();
        return PL_EXIT_INTERRUPTED;
    }
    if (s == PL_OK) return pl_out_close();
    err.status = s;
    pl_sampling_opts_name(&err);
    return pl_cmd_fail("run", &err);
}

int pl_cmd_run(int argc, char **argv) {
    struct run r = {0};
    struct pl_arg model[PL_MODEL_ARG_ROWS];
    const char *positional[2] = {NULL, NULL};
    plumb_sampling_default(&r.sampling.s);
    pl_model_args(&r.model, model);
    pl_sampling_args(&r.sampling, r.sampling_rows);
    const struct pl_arg own[] = {
        {'p', "prompt", "TEXT", PL_ARG_STR, &r.prompt,
         "answer this and exit; text that is piped to it (or comes from a file) is put before it", 0, 0, NULL},
        {'f', "file", "FILE", PL_ARG_STR, &r.file,
         "answer this file's text and exit, with -p before that; - is standard input", 0, 0, NULL},
        {0, "system", "TEXT", PL_ARG_STR, &r.system, "system text", 0, 0, NULL},
        {'n', "count", "N", PL_ARG_U32, &r.count, "most tokens of an answer (0 = what the context leaves)", 0, 0, NULL},
        {0, "witness", "FILE", PL_ARG_STR, &r.witness, "write every kernel that ran, with launches, as JSON", 0, 0, NULL},
        {0, "counters", "FILE", PL_ARG_STR, &r.counters, "write how every choice of a kernel ended, as JSON", 0, 0, NULL},
        {'v', "verbose", NULL, PL_ARG_FLAG, &r.verbose, "list the kernels that ran", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "run",
        .synopsis = "[MODEL [TEXT]] [-p TEXT] [-f FILE] [OPTIONS]",
        .about = "Chat with a model. Without MODEL the demo model (" DEMO_MODEL ") is used. /help lists what can be typed\n"
                 "besides messages; Ctrl-C stops an answer, Ctrl-D leaves. Defaults: --temp 0.8 --top-k 40 --top-p 0.95 "
                 "--min-p 0.05.",
        .examples =
            "  plumb run\n"
            "  plumb run smollm2.gguf --system 'You are a helpful assistant.' -p 'What is the capital of France?' --temp 0\n"
            "  plumb run qwen3.gguf --system 'Answer in one sentence.' --context 8192\n"
            "  git diff | plumb run qwen3.gguf -p 'Write a commit message for this.'\n"
            "  plumb run qwen3.gguf -f notes.txt -p 'Sum this up.'\n",
        .groups = (const struct pl_arg *const[]){own, model, r.sampling_rows, NULL},
        .positional_max = 2,
        .positional = positional,
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code == -1 && positional[0] != NULL && r.model.model != NULL)
        code = pl_cmd_usage("run", "MODEL and -m MODEL are both given: one is enough");
    if (code == -1 && positional[1] != NULL && r.prompt != NULL)
        code = pl_cmd_usage("run", "TEXT and -p TEXT are both given: one is enough");
    if (code == -1) {
        if (positional[0] != NULL) r.model.model = positional[0];
        if (positional[1] != NULL) r.prompt = positional[1];
        code = run(&r);
    }
    pl_chat_deinit(&r.chat);
    plumb_engine_destroy(r.engine);
    pl_sampling_opts_deinit(&r.sampling);
    pl_buf_deinit(&r.question);
    pl_free(r.history);
    return code;
}
