/* attention_tiles - attention of many rows of one sequence on tensor cores of NVIDIA GPUs (sm_80 and up): 64 rows of one
 * head meet 64 cached tokens at a time, softmax runs along (one pass). Contract: kernels/attention.k.c.
 *
 * A warp owns 16 rows. q and the weights of the softmax are rounded to the cache's type, sums are f32. Tiles of K and V
 * stand in shared memory, 16-byte units permuted by row so that no reads collide; the next tile is fetched meanwhile.
 * Requires: HEAD_DIM 64 or 128; f16 or bf16 pages. Order is fixed: bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"
#include "cuda/units.h"

#define ROWS   64u
#define TOKENS 64u
#define UNITS  (HEAD_DIM / 8u)
#define TILE   (TOKENS * HEAD_DIM) /* elements */

extern __shared__ __align__(128) u16 tiles[];

/* Byte offset of unit c of a tile's row. */
FN u32 place(u32 row, u32 c) { return (row * UNITS + (c ^ (row & 7u))) * 16u; }
FN void fetch(u32 to, const void *from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }

FN void fetch_tile(u32 k_at, u32 v_at, const KV_TYPE *k_pages, const KV_TYPE *v_pages, const u32 *table, u32 t0, u32 last,
                   u32 g, u32 kv_heads) {
#pragma unroll 4
    for (u32 i = LOCAL_X; i < TOKENS * UNITS; i += GROUP) {
        u32 row = i / UNITS, c = i % UNITS;
        u64 from = kv_offset(table, PL_MIN(t0 + row, last), g, kv_heads) + 8u * c;
        fetch(k_at + place(row, c), k_pages + from);
        fetch(v_at + place(row, c), v_pages + from);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* grid: (tiles of 64 rows, heads) */
KERNEL(attention_tiles)(const f32 *__restrict__ q, const KV_TYPE *__restrict__ k_pages, const KV_TYPE *__restrict__ v_pages,
                        const u32 *__restrict__ step, f32 *__restrict__ out, u32 *witness, const struct pl_args_tiles a) {
    count_launch(witness);
    u32 tile = (a.rows + ROWS - 1u) / ROWS - 1u - GROUP_X, head = GROUP_Y, g = head / (a.heads / a.kv_heads); /* longest first */
    u32 lane = LOCAL_X % 32u, row = tile * ROWS + LOCAL_X / 32u * 16u + lane / 4u; /* and row + 8 */
    u32 past = step[PL_STEP_POSITION(a.stride) + a.row0];
    const u32 *table = step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + a.row0];
    u32 low = past + tile * ROWS, last = past + PL_MIN(tile * ROWS + ROWS, a.rows) - 1u;
    u32 first = a.window != 0u && low + 1u > a.window ? low + 1u - a.window : 0u;
    f32 scale = a.softcap > 0.0f ? a.scale : a.scale * 1.4426950408889634f;
    u32 qf[HEAD_DIM / 16u][4];
    f32 o[HEAD_DIM / 8u][4], m[2] = {NEG_INF, NEG_INF}, l[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 i = 0; i < HEAD_DIM / 16u; i++) {
#pragma unroll
        for (u32 j = 0; j < 4u; j++) {
            u32 r = PL_MIN(row + 8u * (j & 1u), a.rows - 1u) + a.row0;
            float2 v = *(const float2 *)(q + ((u64)r * a.heads + head) * HEAD_DIM + 16u * i + 8u * (j >> 1) + 2u * (lane % 4u));
            qf[i][j] = two(v.x * scale, v.y * scale);
        }
    }
#pragma unroll
    for (u32 i = 0; i < HEAD_DIM / 8u; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
    u32 base = shared_at(tiles), stage = 0;
    fetch_tile(base, base + 2u * TILE, k_pages, v_pages, table, first, last, g, a.kv_heads);
    for (u32 t0 = first; t0 <= last; t0 += TOKENS, stage ^= 1u) {
        u32 k_at = base + stage * 4u * TILE, v_at = k_at + 2u * TILE;
        if (t0 + TOKENS <= last) {
            u32 next = base + (stage ^ 1u) * 4u * TILE;
            fetch_tile(next, next + 2u * TILE, k_pages, v_pages, table, t0 + TOKENS, last, g, a.kv_heads);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        BARRIER();
        f32 s[TOKENS / 8u][4];
#pragma unroll
        for (u32 n = 0; n < TOKENS / 8u; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 16u; i++) {
#pragma unroll
            for (u32 n = 0; n < TOKENS / 16u; n++) {
                u32 b[4];
                factors(b, k_at + place(16u * n + 8u * (lane >> 4) + (lane & 7u), 2u * i + ((lane >> 3) & 1u)));
                mma(s[2u * n], qf[i], b[0], b[1]);
                mma(s[2u * n + 1u], qf[i], b[2], b[3]);
            }
        }
        bool edge = t0 + TOKENS > low || (a.window != 0u && t0 + a.window <= last);
        f32 top[2] = {m[0], m[1]};
#pragma unroll
        for (u32 n = 0; n < TOKENS / 8u; n++) {
#pragma unroll
            for (u32 j = 0; j < 4u; j++) {
                if (a.softcap > 0.0f) s[n][j] = a.softcap * TANH(s[n][j] / a.softcap) * 1.4426950408889634f;
                if (edge) {
                    u32 t = t0 + 8u * n + 2u * (lane % 4u) + (j & 1u), at = past + row + 8u * (j >> 1);
                    if (t > at || (a.window != 0u && t + a.window <= at)) s[n][j] = NEG_INF;
                }
                top[j >> 1] = FMAX(top[j >> 1], s[n][j]);
            }
        }
#pragma unroll
        for (u32 r = 0; r < 2u; r++) {
            top[r] = FMAX(top[r], lane_xor(top[r], 1));
            top[r] = FMAX(top[r], lane_xor(top[r], 2));
            f32 keep = m[r] == NEG_INF ? 0.0f : EXP2(m[r] - top[r]);
            m[r] = top[r];
            l[r] *= keep;
#pragma unroll
            for (u32 i = 0; i < HEAD_DIM / 8u; i++) o[i][2u * r] *= keep, o[i][2u * r + 1u] *= keep;
            if (top[r] == NEG_INF) top[r] = 0.0f; /* nothing seen yet: all weights are exp2(-inf) */
        }
#pragma unroll
        for (u32 n = 0; n < TOKENS / 8u; n++) {
#pragma unroll
            for (u32 j = 0; j < 4u; j++) {
                s[n][j] = EXP2(s[n][j] - top[j >> 1]);
                l[j >> 1] += s[n][j];
            }
        }
#pragma unroll
        for (u32 n = 0; n < TOKENS / 16u; n++) {
            u32 p[4] = {two(s[2u * n][0], s[2u * n][1]), two(s[2u * n][2], s[2u * n][3]),
                        two(s[2u * n + 1u][0], s[2u * n + 1u][1]), two(s[2u * n + 1u][2], s[2u * n + 1u][3])};
#pragma unroll
            for (u32 i = 0; i < HEAD_DIM / 16u; i++) {
                u32 b[4];
                factors_turned(b, v_at + place(16u * n + (lane & 15u), 2u * i + (lane >> 4)));
                mma(o[2u * i], p, b[0], b[1]);
                mma(o[2u * i + 1u], p, b[2], b[3]);
            }
        }
        BARRIER();
    }
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        l[r] += lane_xor(l[r], 1);
        l[r] += lane_xor(l[r], 2);
        if (row + 8u * r >= a.rows) continue;
        f32 inverse = l[r] > 0.0f ? 1.0f / l[r] : 0.0f;
        f32 *to = out + ((u64)(a.row0 + row + 8u * r) * a.heads + head) * HEAD_DIM + 2u * (lane % 4u);
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 8u; i++) *(float2 *)(to + 8u * i) = make_float2(o[i][2u * r] * inverse, o[i][2u * r + 1u] * inverse);
    }
}
