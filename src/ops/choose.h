/* choose - implementations by name, in rank order per backend and operation, and what the user forced or disabled.
 *
 * One table (choose.c) says which implementations an operation has; options are checked against it, so an unknown name is
 * an error that lists the known ones. linear_add follows linear and add_norm follows norm: they share weights and kernels.
 * A choice is made among candidates: the first planned one is the plan. What is forced is the plan; what is disabled, or
 * says why it cannot, is passed over, which is a fallback with that reason, or under strict a refusal. */
#ifndef PL_OPS_CHOOSE_H
#define PL_OPS_CHOOSE_H

#include "base/str.h"
#include "cpu/cpu.h"
#include "ops/ops.h"

/* clang-format off */
#define PL_IMPL_LIST(X) \
    X(PORTABLE, "portable") X(GEMV, "gemv") X(CUBLASLT, "cublaslt") X(MMA, "mma") X(STREAM, "stream") X(SPLIT, "split") \
    X(TILES, "tiles") \
    X(COPY, "copy") X(WIDENED, "widened") X(V1, "v1") X(V2, "v2") X(CASCADE, "cascade") X(GATHER, "gather") \
    X(BY_SLOT, "by_slot") X(BY_EXPERT, "by_expert") X(DENSE, "dense") X(FMA, "fma") X(CHAIN, "chain") \
    X(CHUNKS, "chunks") X(STEP, "step") X(LAYERS, "layers") \
    X(EXPANDED, "expanded")
/* clang-format on */
enum pl_impl {
#define PL_IMPL_ENUM(id, text) PL_IMPL_##id,
    PL_IMPL_LIST(PL_IMPL_ENUM)
#undef PL_IMPL_ENUM
        PL_IMPL_ISA, /* the CPU's tables follow, by instruction set */
    PL_IMPL_COUNT = PL_IMPL_ISA + PL_ISA_COUNT,
    PL_IMPL_NONE = PL_IMPL_COUNT
};
_Static_assert(PL_IMPL_COUNT <= 32, "a set of implementations is 32 bits");
const char *pl_impl_name(enum pl_impl i); /* "" for PL_IMPL_NONE */

enum pl_op pl_op_leader(enum pl_op op); /* linear for linear_add and ternary, norm for add_norm, else op itself */
/* The implementations of op on b, best first. Returns how many; out holds up to PL_IMPL_COUNT. */
size_t pl_impl_ranked(enum pl_backend b, enum pl_op op, enum pl_impl out[PL_IMPL_COUNT]);

struct pl_choice {
    enum pl_impl forced[PL_OP_COUNT]; /* PL_IMPL_NONE: by plan */
    uint32_t disabled[PL_OP_COUNT];   /* bits of implementations */
    bool strict;
    bool chain;    /* linear=chain was asked for: where products form one; the others are chosen as usual */
    bool layers;   /* ssm_update=layers likewise */
    bool expanded; /* attention=expanded likewise: latent attention of more rows than one, where it can */
    /* decode attention: --attn and PLUMB_ATTN_OFF */
    enum pl_impl attn; /* planned first wherever it can serve; PL_IMPL_NONE: auto */
    uint32_t attn_off; /* bits */
};
/* "auto" (NULL), "v1", "v2", "cascade", "gather"; off: a list of those forms or NULL. PL_USAGE on anything unknown. */
enum pl_status pl_choice_attention(const char *attn, const char *off, struct pl_choice *c, struct pl_err *err) PL_MUST_CHECK;
/* "op=impl[,op=impl]" each, or NULL. PL_USAGE on anything unknown, on leaving an operation without implementation. */
enum pl_status pl_choice_parse(enum pl_backend b, const char *force, const char *disable, bool strict, struct pl_choice *out,
                               struct pl_err *err) PL_MUST_CHECK;
/* "forced linear=portable; disabled attention=split", or "" when nothing is. */
void pl_choice_describe(const struct pl_choice *c, char *out, size_t size);

struct pl_candidate {
    enum pl_impl impl;
    bool planned;        /* this case is meant for it */
    const char *why_not; /* NULL: it can take it. Static text. */
};
struct pl_pick {
    enum pl_impl taken, planned; /* taken PL_IMPL_NONE: refused */
    const char *reason;          /* why not the planned one; "" when it is */
};
/* Candidates in rank order; at least one is planned. */
struct pl_pick pl_choose(const struct pl_choice *c, enum pl_op op, const struct pl_candidate *list, size_t count);

#endif
