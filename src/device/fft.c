/* cuFFT and hipFFT: the same six calls under two prefixes, with the numbers of their public ABI. */
#include "device/fft.h"

#include "base/mem.h"
#include "device/driver.h"

enum { REAL_TO_COMPLEX = 0x2a };

/* cuFFT's plan is an int, hipFFT's a pointer: either travels in one register, and the int is its low half. */
typedef uintptr_t plan_t;
struct library {
    void *handle;
    int (*plan)(plan_t *plan, int n, int type, int rows);
    int (*destroy)(plan_t plan);
    int (*set_stream)(plan_t plan, void *stream);
    int (*run)(plan_t plan, void *in, void *out);
};
static struct library cufft, hipfft;

struct pl_device_fft {
    struct pl_device *device;
    const struct library *lib;
    plan_t plan;
    bool planned;
    uint32_t n, rows;
};

static enum pl_status open_cufft(struct pl_err *err) {
    static const char *const names[] = {"libcufft.so.12", "libcufft.so.11", "libcufft.so.10", "libcufft.so", NULL};
    static const char *const folders[] = {"/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda", NULL};
    static const struct pl_library lib = {
        .what = "NVIDIA's Fourier transforms cuFFT",
        .help = "the driver does not bring it: install the CUDA toolkit (pip: nvidia-cufft), or set PLUMB_CUDA_PATH",
        .names = names,
        .folders = folders,
        .env = "PLUMB_CUDA_PATH",
        .pip = "nvidia/*",
    };
    static const struct pl_library_symbol symbols[] = {
        {"cufftPlan1d", (void **)(void *)&cufft.plan, false},
        {"cufftDestroy", (void **)(void *)&cufft.destroy, false},
        {"cufftSetStream", (void **)(void *)&cufft.set_stream, false},
        {"cufftExecR2C", (void **)(void *)&cufft.run, false},
    };
    return cufft.handle != NULL ? PL_OK : pl_library_open(&lib, symbols, PL_COUNT_OF(symbols), &cufft.handle, err);
}

static enum pl_status open_hipfft(struct pl_err *err) {
    static const char *const names[] = {"libhipfft.so.0", "libhipfft.so", NULL};
    static const char *const folders[] = {"/opt/rocm", "/opt/rocm-*", NULL};
    static const struct pl_library lib = {
        .what = "AMD's Fourier transforms hipFFT",
        .help = "install ROCm's hipfft, or set PLUMB_ROCM_PATH",
        .names = names,
        .folders = folders,
        .env = "PLUMB_ROCM_PATH",
    };
    static const struct pl_library_symbol symbols[] = {
        {"hipfftPlan1d", (void **)(void *)&hipfft.plan, false},
        {"hipfftDestroy", (void **)(void *)&hipfft.destroy, false},
        {"hipfftSetStream", (void **)(void *)&hipfft.set_stream, false},
        {"hipfftExecR2C", (void **)(void *)&hipfft.run, false},
    };
    return hipfft.handle != NULL ? PL_OK : pl_library_open(&lib, symbols, PL_COUNT_OF(symbols), &hipfft.handle, err);
}

enum pl_status pl_device_fft_open(struct pl_device *d, uint32_t n, uint32_t rows, struct pl_device_fft **out,
                                  struct pl_err *err) {
    enum pl_device_kind kind = pl_device_info(d)->kind;
    if (kind != PL_DEVICE_CUDA && kind != PL_DEVICE_ROCM) {
        PL_FAIL(err, PL_UNSUPPORTED, "no Fourier transforms of a library on %s: take the CPU, cuda or rocm",
                pl_device_kind_name(kind));
    }
    PL_ASSERT(n >= 1 && rows >= 1 && n <= INT32_MAX && rows <= INT32_MAX);
    PL_TRY(kind == PL_DEVICE_CUDA ? open_cufft(err) : open_hipfft(err));
    struct pl_device_fft *f = pl_calloc(1, sizeof *f);
    if (f == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a transform");
    *f = (struct pl_device_fft){.device = d, .lib = kind == PL_DEVICE_CUDA ? &cufft : &hipfft, .n = n, .rows = rows};
    enum pl_status st = PL_OK;
    if (kind == PL_DEVICE_CUDA && pl_cuda_keep_context(pl_device_info(d)->index) != 0) {
        st = pl_err_set(err, __FILE__, __LINE__, PL_DEVICE, "the device's context could not be kept for cuFFT");
    }
    int code = st == PL_OK ? f->lib->plan(&f->plan, (int)n, REAL_TO_COMPLEX, (int)rows) : 0;
    f->planned = st == PL_OK && code == 0;
    if (code != 0) {
        st = pl_err_set(err, __FILE__, __LINE__, PL_DEVICE, "%s has no plan for %u rows of %u values: status %d",
                        pl_device_fft_library(f), rows, n, code);
    }
    if (st != PL_OK) {
        pl_device_fft_close(f);
        return st;
    }
    *out = f;
    return PL_OK;
}

void pl_device_fft_close(struct pl_device_fft *f) {
    if (f == NULL) return;
    if (f->planned) f->lib->destroy(f->plan);
    pl_free(f);
}

const char *pl_device_fft_library(const struct pl_device_fft *f) { return f->lib == &cufft ? "cuFFT" : "hipFFT"; }

enum pl_status pl_device_fft_run(struct pl_device_fft *f, struct pl_device_stream s, const struct pl_device_buffer *in,
                                 const struct pl_device_buffer *out, struct pl_err *err) {
    PL_ASSERT(in->bytes >= (uint64_t)f->rows * f->n * sizeof(float));
    PL_ASSERT(out->bytes >= (uint64_t)f->rows * (f->n / 2 + 1) * 2 * sizeof(float));
    if (pl_device_poisoned(f->device)) PL_FAIL(err, PL_DEVICE, "the device failed earlier and was not drained");
    int code = f->lib->set_stream(f->plan, pl_device_raw_stream(s));
    if (code == 0) code = f->lib->run(f->plan, pl_device_raw_buffer(in), pl_device_raw_buffer(out));
    if (code != 0) {
        PL_FAIL(err, PL_DEVICE, "%s: %u rows of %u values: status %d", pl_device_fft_library(f), f->rows, f->n, code);
    }
    return PL_OK;
}
