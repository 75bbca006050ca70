/* widen - a cache in few bits for kernels that read f16: WIDEN writes the keys and values of one sequence in f16, one token after the
 * other, as if they were its only pages; values of KV_K8V4 stay turned, and TURN_BACK turns rows of attention's output back.
 *
 *   kv_widen           grid (spans of SPAN tokens, G): k, v [tokens, G, D] f16
 *   values_turn_back   grid (H, rows): out [rows of the step, H, D] f32, in place
 * Numerics: code times scale in f32, rounded to f16 once. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"

#ifdef WIDEN
#define SPAN 16u
KERNEL(kv_widen)(GLOBAL const KV_TYPE *k_pages, GLOBAL const KV_TYPE *v_pages, GLOBAL const u32 *step, GLOBAL u16 *k, GLOBAL u16 *v,
                 GLOBAL u32 *witness, const struct pl_args_widen a) {
    count_launch(witness);
    GLOBAL const u32 *table = step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + a.row0];
    u32 g = GROUP_Y, t0 = a.first + GROUP_X * SPAN, end = PL_MIN(t0 + SPAN, a.end);
    for (u32 i = LOCAL_X; t0 + i / HEAD_DIM < end; i += GROUP) {
        u32 t = t0 + i / HEAD_DIM, d = i % HEAD_DIM;
        GLOBAL const KV_TYPE *from_k = k_pages + kv_offset(table, t, g, a.kv_heads);
        GLOBAL const KV_TYPE *from_v = v_pages + value_offset(table, t, g, a.kv_heads);
        u64 to = ((u64)t * a.kv_heads + g) * HEAD_DIM + d;
        f16_store(k + to, kv_scaled(from_k, kv_load(from_k + d)));
        f16_store(v + to, value_scaled(from_v, value_load(from_v, d)));
    }
}
#endif

#ifdef TURN_BACK
KERNEL(values_turn_back)(GLOBAL f32 *out, GLOBAL u32 *witness, const struct pl_args_widen a) {
    LOCAL f32 x[HEAD_DIM];
    count_launch(witness);
    GLOBAL f32 *row = out + ((u64)(a.row0 + GROUP_Y) * a.heads + GROUP_X) * HEAD_DIM;
    for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) x[i] = row[i];
    values_turn_back(x);
    for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) row[i] = x[i];
}
#endif
