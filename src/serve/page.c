/* page.c - the two files inside the binary: the web page and the description of the endpoints. */
#include "serve/internal.h"

/* The path is relative to the repository root, where the compiler runs; the Makefile makes the object depend on it. */
#define EMBED(name, path)                                                                                    \
    __asm__(".section .rodata\n"                                                                             \
            ".global " #name "_begin\n.global " #name "_end\n"                                               \
            ".hidden " #name "_begin\n.hidden " #name "_end\n" #name "_begin:\n.incbin \"" path "\"\n" #name \
            "_end:\n.byte 0\n"                                                                               \
            ".previous\n");                                                                                  \
    extern const char name##_begin[], name##_end[]

EMBED(pl_page, "src/serve/page.html");
EMBED(pl_openapi, "src/serve/openapi.json");

enum MHD_Result handle_page(struct exchange *x) {
    return answer_bytes(x, 200, "text/html; charset=utf-8", pl_page_begin, (size_t)(pl_page_end - pl_page_begin));
}

enum MHD_Result handle_openapi(struct exchange *x) {
    return answer_bytes(x, 200, "application/json", pl_openapi_begin, (size_t)(pl_openapi_end - pl_openapi_begin));
}
