/* The port table: per operation and backend kind an implementation class or an explicit "no port". Dispatch and every
 * "is it available" question read this one table, so they cannot disagree. */
#include <string.h>

#include "ops/impl.h"

_Static_assert(PL_BACKEND_COUNT == 5, "a new backend needs its own column below");

#define NONE     PL_PORT_NONE
#define CPU      PL_PORT_CPU
#define COMPOSED PL_PORT_COMPOSED
#define FUSED    PL_PORT_FUSED
/* clang-format off */
/* A row with a missing column, and an operation without a row, do not compile. */
#define ROW_embed(X)       X(embed,       CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_norm(X)        X(norm,        CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_add_norm(X)    X(add_norm,    CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_layer_norm(X)  X(layer_norm,  CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_add(X)         X(add,         CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_linear(X)      X(linear,      CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_linear_add(X)  X(linear_add,  CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_rope_append(X) X(rope_append, CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_attention(X)   X(attention,   CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_glu(X)         X(glu,         CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_gather(X)      X(gather,      CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_softcap(X)     X(softcap,     CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_scale(X)       X(scale,       CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_gate_rows(X)   X(gate_rows,   CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_moe(X)         X(moe,         CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_heads_linear(X)  X(heads_linear,  CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_latent_append(X) X(latent_append, CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_ternary(X)     X(ternary,     CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_argmax(X)      X(argmax,     NONE, NONE, FUSED, FUSED, FUSED)
#define ROW_draw(X)        X(draw,       NONE, NONE, FUSED, FUSED, FUSED)
#define ROW_causal_conv(X) X(causal_conv, CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_ssm_update(X)  X(ssm_update,  CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_ssm_scan(X)    X(ssm_scan,    CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_delta(X)       X(delta,       CPU, NONE, FUSED, FUSED, FUSED)
#define ROW_gated_norm(X)  X(gated_norm,  CPU, NONE, FUSED, FUSED, FUSED)

/* clang-format on */

#define PORTS(op, cpu, metal, cuda, rocm, opencl) \
    [PL_OP_##op] = {[PL_BACKEND_CPU] = (cpu),     \
                    [PL_BACKEND_METAL] = (metal), \
                    [PL_BACKEND_CUDA] = (cuda),   \
                    [PL_BACKEND_ROCM] = (rocm),   \
                    [PL_BACKEND_OPENCL] = (opencl)},
#define ROW(op) ROW_##op(PORTS)
static const enum pl_port ports[PL_OP_COUNT][PL_BACKEND_COUNT] = {PL_OP_LIST(ROW)};

static const char *const op_names[PL_OP_COUNT] = {
#define OP_NAME(op) [PL_OP_##op] = #op,
    PL_OP_LIST(OP_NAME)};

static const char *const backend_names[PL_BACKEND_COUNT] = {[PL_BACKEND_CPU] = "cpu",
                                                            [PL_BACKEND_METAL] = "metal",
                                                            [PL_BACKEND_CUDA] = "cuda",
                                                            [PL_BACKEND_ROCM] = "rocm",
                                                            [PL_BACKEND_OPENCL] = "opencl"};

const char *pl_op_name(enum pl_op op) {
    PL_ASSERT(op < PL_OP_COUNT);
    return op_names[op];
}

enum pl_port pl_ops_port(enum pl_op op, enum pl_backend b) {
    PL_ASSERT(op < PL_OP_COUNT && b < PL_BACKEND_COUNT);
    return ports[op][b];
}

const char *pl_port_name(enum pl_port p) {
    switch (p) {
    case PL_PORT_NONE: return "no port";
    case PL_PORT_CPU: return "cpu";
    case PL_PORT_COMPOSED: return "composed";
    case PL_PORT_FUSED: return "fused";
    }
    return "?";
}

const char *pl_backend_name(enum pl_backend b) {
    PL_ASSERT(b < PL_BACKEND_COUNT);
    return backend_names[b];
}

bool pl_backend_from_name(const char *name, enum pl_backend *out) {
    for (size_t i = 0; i < PL_BACKEND_COUNT; i++) {
        if (strcmp(name, backend_names[i]) != 0) continue;
        *out = (enum pl_backend)i;
        return true;
    }
    return false;
}
