/* side.c - one side of a comparison: who it is, and one answer from it. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "verify/ab.h"
#include "verify/spawn.h"

void pl_ab_answer_deinit(struct pl_ab_answer *a) {
    pl_buf_deinit(&a->text);
    pl_free(a->ids);
    pl_free(a->pieces);
    pl_free(a->margin);
    pl_free(a->logprob);
    json_decref(a->kernels);
    *a = (struct pl_ab_answer){0};
}

/* ---------- words ---------- */

/* One pass over the text: to == NULL counts bytes and words, else it writes them. Returns false on an open quote. */
static bool split_pass(const char *c, char *to, char **words, size_t *count, size_t *bytes) {
    size_t n = 0, used = 0;
    for (;;) {
        c += strspn(c, " \t\r\n");
        if (*c == '\0') break;
        if (words != NULL) words[n] = to + used;
        n++;
        char quote = '\0';
        for (; *c != '\0' && (quote != '\0' || strchr(" \t\r\n", *c) == NULL); c++) {
            if (*c == quote && quote != '\0') {
                quote = '\0';
                continue;
            }
            if (quote == '\0' && (*c == '\'' || *c == '"')) {
                quote = *c;
                continue;
            }
            if (*c == '\\' && quote != '\'' && c[1] != '\0') c++;
            if (to != NULL) to[used] = *c;
            used++;
        }
        if (quote != '\0') return false;
        if (to != NULL) to[used] = '\0';
        used++;
    }
    *count = n;
    *bytes = used;
    return true;
}

enum pl_status pl_ab_split(const char *command, char ***words, size_t *count, struct pl_err *err) {
    size_t n, bytes;
    if (!split_pass(command, NULL, NULL, &n, &bytes))
        PL_FAIL(err, PL_USAGE, "the command has an open quote: %.200s", command);
    if (n == 0) PL_FAIL(err, PL_USAGE, "the command is empty");
    char **block = pl_alloc(1, (n + 1) * sizeof *block + bytes);
    if (block == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a command");
    split_pass(command, (char *)(block + n + 1), block, &n, &bytes);
    block[n] = NULL;
    *words = block;
    *count = n;
    return PL_OK;
}

/* ---------- who it is ---------- */

static bool called_plumb(const char *path) {
    const char *slash = strrchr(path, '/');
    return strncmp(slash == NULL ? path : slash + 1, "plumb", 5) == 0;
}

static void copy_line(const char *text, const char *key, char *out, size_t cap) {
    const char *at = strstr(text, key);
    if (at == NULL) return;
    at += strlen(key);
    snprintf(out, cap, "%.*s", (int)strcspn(at, "\n"), at);
}

static enum pl_status identify_program(struct pl_ab_side *s, struct pl_err *err) {
    char **words = NULL;
    size_t count;
    PL_TRY(pl_ab_split(s->command, &words, &count, err));
    bool found = pl_find_program(words[0], s->program, sizeof s->program);
    char name[200];
    snprintf(name, sizeof name, "%s", words[0]);
    pl_free((void *)words);
    if (!found) PL_FAIL(err, PL_USAGE, "%s: there is no program '%s' that can be run", s->name, name);
    snprintf(s->description, sizeof s->description, "%.250s", s->command);
    if (!called_plumb(s->program)) return PL_OK;
    char version[] = "version", verbose[] = "--verbose";
    char *argv[] = {s->program, version, verbose, NULL};
    struct pl_spawned run;
    if (pl_spawn(argv, s->env, s->env_count, 20, &run, NULL) != PL_OK) return PL_OK;
    const char *text = pl_buf_cstr(&run.out);
    s->is_plumb = run.exit_code == 0 && strncmp(text, "plumb ", 6) == 0;
    if (s->is_plumb) copy_line(text, "build id: ", s->build_id, sizeof s->build_id);
    if (s->is_plumb) copy_line(text, "kernel hash: ", s->kernel_hash, sizeof s->kernel_hash);
    pl_spawned_deinit(&run);
    return PL_OK;
}

enum pl_status pl_ab_identify(struct pl_ab_side *s, struct pl_err *err) {
    if (s->command != NULL) return identify_program(s, err);
    snprintf(s->description, sizeof s->description, "%.250s", s->url);
    return PL_OK;
}

/* ---------- a command's answer ---------- */

/* word with {prompt} and {n} replaced. */
static char *fill(const char *word, const char *prompt, const char *n, bool *used) {
    struct pl_buf b = {0};
    while (*word != '\0') {
        if (strncmp(word, "{prompt}", 8) == 0) {
            pl_buf_add_c(&b, prompt);
            word += 8;
            *used = true;
        } else if (strncmp(word, "{n}", 3) == 0) {
            pl_buf_add_c(&b, n);
            word += 3;
        } else {
            pl_buf_add_char(&b, *word++);
        }
    }
    char *copy = pl_buf_ok(&b) ? pl_strdup(pl_buf_cstr(&b)) : NULL;
    pl_buf_deinit(&b);
    return copy;
}

struct command {
    char **argv; /* owned, each owned */
    size_t count;
};

static void command_deinit(struct command *c) {
    for (size_t i = 0; c->argv != NULL && i < c->count; i++) pl_free(c->argv[i]);
    pl_free((void *)c->argv);
}

static bool has_word(const struct command *c, const char *word) {
    for (size_t i = 0; i < c->count; i++)
        if (c->argv[i] != NULL && strcmp(c->argv[i], word) == 0) return true;
    return false;
}

static enum pl_status command_make(const struct pl_ab_side *s, const char *prompt, uint32_t n, struct command *out,
                                   struct pl_err *err) {
    char **words = NULL, number[16];
    size_t count;
    bool used = false;
    PL_TRY(pl_ab_split(s->command, &words, &count, err));
    snprintf(number, sizeof number, "%u", n);
    out->argv = pl_calloc(count + 12, sizeof *out->argv);
    for (size_t i = 0; out->argv != NULL && i < count; i++) out->argv[out->count++] = fill(words[i], prompt, number, &used);
    pl_free((void *)words);
    if (out->argv == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a command");
    const char *plain[] = {"-p", prompt, "-n", number, "--temp", "0"};
    for (size_t i = 0; i < PL_COUNT_OF(plain) && !used; i++) out->argv[out->count++] = pl_strdup(plain[i]);
    /* plumb can say more than text: ids, how close each choice was, and what ran. */
    bool ask_json = s->is_plumb && has_word(out, "generate") && !has_word(out, "--json") && !has_word(out, "--ids");
    const char *more[] = {"--json", "--logprobs", "2"};
    for (size_t i = 0; i < PL_COUNT_OF(more) && ask_json; i++) out->argv[out->count++] = pl_strdup(more[i]);
    for (size_t i = 0; i < out->count; i++)
        if (out->argv[i] == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a command");
    return PL_OK;
}

static bool take_ids(const json_t *list, struct pl_ab_answer *a) {
    size_t n = json_array_size(list);
    a->ids = pl_alloc(n, sizeof *a->ids);
    if (a->ids == NULL) return false;
    for (size_t i = 0; i < n; i++) a->ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    a->id_count = n;
    return true;
}

/* generate --json's logprobs: [{"top":[[id, logprob], [id, logprob]]}] */
static void take_margins(const json_t *list, struct pl_ab_answer *a) {
    if (json_array_size(list) != a->id_count || a->id_count == 0) return;
    a->margin = pl_alloc(a->id_count, sizeof *a->margin);
    a->logprob = pl_alloc(a->id_count, sizeof *a->logprob);
    for (size_t i = 0; a->logprob != NULL && i < a->id_count; i++) {
        const json_t *lp = json_object_get(json_array_get(list, i), "logprob");
        a->logprob[i] = json_is_number(lp) ? json_number_value(lp) : NAN;
    }
    for (size_t i = 0; a->margin != NULL && i < a->id_count; i++) {
        const json_t *top = json_object_get(json_array_get(list, i), "top");
        double first = json_number_value(json_array_get(json_array_get(top, 0), 1));
        double second = json_number_value(json_array_get(json_array_get(top, 1), 1));
        a->margin[i] = json_array_size(top) >= 2 ? first - second : -1;
    }
}

static bool is_id_list(const json_t *v) {
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_integer(json_array_get(v, i)) || json_integer_value(json_array_get(v, i)) < 0 ||
            json_integer_value(json_array_get(v, i)) > UINT32_MAX)
            return false;
    return json_is_array(v);
}

/* Output that is a JSON object with ids (generate --json) or a JSON list of ids (--ids) is more than text. */
static void read_output(const struct pl_spawned *run, struct pl_ab_answer *a) {
    json_t *v = json_loadb(pl_buf_cstr(&run->out), run->out.len, JSON_ALLOW_NUL, NULL);
    const json_t *ids = json_is_object(v) ? json_object_get(v, "ids") : v;
    if (v == NULL || !is_id_list(ids) || !take_ids(ids, a)) {
        pl_buf_add(&a->text, pl_buf_cstr(&run->out), run->out.len);
    } else if (json_is_object(v)) {
        const json_t *text = json_object_get(v, "text");
        pl_buf_add(&a->text, json_string_value(text), json_string_length(text));
        take_margins(json_object_get(v, "logprobs"), a);
        const json_t *kernels = json_object_get(v, "kernels");
        pl_ab_fingerprint_read(json_object_get(v, "fingerprint"), &a->fingerprint);
        if (json_array_size(kernels) > 0) a->kernels = json_incref((json_t *)(uintptr_t)kernels);
    }
    json_decref(v);
}

/* Without ids: words, or a quarter of the bytes where a script has no blanks; at least 1 for any text. */
static size_t estimate_tokens(const struct pl_buf *text) {
    size_t words = 0;
    bool in = false;
    for (size_t i = 0; i < text->len; i++) {
        bool blank = strchr(" \t\r\n", text->data[i]) != NULL;
        words += !blank && !in;
        in = !blank;
    }
    return words == 0 ? 0 : PL_MAX(words, text->len / 4);
}

static void last_line(const struct pl_buf *b, char *out, size_t cap) {
    const char *text = pl_buf_cstr(b);
    size_t end = b->len;
    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == ' ')) end--;
    size_t begin = end;
    while (begin > 0 && text[begin - 1] != '\n') begin--;
    snprintf(out, cap, "%.*s", (int)(end - begin), text + begin);
}

void pl_ab_ask_command(const struct pl_ab_side *s, const char *prompt, uint32_t n, uint32_t timeout_s,
                       struct pl_ab_answer *out) {
    struct command c = {0};
    struct pl_spawned run = {0};
    struct pl_err err = {0};
    *out = (struct pl_ab_answer){0};
    enum pl_status st = command_make(s, prompt, n, &c, &err);
    if (st == PL_OK) st = pl_spawn(c.argv, s->env, s->env_count, timeout_s, &run, &err);
    if (st != PL_OK) {
        out->failed = true;
        snprintf(out->error, sizeof out->error, "%.500s", err.text);
    } else if (run.exit_code != 0 || run.timed_out || run.overflowed) {
        char line[300];
        last_line(&run.err, line, sizeof line);
        out->failed = true;
        if (run.timed_out)
            snprintf(out->error, sizeof out->error, "no end after %u s", timeout_s);
        else
            snprintf(out->error, sizeof out->error, "exit code %d: %s", run.exit_code, line);
    } else {
        read_output(&run, out);
        copy_line(pl_buf_cstr(&run.err), "plumb: kernel backend: ", out->backend, sizeof out->backend);
    }
    out->seconds = run.seconds;
    out->tokens = out->ids != NULL ? out->id_count : estimate_tokens(&out->text);
    pl_spawned_deinit(&run);
    command_deinit(&c);
}
