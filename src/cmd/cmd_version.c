#include <stdio.h>

#include "build_info.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/out.h"
#include "cpu/cpu.h"
#include "device/device.h"
#include "ops/ops.h"
#include "plumb.h"

/* What --backend auto takes here, and why. */
static void print_backend(void) {
    static const enum pl_device_kind kinds[PL_BACKEND_COUNT] = {
        [PL_BACKEND_CUDA] = PL_DEVICE_CUDA, [PL_BACKEND_ROCM] = PL_DEVICE_ROCM, [PL_BACKEND_OPENCL] = PL_DEVICE_OPENCL};
    char why[400], line[400] = "";
    enum pl_backend b = pl_ops_auto(why, sizeof why);
    struct pl_device_info info;
    struct pl_err err = {0};
    if (b == PL_BACKEND_CPU) {
        snprintf(line, sizeof line, "%s", pl_isa_name(pl_cpu_best_isa()));
    } else if (pl_device_describe(kinds[b], 0, &info, &err) == PL_OK) {
        pl_device_line(&info, line, sizeof line);
    } else {
        snprintf(line, sizeof line, "%.390s", err.text);
    }
    pl_out_printf("backend: %s (%s); %s\n", pl_backend_name(b), line, why);
}

int pl_cmd_version(int argc, char **argv) {
    bool verbose = false, sources = false;
    const struct pl_arg options[] = {
        {'v', "verbose", NULL, PL_ARG_FLAG, &verbose, "also compiler, flags and hash of the sources", 0, 0, NULL},
        {0, "sources", NULL, PL_ARG_FLAG, &sources, "only a hash of every source file this was built from", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "version",
        .synopsis = "[--verbose | --sources]",
        .about = "Prints the version.",
        .examples = "  plumb --version --verbose\n",
        .groups = (const struct pl_arg *const[]){options, NULL},
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code != -1) return code;
    if (sources) {
        static const char list[] = PL_BUILD_SOURCES;
        pl_out_write(list, sizeof list - 1);
        return pl_out_close();
    }
    pl_out_printf("plumb %s\n", PLUMB_VERSION);
    if (verbose) {
        pl_out_printf("build id: %s\nrevision: %s\nkernel hash: %s\ncompiler: %s\nfeatures: %s\nflags: %s\n", PL_BUILD_ID,
                      PL_BUILD_REVISION[0] != '\0' ? PL_BUILD_REVISION : "unknown", PL_KERNEL_HASH, PL_BUILD_COMPILER,
                      PL_BUILD_FEATURES, PL_BUILD_FLAGS);
        print_backend();
    }
    return pl_out_close();
}
