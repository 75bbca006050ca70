/* The backend that "auto" stands for. */
#include <stdio.h>
#include <unistd.h>

#include "device/device.h"
#include "ops/ops.h"

static bool present(enum pl_device_kind kind, struct pl_err *err) {
    int n = 0;
    if (pl_device_count(kind, &n, err) != PL_OK) return false;
    if (n > 0) return true;
    snprintf(err->text, sizeof err->text, "%s: no device", pl_device_kind_name(kind));
    return false;
}

enum pl_backend pl_ops_auto(char *why, size_t size) {
    struct pl_err cuda = {0}, rocm = {0};
    if (present(PL_DEVICE_CUDA, &cuda)) {
        snprintf(why, size, "auto: a CUDA device is present");
        return PL_BACKEND_CUDA;
    }
    /* HIP's library is slow to start and loud without its kernel driver: ask only where that is there. */
    if (access("/dev/kfd", F_OK) != 0) {
        snprintf(rocm.text, sizeof rocm.text, "/dev/kfd is not there");
    } else if (present(PL_DEVICE_ROCM, &rocm)) {
        snprintf(why, size, "auto: a ROCm device is present, no CUDA (%.150s)", cuda.text);
        return PL_BACKEND_ROCM;
    }
    snprintf(why, size, "auto: no CUDA (%.150s), no ROCm (%.150s)", cuda.text, rocm.text);
    return PL_BACKEND_CPU;
}
