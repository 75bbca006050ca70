/* interrupt - what Ctrl-C does to a command that works through something: by default the process ends at once with
 * exit code 130. While a command holds the interrupt it is told instead, so that it can finish its output; a second
 * Ctrl-C ends the process all the same. One process has one Ctrl-C: the state is the process's. */
#ifndef PL_CMD_INTERRUPT_H
#define PL_CMD_INTERRUPT_H

#include <stdbool.h>

enum { PL_EXIT_INTERRUPTED = 130 };

void pl_interrupt_catch(void);     /* from now on as above */
void pl_interrupt_hold(bool hold); /* true: the command will look at pl_interrupted() soon and often */
bool pl_interrupted(void);         /* since pl_interrupt_hold(true) */

#endif
