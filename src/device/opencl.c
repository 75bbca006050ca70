/* OpenCL devices, of all platforms one after the other, through the ICD loader. Own declarations of what is used.
 *
 * A stream is an in-order queue with profiling on, so that events can be timed. A module is a program; an image is what
 * clGetProgramInfo gives as the binary. Host staging memory is plain aligned memory. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/driver.h"

enum { /* OpenCL's numbers */
       CL_TYPE_CPU = 2,
       CL_DEVICE_TYPE = 0x1000,
       CL_DEVICE_UNITS = 0x1002,
       CL_DEVICE_GROUP_MAX = 0x1004,
       CL_DEVICE_ALLOC_MAX = 0x1010,
       CL_DEVICE_MEMORY = 0x101F,
       CL_DEVICE_LOCAL_MEMORY = 0x1023,
       CL_DEVICE_NAME = 0x102B,
       CL_DRIVER_VERSION = 0x102D,
       CL_DEVICE_VERSION = 0x102F,
       CL_PLATFORM_VERSION = 0x0901,
       CL_MEM_READ_WRITE = 1,
       CL_REGION = 0x1220,
       CL_QUEUE_PROFILING = 2,
       CL_PROGRAM_BINARY_SIZES = 0x1165,
       CL_PROGRAM_BINARIES = 0x1166,
       CL_BUILD_LOG = 0x1183,
       CL_PROFILING_END = 0x1283,
       QUEUES_MAX = 16,
       PLATFORMS_MAX = 16,
       DEVICES_MAX = 64
};

static struct {
    int (*platforms)(unsigned cap, void **out, unsigned *count);
    int (*platform_info)(void *p, unsigned what, size_t size, void *out, size_t *need);
    int (*devices)(void *p, uint64_t type, unsigned cap, void **out, unsigned *count);
    int (*device_info)(void *d, unsigned what, size_t size, void *out, size_t *need);
    void *(*context)(const intptr_t *props, unsigned n, void *const *devices, void *notify, void *user, int *code);
    int (*context_release)(void *c);
    void *(*queue)(void *c, void *d, uint64_t props, int *code);
    int (*queue_release)(void *q);
    int (*flush)(void *q);
    int (*finish)(void *q);
    void *(*buffer)(void *c, uint64_t flags, size_t size, void *host, int *code);
    void *(*part)(void *b, uint64_t flags, unsigned type, const void *region, int *code);
    int (*buffer_release)(void *b);
    int (*write)(void *q, void *b, unsigned blocking, size_t offset, size_t size, const void *from, unsigned n,
                 void *const *wait, void **event);
    int (*read)(void *q, void *b, unsigned blocking, size_t offset, size_t size, void *to, unsigned n, void *const *wait,
                void **event);
    int (*copy)(void *q, void *from, void *to, size_t from_offset, size_t to_offset, size_t size, unsigned n,
                void *const *wait, void **event);
    int (*fill)(void *q, void *b, const void *pattern, size_t pattern_size, size_t offset, size_t size, unsigned n,
                void *const *wait, void **event);
    void *(*program_source)(void *c, unsigned n, const char **text, const size_t *len, int *code);
    void *(*program_binary)(void *c, unsigned n, void *const *devices, const size_t *len, const unsigned char **images,
                            int *status, int *code);
    int (*build)(void *p, unsigned n, void *const *devices, const char *options, void *notify, void *user);
    int (*build_info)(void *p, void *d, unsigned what, size_t size, void *out, size_t *need);
    int (*program_info)(void *p, unsigned what, size_t size, void *out, size_t *need);
    int (*program_release)(void *p);
    void *(*kernel)(void *p, const char *name, int *code);
    int (*kernel_release)(void *k);
    int (*kernel_arg)(void *k, unsigned index, size_t size, const void *value);
    int (*launch)(void *q, void *k, unsigned dims, const size_t *offset, const size_t *global, const size_t *local,
                  unsigned n, void *const *wait, void **event);
    int (*marker)(void *q, unsigned n, void *const *wait, void **event);
    int (*barrier)(void *q, unsigned n, void *const *wait, void **event);
    int (*event_wait)(unsigned n, void *const *events);
    int (*event_release)(void *e);
    int (*event_profile)(void *e, unsigned what, size_t size, void *out, size_t *need);
} cl;
static void *library;

#define SYMBOL(text, field) \
    { text, (void **)(void *)&cl.field, false }
static const struct pl_library_symbol symbols[] = {
    SYMBOL("clGetPlatformIDs", platforms),
    SYMBOL("clGetPlatformInfo", platform_info),
    SYMBOL("clGetDeviceIDs", devices),
    SYMBOL("clGetDeviceInfo", device_info),
    SYMBOL("clCreateContext", context),
    SYMBOL("clReleaseContext", context_release),
    SYMBOL("clCreateCommandQueue", queue),
    SYMBOL("clReleaseCommandQueue", queue_release),
    SYMBOL("clFlush", flush),
    SYMBOL("clFinish", finish),
    SYMBOL("clCreateBuffer", buffer),
    SYMBOL("clCreateSubBuffer", part),
    SYMBOL("clReleaseMemObject", buffer_release),
    SYMBOL("clEnqueueWriteBuffer", write),
    SYMBOL("clEnqueueReadBuffer", read),
    SYMBOL("clEnqueueCopyBuffer", copy),
    SYMBOL("clEnqueueFillBuffer", fill),
    SYMBOL("clCreateProgramWithSource", program_source),
    SYMBOL("clCreateProgramWithBinary", program_binary),
    SYMBOL("clBuildProgram", build),
    SYMBOL("clGetProgramBuildInfo", build_info),
    SYMBOL("clGetProgramInfo", program_info),
    SYMBOL("clReleaseProgram", program_release),
    SYMBOL("clCreateKernel", kernel),
    SYMBOL("clReleaseKernel", kernel_release),
    SYMBOL("clSetKernelArg", kernel_arg),
    SYMBOL("clEnqueueNDRangeKernel", launch),
    SYMBOL("clEnqueueMarkerWithWaitList", marker),
    SYMBOL("clEnqueueBarrierWithWaitList", barrier),
    SYMBOL("clWaitForEvents", event_wait),
    SYMBOL("clReleaseEvent", event_release),
    SYMBOL("clGetEventProfilingInfo", event_profile),
};

struct cl_state {
    void *device, *context;
    void *queues[QUEUES_MAX]; /* open ones: a device-wide wait finishes each */
    char version[160];
};

static enum pl_status load(struct pl_err *err) {
    static const char *const names[] = {"libOpenCL.so.1", "libOpenCL.so", NULL};
    static const char *const folders[] = {"/usr/local/nvidia/lib64", "/usr/local/cuda", "/opt/rocm/opencl", NULL};
    static const struct pl_library lib = {
        .what = "the OpenCL loader",
        .help = "install it with a driver (Debian: ocl-icd-libopencl1, and pocl-opencl-icd to use the processor)",
        .names = names,
        .folders = folders,
    };
    if (library != NULL) return PL_OK;
    return pl_library_open(&lib, symbols, PL_COUNT_OF(symbols), &library, err);
}

static const char *code_name(int code) {
    static const struct {
        int code;
        const char *name;
    } names[] = {
        {-1, "CL_DEVICE_NOT_FOUND"},
        {-2, "CL_DEVICE_NOT_AVAILABLE"},
        {-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
        {-5, "CL_OUT_OF_RESOURCES"},
        {-6, "CL_OUT_OF_HOST_MEMORY"},
        {-7, "CL_PROFILING_INFO_NOT_AVAILABLE"},
        {-11, "CL_BUILD_PROGRAM_FAILURE"},
        {-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
        {-30, "CL_INVALID_VALUE"},
        {-34, "CL_INVALID_CONTEXT"},
        {-36, "CL_INVALID_COMMAND_QUEUE"},
        {-38, "CL_INVALID_MEM_OBJECT"},
        {-42, "CL_INVALID_BINARY"},
        {-43, "CL_INVALID_BUILD_OPTIONS"},
        {-45, "CL_INVALID_PROGRAM_EXECUTABLE"},
        {-46, "CL_INVALID_KERNEL_NAME"},
        {-48, "CL_INVALID_KERNEL"},
        {-49, "CL_INVALID_ARG_INDEX"},
        {-50, "CL_INVALID_ARG_VALUE"},
        {-51, "CL_INVALID_ARG_SIZE"},
        {-52, "CL_INVALID_KERNEL_ARGS"},
        {-54, "CL_INVALID_WORK_GROUP_SIZE"},
        {-55, "CL_INVALID_WORK_ITEM_SIZE"},
        {-61, "CL_INVALID_BUFFER_SIZE"},
        {-63, "CL_INVALID_GLOBAL_WORK_SIZE"},
        {-1001, "CL_PLATFORM_NOT_FOUND_KHR: no OpenCL driver is installed (Debian: pocl-opencl-icd, or the GPU's)"}};
    for (size_t i = 0; i < PL_COUNT_OF(names); i++) {
        if (names[i].code == code) return names[i].name;
    }
    return "unknown OpenCL error";
}
static bool is_out_of_memory(int code) { return code == -4 || code == -6 || code == -61; }

/* All devices of all platforms, in the loader's order. */
static int list(void **platform_of, void **devices, unsigned *count) {
    void *platforms[PLATFORMS_MAX];
    unsigned n = 0, found = 0;
    int code = cl.platforms(PLATFORMS_MAX, platforms, &n);
    if (code != 0) return code;
    for (unsigned i = 0; i < PL_MIN(n, (unsigned)PLATFORMS_MAX); i++) {
        unsigned m = 0;
        code = cl.devices(platforms[i], 0xFFFFFFFFu, DEVICES_MAX - found, devices + found, &m);
        if (code == -1) continue;
        if (code != 0) return code;
        m = PL_MIN(m, (unsigned)DEVICES_MAX - found);
        for (unsigned k = 0; k < m; k++) platform_of[found + k] = platforms[i];
        found += m;
        if (found == DEVICES_MAX) break;
    }
    *count = found;
    return 0;
}

static int count(int *n) {
    void *platforms[DEVICES_MAX], *devices[DEVICES_MAX];
    unsigned found = 0;
    int code = list(platforms, devices, &found);
    *n = (int)found;
    return code;
}

static int describe(int index, struct pl_device_info *info) {
    void *platforms[DEVICES_MAX], *devices[DEVICES_MAX];
    unsigned found = 0;
    int code = list(platforms, devices, &found);
    if (code != 0 || (unsigned)index >= found) return code != 0 ? code : -1;
    void *d = devices[index];
    uint64_t type = 0, memory = 0, alloc_max = 0, local = 0;
    size_t group = 0;
    char version[128] = "", driver[128] = "", platform[128] = "";
    cl.platform_info(platforms[index], CL_PLATFORM_VERSION, sizeof platform - 1, platform, NULL);
    code = cl.device_info(d, CL_DEVICE_NAME, sizeof info->name, info->name, NULL);
    if (code == 0) code = cl.device_info(d, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    if (code == 0) code = cl.device_info(d, CL_DEVICE_UNITS, sizeof info->units, &info->units, NULL);
    if (code == 0) code = cl.device_info(d, CL_DEVICE_GROUP_MAX, sizeof group, &group, NULL);
    if (code == 0) code = cl.device_info(d, CL_DEVICE_ALLOC_MAX, sizeof alloc_max, &alloc_max, NULL);
    if (code == 0) code = cl.device_info(d, CL_DEVICE_MEMORY, sizeof memory, &memory, NULL);
    if (code == 0) code = cl.device_info(d, CL_DEVICE_LOCAL_MEMORY, sizeof local, &local, NULL);
    if (code == 0) code = cl.device_info(d, CL_DRIVER_VERSION, sizeof driver, driver, NULL);
    if (code == 0) code = cl.device_info(d, CL_DEVICE_VERSION, sizeof version, version, NULL);
    info->memory_bytes = memory;
    info->alloc_max_bytes = alloc_max;
    info->group_max = (uint32_t)group;
    info->shared_bytes = info->shared_optin_bytes = (uint32_t)PL_MIN(local, (uint64_t)UINT32_MAX);
    info->lanes = 1;
    info->is_cpu = (type & CL_TYPE_CPU) != 0;
    snprintf(info->driver, sizeof info->driver, "%.60s, driver %.30s", version, driver);
    snprintf(info->target, sizeof info->target, "%.70s | %.80s | %.80s", info->name, platform, version);
    return code;
}

static int open_device(int index, const struct pl_device_info *info, void **state) {
    void *platforms[DEVICES_MAX], *devices[DEVICES_MAX];
    unsigned found = 0;
    int code = list(platforms, devices, &found);
    if (code != 0 || (unsigned)index >= found) return code != 0 ? code : -1;
    struct cl_state *s = pl_calloc(1, sizeof *s);
    if (s == NULL) return -6;
    s->device = devices[index];
    snprintf(s->version, sizeof s->version, "opencl %s", info->driver);
    s->context = cl.context(NULL, 1, &s->device, NULL, NULL, &code);
    if (s->context == NULL) {
        pl_free(s);
        return code != 0 ? code : -2;
    }
    *state = s;
    return 0;
}
static void close_device(void *state) {
    struct cl_state *s = state;
    cl.context_release(s->context);
    pl_free(s);
}
static int memory_free(void *state, uint64_t *bytes) {
    struct cl_state *s = state; /* OpenCL cannot say what is free: all of it */
    return cl.device_info(s->device, CL_DEVICE_MEMORY, sizeof *bytes, bytes, NULL);
}
static int sync_device(void *state) {
    struct cl_state *s = state;
    int code = 0;
    for (size_t i = 0; i < QUEUES_MAX; i++) {
        int c = s->queues[i] != NULL ? cl.finish(s->queues[i]) : 0;
        if (code == 0) code = c;
    }
    return code;
}

static int alloc(void *state, uint64_t bytes, void **out) {
    struct cl_state *s = state;
    int code = 0;
    *out = cl.buffer(s->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    return *out == NULL && code == 0 ? -4 : code;
}
static void free_buffer(void *state, void *p) {
    (void)state;
    cl.buffer_release(p);
}
static int view(void *state, void *parent, uint64_t offset, uint64_t bytes, void **out) {
    (void)state;
    size_t region[2] = {offset, bytes};
    int code = 0;
    *out = cl.part(parent, CL_MEM_READ_WRITE, CL_REGION, region, &code);
    return *out == NULL && code == 0 ? -4 : code;
}
static int host_alloc(void *state, uint64_t bytes, void **out) {
    (void)state;
    *out = pl_alloc_aligned(bytes, 4096);
    return *out == NULL ? -6 : 0;
}
static void host_free(void *state, void *p) {
    (void)state;
    pl_free(p);
}
static int stream_create(void *state, void **out) {
    struct cl_state *s = state;
    int code = 0;
    size_t slot = 0;
    while (slot < QUEUES_MAX && s->queues[slot] != NULL) slot++;
    if (slot == QUEUES_MAX) return -5; /* CL_OUT_OF_RESOURCES */
    *out = cl.queue(s->context, s->device, CL_QUEUE_PROFILING, &code);
    s->queues[slot] = *out;
    return *out == NULL && code == 0 ? -36 : code;
}
static void stream_destroy(void *state, void *q) {
    struct cl_state *s = state;
    cl.finish(q);
    cl.queue_release(q);
    for (size_t i = 0; i < QUEUES_MAX; i++) {
        if (s->queues[i] == q) s->queues[i] = NULL;
    }
}
static int stream_wait(void *state, void *q) {
    (void)state;
    return cl.finish(q);
}
static int event_create(void *state, void **out) {
    (void)state;
    *out = NULL; /* an event exists once it is recorded */
    return 0;
}
static void event_destroy(void *state, void *e) {
    (void)state;
    cl.event_release(e);
}
static int event_record(void *state, void **e, void *q) {
    (void)state;
    if (*e != NULL) cl.event_release(*e);
    *e = NULL;
    int code = cl.marker(q, 0, NULL, e);
    return code == 0 ? cl.flush(q) : code;
}
static int event_wait(void *state, void *e) {
    (void)state;
    return e == NULL ? 0 : cl.event_wait(1, &e);
}
static int stream_after(void *state, void *q, void *e) {
    (void)state;
    return e == NULL ? 0 : cl.barrier(q, 1, &e, NULL);
}
static int event_elapsed_us(void *state, void *from, void *to, double *us) {
    (void)state;
    uint64_t a = 0, b = 0;
    if (from == NULL || to == NULL) return -7;
    int code = cl.event_profile(from, CL_PROFILING_END, sizeof a, &a, NULL);
    if (code == 0) code = cl.event_profile(to, CL_PROFILING_END, sizeof b, &b, NULL);
    *us = (double)(b - a) / 1e3;
    return code;
}
static int upload(void *state, void *q, void *to, uint64_t offset, const void *from, uint64_t bytes) {
    (void)state;
    return cl.write(q, to, 0, offset, bytes, from, 0, NULL, NULL);
}
static int download(void *state, void *q, void *to, void *from, uint64_t offset, uint64_t bytes) {
    (void)state;
    return cl.read(q, from, 0, offset, bytes, to, 0, NULL, NULL);
}
static int copy(void *state, void *q, void *to, uint64_t to_offset, void *from, uint64_t from_offset, uint64_t bytes) {
    (void)state;
    return cl.copy(q, from, to, from_offset, to_offset, bytes, 0, NULL, NULL);
}
/* Drivers fill byte by byte, NVIDIA's was not done with 2 GiB after 20 s: a piece is filled, then copied on and on. */
static int fill(void *state, void *q, void *to, uint64_t bytes, uint8_t value) {
    (void)state;
    enum { PIECE = 1 << 16, PATTERN = 16 };
    uint8_t pattern[PATTERN];
    uint64_t piece = PL_MIN(bytes, (uint64_t)PIECE), whole = piece / PATTERN * PATTERN;
    memset(pattern, value, sizeof pattern);
    int code = whole > 0 ? cl.fill(q, to, pattern, PATTERN, 0, whole, 0, NULL, NULL) : 0;
    if (code == 0 && piece > whole) code = cl.fill(q, to, pattern, 1, whole, piece - whole, 0, NULL, NULL);
    for (uint64_t done = piece; done < bytes && code == 0;) {
        uint64_t n = PL_MIN(done, bytes - done);
        code = cl.copy(q, to, to, 0, done, n, 0, NULL, NULL);
        done += n;
    }
    return code;
}

static void take_log(struct cl_state *s, void *prog, struct pl_buf *log) {
    size_t n = 0;
    if (cl.build_info(prog, s->device, CL_BUILD_LOG, 0, NULL, &n) != 0 || n <= 1) return;
    char *text = pl_calloc(n + 1, 1);
    if (text != NULL && cl.build_info(prog, s->device, CL_BUILD_LOG, n, text, NULL) == 0) {
        pl_buf_add(log, text, strnlen(text, n));
    }
    pl_free(text);
}

static enum pl_status take_image(void *prog, const char *name, struct pl_buf *image, struct pl_err *err) {
    size_t n = 0;
    int code = cl.program_info(prog, CL_PROGRAM_BINARY_SIZES, sizeof n, &n, NULL);
    if (code != 0 || n == 0) PL_FAIL(err, PL_DEVICE, "opencl: %s gave no binary: %s", name, code_name(code));
    unsigned char *bytes = pl_alloc(n, 1);
    if (bytes == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %zu bytes of compiled code", n);
    code = cl.program_info(prog, CL_PROGRAM_BINARIES, sizeof bytes, &bytes, NULL);
    if (code == 0) pl_buf_add(image, bytes, n);
    pl_free(bytes);
    if (code != 0) PL_FAIL(err, PL_DEVICE, "opencl: %s gave no binary: %s", name, code_name(code));
    if (!pl_buf_ok(image)) PL_FAIL(err, PL_NO_MEMORY, "no memory for %zu bytes of compiled code", n);
    return PL_OK;
}

static enum pl_status build_source(struct cl_state *s, void *prog, const struct pl_device_source *src, struct pl_buf *image,
                                   struct pl_buf *log, struct pl_err *err) {
    struct pl_buf options = {0};
    for (size_t i = 0; i < src->option_count; i++) {
        if (i > 0) pl_buf_add_char(&options, ' ');
        pl_buf_add_c(&options, src->options[i]);
    }
    int code = pl_buf_ok(&options) ? cl.build(prog, 1, &s->device, pl_buf_cstr(&options), NULL, NULL) : -6;
    pl_buf_deinit(&options);
    take_log(s, prog, log);
    if (code != 0) {
        PL_FAIL(err, PL_DEVICE, "%s does not compile: %s (%d)\n%.600s", src->name, code_name(code), code, pl_buf_cstr(log));
    }
    return take_image(prog, src->name, image, err);
}

static enum pl_status compile(void *state, const char *target, const struct pl_device_source *src, struct pl_buf *image,
                              struct pl_buf *log, struct pl_err *err) {
    struct cl_state *s = state;
    (void)target;
    if (s == NULL) PL_FAIL(err, PL_UNSUPPORTED, "opencl: compiling needs an open device");
    int code = 0;
    size_t len = strlen(src->text);
    const char *text = src->text;
    void *prog = cl.program_source(s->context, 1, &text, &len, &code);
    if (prog == NULL) PL_FAIL(err, PL_DEVICE, "opencl: %s is not taken: %s (%d)", src->name, code_name(code), code);
    enum pl_status st = build_source(s, prog, src, image, log, err);
    cl.program_release(prog);
    return st;
}
static enum pl_status compiler(void *state, char *out, size_t size, struct pl_err *err) {
    struct cl_state *s = state;
    if (s == NULL) PL_FAIL(err, PL_UNSUPPORTED, "opencl: the compiler belongs to an open device");
    snprintf(out, size, "%s", s->version);
    return PL_OK;
}

static int module_load(void *state, const void *image, size_t bytes, void **out) {
    struct cl_state *s = state;
    int code = 0, status = 0;
    const unsigned char *p = image;
    void *prog = cl.program_binary(s->context, 1, &s->device, &bytes, &p, &status, &code);
    if (prog == NULL) return code != 0 ? code : -42;
    code = cl.build(prog, 1, &s->device, "", NULL, NULL);
    if (code != 0) {
        cl.program_release(prog);
        return code;
    }
    *out = prog;
    return 0;
}
static void module_unload(void *state, void *m) {
    (void)state;
    cl.program_release(m);
}
static int function(void *state, void *m, const char *name, void **out) {
    (void)state;
    int code = 0;
    *out = cl.kernel(m, name, &code);
    return *out == NULL && code == 0 ? -46 : code;
}
static void function_release(void *state, void *f) {
    (void)state;
    cl.kernel_release(f);
}
static int function_info(void *state, void *f, struct pl_device_function_info *out) {
    (void)state;
    (void)f;
    *out = (struct pl_device_function_info){0};
    return 0;
}

static int launch(void *state, void *q, const struct pl_device_launch *l) {
    (void)state;
    for (size_t i = 0; i < l->arg_count; i++) {
        const struct pl_device_arg *a = &l->args[i];
        void *handle = a->value == NULL && a->buffer != NULL ? a->buffer->handle : NULL;
        int code = a->value != NULL ? cl.kernel_arg(l->function.handle, (unsigned)i, a->size, a->value)
                                    : cl.kernel_arg(l->function.handle, (unsigned)i, sizeof handle, &handle);
        if (code != 0) return code;
    }
    size_t global[3], local[3];
    for (int i = 0; i < 3; i++) {
        local[i] = l->group[i];
        global[i] = (size_t)l->grid[i] * l->group[i];
    }
    return cl.launch(q, l->function.handle, 3, NULL, global, local, 0, NULL, NULL);
}

const struct pl_driver pl_driver_opencl = {
    .kind = PL_DEVICE_OPENCL,
    .load = load,
    .count = count,
    .describe = describe,
    .open = open_device,
    .close = close_device,
    .code_name = code_name,
    .is_out_of_memory = is_out_of_memory,
    .memory_free = memory_free,
    .sync = sync_device,
    .alloc = alloc,
    .free = free_buffer,
    .view = view,
    .view_drop = free_buffer,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_wait = stream_wait,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .stream_after = stream_after,
    .event_elapsed_us = event_elapsed_us,
    .upload = upload,
    .download = download,
    .copy = copy,
    .fill = fill,
    .compile = compile,
    .compiler = compiler,
    .module_load = module_load,
    .module_unload = module_unload,
    .function = function,
    .function_release = function_release,
    .function_info = function_info,
    .launch = launch,
};
