/* NVIDIA devices through the driver's own library. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/rt.h"

static struct pl_rt_api api;
static int (*ctx_retain)(void **ctx, int dev);
static int (*ctx_release)(int dev);
static int (*ctx_set)(void *ctx);
static int (*error_name)(int code, const char **name);
static void *library;

#define SYMBOL(text, field) \
    { text, (void **)(void *)&api.field, false }
static const struct pl_library_symbol symbols[] = {
    SYMBOL("cuInit", init),
    SYMBOL("cuDriverGetVersion", driver_version),
    SYMBOL("cuDeviceGetCount", count),
    SYMBOL("cuDeviceGet", device_get),
    SYMBOL("cuDeviceGetName", device_name),
    SYMBOL("cuDeviceGetAttribute", attribute),
    SYMBOL("cuDeviceTotalMem_v2", total_mem),
    SYMBOL("cuMemGetInfo_v2", mem_info),
    SYMBOL("cuMemAlloc_v2", alloc),
    SYMBOL("cuMemFree_v2", free),
    SYMBOL("cuMemHostAlloc", host_alloc),
    SYMBOL("cuMemFreeHost", host_free),
    SYMBOL("cuMemcpyHtoDAsync_v2", upload),
    SYMBOL("cuMemcpyDtoHAsync_v2", download),
    SYMBOL("cuMemcpyDtoDAsync_v2", copy),
    SYMBOL("cuMemsetD8Async", fill),
    SYMBOL("cuStreamCreate", stream_create),
    SYMBOL("cuStreamDestroy_v2", stream_destroy),
    SYMBOL("cuStreamSynchronize", stream_wait),
    SYMBOL("cuStreamWaitEvent", stream_after),
    SYMBOL("cuEventCreate", event_create),
    SYMBOL("cuEventDestroy_v2", event_destroy),
    SYMBOL("cuEventRecord", event_record),
    SYMBOL("cuEventSynchronize", event_wait),
    SYMBOL("cuEventElapsedTime", event_elapsed),
    SYMBOL("cuModuleLoadData", module_load),
    SYMBOL("cuModuleUnload", module_unload),
    SYMBOL("cuModuleGetFunction", function),
    SYMBOL("cuFuncGetAttribute", function_attribute),
    SYMBOL("cuFuncSetAttribute", function_set),
    SYMBOL("cuLaunchKernel", launch),
    {"cuLaunchKernelEx", (void **)(void *)&api.launch_ex, true},
    SYMBOL("cuStreamBeginCapture_v2", capture_begin),
    SYMBOL("cuStreamEndCapture", capture_end),
    SYMBOL("cuGraphInstantiateWithFlags", graph_instantiate),
    SYMBOL("cuGraphLaunch", graph_launch),
    SYMBOL("cuGraphDestroy", graph_destroy),
    SYMBOL("cuGraphExecDestroy", graph_exec_destroy),
    SYMBOL("cuCtxSynchronize", sync),
    {"cuDevicePrimaryCtxRetain", (void **)(void *)&ctx_retain, false},
    {"cuDevicePrimaryCtxRelease_v2", (void **)(void *)&ctx_release, false},
    {"cuCtxSetCurrent", (void **)(void *)&ctx_set, false},
    {"cuGetErrorName", (void **)(void *)&error_name, false},
};

static const char *code_name(int code) {
    const char *name = NULL;
    return error_name != NULL && error_name(code, &name) == 0 && name != NULL ? name : "unknown CUDA error";
}

static enum pl_status load(struct pl_err *err) {
    static const char *const names[] = {"libcuda.so.1", "libcuda.so", NULL};
    static const char *const folders[] = {"/usr/local/nvidia/lib64", "/usr/lib/wsl/lib",
                                          "/usr/lib/x86_64-linux-gnu/nvidia/current", NULL};
    static const struct pl_library lib = {
        .what = "the NVIDIA driver's CUDA library",
        .help = "install the NVIDIA driver (Debian: nvidia-driver and libcuda1)",
        .names = names,
        .folders = folders,
        .env = "PLUMB_CUDA_PATH",
    };
    if (library != NULL) return PL_OK;
    void *handle = NULL;
    PL_TRY(pl_library_open(&lib, symbols, PL_COUNT_OF(symbols), &handle, err));
    int code = api.init(0), version = 0;
    if (code != 0) { /* 100: no device */
        PL_FAIL(err, code == 100 ? PL_NOT_FOUND : PL_DEVICE,
                "cuda: the driver does not start: %s (%d): is an NVIDIA GPU present and its kernel module loaded?",
                code_name(code), code);
    }
    code = api.driver_version(&version);
    if (code == 0 && version < 11040) {
        PL_FAIL(err, PL_UNSUPPORTED,
                "cuda: the driver speaks CUDA %d.%d, at least 11.4 is needed: install a newer NVIDIA driver", version / 1000,
                version % 1000 / 10);
    }
    library = handle;
    return PL_OK;
}

static int count(int *n) { return api.count(n); }

static int attribute(int dev, int which, uint32_t *out) {
    int v = 0, code = api.attribute(&v, which, dev);
    *out = v > 0 ? (uint32_t)v : 0;
    return code;
}

static int describe(int index, struct pl_device_info *info) {
    int dev = 0, version = 0, code = api.device_get(&dev, index);
    size_t total = 0;
    uint32_t major = 0, minor = 0;
    if (code == 0) code = api.device_name(info->name, sizeof info->name, dev);
    if (code == 0) code = api.driver_version(&version);
    if (code == 0) code = api.total_mem(&total, dev);
    if (code == 0) code = attribute(dev, 75, &major);
    if (code == 0) code = attribute(dev, 76, &minor);
    if (code == 0) code = attribute(dev, 16, &info->units);
    if (code == 0) code = attribute(dev, 10, &info->lanes);
    if (code == 0) code = attribute(dev, 1, &info->group_max);
    if (code == 0) code = attribute(dev, 8, &info->shared_bytes);
    if (code == 0) code = attribute(dev, 97, &info->shared_optin_bytes);
    if (code == 0) code = attribute(dev, 38, &info->l2_bytes);
    info->memory_bytes = info->alloc_max_bytes = total;
    info->graphs = true;
    const char *own = major == 9 && minor == 0 ? "a" : ""; /* instructions that no later device has: wgmma */
    snprintf(info->target, sizeof info->target, "sm_%u%u%s", major, minor, own);
    FILE *f = fopen("/sys/module/nvidia/version", "r"); /* the package's number, which users know the driver by */
    char number[64] = "";
    if (f != NULL) {
        if (fgets(number, sizeof number, f) == NULL) number[0] = 0;
        number[strcspn(number, "\n")] = 0;
        fclose(f);
    }
    snprintf(info->driver, sizeof info->driver, "%s%sCUDA %d.%d", number, number[0] != 0 ? " " : "", version / 1000,
             version % 1000 / 10);
    return code;
}

static int make_current(struct pl_rt *rt) {
    static _Thread_local void *current;
    if (current == rt->context) return 0;
    int code = ctx_set(rt->context);
    if (code == 0) current = rt->context;
    return code;
}

static int open_device(int index, const struct pl_device_info *info, void **state) {
    (void)info;
    struct pl_rt *rt = pl_calloc(1, sizeof *rt);
    if (rt == NULL) return 2; /* CUDA_ERROR_OUT_OF_MEMORY */
    rt->api = &api;
    rt->make_current = make_current;
    int code = api.device_get(&rt->device, index);
    if (code == 0) code = ctx_retain(&rt->context, rt->device);
    if (code == 0) code = make_current(rt);
    if (code != 0) {
        pl_free(rt);
        return code;
    }
    *state = rt;
    return 0;
}

static void close_device(void *state) {
    struct pl_rt *rt = state;
    if (make_current(rt) == 0) api.sync();
    ctx_release(rt->device);
    pl_free(rt);
}

/* A library that was used in the context keeps handles there: the context must outlive its last user here. */
int pl_cuda_keep_context(int index) {
    static uint64_t kept;
    void *context = NULL;
    int dev = 0, code = index < 64 && (kept >> index & 1) != 0 ? 0 : api.device_get(&dev, index);
    if (code != 0 || (index < 64 && (kept >> index & 1) != 0)) return code;
    code = ctx_retain(&context, dev);
    if (code == 0 && index < 64) kept |= UINT64_C(1) << index;
    return code;
}

static bool is_out_of_memory(int code) { return code == 2; }

static enum pl_status compile(void *state, const char *target, const struct pl_device_source *src, struct pl_buf *image,
                              struct pl_buf *log, struct pl_err *err) {
    (void)state;
    return pl_rtc_compile(PL_DEVICE_CUDA, target, src, image, log, err);
}
static enum pl_status compiler(void *state, char *out, size_t size, struct pl_err *err) {
    (void)state;
    return pl_rtc_version(PL_DEVICE_CUDA, out, size, err);
}

const struct pl_driver pl_driver_cuda = {
    .kind = PL_DEVICE_CUDA,
    .load = load,
    .count = count,
    .describe = describe,
    .open = open_device,
    .close = close_device,
    .code_name = code_name,
    .is_out_of_memory = is_out_of_memory,
    .compile = compile,
    .compiler = compiler,
    PL_RT_FUNCTIONS,
};
