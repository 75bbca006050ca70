/* fake_cuda - a CUDA driver that computes nothing, for tests of what happens around a driver: built as libcuda.so.1 by
 * tests/device/test_fake_driver.py. Device memory is the host's. The environment says how it misbehaves:
 *   FAKE_CUDA_VERSION 12040   FAKE_CUDA_INIT code   FAKE_CUDA_DEVICES 1   FAKE_CUDA_MEMORY bytes (all the device has)
 *   FAKE_CUDA_SLEEP cuMemAlloc_v2: that call never returns   FAKE_CUDA_LOG file: a line for each module that is loaded,
 * "ptx" or "code". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) int

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : otherwise;
}
static size_t used;
static char something[64];

API cuInit(unsigned flags) { return (void)flags, (int)setting("FAKE_CUDA_INIT", 0); }
API cuDriverGetVersion(int *v) { return *v = (int)setting("FAKE_CUDA_VERSION", 13000), 0; }
API cuDeviceGetCount(int *n) { return *n = (int)setting("FAKE_CUDA_DEVICES", 1), 0; }
API cuDeviceGet(int *dev, int index) { return *dev = index, 0; }
API cuDeviceGetName(char *name, int len, int dev) { return (void)dev, snprintf(name, (size_t)len, "Fake GPU"), 0; }
API cuDeviceGetAttribute(int *v, int which, int dev) {
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
API cuDeviceTotalMem_v2(size_t *bytes, int dev) { return (void)dev, *bytes = (size_t)1 << 33, 0; }
API cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { return *free_bytes = memory() - used, *total = (size_t)1 << 33, 0; }
API cuMemAlloc_v2(void **p, size_t bytes) {
    const char *still = getenv("FAKE_CUDA_SLEEP");
    while (still != NULL && strcmp(still, __func__) == 0) pause();
    if (used + bytes > memory()) return 2; /* CUDA_ERROR_OUT_OF_MEMORY */
    size_t *block = calloc(1, bytes + 64);
    if (block == NULL) return 2;
    block[0] = bytes;
    used += bytes;
    *p = (char *)block + 64;
    return 0;
}
API cuMemFree_v2(void *p) {
    size_t *block = (size_t *)(void *)((char *)p - 64);
    used -= block[0];
    free(block);
    return 0;
}
API cuMemHostAlloc(void **p, size_t bytes, unsigned flags) { return (void)flags, *p = calloc(1, bytes), *p == NULL ? 2 : 0; }
API cuMemFreeHost(void *p) { return free(p), 0; }
API cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t n, void *s) { return (void)s, memcpy(to, from, n), 0; }
API cuMemcpyDtoHAsync_v2(void *to, void *from, size_t n, void *s) { return (void)s, memcpy(to, from, n), 0; }
API cuMemcpyDtoDAsync_v2(void *to, void *from, size_t n, void *s) { return (void)s, memmove(to, from, n), 0; }
API cuMemsetD8Async(void *to, unsigned char v, size_t n, void *s) { return (void)s, memset(to, v, n), 0; }
API cuModuleLoadData(void **m, const void *image) {
    const char *path = getenv("FAKE_CUDA_LOG");
    FILE *f = path != NULL ? fopen(path, "ae") : NULL;
    if (f != NULL) fprintf(f, "%s\n", memcmp(image, "\177ELF", 4) == 0 ? "code" : "ptx"), fclose(f);
    return *m = something, 0;
}
API cuModuleGetFunction(void **f, void *m, const char *name) { return (void)m, (void)name, *f = something, 0; }
API cuFuncGetAttribute(int *v, int which, void *f) { return (void)which, (void)f, *v = 0, 0; }
API cuEventElapsedTime(float *ms, void *a, void *b) { return (void)a, (void)b, *ms = 1, 0; }
API cuGetErrorName(int code, const char **name) {
    *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
/* What hands something out, and what only succeeds. */
#define GIVES(name, ...) \
    API name(void **out, ##__VA_ARGS__) { return *out = something, 0; }
#define DOES(name, ...) \
    API name(__VA_ARGS__) { return 0; }
GIVES(cuStreamCreate)
GIVES(cuEventCreate)
GIVES(cuDevicePrimaryCtxRetain)
GIVES(cuGraphInstantiateWithFlags)
API cuStreamEndCapture(void *s, void **graph) { return (void)s, *graph = something, 0; }
DOES(cuModuleUnload, void)
DOES(cuStreamDestroy_v2, void)
DOES(cuStreamSynchronize, void)
DOES(cuStreamWaitEvent, void)
DOES(cuEventDestroy_v2, void)
DOES(cuEventRecord, void)
DOES(cuEventSynchronize, void)
DOES(cuFuncSetAttribute, void)
DOES(cuStreamBeginCapture_v2, void)
DOES(cuGraphLaunch, void)
DOES(cuGraphDestroy, void)
DOES(cuGraphExecDestroy, void)
DOES(cuCtxSynchronize, void)
DOES(cuDevicePrimaryCtxRelease_v2, void)
DOES(cuCtxSetCurrent, void)
#ifndef FAKE_CUDA_INCOMPLETE
DOES(cuLaunchKernel, void)
#endif
