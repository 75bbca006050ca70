#include "cmd/line.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
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

static const atomic_bool *stop_flag; /* raised by Ctrl-C */

static bool stopped(void) { return stop_flag != NULL && atomic_load(stop_flag); }

/* One byte, or -1 at the end of input and after Ctrl-C, whichever thread the signal reached. */
static int read_byte(void) {
    enum { LOOK_MS = 100 };
    for (;;) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        if (stopped()) return -1;
        int n = poll(&p, 1, LOOK_MS);
        if (n == 0 || (n < 0 && errno == EINTR)) continue;
        unsigned char c;
        ssize_t got = n < 0 ? -1 : read(STDIN_FILENO, &c, 1);
        if (got == 1) return c;
        if (got == 0 || errno != EINTR) return -1;
    }
}

/* The editor takes whole characters from its reader. Bytes that are no UTF-8 come as U+FFFD. */
static int read_character(FILE *unused) {
    (void)unused;
    int c = read_byte();
    if (c < 0x80) return c;
    int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc2 ? 1 : -1;
    if (more < 0 || c > 0xf4) return 0xfffd;
    c &= 0x3f >> more;
    for (int i = 0; i < more; i++) {
        int b = read_byte();
        if (b < 0) return b;
        if ((b & 0xc0) != 0x80) return 0xfffd;
        c = c << 6 | (b & 0x3f);
    }
    return c;
}

/* The editor drops what the locale calls no character, and programs start in the C locale. plumb's text is UTF-8. */
static void read_utf8(void) {
    if (setlocale(LC_CTYPE, "") == NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) (void)setlocale(LC_CTYPE, "C.UTF-8");
}

void pl_line_restore(void) {
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

void pl_line_init(const char *history_file, const atomic_bool *stop) {
    if (!interactive()) return;
    stop_flag = stop;
    rl_getc_function = read_character;
    read_utf8();
    have_found = tcgetattr(STDIN_FILENO, &found) == 0;
    atexit(pl_line_restore);
    rl_initialize();
    rl_outstream = stderr;
    using_history();
    stifle_history(HISTORY_LINES);
    if (history_file != NULL) read_history(history_file);
    await_quietly(); /* what is typed before the first prompt is the editor's too */
}

void pl_line_deinit(const char *history_file) {
    if (!interactive()) return;
    pl_line_restore();
    if (history_file != NULL) write_history(history_file);
}

static char *read_edited(const char *prompt) {
    char *line = readline(prompt);
    await_quietly();
    if (line != NULL && line[0] != '\0') add_history(line);
    return line;
}
#else
void pl_line_init(const char *history_file, const atomic_bool *stop) { (void)history_file, (void)stop; }
void pl_line_deinit(const char *history_file) { (void)history_file; }
void pl_line_restore(void) {}
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
