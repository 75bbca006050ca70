/* lost_page - a page of a mapped file that cannot be read any more ends the process with a sentence and exit code 1 instead
 * of a bare SIGBUS: the file was cut short while it was used, or its disk failed. Every other SIGBUS does what it did. */
#ifndef PL_CMD_LOST_PAGE_H
#define PL_CMD_LOST_PAGE_H

/* From now on, for the process. Called by main alone: who links the library decides for itself (file/mapped.h). */
void pl_lost_page_watch(void);

#endif
