/* fake_nvrtc - a compiler whose code is its input, built as libnvrtc.so.13 beside the fake driver: what happens around
 * compiling is tested without a toolkit. Equal sources give equal code; "no kernel" in a source does not compile. The
 * environment: FAKE_NVRTC_MS milliseconds that a compile takes   FAKE_NVRTC_LOG file: after each compile, how many ran at
 * that moment */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

struct program {
    char *text;
    size_t len;
    int virtual_target;
};
static _Atomic int running;

API int nvrtcVersion(int *major, int *minor) { return *major = 99, *minor = 1, 0; }
API int nvrtcCreateProgram(void **out, const char *text, const char *name, int headers, const void *a, const void *b) {
    struct program *p = calloc(1, sizeof *p);
    (void)name, (void)headers, (void)a, (void)b;
    if (p == NULL) return 1;
    p->text = strdup(text);
    p->len = strlen(text);
    return *out = p, 0;
}
API int nvrtcCompileProgram(struct program *p, int count, const char *const *options) {
    const char *ms = getenv("FAKE_NVRTC_MS"), *log = getenv("FAKE_NVRTC_LOG");
    int now = ++running;
    for (int i = 0; i < count; i++) p->virtual_target |= strstr(options[i], "compute_") != NULL;
    if (ms != NULL) usleep((unsigned)strtol(ms, NULL, 10) * 1000);
    FILE *f = log != NULL ? fopen(log, "ae") : NULL;
    if (f != NULL) fprintf(f, "%d\n", now), fclose(f);
    running--;
    return strstr(p->text, "no kernel") != NULL ? 6 /* NVRTC_ERROR_COMPILATION */ : 0;
}
static int size_of(struct program *p, size_t *size) { return *size = p->len + 8, 0; }
static int code_of(struct program *p, char *out) {
    memcpy(out, p->virtual_target ? "//ptx...\n" : "\177ELF....", 8);
    return memcpy(out + 8, p->text, p->len), 0;
}
API int nvrtcGetCUBINSize(struct program *p, size_t *size) { return size_of(p, size); }
API int nvrtcGetCUBIN(struct program *p, char *out) { return code_of(p, out); }
API int nvrtcGetPTXSize(struct program *p, size_t *size) { return size_of(p, size); }
API int nvrtcGetPTX(struct program *p, char *out) { return code_of(p, out); }
API int nvrtcGetProgramLogSize(struct program *p, size_t *size) { return (void)p, *size = 1, 0; }
API int nvrtcGetProgramLog(struct program *p, char *out) { return (void)p, *out = 0, 0; }
API int nvrtcDestroyProgram(struct program **p) { return free((*p)->text), free(*p), *p = NULL, 0; }
API const char *nvrtcGetErrorString(int code) { return code == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }
