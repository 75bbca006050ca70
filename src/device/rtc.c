/* Run-time compilers: NVRTC (to machine code for one exact target) and hipRTC. They share their shape, not their names. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/driver.h"

struct rtc {
    void *library;
    int (*version)(int *major, int *minor);
    int (*create)(void **prog, const char *text, const char *name, int header_count, const char *const *headers,
                  const char *const *header_names);
    int (*compile)(void *prog, int option_count, const char *const *options);
    int (*image_size)(void *prog, size_t *size);
    int (*image)(void *prog, char *out);
    int (*text_size)(void *prog, size_t *size); /* NVRTC: PTX, which drivers translate for their device */
    int (*text)(void *prog, char *out);
    int (*log_size)(void *prog, size_t *size);
    int (*log)(void *prog, char *out);
    int (*destroy)(void **prog);
    const char *(*error)(int code);
};
static struct rtc nvrtc, hiprtc;

static enum pl_status open_nvrtc(struct pl_err *err) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so", NULL};
    static const char *const folders[] = {"/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda", NULL};
    static const struct pl_library lib = {
        .what = "NVIDIA's run-time compiler NVRTC",
        .help =
            "the driver does not bring it: install the CUDA toolkit (or only its NVRTC package; pip: nvidia-cuda-nvrtc), or "
            "set PLUMB_CUDA_PATH to a folder that has it",
        .names = names,
        .folders = folders,
        .env = "PLUMB_CUDA_PATH",
        .off = "PLUMB_NVRTC",
        .pip = "nvidia/*",
    };
    static const struct pl_library_symbol symbols[] = {
        {"nvrtcVersion", (void **)(void *)&nvrtc.version, false},
        {"nvrtcCreateProgram", (void **)(void *)&nvrtc.create, false},
        {"nvrtcCompileProgram", (void **)(void *)&nvrtc.compile, false},
        {"nvrtcGetCUBINSize", (void **)(void *)&nvrtc.image_size, false},
        {"nvrtcGetCUBIN", (void **)(void *)&nvrtc.image, false},
        {"nvrtcGetPTXSize", (void **)(void *)&nvrtc.text_size, false},
        {"nvrtcGetPTX", (void **)(void *)&nvrtc.text, false},
        {"nvrtcGetProgramLogSize", (void **)(void *)&nvrtc.log_size, false},
        {"nvrtcGetProgramLog", (void **)(void *)&nvrtc.log, false},
        {"nvrtcDestroyProgram", (void **)(void *)&nvrtc.destroy, false},
        {"nvrtcGetErrorString", (void **)(void *)&nvrtc.error, false},
    };
    return pl_library_open(&lib, symbols, PL_COUNT_OF(symbols), &nvrtc.library, err);
}

static enum pl_status open_hiprtc(struct pl_err *err) {
    static const char *const names[] = {
        "libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so", NULL};
    static const char *const folders[] = {"/opt/rocm", "/opt/rocm-*", NULL};
    static const struct pl_library lib = {
        .what = "AMD's run-time compiler hipRTC",
        .help = "install ROCm's hiprtc (Debian: libamdhip64-5) or set PLUMB_ROCM_PATH to its folder",
        .names = names,
        .folders = folders,
        .env = "PLUMB_ROCM_PATH",
    };
    static const struct pl_library_symbol symbols[] = {
        {"hiprtcVersion", (void **)(void *)&hiprtc.version, false},
        {"hiprtcCreateProgram", (void **)(void *)&hiprtc.create, false},
        {"hiprtcCompileProgram", (void **)(void *)&hiprtc.compile, false},
        {"hiprtcGetCodeSize", (void **)(void *)&hiprtc.image_size, false},
        {"hiprtcGetCode", (void **)(void *)&hiprtc.image, false},
        {"hiprtcGetProgramLogSize", (void **)(void *)&hiprtc.log_size, false},
        {"hiprtcGetProgramLog", (void **)(void *)&hiprtc.log, false},
        {"hiprtcDestroyProgram", (void **)(void *)&hiprtc.destroy, false},
        {"hiprtcGetErrorString", (void **)(void *)&hiprtc.error, false},
    };
    return pl_library_open(&lib, symbols, PL_COUNT_OF(symbols), &hiprtc.library, err);
}

static enum pl_status open_rtc(enum pl_device_kind kind, struct rtc **out, struct pl_err *err) {
    struct rtc *r = kind == PL_DEVICE_CUDA ? &nvrtc : &hiprtc;
    if (r->library == NULL) PL_TRY(kind == PL_DEVICE_CUDA ? open_nvrtc(err) : open_hiprtc(err));
    *out = r;
    return PL_OK;
}

enum pl_status pl_rtc_version(enum pl_device_kind kind, char *out, size_t size, struct pl_err *err) {
    struct rtc *r = NULL;
    PL_TRY(open_rtc(kind, &r, err));
    int major = 0, minor = 0, code = r->version(&major, &minor);
    if (code != 0) PL_FAIL(err, PL_DEVICE, "the run-time compiler does not tell its version: %s", r->error(code));
    snprintf(out, size, "%s %d.%d", kind == PL_DEVICE_CUDA ? "nvrtc" : "hiprtc", major, minor);
    return PL_OK;
}

static void take_log(struct rtc *r, void *prog, struct pl_buf *log) {
    size_t n = 0;
    if (r->log_size(prog, &n) != 0 || n <= 1) return;
    char *text = pl_alloc(n, 1);
    if (text != NULL && r->log(prog, text) == 0) pl_buf_add(log, text, strnlen(text, n));
    pl_free(text);
}

/* Machine code for an exact target, PTX for a virtual one ("compute_80"). */
static enum pl_status take_image(struct rtc *r, void *prog, bool text, struct pl_buf *image, struct pl_err *err) {
    size_t n = 0;
    int code = text ? r->text_size(prog, &n) : r->image_size(prog, &n);
    if (code != 0 || n == 0) {
        PL_FAIL(err, PL_DEVICE, "the run-time compiler gave no code: %s", code != 0 ? r->error(code) : "0 bytes");
    }
    char *bytes = pl_alloc(n, 1);
    if (bytes == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %zu bytes of compiled code", n);
    code = text ? r->text(prog, bytes) : r->image(prog, bytes);
    if (code == 0) pl_buf_add(image, bytes, n);
    pl_free(bytes);
    if (code != 0) PL_FAIL(err, PL_DEVICE, "the run-time compiler gave no code: %s", r->error(code));
    if (!pl_buf_ok(image)) PL_FAIL(err, PL_NO_MEMORY, "no memory for %zu bytes of compiled code", n);
    return PL_OK;
}

static enum pl_status compile_options(struct rtc *r, void *prog, const char *arch, const struct pl_device_source *src,
                                      struct pl_buf *log, struct pl_err *err) {
    const char **options = pl_calloc(src->option_count + 1, sizeof *options);
    if (options == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory to compile %s", src->name);
    options[0] = arch;
    for (size_t i = 0; i < src->option_count; i++) options[i + 1] = src->options[i];
    int code = r->compile(prog, (int)(src->option_count + 1), options);
    pl_free(options);
    take_log(r, prog, log);
    if (code == 0) return PL_OK;
    PL_FAIL(err, PL_DEVICE, "%s does not compile with %s: %s\n%.600s", src->name, arch, r->error(code), pl_buf_cstr(log));
}

enum pl_status pl_rtc_compile(enum pl_device_kind kind, const char *target, const struct pl_device_source *src,
                              struct pl_buf *image, struct pl_buf *log, struct pl_err *err) {
    struct rtc *r = NULL;
    PL_TRY(open_rtc(kind, &r, err));
    char arch[192];
    snprintf(arch, sizeof arch, kind == PL_DEVICE_CUDA ? "--gpu-architecture=%s" : "--offload-arch=%s", target);
    void *prog = NULL;
    int code = r->create(&prog, src->text, src->name, 0, NULL, NULL);
    if (code != 0) PL_FAIL(err, PL_DEVICE, "the run-time compiler does not take %s: %s", src->name, r->error(code));
    enum pl_status st = compile_options(r, prog, arch, src, log, err);
    bool text = kind == PL_DEVICE_CUDA && strncmp(target, "compute_", 8) == 0;
    if (st == PL_OK) st = take_image(r, prog, text, image, err);
    r->destroy(&prog);
    return st;
}
