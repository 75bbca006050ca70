#include "cmd/line.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#ifdef PL_HAVE_EDIT
#include <editline/readline.h>
#endif

static bool interactive(void) { return isatty(STDIN_FILENO) && isatty(STDERR_FILENO); }

#ifdef PL_HAVE_EDIT
enum { HISTORY_LINES = 1000 };

static struct termios found; /* the terminal's settings as the user left them */
static bool have_found;

/* The editor drops what the locale calls no character, and programs start in the C locale. plumb's text is UTF-8. */
static void read_utf8(void) {
    if (setlocale(LC_CTYPE, "") == NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) (void)setlocale(LC_CTYPE, "C.UTF-8");
}

static void restore_terminal(void) {
    if (have_found) tcsetattr(STDIN_FILENO, TCSADRAIN, &found);
}

/* While an answer is written nobody reads the terminal. In line mode a Ctrl-D typed then would be kept as an end of input
 * that the editor, which reads characters, sees as a NUL and drops; echoed keys would also stand inside the answer. So the
 * terminal hands over single characters, unechoed, between lines too. Ctrl-C still interrupts. */
static void await_quietly(void) {
    if (!have_found) return;
    struct termios quiet = found;
    quiet.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    quiet.c_cc[VMIN] = 1;
    quiet.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &quiet);
}

void pl_line_init(const char *history_file) {
    if (!interactive()) return;
    read_utf8();
    have_found = tcgetattr(STDIN_FILENO, &found) == 0;
    atexit(restore_terminal);
    rl_initialize();
    rl_outstream = stderr;
    using_history();
    stifle_history(HISTORY_LINES);
    if (history_file != NULL) read_history(history_file);
}

void pl_line_deinit(const char *history_file) {
    if (!interactive()) return;
    restore_terminal();
    if (history_file != NULL) write_history(history_file);
}

static char *read_edited(const char *prompt) {
    char *line = readline(prompt);
    await_quietly();
    if (line != NULL && line[0] != '\0') add_history(line);
    return line;
}
#else
void pl_line_init(const char *history_file) { (void)history_file; }
void pl_line_deinit(const char *history_file) { (void)history_file; }
#endif

static char *read_plain(const char *prompt) {
    char *line = NULL;
    size_t cap = 0;
    if (interactive()) {
        fputs(prompt, stderr);
        fflush(stderr);
    }
    ssize_t n = getline(&line, &cap, stdin);
    if (n < 0) {
        free(line);
        return NULL;
    }
    if (n > 0 && line[n - 1] == '\n') line[n - 1] = '\0';
    return line;
}

static char *read_line(const char *prompt) {
#ifdef PL_HAVE_EDIT
    if (interactive()) return read_edited(prompt);
#endif
    return read_plain(prompt);
}

bool pl_line_read(const char *prompt, struct pl_buf *out) {
    pl_buf_clear(out);
    bool any = false;
    for (;;) {
        char *line = read_line(any ? ". " : prompt);
        if (line == NULL) return any;
        any = true;
        size_t len = strlen(line);
        bool more = len > 0 && line[len - 1] == '\\';
        pl_buf_add(out, line, more ? len - 1 : len);
        free(line);
        if (!more) return pl_buf_ok(out);
        pl_buf_add_char(out, '\n');
    }
}
