#include "cmd/lost_page.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/progress.h"
#include "cmd/cmd.h"
#include "cmd/line.h"
#include "file/mapped.h"

/* Only what may be called in a signal handler from here on: the sentence is put together by hand. */
struct sentence {
    char text[1024];
    size_t len;
};

static void add(struct sentence *s, const char *text) {
    size_t n = strlen(text), room = sizeof s->text - s->len;
    if (n > room) n = room;
    memcpy(s->text + s->len, text, n);
    s->len += n;
}

static void add_number(struct sentence *s, uint64_t v) {
    char digits[32];
    size_t at = sizeof digits - 1, count = 0;
    digits[at] = '\0';
    do {
        if (count > 0 && count % 3 == 0) digits[--at] = ',';
        digits[--at] = (char)('0' + v % 10);
        v /= 10;
        count++;
    } while (v > 0);
    add(s, digits + at);
}

static void add_cause(struct sentence *s, const struct pl_mapped_fault *f, int code) {
    add(s, "plumb: ");
    add(s, f->label);
    if (f->now == PL_MAPPED_SHORTER) {
        add(s, " was cut short while it was in use: ");
        add_number(s, f->size_now);
        add(s, " bytes now, ");
        add_number(s, f->size);
        add(s, " when it was opened: fetch or copy it again, under another name until it is complete\n");
        return;
    }
    add(s, " could not be read at byte ");
    add_number(s, f->at);
    add(s, code == BUS_MCEERR_AR || code == BUS_MCEERR_AO ? ": the memory that held it failed"
                                                          : ": its disk failed, or it was cut short for a moment");
    add(s, " (the kernel's log, dmesg, may say more)\n");
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    struct pl_mapped_fault fault;
    bool by_access = info->si_code > 0; /* otherwise somebody sent it, and there is no address */
    if (!by_access || !pl_mapped_find(info->si_addr, &fault)) {
        struct sigaction usual = {.sa_handler = SIG_DFL};
        sigaction(number, &usual, NULL);
        if (!by_access) raise(number); /* comes when this handler returns; an access comes again by itself */
        return;
    }
    static atomic_flag told = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&told)) pause(); /* another thread is at it, and ends this one too */
    struct sentence s = {.len = 0};
    if (pl_log_progress_shown())
        add(&s, pl_log_progress_wipe());
    else if (pl_log_text_is_open())
        add(&s, "\n");
    add_cause(&s, &fault, info->si_code);
    pl_line_restore();
    (void)!write(STDERR_FILENO, s.text, s.len);
    _exit(PL_EXIT_FAILED);
}

/* On the stack of the thread that read: a stack that runs out is a SIGSEGV, so none other is needed. */
void pl_lost_page_watch(void) {
    struct sigaction now = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&now.sa_mask);
    sigaction(SIGBUS, &now, NULL);
}
