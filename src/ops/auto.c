/* The backend that "auto" stands for. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "device/device.h"
#include "ops/ops.h"

/* A driver that is installed and gives no device is told once: nobody should wonder why the GPU idles. Not where the devices
 * were hidden on purpose. */
static void tell_unused(enum pl_status status, const struct pl_err *why) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    bool hidden = visible != NULL && (visible[0] == '\0' || visible[0] == '-');
    if (status == PL_NOT_FOUND || hidden || atomic_flag_test_and_set(&told)) return;
    pl_log("no GPU is used: %s", why->text);
}

static bool present(enum pl_device_kind kind, struct pl_err *err) {
    int n = 0;
    enum pl_status status = pl_device_count(kind, &n, err);
    if (status != PL_OK && kind == PL_DEVICE_CUDA) tell_unused(status, err);
    if (status != PL_OK) return false;
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
