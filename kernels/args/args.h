/* args - structs passed by value from host to kernels. Sizes and offsets are asserted wherever this is compiled. */
#ifndef PL_KERNELS_ARGS_H
#define PL_KERNELS_ARGS_H

#ifndef PL_DIALECT_H /* the host; kernels get these from the dialect */
#include <stdint.h>
typedef uint32_t u32;
typedef uint64_t u64;
typedef float f32;
#endif

#ifdef PL_NO_OFFSETOF
#define PL_ARGS_CHECK(type, field, place) typedef char pl_check_##type##_##field[1]
#else
#define PL_ARGS_CHECK(type, field, place) \
    typedef char pl_check_##type##_##field[__builtin_offsetof(struct type, field) == (place) ? 1 : -1]
#endif
#define PL_ARGS_SIZE(type, size) typedef char pl_check_##type##_size[sizeof(struct type) == (size) ? 1 : -1]

/* Rows of one width. */
struct pl_args_rows {
    u32 rows, cols;
    f32 value;  /* scale, cap or epsilon */
    f32 offset; /* of norm weights */
};
PL_ARGS_CHECK(pl_args_rows, offset, 12);
PL_ARGS_SIZE(pl_args_rows, 16);

/* What pick says instead of an index. */
#define PL_PICK_NONE   0xFFFFFFFEu /* all are -inf */
#define PL_PICK_BROKEN 0xFFFFFFFFu /* NaN or +inf among them */

/* How a token is drawn from a row. */
struct pl_args_draw {
    u32 seed_low, seed_high, position_low, position_high;
    u32 top_k, top_p; /* 0: off; top_p as a fraction of 2^32 */
    f32 inverse_t;    /* 1 / temperature; 0: the largest */
    f32 min_floor;    /* log(min_p); -inf: off */
    f32 mass_floor;   /* what lies further below the largest is not in top_p's mass whatever the row is */
    u32 pad[3];
};
PL_ARGS_CHECK(pl_args_draw, mass_floor, 32);
PL_ARGS_SIZE(pl_args_draw, 48);

/* What one part of a row holds: the best of what is kept for sure, of what is listed, and the largest of that. */
struct pl_draw_part {
    u64 mass; /* 2^-34 of the largest's; of what is sure, or, where nothing was weighed before, of all */
    f32 score, logit;
    u32 id, listed;
    f32 open_score, open_logit;
    u32 open_id;
    f32 highest;
};
PL_ARGS_CHECK(pl_draw_part, highest, 36);
PL_ARGS_SIZE(pl_draw_part, 40);

/* A token that no other of its part beats, and the noise of its score; what is known of a part besides. */
#define PL_DRAW_STAIRS    8u /* of a part, of a row: more are not kept */
#define PL_DRAW_PARTS_MAX 32u
#define PL_DRAW_UNKNOWN   0xFFFFFFFDu
struct pl_draw_stair {
    f32 logit, noise;
    u32 id;
};
PL_ARGS_SIZE(pl_draw_stair, 12);
struct pl_draw_rise {
    f32 max, from, sum; /* sum of masses: of a logit like `from` it is 1 */
    u32 count, lost, broken; /* stairs, also those without a place; whether some are not known at all; NaN or +inf */
};
PL_ARGS_CHECK(pl_draw_rise, broken, 20);
PL_ARGS_SIZE(pl_draw_rise, 24);

/* parts of a row; maxima kept of each part, entries of its list; whether draw_weigh ran. */
struct pl_args_draws {
    u32 rows, cols, parts, maxima, list, climbs;
};
PL_ARGS_CHECK(pl_args_draws, climbs, 20);
PL_ARGS_SIZE(pl_args_draws, 24);

/* A product with a weight matrix [out, in]. */
struct pl_args_linear {
    u32 rows, in, out, flags;
    u64 row_bytes; /* of the packed weights */
};
#define PL_LINEAR_BIAS 1u
#define PL_LINEAR_ADD  2u
PL_ARGS_CHECK(pl_args_linear, row_bytes, 16);
PL_ARGS_SIZE(pl_args_linear, 24);

/* BitNet's product, and how its inputs are made 8-bit. */
struct pl_args_ternary {
    u32 rows, in, out;
    f32 scale; /* of the matrix */
};
PL_ARGS_CHECK(pl_args_ternary, scale, 12);
PL_ARGS_SIZE(pl_args_ternary, 16);

/* The same with up to three matrices of one input, in tiles of 16 outputs; a norm's epsilon and offset. */
struct pl_args_ternaries {
    u32 rows, out0, out1, out2, tiles;
    f32 scale0, scale1, scale2, value, offset;
};
PL_ARGS_CHECK(pl_args_ternaries, offset, 36);
PL_ARGS_SIZE(pl_args_ternaries, 40);

/* Products of few rows with up to three matrices of one format and one input. */
struct pl_args_gemv {
    u32 in, flags, out0, out1, out2, pad;
    u64 row_bytes;
};
PL_ARGS_CHECK(pl_args_gemv, row_bytes, 24);
PL_ARGS_SIZE(pl_args_gemv, 32);

/* The same on tensor cores: rows [row0, row0 + rows) of y, pieces piece0 and up of `pieces` in the input, units a group. */
struct pl_args_mma {
    u32 in, flags, out0, out1, out2, rows, row0, pieces, piece0, span;
};
PL_ARGS_CHECK(pl_args_mma, span, 36);
PL_ARGS_SIZE(pl_args_mma, 40);

/* The same for one row, its weights through a ring of `depth` units; a norm's epsilon and offset. */
struct pl_args_stream {
    u32 in, flags, out0, out1, out2, depth, grid;
    f32 value, offset;
    u32 pad;
    u64 row_bytes;
};
PL_ARGS_CHECK(pl_args_stream, row_bytes, 40);
PL_ARGS_SIZE(pl_args_stream, 48);

/* What one row meets between two attentions, in one launch: heads * D -> in (added) -> 2 x mid (gated) -> in (added), then, with
 * four stages, up to three matrices more. A ring of `depth` units. */
struct pl_args_chain {
    u32 heads, in, mid, out0, out1, out2, stages, depth, grid;
    f32 value0, offset0, value1, offset1; /* of the two norms */
    u32 six; /* where weights are strips of several types: bit i, matrix i is Q6_K */
    u32 pad[2];
};
#define PL_CHAIN_STAGES 4u
PL_ARGS_CHECK(pl_args_chain, offset1, 48);
PL_ARGS_SIZE(pl_args_chain, 64);

/* Inputs made ready for it: rows of one width, in `pieces` pieces of eight rows. */
struct pl_args_prepare {
    u32 rows, cols, pieces;
    u32 splits, head_dim; /* of attention */
    f32 value, offset;    /* of a norm */
    u32 pad;
};
PL_ARGS_CHECK(pl_args_prepare, offset, 24);
PL_ARGS_SIZE(pl_args_prepare, 32);

/* The step record: u32 arrays of `stride` entries each, one after the other: token, position and first page of each row,
 * then the logit rows, then the block tables. */
#define PL_STEP_TOKEN(stride)      (0u)
#define PL_STEP_POSITION(stride)   (stride)
#define PL_STEP_PAGE_FIRST(stride) (2u * (stride))
#define PL_STEP_LOGIT(stride)      (3u * (stride))
#define PL_STEP_PAGES(stride)      (4u * (stride))
#define PL_STEP_CHOSEN             0x80000000u /* in a token: index of the last choice, not a token */

/* The plan record (src/plan): u32 words. A header of places, then the lists it points at. */
enum {
    PL_PLAN_CHUNKS,       /* chunk_count x PL_PLAN_CHUNK_WORDS */
    PL_PLAN_MEMBERS,      /* rows that read a chunk */
    PL_PLAN_MERGE_ROW,    /* [merge_count] */
    PL_PLAN_MERGE_START,  /* [merge_count + 1] */
    PL_PLAN_STATES,       /* x PL_PLAN_STATE_WORDS */
    PL_PLAN_PAGE_START,   /* [rows + 1] */
    PL_PLAN_FIRST_OFFSET, /* [rows] */
    PL_PLAN_VISIBLE,      /* [rows] */
    PL_PLAN_DENSE_START,  /* [rows + 1] tokens before each row when all visible ones lie one after the other */
    PL_PLAN_PAGE_INDEX,   /* physical pages */
    PL_PLAN_ROW_MERGE,    /* [rows] which entry of the merge list is the row's; PL_PLAN_DIRECT: none */
    PL_PLAN_CHUNK_COUNT,
    PL_PLAN_MERGE_COUNT,
    PL_PLAN_ROW_COUNT,
    PL_PLAN_SHARED_COUNT, /* chunks of several members' groups: they come first */
    PL_PLAN_HEADER_WORDS = 16
};
/* A chunk: page_first (in the page list), page_count, skip, tokens, member_first, members, part_first; then what its group
 * would have to look up: chunks follow the header, the first page is one load away. Behind the last chunk stand
 * PL_PLAN_CHUNKS_SPARE of zeros, for grids larger than the plan. */
enum {
    PL_CHUNK_PAGES_AT = 7, /* place in the record */
    PL_CHUNK_MEMBERS_AT,   /* likewise */
    PL_CHUNK_ROW,          /* its first member */
    PL_CHUNK_LAST,         /* 1: the last token of the row is in it */
    PL_CHUNK_ENTRY,        /* of the merge list, of its first member */
    PL_CHUNK_STATES_AT,    /* place of that entry's states */
    PL_CHUNK_STATE_COUNT,
    PL_PLAN_CHUNK_WORDS = 16,
    PL_PLAN_STATE_WORDS = 4,
    PL_PLAN_CHUNKS_SPARE = 16
};
#define PL_PLAN_DIRECT 0xFFFFFFFFu /* as part_first: the row itself is written */

/* Decode attention by plan. q and out [rows, H, D] f32; parts [part, H, D] and their lse_log2 [part, H] f32. Rows of a
 * shared chunk stand KV-head-major: head row j of KV head g is member j / R, query head g * R + j % R. */
struct pl_args_paged {
    u32 heads, kv_heads;
    f32 scale, softcap;
    u32 chunks, merges, rows; /* of this launch */
    u32 fresh;                /* so many tokens at each row's end were written by launches of this step */
    f32 least;                /* SPARSE_V: weights below it are passed over */
    u32 pad;
};
#define PL_PAGED_ALL_FRESH 0xFFFFFFFFu
PL_ARGS_CHECK(pl_args_paged, least, 32);
PL_ARGS_SIZE(pl_args_paged, 40);

/* A kernel's counter: launches, then of SPARSE_V rows of values and those not read, in 64 bits, low half first. */
enum { PL_COUNT_LAUNCHES, PL_COUNT_VALUES = 2, PL_COUNT_SKIPPED = 4, PL_COUNT_WORDS = 6 };

/* Which experts a row takes. */
struct pl_args_route {
    u32 rows, flags, groups, groups_used, group_top;
    f32 scale;
};
#define PL_ROUTE_RENORMALISE 1u
#define PL_ROUTE_SIGMOID     2u
#define PL_ROUTE_BIAS        4u
PL_ARGS_CHECK(pl_args_route, scale, 20);
PL_ARGS_SIZE(pl_args_route, 24);

/* Slots are the (row, k) pairs: k-th expert of a row, slot row * used + k. The order record: u32 words, a header, then by
 * `stride` slots each: the slot at every place, the place of every slot, then the tiles: runs of places of one expert;
 * last the number of places of every expert. */
enum { PL_ORDER_TILES, PL_ORDER_HEADER_WORDS = 4, PL_TILE_WORDS = 4 };
#define PL_ORDER_SLOT(stride)  ((u64)PL_ORDER_HEADER_WORDS)
#define PL_ORDER_PLACE(stride) ((u64)PL_ORDER_HEADER_WORDS + (stride))
#define PL_ORDER_TILE(stride) \
    ((u64)PL_ORDER_HEADER_WORDS + (2u * (u64)(stride) + 3u) / 4u * 4u) /* read 16 bytes at a time */
#define PL_ORDER_COUNT(stride) (PL_ORDER_TILE(stride) + (u64)PL_TILE_WORDS * (stride))
/* A product with the matrices [out, in] of the chosen experts, which stand one after the other. */
struct pl_args_moe {
    u32 rows, used, in, out, stride, flags; /* PL_LINEAR_BIAS: one of each expert */
    u64 row_bytes;
    u32 pieces, grid; /* of inputs made ready; groups of threads that take their work in turn */
};
#define PL_MOE_BY_PLACE 4u
#define PL_MOE_GATED    8u
#define PL_MOE_ALONE    16u
PL_ARGS_CHECK(pl_args_moe, row_bytes, 24);
PL_ARGS_SIZE(pl_args_moe, 40);

struct pl_args_rope {
    u32 heads, kv_heads, rope_dim, stride;
    f32 norm_eps, norm_offset;
};
PL_ARGS_CHECK(pl_args_rope, norm_offset, 20);
PL_ARGS_SIZE(pl_args_rope, 24);

/* A product of each head: heads of x x_head numbers apart, of y y_head. */
struct pl_args_heads {
    u32 rows, heads, in, out, x_head, y_head;
    u64 row_bytes; /* of the packed weights */
};
PL_ARGS_CHECK(pl_args_heads, row_bytes, 24);
PL_ARGS_SIZE(pl_args_heads, 32);

struct pl_args_latent {
    u32 heads, q_head, stride;
    f32 norm_eps;
};
PL_ARGS_CHECK(pl_args_latent, norm_eps, 12);
PL_ARGS_SIZE(pl_args_latent, 16);

/* to[head * head_stride + first + row * row_stride + col * col_stride], of rows [each] of a head; strides in f32. */
struct pl_args_turn {
    u32 rows, cols, each, row_stride, col_stride, first;
    u64 head_stride, row_bytes;
};
PL_ARGS_CHECK(pl_args_turn, head_stride, 24);
PL_ARGS_SIZE(pl_args_turn, 40);

/* Rows [row0, row0 + rows) of the step, one sequence with `past` tokens before them; tokens [first, first + tokens) of it,
 * padded to a multiple of 16. */
struct pl_args_expand {
    u32 heads, stride, row0, rows, past, first, tokens, padded;
    f32 scale;
    u32 pad;
};
PL_ARGS_CHECK(pl_args_expand, scale, 32);
PL_ARGS_SIZE(pl_args_expand, 40);

struct pl_args_attention {
    u32 heads, kv_heads, window, stride;
    f32 scale, softcap;
    u32 splits;
    f32 least; /* as in pl_args_paged */
};
PL_ARGS_CHECK(pl_args_attention, softcap, 20);
PL_ARGS_SIZE(pl_args_attention, 32);

/* The same with the rotation and the append before it. */
struct pl_args_whole {
    struct pl_args_attention a;
    f32 norm_eps, norm_offset;
};
PL_ARGS_CHECK(pl_args_whole, norm_eps, 32);
PL_ARGS_SIZE(pl_args_whole, 40);

/* Tokens [first, end) of the sequence whose first row in the step is row0. */
struct pl_args_widen {
    u32 heads, kv_heads, stride, row0, first, end;
};
PL_ARGS_CHECK(pl_args_widen, end, 20);
PL_ARGS_SIZE(pl_args_widen, 24);

/* Rows [row0, row0 + rows) of the step: consecutive positions of one sequence. */
struct pl_args_tiles {
    u32 heads, kv_heads, window, stride;
    f32 scale, softcap;
    u32 row0, rows;
};
PL_ARGS_CHECK(pl_args_tiles, rows, 28);
PL_ARGS_SIZE(pl_args_tiles, 32);

/* State-space layers. The sequences of a step: PL_SEQ_WORDS u32 of each: first row, rows, tokens before them (0: the state
 * counts as zeros), slot of the state. A slot is slot_stride f32. */
enum { PL_SEQ_FIRST, PL_SEQ_ROWS, PL_SEQ_PAST, PL_SEQ_SLOT, PL_SEQ_WORDS };
enum { PL_CONV_CHUNK = 32 }; /* rows of one thread */
struct pl_args_conv {
    u32 channels, chunks; /* of the longest sequence */
    u64 slot_stride;
};
PL_ARGS_CHECK(pl_args_conv, slot_stride, 8);
PL_ARGS_SIZE(pl_args_conv, 16);

struct pl_args_ssm {
    u32 heads, head_dim, groups;
    u32 x_stride, b_stride, c_stride; /* of rows; they begin at columns */
    u32 x_first, b_first, c_first;
    f32 dt_min, dt_max;
    u32 split; /* sequences of so many rows and more go by chunks; 0: none */
    u64 slot_stride, state_first;
};
PL_ARGS_CHECK(pl_args_ssm, dt_max, 40);
PL_ARGS_CHECK(pl_args_ssm, slot_stride, 48);
PL_ARGS_SIZE(pl_args_ssm, 64);

/* One row a sequence, convolution and recurrence (kernels/cuda/ssm_step.k.c); *_first: channels of the convolution. */
struct pl_args_step {
    u32 heads, head_dim, groups, channels, x_first, b_first, c_first;
    f32 dt_min, dt_max;
    u32 pad;
    u64 slot_stride, state_first;
};
PL_ARGS_CHECK(pl_args_step, slot_stride, 40);
PL_ARGS_SIZE(pl_args_step, 56);

/* One token through layers (kernels/cuda/ssm_layers.k.c): value, offset of the norm before a layer, inner_* of the one before its output
 * product; a ring of `depth` units. Addresses of what belongs to a layer: products of z, x (then B and C) and dt, the output product. */
struct pl_args_ssm_layers {
    u32 layers, heads, head_dim, channels, depth, grid;
    f32 value, offset, inner_value, inner_offset, dt_min, dt_max;
    u64 slot_stride, state_first;
};
PL_ARGS_CHECK(pl_args_ssm_layers, slot_stride, 48);
PL_ARGS_SIZE(pl_args_ssm_layers, 64);
struct pl_args_ssm_layer {
    u64 z, x, dt, out, norm, inner_norm, taps, taps_bias, decay, dt_bias, skip, state;
};
PL_ARGS_CHECK(pl_args_ssm_layer, state, 88);
PL_ARGS_SIZE(pl_args_ssm_layer, 96);

struct pl_args_delta {
    u32 heads, head_dim, groups, x_stride;
    u32 q_first, k_first, v_first, pad;
    u64 slot_stride, state_first;
};
PL_ARGS_CHECK(pl_args_delta, slot_stride, 32);
PL_ARGS_SIZE(pl_args_delta, 48);

struct pl_args_gated {
    u32 cols, groups, norm_first;
    f32 eps;
};
PL_ARGS_CHECK(pl_args_gated, eps, 12);
PL_ARGS_SIZE(pl_args_gated, 16);

#endif
