/* chain - what one row meets between two attentions, in one launch on NVIDIA GPUs of sm_90 and up: x += wo a; g = act(wg n) * (wu n)
 * with n = norm(x); x += wd g; then, with four stages, q, k and v = products of norm(x). Contracts: kernels/linear.k.c,
 * norm.k.c, elementwise.k.c; how a row meets weights: stream_math.h.
 *
 * A group of threads on every multiprocessor, all of them resident; weights do not depend on what is computed, so that they come
 * through the ring in the order of all stages without a stop: while a stage ends everywhere (a counter in global memory, meet[0],
 * that all groups add one to), the ring fills with the next one's. Counters are never reset: meet[32] says where they stood when
 * the launch began, and wrap around together.
 * Teams of eight warps multiply (strips: two teams, each with its own groups of outputs), one thread of one more warp brings the
 * weights. With one team each warp makes ready the inputs that it multiplies itself; a norm's factor is applied to the sums. WHEN_MET:
 * chunk by chunk when the first outputs meet them, the next ones on their way meanwhile, and not all before the first product.
 * WTYPE_STRIPS: each matrix is Q4_K or Q6_K (a.six). Fixed order: bitwise repeatable.
 * Requires: what stream.k.c does; a grid that fits on the device at once beside anything else that may wait for it. GROUP 32 more
 * than the teams. */
#define HAS_CHAIN
#if defined(WTYPE_STRIPS) || defined(WTYPE_Q4_K) || defined(WTYPE_Q6_K)
#define TEAMS 2u
#endif
#ifdef WTYPE_BF16
#define WHEN_MET
#endif
#include "dialect.h"
#include "args/args.h"
#include "cuda/meet.h"
#include "cuda/stream_math.h"

/* Shared memory: ring [depth][UNIT_BYTES], inputs [most chunks][X_BYTES], sums [HOLD][WARPS][RG], the stages, squares
 * [warps], barriers. */
#define STAGE_ROOM 192u
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define EACH         2u             /* groups of outputs of a team that share what is fetched of the input */
#define AT_ONCE      (TEAMS * EACH) /* that are multiplied at the same time */
#define HELD         (HOLD / AT_ONCE / 2u * 2u * AT_ONCE)
#define ALL_WARPS    (MEMBERS / 32u)

struct stage {
    const u8 *w[3];
    const f32 *bias[3];
    f32 *y[3];
    const f32 *x, *norm;
    f32 *h; /* where the normed input is left */
    u64 row_bytes;
    u32 in, chunks, n0, n1, first, end; /* groups of outputs of the first and second matrix; this group's */
    u32 six;                            /* bit i: matrix i is Q6_K; of WTYPE_STRIPS */
    f32 value, offset;
    bool add, gated;
};
struct place {
    u32 which, m; /* matrix, group of outputs in it */
};
FN struct place place_of(u32 r, const struct stage *s) {
    struct place p;
    if (s->gated) {
        p.which = r & 1u, p.m = r >> 1;
    } else {
        p.which = r < s->n0 ? 0u : r < s->n0 + s->n1 ? 1u : 2u;
        p.m = r < s->n0 ? r : r < s->n0 + s->n1 ? r - s->n0 : r - s->n0 - s->n1;
    }
    return p;
}

/* --- weights on their way --- */

#if defined(WTYPE_BF16) || defined(WTYPE_F16)
#define ROW_OF(in)   (2u * (in))
#define CHUNK_ROW    4096u
#define ROW_APART    4096u
#elif defined(BLOCK_BYTES)
#define ROW_OF(in)   ((in) / 32u * BLOCK_BYTES)
#define CHUNK_ROW    (64u * BLOCK_BYTES)
#define ROW_APART    ROW_BYTES
#endif
#ifdef ROW_OF
#define GROUP_BYTES(in, six) (RG * ROW_OF(in)) /* of neighbouring outputs */
#define CHUNK_BYTES(six)     CHUNK_ROW         /* from one chunk of a group to the next */
#else
#define GROUP_BYTES(in, six) ((in) / 256u * strip_bytes(six))
#define CHUNK_BYTES(six)     (8u * strip_bytes(six))
#endif
#if defined(WTYPE_STRIPS)
#define IS_SIX(bit) ((bit) != 0u)
#elif defined(WTYPE_Q6_K)
#define IS_SIX(bit) true
#else
#define IS_SIX(bit) false
#endif
FN bool is_six(u32 which, const struct stage *s) { return IS_SIX(s->six >> which & 1u); }
/* Bytes of a row, or of a group of outputs in strips, in one chunk. */
FN u32 piece_of(u32 chunk, bool six, const struct stage *s) {
#ifdef ROW_OF
    u32 row = ROW_OF(s->in);
    return PL_MIN(row - CHUNK_ROW * chunk, CHUNK_ROW);
#else
    return PL_MIN(s->in / 256u - 8u * chunk, 8u) * strip_bytes(six);
#endif
}
FN void bring(u8 *to, const u8 *from, u32 bytes, u64 *full, const struct stage *s) {
#ifdef ROW_OF
    barrier_expect(full, RG * bytes);
    for (u32 i = 0; i < RG; i++) copy_bulk(to + ROW_APART * i, from + s->row_bytes * i, bytes, full);
#else
    barrier_expect(full, bytes);
    copy_bulk(to, from, bytes, full);
#endif
}
/* Units in the order in which they are multiplied. */
FN void bring_all(const struct stage *stages, u64 *full, u64 *freed, const struct pl_args_chain *a) {
    u32 slot = 0u, round = 0u;
    for (u32 p = 0; p < a->stages; p++) {
        const struct stage *s = stages + p;
        u32 end = s->end, chunks = s->chunks;
        for (u32 r = s->first; r < end; r += AT_ONCE) {
            const u8 *from[AT_ONCE];
            bool six[AT_ONCE];
            u32 count = PL_MIN(AT_ONCE, end - r);
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                struct place at = place_of(r + j, s);
                six[j] = is_six(at.which, s);
                from[j] = s->w[at.which] + (u64)at.m * GROUP_BYTES(s->in, six[j]);
            }
            for (u32 chunk = 0; chunk < chunks; chunk++) {
#pragma unroll
                for (u32 j = 0; j < AT_ONCE; j++) {
                    if (j >= count) continue;
                    if (round > 0u) barrier_wait(freed + slot, (round - 1u) & 1u);
                    bring(shared + slot * UNIT_BYTES, from[j] + (u64)CHUNK_BYTES(six[j]) * chunk, piece_of(chunk, six[j], s), full + slot, s);
                    if (++slot == a->depth) slot = 0u, round++;
                }
            }
        }
    }
}

/* --- the whole grid --- */

FN void arrive(u32 *meet) {
    members_meet();
    if (LOCAL_X == 0u) add_one(meet);
}
FN void await(const u32 *meet, u32 until) {
    if (LOCAL_X == 0u) {
        while ((i32)(count_of(meet) - until) < 0) again();
    }
    members_meet();
}

/* --- the input --- */

/* What other multiprocessors wrote in this launch: never from the first cache. */
FN void fetch8(const f32 *x, u32 k, u32 in, f32 *v) {
    float4 a = make_float4(0.0f, 0.0f, 0.0f, 0.0f), b = a;
    if (k < in) a = __ldcg((const float4 *)(x + k)), b = __ldcg((const float4 *)(x + k + 4u));
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
#define ROUNDS (8u / TEAMS) /* of 8 inputs a thread, fetched at once */
FN u32 rounds_of(const struct stage *s) { return (s->chunks + TEAMS - 1u) / TEAMS; }
FN void fetch(const struct stage *s, u32 first, f32 (*v)[8]) {
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++) fetch8(s->x, 8u * (MEMBERS * (first + i) + LOCAL_X), s->in, v[i]);
}
#ifdef WHEN_MET
#define EARLY  1u /* of a norm's weights, fetched before the others are done */
#else
#define EARLY  (TEAMS > 1u ? 1u : 2u)
#endif
FN f32 inverse_of(const f32 *squares, const struct stage *s) {
    f32 sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < ALL_WARPS; i++) sum += squares[i];
    return 1.0f / SQRT(sum / (f32)s->in + s->value);
}
/* Of a stage with a norm: what the norm makes, for whoever reads it later. */
FN void leave_normed(const f32 *squares, const struct stage *s) {
    members_meet();
    f32 inverse = inverse_of(squares, s);
    for (u32 first = 0; first < rounds_of(s); first += ROUNDS) {
        f32 v[ROUNDS][8], w[8];
        fetch(s, first, v);
#pragma unroll
        for (u32 i = 0; i < ROUNDS; i++) {
            u32 k = 8u * (MEMBERS * (first + i) + LOCAL_X);
            if (k >= s->in) continue;
            load8(s->norm + k, w);
#pragma unroll
            for (u32 e = 0; e < 8u; e++) v[i][e] = v[i][e] * inverse * (s->offset + w[e]);
            *(float4 *)(s->h + k) = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
            *(float4 *)(s->h + k + 4u) = make_float4(v[i][4], v[i][5], v[i][6], v[i][7]);
        }
    }
}
#ifdef WHEN_MET
/* This thread's 8 inputs of a chunk, as the products want them; early: what the norm weighs those of the first with. Their squares. */
FN f32 make_ready(u8 *to, u32 chunk, f32 *v, const f32 *early, const struct stage *s) {
    u32 k = 8u * (MEMBERS * chunk + LOCAL_X);
    f32 sum = 0.0f;
    if (s->norm != nullptr && k < s->in) {
        f32 w[8];
        if (early == nullptr) load8(s->norm + k, w);
#pragma unroll
        for (u32 e = 0; e < 8u; e++) {
            sum = FMA(v[e], v[e], sum);
            v[e] *= s->offset + (early == nullptr ? w[e] : early[e]);
        }
    }
    put(to, k, v);
    __syncwarp();
    return sum;
}
FN void fetch_chunk(const struct stage *s, u32 chunk, f32 *v) { fetch8(s->x, 8u * (MEMBERS * chunk + LOCAL_X), s->in, v); }
FN void leave_squares(f32 sum, f32 *squares, const struct stage *s) {
    if (s->norm == nullptr) return;
    for (u32 m = 16u; m > 0u; m >>= 1) sum += lane_xor(sum, m);
    if (LOCAL_X % 32u == 0u) squares[LOCAL_X / 32u] = sum;
}
#else
FN void inputs(u8 *to, f32 (*early)[8], f32 *squares, const struct stage *s) {
    bool normed = s->norm != nullptr;
    f32 sum = 0.0f;
    for (u32 first = 0; first < rounds_of(s); first += ROUNDS) {
        f32 v[ROUNDS][8];
        fetch(s, first, v);
#pragma unroll
        for (u32 i = 0; i < ROUNDS; i++) {
            u32 k = 8u * (MEMBERS * (first + i) + LOCAL_X);
            if (TEAMS * (first + i) + LOCAL_X / 256u >= s->chunks) continue; /* the same for all threads of a warp: shuffles inside */
            if (normed && k < s->in) {
                f32 w[8];
                if (first == 0u && i < EARLY) {
#pragma unroll
                    for (u32 e = 0; e < 8u; e++) w[e] = early[i % EARLY][e];
                } else {
                    load8(s->norm + k, w);
                }
#pragma unroll
                for (u32 e = 0; e < 8u; e++) {
                    sum = FMA(v[i][e], v[i][e], sum);
                    v[i][e] *= s->offset + w[e];
                }
            }
            put(to, k, v[i]);
        }
    }
    if (normed) {
        for (u32 m = 16u; m > 0u; m >>= 1) sum += lane_xor(sum, m);
        if (LOCAL_X % 32u == 0u) squares[LOCAL_X / 32u] = sum;
        if (s->first == 0u && s->h != nullptr) leave_normed(squares, s);
    }
    if (TEAMS > 1u) {
        members_meet();
    } else {
        __syncwarp();
    }
}
#endif

/* --- results --- */

FN f32 *output_of(u32 r, u32 i, const struct stage *s) {
    struct place p = place_of(r, s);
    f32 *y = p.which == 0u ? s->y[0] : p.which == 1u ? s->y[1] : s->y[2];
    return y + p.m * RG + i;
}
/* Groups of outputs [first, first + held). Outputs are multiples of RG. */
FN void finish(const f32 *sums, const f32 *squares, u32 first, u32 held, bool early, f32 old, const struct stage *s) {
    f32 by = s->norm != nullptr ? inverse_of(squares, s) : 1.0f;
    if (s->gated) {
        for (u32 i = LOCAL_X; i < held / 2u * RG; i += MEMBERS) {
            u32 slot = i / RG * 2u;
            s->y[0][(first + slot) / 2u * RG + i % RG] = activate(by * total(sums, slot, i % RG)) * (by * total(sums, slot + 1u, i % RG));
        }
        return;
    }
    for (u32 i = LOCAL_X; i < held * RG; i += MEMBERS) {
        struct place p = place_of(first + i / RG, s);
        const f32 *bias = p.which == 0u ? s->bias[0] : p.which == 1u ? s->bias[1] : s->bias[2];
        f32 *y = output_of(first + i / RG, i % RG, s), v = by * total(sums, i / RG, i % RG);
        if (bias != nullptr) v += bias[p.m * RG + i % RG];
        if (s->add) v += early ? old : __ldcg(y); /* at most MEMBERS outputs are held */
        *y = v;
    }
}

/* --- products --- */

struct ring {
    u64 *full, *freed;
    u32 depth, slot, phase;
};
#if TEAMS > 1
/* Of the n units of one chunk those of this team: unit team + TEAMS * j is the j-th; six: bit j is its type. */
FN void step(struct ring *q, const u8 *in, u32 chunk, u32 n, u32 six, u32 width, f32 (*acc)[ACC]) {
    u32 warp = LOCAL_X / 32u % WARPS, slot = q->slot + LOCAL_X / 256u, phase = q->phase, block = 8u * chunk + warp;
    struct inputs_of x = open_inputs(in + block * X_BLOCK);
#pragma unroll
    for (u32 j = 0; j < EACH; j++) {
        if (slot >= q->depth) slot -= q->depth, phase ^= 1u;
        if (LOCAL_X / 256u + TEAMS * j < n) {
            barrier_wait(q->full + slot, phase);
            const u8 *unit = shared + slot * UNIT_BYTES;
            if (256u * block >= width) {
            } else if (IS_SIX(six >> j & 1u)) {
                multiply_strip(true, unit + warp * strip_bytes(true), &x, acc[j]);
            } else {
                multiply_strip(false, unit + warp * strip_bytes(false), &x, acc[j]);
            }
            have_read(q->freed + slot);
        }
        slot += TEAMS;
    }
    q->slot += n;
    if (q->slot >= q->depth) q->slot -= q->depth, q->phase ^= 1u;
}
#else
/* The n units of one chunk. */
FN void step(struct ring *q, const u8 *in, u32 chunk, u32 n, u32 six, u32 width, f32 (*acc)[ACC]) {
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u;
    const u8 *unit[2];
    u64 *left[2];
#pragma unroll
    for (u32 j = 0; j < 2u; j++) {
        unit[j] = shared + q->slot * UNIT_BYTES;
        left[j] = q->freed + q->slot;
        if (j >= n) continue;
        barrier_wait(q->full + q->slot, q->phase);
        if (++q->slot == q->depth) q->slot = 0u, q->phase ^= 1u;
    }
    (void)six;
#if defined(WTYPE_BF16) || defined(WTYPE_F16)
    bool live = 2048u * chunk + 256u * warp + 8u * lane < width;
    const u8 *x = in + chunk * X_BYTES;
#else
    bool live = 64u * chunk + 8u * warp + lane % 8u < width / 32u;
    const u8 *x = in + (8u * chunk + warp) * X_BLOCK;
#endif
    if (live && n == 2u) {
        multiply(unit, 2u, x, acc);
    } else if (live) {
        multiply(unit, 1u, x, acc);
    }
    have_read(left[0]);
    if (n == 2u) have_read(left[1]);
}
#endif
#ifdef WHEN_MET
FN void products(struct ring *q, u8 *in, const f32 *early, f32 *sums, f32 *squares, f32 old, const struct stage *s) {
    f32 v[8], square;
    fetch_chunk(s, 0u, v);
    square = make_ready(in, 0u, v, early, s);
#else
FN void products(struct ring *q, const u8 *in, f32 *sums, const f32 *squares, f32 old, const struct stage *s) {
#endif
    u32 warp = LOCAL_X / 32u % WARPS, team = LOCAL_X / 256u, held = 0u, first = s->first, end = s->end, chunks = s->chunks, width = s->in;
    for (u32 r = first; r < end; r += AT_ONCE) {
        u32 n = PL_MIN(AT_ONCE, end - r), six = 0u;
        f32 acc[EACH][ACC];
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            if (is_six(place_of(r + team + TEAMS * j, s).which, s)) six |= 1u << j;
#pragma unroll
            for (u32 i = 0; i < ACC; i++) acc[j][i] = 0.0f;
        }
#ifdef WHEN_MET
        for (u32 chunk = 0; chunk < chunks; chunk++) {
            bool makes = r == first && chunk + 1u < chunks;
            f32 next[8] = {0.0f};
            if (makes) fetch_chunk(s, chunk + 1u, next);
            step(q, in, chunk, n, six, width, acc);
            if (makes) square += make_ready(in, chunk + 1u, next, nullptr, s);
        }
        if (r == first) leave_squares(square, squares, s);
#else
        for (u32 chunk = 0; chunk < chunks; chunk++) step(q, in, chunk, n, six, width, acc);
#endif
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            u32 u = team + TEAMS * j;
            if (u < n) leave(sums + ((held + u) * WARPS + warp) * RG, acc[j]);
        }
        held += n;
        if (held == HELD || r + n == end) {
            members_meet();
            finish(sums, squares, r + n - held, held, r + n - held == first, old, s);
            held = 0u;
            if (r + n < end) members_meet();
        }
    }
#ifdef WHEN_MET
    if (s->norm != nullptr && first == 0u && s->h != nullptr) leave_normed(squares, s);
#endif
}

/* --- the stages --- */

FN void share(struct stage *s, u32 groups, u32 grid) {
    u32 each = s->gated ? 2u : 1u;
    s->chunks = (s->in + 2047u) / 2048u;
    s->first = (u32)((u64)GROUP_X * groups / grid) * each;
    s->end = (u32)((GROUP_X + 1ull) * groups / grid) * each;
#ifdef ROW_OF
    s->row_bytes = ROW_OF(s->in);
#endif
}
#define NOTHING {nullptr, nullptr, nullptr}
/* grid: (groups of threads). meet: counters that were zero when they were made. */
KERNEL(chain)(const u8 *wo, const u8 *wg, const u8 *wu, const u8 *wd, const u8 *w0, const u8 *w1, const u8 *w2, const f32 *b0, const f32 *b1,
              const f32 *b2, const f32 *norm0, const f32 *norm1, const f32 *from, f32 *x, f32 *h, f32 *g, f32 *y0, f32 *y1, f32 *y2,
              u32 *meet, u32 *witness, const struct pl_args_chain a) {
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, most = (LARGER(LARGER(a.heads, a.in), a.mid) + 2047u) / 2048u;
    u8 *in = shared + a.depth * UNIT_BYTES, *sums = in + most * X_BYTES;
    struct stage *stages = (struct stage *)(sums + SUMS_BYTES);
    f32 *squares = (f32 *)((u8 *)stages + PL_CHAIN_STAGES * STAGE_ROOM);
    struct ring q = {(u64 *)(squares + ALL_WARPS), (u64 *)(squares + ALL_WARPS) + a.depth, a.depth, 0u, 0u};
    if (LOCAL_X == 0u) {
        struct stage s = {{wo}, NOTHING, {x}, from, nullptr, nullptr, 0, a.heads, 0, groups_of(a.in), 0, 0, 0, a.six, 0, 0, true, false};
        share(&s, groups_of(a.in), a.grid);
        stages[0] = s;
    } else if (LOCAL_X == 32u) {
        struct stage s = {{wg, wu}, NOTHING, {g}, x, norm0, a.stages > 3u ? nullptr : h, 0, a.in, 0, 0, 0, 0, 0, a.six >> 1, a.value0, a.offset0, false, true};
        share(&s, groups_of(a.mid), a.grid);
        stages[1] = s;
    } else if (LOCAL_X == 64u) {
        struct stage s = {{wd}, NOTHING, {x}, g, nullptr, nullptr, 0, a.mid, 0, groups_of(a.in), 0, 0, 0, a.six >> 3, 0, 0, true, false};
        share(&s, groups_of(a.in), a.grid);
        stages[2] = s;
    } else if (LOCAL_X == 96u) {
        struct stage s = {{w0, w1, w2}, {b0, b1, b2}, {y0, y1, y2}, x, norm1, h, 0, a.in, 0, groups_of(a.out0), groups_of(a.out1), 0, 0,
                          a.six >> 4, a.value1, a.offset1, false, false};
        share(&s, groups_of(a.out0) + groups_of(a.out1) + groups_of(a.out2), a.grid);
        stages[3] = s;
    } else if (LOCAL_X == MEMBERS) {
        for (u32 i = 0; i < a.depth; i++) barrier_init(q.full + i, 1u), barrier_init(q.freed + i, LEAVERS);
        barriers_ready();
    }
    BARRIER();
    if (warp >= ALL_WARPS) { /* weights depend on no launch before this one */
        if (lane == 0u) bring_all(stages, q.full, q.freed, &a);
        return;
    }
    count_launch(witness);
    u32 base = LOCAL_X == 0u ? __ldcg(meet + 32) : 0u;
    for (u32 p = 0; p < a.stages; p++) {
        const struct stage *s = stages + p;
#ifdef WHEN_MET
        f32 early[EARLY][8] = {{0.0f}}, old = 0.0f;
#else
        f32 early[EARLY][8], old = 0.0f;
#endif
        if (s->norm != nullptr) {
#pragma unroll
            for (u32 i = 0; i < EARLY; i++) {
                u32 k = 8u * (MEMBERS * i + LOCAL_X);
                if (k < s->in) load8(s->norm + k, early[i]);
            }
        }
        if (p > 0u) await(meet, base + p * a.grid);
        if (s->first == s->end) { /* nothing of it is this group's; it may not be ahead of the others all the same */
            if (p + 1u < a.stages) arrive(meet);
            continue;
        }
        if (s->add && LOCAL_X < PL_MIN(HELD, s->end - s->first) * RG) old = __ldcg(output_of(s->first + LOCAL_X / RG, LOCAL_X % RG, s));
#ifdef WHEN_MET
        products(&q, in, early[0], (f32 *)sums, squares, old, s);
#else
        inputs(in, early, squares, s);
        products(&q, in, (f32 *)sums, squares, old, s);
#endif
        if (p + 1u < a.stages) arrive(meet);
    }
    if (GROUP_X + 1u == a.grid && LOCAL_X == 0u) meet[32] = base + (a.stages - 1u) * a.grid;
}
