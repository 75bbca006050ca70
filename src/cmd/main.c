/* main - picks the command. Nothing else happens here. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/lost_page.h"
#include "cmd/out.h"

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} commands[] = {
    {"run", pl_cmd_run, "chat with a model in the terminal"},
    {"generate", pl_cmd_generate, "continue a text, for scripts"},
    {"pull", pl_cmd_pull, "fetch a model into the store"},
    {"list", pl_cmd_list, "the stored models"},
    {"rm", pl_cmd_rm, "remove stored models"},
    {"inspect", pl_cmd_inspect, "what is in a model, what it costs, which kernels it takes"},
    {"tokenize", pl_cmd_tokenize, "text to token ids"},
    {"detokenize", pl_cmd_detokenize, "token ids to text"},
    {"render", pl_cmd_render, "the prompt a chat template makes"},
    {"eval", pl_cmd_eval, "perplexity and log-probabilities"},
    {"devices", pl_cmd_devices, "the devices of each backend, and what is missing"},
    {"cache", pl_cmd_cache, "the compiled kernels kept on disk"},
    {"bench", pl_cmd_bench, "prompt and decode speed with a receipt"},
    {"tune", pl_cmd_tune, "measure what the attention planner should know of a device"},
#ifdef PL_HAVE_MICROHTTPD
    {"serve", pl_cmd_serve, "HTTP server with OpenAI-compatible endpoints and a web page"},
#endif
    {"ab", pl_cmd_ab, "compare two builds, configurations or servers: equal, differs or inconclusive"},
    {"verify", pl_cmd_verify, "the whole verification pass as one report"},
    {"mel", pl_cmd_mel, "the log-mel spectrogram of a WAV file"},
    {"version", pl_cmd_version, "version, compiler, build id"},
};

static void print_commands(void) {
    pl_out_printf("usage: plumb COMMAND [OPTIONS]\n\n");
    for (size_t i = 0; i < PL_COUNT_OF(commands); i++) pl_out_printf("  %-12s %s\n", commands[i].name, commands[i].about);
    pl_out_printf("\n'plumb COMMAND --help' shows the options and examples of one command.\n");
}

static int unknown_command(const char *typed) {
    const char *names[PL_COUNT_OF(commands)];
    for (size_t i = 0; i < PL_COUNT_OF(commands); i++) names[i] = commands[i].name;
    static const char *const elsewhere[][2] = {{"show", "inspect"},  {"info", "inspect"},      {"chat", "run"},
                                               {"ls", "list"},       {"remove", "rm"},         {"delete", "rm"},
                                               {"download", "pull"}, {"complete", "generate"}, {"server", "serve"},
                                               {"start", "serve"},   {"perplexity", "eval"}};
    const char *near = NULL;
    for (size_t i = 0; i < PL_COUNT_OF(elsewhere); i++)
        if (strcmp(typed, elsewhere[i][0]) == 0) near = elsewhere[i][1];
    if (near == NULL) near = pl_args_nearest(typed, names, PL_COUNT_OF(commands));
    char shown[64];
    snprintf(shown, sizeof shown, "%.60s", typed);
    pl_text_clean(shown);
    if (typed[0] == '-')
        fprintf(stderr, "plumb: a command comes first, then options such as '%s'", shown);
    else if (near != NULL)
        fprintf(stderr, "plumb: unknown command '%s': did you mean '%s'?", shown, near);
    else
        fprintf(stderr, "plumb: unknown command '%s'", shown);
    fprintf(stderr, " ('plumb --help' lists the commands)\n");
    return PL_EXIT_USAGE;
}

/* A standard stream that the caller closed must not become the number of a file we open: messages would land in it. In
 * its place stands a descriptor that cannot be read or cannot be written, so that losing input or output is still an error.
 */
static bool hold_standard_streams(void) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return false;
    }
    return true;
}

int main(int argc, char **argv) {
    if (!hold_standard_streams()) return PL_EXIT_FAILED;
    pl_lost_page_watch();
    signal(SIGPIPE, SIG_IGN); /* a write to a closed pipe is an error value, seen in out.c */
    if (argc < 2) {
        fprintf(stderr, "plumb: a command is missing ('plumb --help' lists the commands)\n");
        return PL_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        for (size_t i = 0; argc > 2 && argv[1][0] == 'h' && i < PL_COUNT_OF(commands); i++) {
            char *help[] = {argv[2], "--help", NULL};
            if (strcmp(commands[i].name, argv[2]) == 0) return commands[i].run(2, help);
        }
        if (argc > 2 && argv[1][0] == 'h') return unknown_command(argv[2]);
        print_commands();
        return pl_out_close();
    }
    const char *name = strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 ? "version" : argv[1];
    for (size_t i = 0; i < PL_COUNT_OF(commands); i++) {
        if (strcmp(commands[i].name, name) == 0) return commands[i].run(argc - 1, argv + 1);
    }
    return unknown_command(argv[1]);
}
