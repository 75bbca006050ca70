#include "cpu/cpu.h"

#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "cpu/amx.h"
#include "cpu/wide.h"
#include "cpu/tile.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t xgetbv0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Tests are built once more with the further tables made of AVX2 (tests/cpu/emulated/): a CPU with AVX2 then has them. */
#if defined(PL_AVX512_EMULATED)
enum { FROM_AVX2 = 1 };
#else
enum { FROM_AVX2 = 0 };
#endif

static bool has_avx_vnni(void) {
    uint32_t a, b, c, d;
    return FROM_AVX2 || (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4) != 0);
}

/* The CPU has the instructions and the system saves their registers: both are asked, neither is assumed. */
static enum pl_isa probe(void) {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return PL_ISA_SCALAR;
    const uint32_t osxsave = 1u << 27, fma = 1u << 12, f16c = 1u << 29;
    if ((c & osxsave) == 0 || (c & fma) == 0 || (c & f16c) == 0) return PL_ISA_SCALAR;
    uint64_t saved = xgetbv0();
    if ((saved & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return PL_ISA_SCALAR;
    const uint32_t avx2 = 1u << 5, bmi2 = 1u << 8;
    if ((b & avx2) == 0 || (b & bmi2) == 0) return PL_ISA_SCALAR;
    const uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
    bool avx512 = (b & f) != 0 && (b & dq) != 0 && (b & bw) != 0 && (b & vl) != 0 && (c & vnni) != 0;
    if (FROM_AVX2 || (avx512 && (saved & 0xE6) == 0xE6)) return PL_ISA_AVX512;
    return has_avx_vnni() ? PL_ISA_AVX_VNNI : PL_ISA_AVX2;
}
#elif defined(__aarch64__)
static enum pl_isa probe(void) {
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return PL_ISA_SCALAR;
    return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0 ? PL_ISA_I8MM : PL_ISA_NEON;
}
#else
static enum pl_isa probe(void) { return PL_ISA_SCALAR; }
#endif

enum pl_isa pl_cpu_best_isa(void) {
    enum pl_isa best = probe();
    return best == PL_ISA_AVX512 && cpu_amx_available() ? PL_ISA_AMX : best;
}
bool pl_cpu_isa_available(enum pl_isa isa) {
    enum pl_isa best = pl_cpu_best_isa();
    if (best >= PL_ISA_NEON) return isa == PL_ISA_SCALAR || (isa >= PL_ISA_NEON && isa <= best);
#if defined(__x86_64__)
    if (isa == PL_ISA_AVX_VNNI && best > isa) return has_avx_vnni();
#endif
    return isa <= best;
}
const char *pl_cpu_isa_declined(enum pl_isa isa) {
    return isa == PL_ISA_AMX && probe() == PL_ISA_AVX512 ? cpu_amx_declined() : NULL;
}
void pl_cpu_emulate_amx(bool on) { cpu_amx_emulate(on); }

static const char *const isa_names[] = {
#define ISA_TEXT(name, text) text,
    PL_ISA_LIST(ISA_TEXT)
#undef ISA_TEXT
};
const char *pl_isa_name(enum pl_isa isa) { return isa < PL_ISA_COUNT ? isa_names[isa] : "?"; }

bool pl_isa_from_name(const char *name, enum pl_isa *out) {
    for (size_t i = 0; i < PL_ISA_COUNT; i++) {
        if (strcmp(name, isa_names[i]) != 0) continue;
        *out = (enum pl_isa)i;
        return true;
    }
    return false;
}

static const struct cpu_table *table_of(enum pl_isa isa) {
#if defined(__x86_64__)
    if (isa == PL_ISA_AVX2) return &cpu_table_avx2;
    if (isa == PL_ISA_AVX_VNNI) return &cpu_table_avx_vnni;
    if (isa == PL_ISA_AVX512) return &cpu_table_avx512;
    if (isa == PL_ISA_AMX) return cpu_amx_table();
#elif defined(__aarch64__)
    if (isa == PL_ISA_NEON) return &cpu_table_neon;
    if (isa == PL_ISA_I8MM) return &cpu_table_i8mm;
#endif
    return isa == PL_ISA_SCALAR ? &cpu_table_scalar : NULL;
}

enum pl_status pl_cpu_create_with(enum pl_isa isa, const struct pl_pool_options *pool, struct pl_cpu **out,
                                  struct pl_err *err) {
    if (isa >= PL_ISA_COUNT || !pl_cpu_isa_available(isa))
        PL_FAIL(err, PL_UNSUPPORTED,
                "this CPU offers instruction sets up to %s, not %s: choose one of those or leave it to be chosen",
                pl_isa_name(pl_cpu_best_isa()), pl_isa_name(isa));
    struct pl_cpu *c = pl_alloc_aligned(sizeof *c, 64);
    if (c == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the CPU kernels' context");
    memset(c, 0, sizeof *c);
    c->isa = isa;
    c->table = table_of(isa);
    c->packing.patience_ns = 1000000000;
    enum pl_status s = pl_pool_create_with(pool, &c->pool, err);
    if (s == PL_OK) s = pl_cpu_reserve(c, 1, 1024, ATTN_CHUNK, err);
    if (s != PL_OK) {
        pl_cpu_destroy(c);
        return s;
    }
    *out = c;
    return PL_OK;
}

enum pl_status pl_cpu_create(enum pl_isa isa, int threads, struct pl_cpu **out, struct pl_err *err) {
    const struct pl_pool_options pool = {.threads = threads};
    return pl_cpu_create_with(isa, &pool, out, err);
}

static void take_products(struct cpu_table *to, const struct cpu_table *from) {
    to->isa = from->isa;
    to->group_max = from->group_max;
    to->dot = from->dot;
    to->float_tile = from->float_tile;
    to->quantize = from->quantize;
    to->q8_tile = from->q8_tile;
    to->q8_groups = from->q8_groups;
    to->fine_inputs = from->fine_inputs;
    to->fine_tile = from->fine_tile;
    to->float_terms = from->float_terms;
    to->float_groups = from->float_groups;
    to->wide_group = from->wide_group;
    to->wide_tiles = from->wide_tiles;
}

enum pl_status pl_cpu_override(struct pl_cpu *c, enum pl_cpu_part part, enum pl_isa isa, struct pl_err *err) {
    if (isa >= PL_ISA_COUNT || !pl_cpu_isa_available(isa))
        PL_FAIL(err, PL_UNSUPPORTED, "this CPU offers instruction sets up to %s, not %s", pl_isa_name(pl_cpu_best_isa()),
                pl_isa_name(isa));
    const struct cpu_table *from = table_of(isa);
    struct cpu_table m = *c->table;
    switch (part) {
    case PL_CPU_EMBED: m.scale = from->scale; break;
    case PL_CPU_NORM: m.norm = from->norm; break;
    case PL_CPU_ADD: m.add = from->add; break;
    case PL_CPU_LINEAR: take_products(&m, from); break;
    case PL_CPU_ROPE: m.rope_append = from->rope_append; break;
    case PL_CPU_ATTENTION:
        m.attn_chunk = from->attn_chunk;
        m.attn_merge = from->attn_merge;
        m.attn_finish = from->attn_finish;
        break;
    case PL_CPU_GLU: m.glu = from->glu; break;
    case PL_CPU_SOFTCAP: m.softcap = from->softcap; break;
    case PL_CPU_SSM:
        m.conv = from->conv;
        m.ssm = from->ssm;
        m.delta = from->delta;
        m.gated_norm = from->gated_norm;
        break;
    case PL_CPU_PARTS: break;
    }
    c->mixed = m;
    c->table = &c->mixed;
    return pl_cpu_reserve(c, 1, 1024, ATTN_CHUNK, err); /* groups of another size */
}

static void space_free(struct cpu_space *s) {
    pl_free(s->acts);
    pl_free(s->groups);
    pl_free(s->terms);
    pl_free(s->term_groups);
    pl_free(s->wide);
    pl_free(s->scratch);
    pl_free(s->partial);
    pl_free(s->factors);
}

void pl_cpu_destroy(struct pl_cpu *c) {
    if (c == NULL) return;
    cpu_packing_end(c);
    pl_pool_destroy(c->pool);
    space_free(&c->space);
    cpu_moe_free(c->moe);
    cpu_heads_free(c->heads);
    cpu_expand_free(c->expand);
    pl_free(c);
}

void pl_cpu_allow_wide(struct pl_cpu *c, bool allow) { c->wide = allow; }

struct pl_pool *pl_cpu_pool(struct pl_cpu *c) {
    return c->pool;
}
enum pl_isa pl_cpu_isa(const struct pl_cpu *c) { return c->isa; }

/* Floats of one thread's attention scratch: see attn_split, then a state and an output for a tile, twice. */
static size_t attn_scratch_floats(void) {
    return 2 * (size_t)ATTN_GROUP * ATTN_HEAD_MAX + (size_t)ATTN_QUERIES * (ATTN_CHUNK + 3 * (size_t)ATTN_HEAD_MAX + 4);
}

struct sizes {
    size_t acts, groups, terms, wide, scratch_each, partial_floats;
};

static bool sizes_of(size_t rows, size_t in, size_t tokens, struct sizes *s) {
    size_t blocks, padded, chunks = tokens / ATTN_CHUNK + 2, plain;
    if (!pl_align_up(in, ACT_BLOCK, &padded) || !pl_mul_size(padded / ACT_BLOCK, ACT_ROW_BYTES, &blocks)) return false;
    if (!pl_mul_size(rows, padded * 6, &s->terms)) return false;
    s->wide = (PL_MIN(rows, (size_t)WIDE_ROWS) + 15) / 16 * (padded / ACT_BLOCK) * 2 * WIDE_BLOCK;
    rows *= 2;             /* two terms of each, or 16 bits, when a product is fine */
    s->groups = rows + 16; /* grouped products may have groups of one row */
    if (!pl_mul_size(rows, blocks + 64, &s->acts) || !pl_add_size(s->acts, 64 * s->groups, &s->acts)) return false;
    if (!pl_mul_size(padded + 256, GROUP_MAX * sizeof(float), &plain)) return false; /* a tile in chunks of 256 */
    s->scratch_each = PL_MAX(PL_MAX(attn_scratch_floats() * sizeof(float), plain), sizeof(struct wide_scratch));
    if (!pl_align_up(s->scratch_each + 64, 4096, &s->scratch_each)) return false;
    const size_t cap = (size_t)16 << 20; /* floats: a longer context than this holds is walked by fewer threads */
    s->partial_floats = chunks > cap / (64 * 1024) ? cap : chunks * 64 * 1024;
    return true;
}

enum pl_status pl_cpu_reserve(struct pl_cpu *c, size_t max_rows, size_t max_in, size_t max_tokens, struct pl_err *err) {
    size_t rows = PL_MAX(c->max_rows, max_rows), in = PL_MAX(c->max_in, max_in), tokens = PL_MAX(c->max_tokens, max_tokens);
    struct sizes s;
    size_t scratch;
    if (!sizes_of(rows, in, tokens, &s) || !pl_mul_size(s.scratch_each, (size_t)pl_pool_threads(c->pool), &scratch))
        PL_FAIL(err, PL_LIMIT, "scratch for %zu rows of %zu inputs does not fit the address space", rows, in);
    struct cpu_space n = {.acts = pl_alloc_aligned(s.acts, 64),
                          .scratch = pl_alloc_aligned(scratch, 64),
                          .groups = pl_calloc(s.groups, sizeof *n.groups),
                          .factors = pl_alloc_aligned(rows * sizeof *n.factors, 64),
                          .partial = pl_alloc_aligned(s.partial_floats * sizeof *n.partial, 64)};
    bool got = n.acts != NULL && n.scratch != NULL && n.groups != NULL && n.partial != NULL && n.factors != NULL;
    if (got && c->table->float_terms != NULL) {
        n.terms = pl_alloc_aligned(s.terms, 64);
        n.term_groups = pl_calloc(s.groups, sizeof *n.term_groups);
        got = n.terms != NULL && n.term_groups != NULL;
    }
    if (got && c->wide && c->table->wide_tiles != NULL) {
        n.wide = pl_alloc_aligned(s.wide, 64);
        got = n.wide != NULL;
    }
    if (!got) {
        space_free(&n);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for CPU scratch of %zu rows, %zu inputs, %zu tokens (%zu bytes)", rows, in,
                tokens, s.acts + s.terms + scratch + s.partial_floats * sizeof *n.partial);
    }
    space_free(&c->space);
    c->space = n;
    c->scratch_each = s.scratch_each;
    c->group_cap = s.groups;
    c->partial_floats = s.partial_floats;
    c->max_rows = rows;
    c->max_in = in;
    c->max_tokens = tokens;
    return PL_OK;
}
