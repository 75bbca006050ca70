/* fake_cuda - a CUDA driver that computes nothing, for tests of what happens around a driver: built as libcuda.so.1 by
 * tests/device/fakes.py. Device memory is the host's. The environment says how it misbehaves:
 *   FAKE_CUDA_VERSION 12040   FAKE_CUDA_INIT code   FAKE_CUDA_DEVICES 1   FAKE_CUDA_MEMORY bytes (all the device has)
 *   FAKE_CUDA_SLEEP cuMemAlloc_v2: that call never returns   FAKE_CUDA_LOG file: a line for each module that is loaded,
 *   "ptx" or "code".
 * A test in the same process asks by dlsym: fake_cuda_fail_at(n) makes the n-th call from now fail (out of memory where it
 * allocates, else an illegal address), fake_cuda_failed() names it, fake_cuda_live() counts what was given out and not
 * taken back. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API   __attribute__((visibility("default"))) int
#define OTHER __attribute__((visibility("default")))

static _Atomic long calls, fail_at, live;
static const char *failed_name;
static size_t used;

OTHER long fake_cuda_calls(void) { return calls; }
OTHER long fake_cuda_live(void) { return live; }
OTHER const char *fake_cuda_failed(void) { return failed_name; }
OTHER void fake_cuda_fail_at(long n) {
    failed_name = NULL;
    fail_at = n > 0 ? calls + n : 0;
}

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : otherwise;
}

static int enter(const char *name, int code) {
    const char *still = getenv("FAKE_CUDA_SLEEP");
    while (still != NULL && strcmp(still, name) == 0) pause();
    if (++calls != fail_at) return 0;
    failed_name = name;
    return code;
}
enum { FULL = 2, LOST = 700 }; /* CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_ILLEGAL_ADDRESS */
#define ENTER(code)                        \
    do {                                   \
        int code_ = enter(__func__, code); \
        if (code_ != 0) return code_;      \
    } while (0)

/* Handles are memory of their own: what is given back twice is noticed. */
static int give(void **out) {
    *out = malloc(16);
    live++;
    return 0;
}
static int take(void *handle) {
    free(handle);
    live--;
    return 0;
}

API cuInit(unsigned flags) { return (void)flags, (int)setting("FAKE_CUDA_INIT", 0); }
API cuDriverGetVersion(int *v) { return *v = (int)setting("FAKE_CUDA_VERSION", 13000), 0; }
API cuDeviceGetCount(int *n) { return *n = (int)setting("FAKE_CUDA_DEVICES", 1), 0; }
API cuDeviceGet(int *dev, int index) {
    ENTER(LOST);
    return *dev = index, 0;
}
API cuDeviceGetName(char *name, int len, int dev) {
    ENTER(LOST);
    return (void)dev, snprintf(name, (size_t)len, "Fake GPU"), 0;
}
API cuDeviceGetAttribute(int *v, int which, int dev) {
    ENTER(LOST);
    (void)dev;
    *v = which == 75   ? 9
         : which == 76 ? 0
         : which == 16 ? 4
         : which == 10 ? 32
         : which == 1  ? 1024
         : which == 8  ? 49152
         : which == 97 ? 232448
                       : 1 << 20;
    return 0;
}
static size_t memory(void) { return (size_t)setting("FAKE_CUDA_MEMORY", 1L << 30); }
API cuDeviceTotalMem_v2(size_t *bytes, int dev) {
    ENTER(LOST);
    return (void)dev, *bytes = (size_t)1 << 33, 0;
}
API cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER(LOST);
    return *free_bytes = memory() - used, *total = (size_t)1 << 33, 0;
}
API cuMemAlloc_v2(void **p, size_t bytes) {
    ENTER(FULL);
    if (used + bytes > memory()) return FULL;
    size_t *block = calloc(1, bytes + 64);
    if (block == NULL) return FULL;
    block[0] = bytes;
    used += bytes;
    live++;
    *p = (char *)block + 64;
    return 0;
}
/* What is given back is gone, also where the call says it failed. */
API cuMemFree_v2(void *p) {
    int code = enter(__func__, LOST);
    size_t *block = (size_t *)(void *)((char *)p - 64);
    used -= block[0];
    take(block);
    return code;
}
API cuMemHostAlloc(void **p, size_t bytes, unsigned flags) {
    ENTER(FULL);
    (void)flags;
    *p = malloc(bytes);
    if (*p == NULL) return FULL;
    live++;
    return 0;
}
API cuMemFreeHost(void *p) {
    int code = enter(__func__, LOST);
    take(p);
    return code;
}
API cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t n, void *s) {
    ENTER(LOST);
    return (void)s, memcpy(to, from, n), 0;
}
API cuMemcpyDtoHAsync_v2(void *to, void *from, size_t n, void *s) {
    ENTER(LOST);
    return (void)s, memcpy(to, from, n), 0;
}
API cuMemcpyDtoDAsync_v2(void *to, void *from, size_t n, void *s) {
    ENTER(LOST);
    return (void)s, memmove(to, from, n), 0;
}
API cuMemsetD8Async(void *to, unsigned char v, size_t n, void *s) {
    ENTER(LOST);
    return (void)s, memset(to, v, n), 0;
}
API cuModuleLoadData(void **m, const void *image) {
    ENTER(LOST);
    const char *path = getenv("FAKE_CUDA_LOG");
    FILE *f = path != NULL ? fopen(path, "ae") : NULL;
    if (f != NULL) fprintf(f, "%s\n", memcmp(image, "\177ELF", 4) == 0 ? "code" : "ptx"), fclose(f);
    return give(m);
}
API cuModuleGetFunction(void **f, void *m, const char *name) {
    ENTER(LOST);
    return (void)name, *f = m, 0;
}
API cuFuncGetAttribute(int *v, int which, void *f) {
    ENTER(LOST);
    return (void)which, (void)f, *v = 0, 0;
}
API cuEventElapsedTime(float *ms, void *a, void *b) {
    ENTER(LOST);
    return (void)a, (void)b, *ms = 1, 0;
}
API cuGetErrorName(int code, const char **name) {
    *name = code == FULL   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == LOST ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : code == 100  ? "CUDA_ERROR_NO_DEVICE"
                           : "CUDA_ERROR_UNKNOWN";
    return 0;
}
API cuDevicePrimaryCtxRetain(void **context, int dev) { /* one for the whole process: libraries may keep it */
    static char primary;
    ENTER(LOST);
    return (void)dev, *context = &primary, 0;
}
/* What hands something out, what takes it back, and what only succeeds. */
#define GIVES(name, ...)                  \
    API name(void **out, ##__VA_ARGS__) { \
        ENTER(LOST);                      \
        return give(out);                 \
    }
#define TAKES(name)                       \
    API name(void *h) {                   \
        int code = enter(__func__, LOST); \
        take(h);                          \
        return code;                      \
    }
#define DOES(name, ...)     \
    API name(__VA_ARGS__) { \
        ENTER(LOST);        \
        return 0;           \
    }
GIVES(cuStreamCreate, unsigned flags)
GIVES(cuEventCreate, unsigned flags)
GIVES(cuGraphInstantiateWithFlags, void *graph, unsigned long long flags)
API cuStreamEndCapture(void *s, void **graph) {
    ENTER(LOST);
    return (void)s, give(graph);
}
TAKES(cuModuleUnload)
TAKES(cuStreamDestroy_v2)
TAKES(cuEventDestroy_v2)
TAKES(cuGraphDestroy)
TAKES(cuGraphExecDestroy)
DOES(cuStreamSynchronize, void)
DOES(cuStreamWaitEvent, void)
DOES(cuEventRecord, void)
DOES(cuEventSynchronize, void)
DOES(cuFuncSetAttribute, void)
DOES(cuStreamBeginCapture_v2, void)
DOES(cuGraphLaunch, void)
DOES(cuCtxSynchronize, void)
DOES(cuDevicePrimaryCtxRelease_v2, void)
DOES(cuCtxSetCurrent, void)
#ifndef FAKE_CUDA_INCOMPLETE
DOES(cuLaunchKernel, void)
DOES(cuLaunchKernelEx, void)
#endif
