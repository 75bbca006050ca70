#include "cmd/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t held, seen;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    if (!held || seen) _exit(PL_EXIT_INTERRUPTED);
    seen = 1;
}

void pl_interrupt_catch(void) {
    struct sigaction old, on = {.sa_handler = on_interrupt}; /* no SA_RESTART: a blocked write must return */
    if (sigaction(SIGINT, NULL, &old) == 0 && old.sa_handler == SIG_IGN) return; /* nohup, a shell's background job */
    sigemptyset(&on.sa_mask);
    sigaction(SIGINT, &on, NULL);
}

void pl_interrupt_hold(bool hold) { held = hold; }
bool pl_interrupted(void) { return seen != 0; }
