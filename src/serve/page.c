/* page.c - the web page, one self-contained file inside the binary. */
#include "serve/internal.h"

/* The path is relative to the repository root, where the compiler runs; the Makefile makes the object depend on it. */
__asm__(".section .rodata\n"
        ".global pl_page_begin\n.global pl_page_end\n"
        ".hidden pl_page_begin\n.hidden pl_page_end\n"
        "pl_page_begin:\n.incbin \"src/serve/page.html\"\n"
        "pl_page_end:\n.byte 0\n"
        ".previous\n");

extern const char pl_page_begin[], pl_page_end[];

enum MHD_Result handle_page(struct exchange *x) {
    return answer_bytes(x, 200, "text/html; charset=utf-8", pl_page_begin, (size_t)(pl_page_end - pl_page_begin));
}
