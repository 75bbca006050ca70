/* AMD devices through HIP's module API. Compiled and linked against nothing; not run on AMD hardware yet. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/rt.h"

static struct pl_rt_api api;
static int (*set_device)(int dev);
static const char *(*error_name)(int code);
static int (*properties_new)(void *props, int dev); /* the layout of ROCm 6 and later */
static int (*properties_old)(void *props, int dev);
static void *library;

#define SYMBOL(text, field) \
    { text, (void **)(void *)&api.field, false }
static const struct pl_library_symbol symbols[] = {
    SYMBOL("hipInit", init),
    SYMBOL("hipDriverGetVersion", driver_version),
    SYMBOL("hipGetDeviceCount", count),
    SYMBOL("hipDeviceGet", device_get),
    SYMBOL("hipDeviceGetName", device_name),
    SYMBOL("hipDeviceGetAttribute", attribute),
    SYMBOL("hipDeviceTotalMem", total_mem),
    SYMBOL("hipMemGetInfo", mem_info),
    SYMBOL("hipMalloc", alloc),
    SYMBOL("hipFree", free),
    SYMBOL("hipHostMalloc", host_alloc),
    SYMBOL("hipHostFree", host_free),
    SYMBOL("hipMemcpyHtoDAsync", upload),
    SYMBOL("hipMemcpyDtoHAsync", download),
    SYMBOL("hipMemcpyDtoDAsync", copy),
    SYMBOL("hipMemsetD8Async", fill),
    SYMBOL("hipStreamCreateWithFlags", stream_create),
    SYMBOL("hipStreamDestroy", stream_destroy),
    SYMBOL("hipStreamSynchronize", stream_wait),
    SYMBOL("hipStreamWaitEvent", stream_after),
    SYMBOL("hipEventCreateWithFlags", event_create),
    SYMBOL("hipEventDestroy", event_destroy),
    SYMBOL("hipEventRecord", event_record),
    SYMBOL("hipEventSynchronize", event_wait),
    SYMBOL("hipEventElapsedTime", event_elapsed),
    SYMBOL("hipModuleLoadData", module_load),
    SYMBOL("hipModuleUnload", module_unload),
    SYMBOL("hipModuleGetFunction", function),
    SYMBOL("hipFuncGetAttribute", function_attribute),
    SYMBOL("hipModuleLaunchKernel", launch),
    SYMBOL("hipStreamBeginCapture", capture_begin),
    SYMBOL("hipStreamEndCapture", capture_end),
    SYMBOL("hipGraphInstantiateWithFlags", graph_instantiate),
    SYMBOL("hipGraphLaunch", graph_launch),
    SYMBOL("hipGraphDestroy", graph_destroy),
    SYMBOL("hipGraphExecDestroy", graph_exec_destroy),
    SYMBOL("hipDeviceSynchronize", sync),
    {"hipSetDevice", (void **)(void *)&set_device, false},
    {"hipGetErrorName", (void **)(void *)&error_name, false},
    {"hipGetDevicePropertiesR0600", (void **)(void *)&properties_new, true},
    {"hipGetDeviceProperties", (void **)(void *)&properties_old, true},
};

static const char *code_name(int code) {
    const char *name = error_name != NULL ? error_name(code) : NULL;
    return name != NULL ? name : "unknown HIP error";
}

static enum pl_status load(struct pl_err *err) {
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so", NULL};
    static const char *const folders[] = {"/opt/rocm", "/opt/rocm-*", NULL};
    static const struct pl_library lib = {
        .what = "AMD's HIP run-time library",
        .help = "install ROCm (Debian: libamdhip64-5) or set PLUMB_ROCM_PATH to its folder",
        .names = names,
        .folders = folders,
        .env = "PLUMB_ROCM_PATH",
    };
    if (library != NULL) return PL_OK;
    void *handle = NULL;
    PL_TRY(pl_library_open(&lib, symbols, PL_COUNT_OF(symbols), &handle, err));
    int code = api.init(0);
    if (code != 0) {
        PL_FAIL(err, PL_NOT_FOUND,
                "rocm: HIP does not start: %s (%d): is an AMD GPU present and may this user open /dev/kfd?", code_name(code),
                code);
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

/* The architecture's name stands in the properties record, whose layout changed with ROCm 6. */
static int architecture(int dev, char *out, size_t size) {
    static union {
        char bytes[4096];
        uint64_t align;
    } props;
    size_t offset = properties_new != NULL ? 1160 : 396;
    int (*get)(void *, int) = properties_new != NULL ? properties_new : properties_old;
    if (get == NULL) return PL_DRIVER_BAD;
    memset(&props, 0, sizeof props);
    int code = get(&props, dev);
    if (code == 0) snprintf(out, size, "%.*s", (int)PL_MIN(size - 1, (size_t)255), props.bytes + offset);
    return code;
}

static int describe(int index, struct pl_device_info *info) {
    int dev = 0, version = 0, code = api.device_get(&dev, index);
    size_t total = 0;
    if (code == 0) code = api.device_name(info->name, sizeof info->name, dev);
    if (code == 0) code = api.driver_version(&version);
    if (code == 0) code = api.total_mem(&total, dev);
    if (code == 0) code = architecture(dev, info->target, sizeof info->target);
    if (code == 0) code = attribute(dev, 63, &info->units);
    if (code == 0) code = attribute(dev, 87, &info->lanes);
    if (code == 0) code = attribute(dev, 56, &info->group_max);
    if (code == 0) code = attribute(dev, 74, &info->shared_bytes);
    if (code == 0) code = attribute(dev, 19, &info->l2_bytes);
    info->shared_optin_bytes = info->shared_bytes;
    info->memory_bytes = info->alloc_max_bytes = total;
    info->graphs = true;
    snprintf(info->driver, sizeof info->driver, "HIP %d.%d", version / 10000000, version / 100000 % 100);
    return code;
}

static int make_current(struct pl_rt *rt) {
    static _Thread_local int current = -1;
    if (current == rt->device) return 0;
    int code = set_device(rt->device);
    if (code == 0) current = rt->device;
    return code;
}

static int open_device(int index, const struct pl_device_info *info, void **state) {
    (void)info;
    struct pl_rt *rt = pl_calloc(1, sizeof *rt);
    if (rt == NULL) return 2; /* hipErrorOutOfMemory */
    rt->api = &api;
    rt->make_current = make_current;
    int code = api.device_get(&rt->device, index);
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
    pl_free(rt);
}

static bool is_out_of_memory(int code) { return code == 2; }

static enum pl_status compile(void *state, const char *target, const struct pl_device_source *src, struct pl_buf *image,
                              struct pl_buf *log, struct pl_err *err) {
    (void)state;
    return pl_rtc_compile(PL_DEVICE_ROCM, target, src, image, log, err);
}
static enum pl_status compiler(void *state, char *out, size_t size, struct pl_err *err) {
    (void)state;
    return pl_rtc_version(PL_DEVICE_ROCM, out, size, err);
}

const struct pl_driver pl_driver_rocm = {
    .kind = PL_DEVICE_ROCM,
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
