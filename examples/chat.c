/* chat - a streaming chat on the public API of plumb, in one file.
 *
 *   cc -o chat examples/chat.c -Iinclude -Lbuild -lplumb -Wl,-rpath,$PWD/build     (or, after make install:)
 *   cc -o chat examples/chat.c $(pkg-config --cflags --libs plumb)
 *   ./chat model.gguf                    (type messages; Ctrl-D ends)
 *   echo 'What is the capital of France?' | ./chat model.gguf */
#include <plumb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 4096, JSON_MAX = 1 << 20 };

static char messages[JSON_MAX] = "[{\"role\":\"system\",\"content\":\"You are a helpful assistant.\"}]";
static uint32_t ids[TOKENS_MAX], held[TOKENS_MAX]; /* this prompt, and the one the session has seen */
static size_t held_count;
static char answer[JSON_MAX / 8];

static void die(const struct plumb_error *err) {
    fprintf(stderr, "chat: %s\n", err->text);
    exit(1);
}

/* Appends {"role","content"} to the JSON list, escaping what JSON wants escaped. */
static void add_message(const char *role, const char *text) {
    size_t len = strlen(messages) - 1; /* over the closing bracket */
    if (len + 6 * strlen(text) + 64 > sizeof messages) exit(1);
    len += (size_t)sprintf(messages + len, "%s{\"role\":\"%s\",\"content\":\"", len > 1 ? "," : "", role);
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        if (*p == '"' || *p == '\\')
            len += (size_t)sprintf(messages + len, "\\%c", *p);
        else if (*p < 0x20)
            len += (size_t)sprintf(messages + len, "\\u%04x", *p);
        else
            messages[len++] = (char)*p;
    }
    strcpy(messages + len, "\"}]");
}

static bool print_token(void *user, uint32_t id, const char *text, size_t len, double logprob, const uint32_t *top_ids,
                        const double *top_logprobs, size_t top_count) {
    (void)user, (void)id, (void)logprob, (void)top_ids, (void)top_logprobs, (void)top_count;
    fwrite(text, 1, len, stdout);
    fflush(stdout);
    size_t used = strlen(answer);
    if (used + len + 1 < sizeof answer) {
        memcpy(answer + used, text, len);
        answer[used + len] = '\0';
    }
    return true;
}

static void reply(struct plumb_engine *engine, struct plumb_session *session, uint32_t max_tokens) {
    struct plumb_error err = {0};
    size_t count = 0, common = 0;
    if (plumb_chat_tokenize(engine, messages, NULL, true, ids, TOKENS_MAX, &count, &err) != 0) die(&err);
    while (common < held_count && common + 1 < count && held[common] == ids[common]) common++;
    if (plumb_session_truncate(session, (uint32_t)common, &err) != 0) die(&err);
    if (plumb_session_append(session, ids + common, count - common, &err) != 0) die(&err);
    memcpy(held, ids, count * sizeof *ids);
    held_count = count;
    struct plumb_generate_options opt = {.size = sizeof opt, .max_tokens = max_tokens, .on_token = print_token};
    plumb_sampling_default(&opt.sampling);
    opt.sampling.temperature = 0.0f;
    answer[0] = '\0';
    if (plumb_session_generate(session, &opt, NULL, NULL, &err) != 0) die(&err);
    printf("\n");
    add_message("assistant", answer);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: chat MODEL [MAX_TOKENS]\n");
        return 64;
    }
    struct plumb_engine_options opt = {.size = sizeof opt, .model = argv[1]};
    struct plumb_engine *engine = NULL;
    struct plumb_session *session = NULL;
    struct plumb_error err = {0};
    if (plumb_engine_create(&opt, &engine, &err) != 0) die(&err);
    if (plumb_session_create(engine, &session, &err) != 0) die(&err);
    char line[8192];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '\0') continue;
        add_message("user", line);
        reply(engine, session, argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 256);
    }
    plumb_session_destroy(session);
    plumb_engine_destroy(engine);
    return 0;
}
