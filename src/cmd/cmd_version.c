#include "build_info.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/out.h"
#include "plumb.h"

int pl_cmd_version(int argc, char **argv) {
    bool verbose = false;
    const struct pl_arg options[] = {
        {'v', "verbose", NULL, PL_ARG_FLAG, &verbose, "also compiler, flags and hash of the sources", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "version",
        .synopsis = "[--verbose]",
        .about = "Prints the version.",
        .examples = "  plumb --version --verbose\n",
        .groups = (const struct pl_arg *const[]){options, NULL},
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code != -1) return code;
    pl_out_printf("plumb %s\n", PLUMB_VERSION);
    if (verbose)
        pl_out_printf("build id: %s\nrevision: %s\nkernel hash: %s\ncompiler: %s\nfeatures: %s\nflags: %s\n", PL_BUILD_ID,
                      PL_BUILD_REVISION[0] != '\0' ? PL_BUILD_REVISION : "unknown", PL_KERNEL_HASH, PL_BUILD_COMPILER,
                      PL_BUILD_FEATURES, PL_BUILD_FLAGS);
    return pl_out_close();
}
