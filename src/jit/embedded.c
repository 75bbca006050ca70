/* The kernel sources, byte for byte, inside the binary. A file missing from this list fails tests/jit. */
#include <string.h>

#include "base/hash.h"
#include "base/str.h"
#include "jit/jit.h"

#define FILES(X)                                        \
    X(dialect, "dialect.h")                             \
    X(weights, "weights.h")                             \
    X(weights_iq, "weights_iq.h")                       \
    X(iq_grids, "iq_grids.h")                           \
    X(kv, "kv.h")                                       \
    X(args, "args/args.h")                              \
    X(elementwise, "elementwise.k.c")                   \
    X(norm, "norm.k.c")                                 \
    X(embed, "embed.k.c")                               \
    X(linear, "linear.k.c")                             \
    X(ternary, "ternary.k.c")                           \
    X(pick, "pick.k.c")                                 \
    X(draw, "draw.k.c")                                 \
    X(rope, "rope.k.c")                                 \
    X(attention, "attention.k.c")                       \
    X(latent, "latent.k.c")                             \
    X(delta, "delta.k.c")                               \
    X(latent_expand, "latent_expand.k.c")               \
    X(paged, "paged.k.c")                               \
    X(widen, "widen.k.c")                               \
    X(bandwidth, "bandwidth.k.c")                       \
    X(moe_route, "moe_route.k.c")                       \
    X(ssm_math, "ssm_math.h")                           \
    X(ssm, "ssm.k.c")                                   \
    X(ssm_chunks, "ssm_chunks.k.c")                     \
    X(moe, "moe.k.c")                                   \
    X(cuda_strips, "cuda/strips.h")                     \
    X(cuda_strip_math, "cuda/strip_math.h")             \
    X(cuda_stream_math, "cuda/stream_math.h")           \
    X(cuda_chain, "cuda/chain.k.c")                     \
    X(cuda_meet, "cuda/meet.h")                         \
    X(cuda_ssm_layers, "cuda/ssm_layers.k.c")           \
    X(cuda_moe, "cuda/moe.k.c")                         \
    X(cuda_moe_dense, "cuda/moe_dense.k.c")             \
    X(cuda_moe_choose, "cuda/moe_choose.k.c")           \
    X(cuda_moe_one, "cuda/moe_one.k.c")                 \
    X(cuda_moe_router, "cuda/moe_router.k.c")           \
    X(cuda_moe_math, "cuda/moe_math.h")                 \
    X(cuda_moe_wide, "cuda/moe_wide.k.c")               \
    X(cuda_moe_order, "cuda/moe_order.h")               \
    X(cuda_moe_tall, "cuda/moe_tall.k.c")               \
    X(cuda_moe_combine, "cuda/moe_combine.k.c")         \
    X(cuda_moe_sort, "cuda/moe_sort.k.c")               \
    X(cuda_norm_rows, "cuda/norm_rows.k.c")             \
    X(cuda_tf32x3_math, "cuda/tf32x3.h")                \
    X(cuda_tf32x3_few, "cuda/tf32x3_few.k.c")           \
    X(cuda_tf32x3, "cuda/tf32x3.k.c")                   \
    X(cuda_mma, "cuda/mma.k.c")                         \
    X(cuda_paged_lone, "cuda/paged_lone.h")             \
    X(cuda_paged_mma, "cuda/paged_mma.k.c")             \
    X(cuda_paged_wide, "cuda/paged_wide.k.c")           \
    X(cuda_mla, "cuda/mla.k.c")                         \
    X(cuda_mla_wide, "cuda/mla_wide.k.c")               \
    X(cuda_units, "cuda/units.h")                       \
    X(cuda_wide, "cuda/wide.h")                         \
    X(cuda_prepare, "cuda/prepare.k.c")                 \
    X(cuda_retile, "cuda/retile.k.c")                   \
    X(cuda_stream, "cuda/stream.k.c")                   \
    X(cuda_ternary, "cuda/ternary.k.c")                 \
    X(cuda_gemv, "cuda/gemv.k.c")                       \
    X(cuda_fma, "cuda/fma.k.c")                         \
    X(cuda_pack, "cuda/pack.k.c")                       \
    X(cuda_ssm_step, "cuda/ssm_step.k.c")               \
    X(cuda_attention_tiles, "cuda/attention_tiles.k.c") \
    X(cuda_attention_wide, "cuda/attention_wide.k.c")   \
    X(cuda_rope_warps, "cuda/rope_warps.k.c")           \
    X(cuda_attention_run, "cuda/attention_run.h")       \
    X(cuda_attention_group, "cuda/attention_group.k.c") \
    X(cuda_attention_split, "cuda/attention_split.k.c")

#define EMBED(id, path)                                                      \
    __asm__(".section .rodata\n"                                             \
            ".balign 16\n"                                                   \
            ".hidden pl_ktext_" #id "\n"                                     \
            ".global pl_ktext_" #id "\n"                                     \
            "pl_ktext_" #id ":\n"                                            \
            ".incbin \"kernels/" path "\"\n"                                 \
            ".byte 0\n"                                                      \
            ".hidden pl_ktext_" #id "_end\n"                                 \
            ".global pl_ktext_" #id "_end\n"                                 \
            "pl_ktext_" #id "_end:\n"                                        \
            ".previous\n");                                                  \
    extern const char pl_ktext_##id[] __attribute__((visibility("hidden"))); \
    extern const char pl_ktext_##id##_end[] __attribute__((visibility("hidden")));
FILES(EMBED)

#define ENTRY(id, path) {path, pl_ktext_##id, pl_ktext_##id##_end},
static const struct { const char *name, *begin, *end; } files[] = {FILES(ENTRY)};

size_t pl_jit_file_count(void) { return PL_COUNT_OF(files); }

struct pl_jit_file pl_jit_file_at(size_t i) {
    PL_ASSERT(i < PL_COUNT_OF(files));
    return (struct pl_jit_file){files[i].name, files[i].begin, (size_t)(files[i].end - files[i].begin) - 1};
}

void pl_jit_sources_hash(char out[33]) {
    struct pl_buf all = {0};
    for (size_t i = 0; i < PL_COUNT_OF(files); i++) {
        struct pl_jit_file f = pl_jit_file_at(i);
        pl_buf_printf(&all, "%s %zu\n", f.name, f.len);
        pl_buf_add(&all, f.text, f.len);
    }
    pl_hash128_hex(pl_buf_cstr(&all), all.len, out);
    pl_buf_deinit(&all);
}
