#include "ops/choose.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"

const char *pl_impl_name(enum pl_impl i) {
    static const char *const names[] = {
#define IMPL_TEXT(id, text) text,
        PL_IMPL_LIST(IMPL_TEXT)};
    if (i < PL_IMPL_ISA) return names[i];
    return i < PL_IMPL_COUNT ? pl_isa_name((enum pl_isa)(i - PL_IMPL_ISA)) : "";
}

enum pl_op pl_op_leader(enum pl_op op) {
    switch (op) {
    case PL_OP_linear_add:
    case PL_OP_ternary: return PL_OP_linear; /* on the CPU the same packed kernels; devices have one of its own */
    case PL_OP_add_norm:
    case PL_OP_layer_norm: return PL_OP_norm;
    case PL_OP_scale:
    case PL_OP_gate_rows: return PL_OP_embed; /* which scales its rows */
    case PL_OP_causal_conv:
    case PL_OP_delta:
    case PL_OP_gated_norm: return PL_OP_ssm_update; /* one layer's parts; the scan has forms of its own */
    case PL_OP_argmax:
    case PL_OP_draw: return PL_OP_gather; /* the rows of logits */
    default: return op;
    }
}

/* --- the table --- */

static size_t cpu_ranked(enum pl_op op, enum pl_impl out[PL_IMPL_COUNT]) {
    size_t n = 0;
    if (op == PL_OP_gather) {
        out[n++] = PL_IMPL_COPY;
        return n;
    }
    if (op == PL_OP_moe) { /* its products run as linear's do */
        out[n++] = PL_IMPL_BY_EXPERT;
        return n;
    }
    if (op == PL_OP_heads_linear || op == PL_OP_latent_append) { /* likewise; plain C */
        out[n++] = PL_IMPL_PORTABLE;
        return n;
    }
    if (op == PL_OP_attention) out[n++] = PL_IMPL_EXPANDED; /* of latents; a choice of its own, among these it never is */
    for (int isa = PL_ISA_COUNT - 1; isa >= 0; isa--) out[n++] = (enum pl_impl)(PL_IMPL_ISA + isa);
    if (op == PL_OP_linear) out[n++] = PL_IMPL_WIDENED; /* types without a packed form; never asked for by name */
    return n;
}
static const enum pl_impl attn_forms[] = {PL_IMPL_CASCADE, PL_IMPL_V2, PL_IMPL_V1, PL_IMPL_GATHER};
static size_t add_planned_forms(enum pl_impl out[PL_IMPL_COUNT], size_t n) {
    for (size_t i = 0; i < PL_COUNT_OF(attn_forms); i++) out[n++] = attn_forms[i];
    return n;
}
static size_t add_moe_forms(enum pl_impl out[PL_IMPL_COUNT], size_t n) {
    out[n++] = PL_IMPL_BY_SLOT;
    out[n++] = PL_IMPL_BY_EXPERT;
    return n;
}
static size_t cuda_ranked(enum pl_op op, enum pl_impl out[PL_IMPL_COUNT]) {
    size_t n = 0;
    if (op == PL_OP_moe) {
        out[n++] = PL_IMPL_DENSE;
        out[n++] = PL_IMPL_MMA;
        return add_moe_forms(out, n);
    }
    if (op == PL_OP_linear) {
        out[n++] = PL_IMPL_CUBLASLT;
        out[n++] = PL_IMPL_CHAIN;
        out[n++] = PL_IMPL_STREAM;
        out[n++] = PL_IMPL_MMA;
        out[n++] = PL_IMPL_FMA;
        out[n++] = PL_IMPL_GEMV;
    }
    if (op == PL_OP_attention) {
        out[n++] = PL_IMPL_TILES;
        out[n++] = PL_IMPL_SPLIT;
        n = add_planned_forms(out, n);
        out[n++] = PL_IMPL_EXPANDED; /* as on the CPU */
    }
    if (op == PL_OP_ssm_scan) out[n++] = PL_IMPL_CHUNKS;
    if (op == PL_OP_ssm_update) out[n++] = PL_IMPL_LAYERS;
    if (op == PL_OP_ssm_update) out[n++] = PL_IMPL_STEP;
    out[n++] = PL_IMPL_PORTABLE;
    return n;
}
/* Attention by plan, one token a sequence; the portable kernel takes whatever rows there are. */
static size_t portable_ranked(enum pl_op op, enum pl_impl out[PL_IMPL_COUNT]) {
    if (op == PL_OP_moe) return add_moe_forms(out, 0);
    size_t n = op == PL_OP_attention ? add_planned_forms(out, 0) : 0;
    if (op == PL_OP_attention) out[n++] = PL_IMPL_EXPANDED; /* as on the CPU */
    if (op == PL_OP_ssm_scan) out[n++] = PL_IMPL_CHUNKS;
    out[n++] = PL_IMPL_PORTABLE;
    return n;
}

size_t pl_impl_ranked(enum pl_backend b, enum pl_op op, enum pl_impl out[PL_IMPL_COUNT]) {
    op = pl_op_leader(op);
    switch (b) {
    case PL_BACKEND_CPU: return cpu_ranked(op, out);
    case PL_BACKEND_CUDA: return cuda_ranked(op, out);
    case PL_BACKEND_ROCM:
    case PL_BACKEND_OPENCL: return portable_ranked(op, out);
    case PL_BACKEND_METAL:
    case PL_BACKEND_COUNT: break;
    }
    return 0;
}

/* --- what the user said --- */

static void list_ops(struct pl_buf *b) {
    for (int op = 0; op < PL_OP_COUNT; op++) {
        if (pl_op_leader((enum pl_op)op) != (enum pl_op)op) continue;
        pl_buf_printf(b, "%s%s", op == 0 ? "" : ", ", pl_op_name((enum pl_op)op));
    }
}

static enum pl_status find_op(const char *option, struct pl_str name, enum pl_op *out, struct pl_err *err) {
    for (int op = 0; op < PL_OP_COUNT; op++) {
        if (!pl_str_eq(name, pl_str_from(pl_op_name((enum pl_op)op)))) continue;
        *out = (enum pl_op)op;
        enum pl_op leader = pl_op_leader(*out);
        if (leader == *out) return PL_OK;
        PL_FAIL(err, PL_USAGE, "%s: %s takes the implementation of %s: name that one", option, pl_op_name(*out),
                pl_op_name(leader));
    }
    struct pl_buf known = {0};
    list_ops(&known);
    pl_err_set(err, __FILE__, __LINE__, PL_USAGE, "%s: there is no operation '%.*s'; known: %s", option,
               (int)PL_MIN(name.len, (size_t)40), name.data, pl_buf_cstr(&known));
    pl_buf_deinit(&known);
    return PL_USAGE;
}

static enum pl_status find_impl(const char *option, enum pl_backend b, enum pl_op op, struct pl_str name, enum pl_impl *out,
                                struct pl_err *err) {
    enum pl_impl list[PL_IMPL_COUNT];
    size_t n = pl_impl_ranked(b, op, list);
    struct pl_buf known = {0};
    for (size_t i = 0; i < n; i++) {
        if (list[i] == PL_IMPL_WIDENED) continue;
        if (pl_str_eq(name, pl_str_from(pl_impl_name(list[i])))) {
            *out = list[i];
            pl_buf_deinit(&known);
            return PL_OK;
        }
        pl_buf_printf(&known, "%s%s", known.len > 0 ? ", " : "", pl_impl_name(list[i]));
    }
    pl_err_set(err, __FILE__, __LINE__, PL_USAGE, "%s: %s has no implementation '%.*s' on %s; known: %s", option,
               pl_op_name(op), (int)PL_MIN(name.len, (size_t)40), name.data, pl_backend_name(b),
               known.len > 0 ? pl_buf_cstr(&known) : "none");
    pl_buf_deinit(&known);
    return PL_USAGE;
}

static enum pl_status add_item(const char *option, enum pl_backend b, struct pl_str item, bool force, struct pl_choice *c,
                               struct pl_err *err) {
    const char *eq = memchr(item.data, '=', item.len);
    if (eq == NULL || eq == item.data || eq == item.data + item.len - 1) {
        PL_FAIL(err, PL_USAGE, "%s: '%.*s' is not OPERATION=IMPLEMENTATION", option, (int)PL_MIN(item.len, (size_t)40),
                item.data);
    }
    struct pl_str name = {item.data, (size_t)(eq - item.data)}, impl_name = {eq + 1, item.len - name.len - 1};
    enum pl_op op = PL_OP_COUNT;
    enum pl_impl impl = PL_IMPL_NONE;
    PL_TRY(find_op(option, name, &op, err));
    PL_TRY(find_impl(option, b, op, impl_name, &impl, err));
    if (force && (impl == PL_IMPL_CHAIN || impl == PL_IMPL_EXPANDED || impl == PL_IMPL_LAYERS)) {
        /* a wish: not every product is in a chain */
        *(impl == PL_IMPL_CHAIN ? &c->chain : impl == PL_IMPL_LAYERS ? &c->layers : &c->expanded) = true;
        return PL_OK;
    }
    if (force && c->forced[op] != PL_IMPL_NONE && c->forced[op] != impl) {
        PL_FAIL(err, PL_USAGE, "%s: %s is forced twice, to %s and to %s", option, pl_op_name(op),
                pl_impl_name(c->forced[op]), pl_impl_name(impl));
    }
    if (force) {
        c->forced[op] = impl;
    } else {
        c->disabled[op] |= 1u << impl;
    }
    return PL_OK;
}

static enum pl_status add_list(const char *option, enum pl_backend b, const char *text, bool force, struct pl_choice *c,
                               struct pl_err *err) {
    while (text != NULL && *text != 0) {
        size_t len = strcspn(text, ",");
        PL_TRY(add_item(option, b, (struct pl_str){text, len}, force, c, err));
        text += len + (text[len] == ',');
    }
    return PL_OK;
}

/* Not for every case: others must be left. */
static bool is_extra(enum pl_impl i) {
    return i == PL_IMPL_WIDENED || i == PL_IMPL_CHAIN || i == PL_IMPL_EXPANDED || i == PL_IMPL_LAYERS;
}

enum pl_status pl_choice_parse(enum pl_backend b, const char *force, const char *disable, bool strict, struct pl_choice *out,
                               struct pl_err *err) {
    struct pl_choice c = {.strict = strict, .attn = PL_IMPL_NONE};
    for (int op = 0; op < PL_OP_COUNT; op++) c.forced[op] = PL_IMPL_NONE;
    PL_TRY(add_list("--force-kernel (or PLUMB_KERNEL)", b, force, true, &c, err));
    PL_TRY(add_list("--disable-kernel", b, disable, false, &c, err));
    for (int i = 0; i < PL_OP_COUNT; i++) {
        enum pl_op op = (enum pl_op)i, leader = pl_op_leader(op);
        enum pl_impl list[PL_IMPL_COUNT];
        size_t left = 0, n = pl_impl_ranked(b, leader, list);
        for (size_t k = 0; k < n; k++) left += !is_extra(list[k]) && (c.disabled[leader] >> list[k] & 1u) == 0;
        if (n > 0 && left == 0) {
            PL_FAIL(err, PL_USAGE, "--disable-kernel: %s on %s has no other implementation than the disabled",
                    pl_op_name(leader), pl_backend_name(b));
        }
        if (c.forced[leader] != PL_IMPL_NONE && (c.disabled[leader] >> c.forced[leader] & 1u) != 0) {
            PL_FAIL(err, PL_USAGE, "%s=%s is forced and disabled", pl_op_name(leader), pl_impl_name(c.forced[leader]));
        }
        c.forced[op] = c.forced[leader];
        c.disabled[op] = c.disabled[leader];
    }
    *out = c;
    return PL_OK;
}

static enum pl_status find_form(const char *option, struct pl_str name, enum pl_impl *out, struct pl_err *err) {
    for (size_t i = 0; i < PL_COUNT_OF(attn_forms); i++) {
        if (!pl_str_eq(name, pl_str_from(pl_impl_name(attn_forms[i])))) continue;
        *out = attn_forms[i];
        return PL_OK;
    }
    PL_FAIL(err, PL_USAGE, "%s: there is no form of attention '%.*s'; known: v1, v2, cascade, gather", option,
            (int)PL_MIN(name.len, (size_t)40), name.data);
}

enum pl_status pl_choice_attention(const char *attn, const char *off, struct pl_choice *c, struct pl_err *err) {
    if (attn != NULL && strcmp(attn, "auto") != 0) PL_TRY(find_form("--attn", pl_str_from(attn), &c->attn, err));
    while (off != NULL && *off != 0) {
        enum pl_impl form = PL_IMPL_NONE;
        size_t len = strcspn(off, ",");
        PL_TRY(find_form("PLUMB_ATTN_OFF", (struct pl_str){off, len}, &form, err));
        c->attn_off |= 1u << form;
        off += len + (off[len] == ',');
    }
    if (c->attn != PL_IMPL_NONE && (c->attn_off >> c->attn & 1u) != 0)
        PL_FAIL(err, PL_USAGE, "--attn asks for %s, which PLUMB_ATTN_OFF switches off", pl_impl_name(c->attn));
    return PL_OK;
}

static void describe_attention(const struct pl_choice *c, struct pl_buf *b) {
    if (c->attn != PL_IMPL_NONE) pl_buf_printf(b, "%sdecode attention %s", b->len > 0 ? "; " : "", pl_impl_name(c->attn));
    for (size_t i = 0, n = 0; i < PL_COUNT_OF(attn_forms); i++) {
        if ((c->attn_off >> attn_forms[i] & 1u) == 0) continue;
        if (n++ == 0) pl_buf_printf(b, "%sattention off ", b->len > 0 ? "; " : "");
        pl_buf_printf(b, "%s%s", n > 1 ? ", " : "", pl_impl_name(attn_forms[i]));
    }
}

void pl_choice_describe(const struct pl_choice *c, char *out, size_t size) {
    struct pl_buf b = {0};
    for (int pass = 0; pass < 2; pass++) {
        bool first = true;
        for (int op = 0; op < PL_OP_COUNT; op++) {
            if (pl_op_leader((enum pl_op)op) != (enum pl_op)op) continue;
            for (int i = 0; i < PL_IMPL_COUNT; i++) {
                bool here = pass == 0 ? c->forced[op] == (enum pl_impl)i : (c->disabled[op] >> i & 1u) != 0;
                if (!here) continue;
                if (first) pl_buf_printf(&b, "%s%s ", b.len > 0 ? "; " : "", pass == 0 ? "forced" : "disabled");
                pl_buf_printf(&b, "%s%s=%s", first ? "" : ", ", pl_op_name((enum pl_op)op), pl_impl_name((enum pl_impl)i));
                first = false;
            }
        }
    }
    if (c->chain) pl_buf_printf(&b, "%sforced linear=chain", b.len > 0 ? "; " : "");
    if (c->layers) pl_buf_printf(&b, "%sforced ssm_update=layers", b.len > 0 ? "; " : "");
    if (c->expanded) pl_buf_printf(&b, "%sforced attention=expanded", b.len > 0 ? "; " : "");
    describe_attention(c, &b);
    snprintf(out, size, "%s", b.len > 0 ? pl_buf_cstr(&b) : "");
    pl_buf_deinit(&b);
}

/* --- one choice --- */

static const char *why_not(const struct pl_choice *c, enum pl_op op, const struct pl_candidate *k) {
    if ((c->disabled[op] >> k->impl & 1u) != 0) return "disabled by request";
    if (op == PL_OP_attention && (c->attn_off >> k->impl & 1u) != 0) return "kill switch";
    return k->why_not;
}

/* Only this one, or nothing. */
static void choose_forced(const struct pl_choice *c, enum pl_op op, const struct pl_candidate *list, size_t count,
                          struct pl_pick *p) {
    p->planned = c->forced[op];
    p->reason = "the forced implementation is not among those for this case";
    for (size_t i = 0; i < count; i++) {
        if (list[i].impl != p->planned) continue;
        if (list[i].why_not == NULL) p->taken = p->planned;
        p->reason = list[i].why_not != NULL ? list[i].why_not : "";
    }
}

/* What --attn asks for becomes the plan where it is a candidate; when it cannot serve, the reason says why. */
static void prefer(const struct pl_choice *c, const struct pl_candidate *list, size_t count, struct pl_pick *p) {
    for (size_t i = 0; i < count; i++) {
        if (list[i].impl != c->attn) continue;
        const char *why = why_not(c, PL_OP_attention, &list[i]);
        p->planned = c->attn;
        if (why == NULL) p->taken = c->attn;
        p->reason = why != NULL ? why : "";
    }
}

struct pl_pick pl_choose(const struct pl_choice *c, enum pl_op op, const struct pl_candidate *list, size_t count) {
    struct pl_pick p = {PL_IMPL_NONE, PL_IMPL_NONE, ""};
    if (c->forced[op] != PL_IMPL_NONE) {
        choose_forced(c, op, list, count, &p);
        return p;
    }
    if (op == PL_OP_attention && c->attn != PL_IMPL_NONE) prefer(c, list, count, &p);
    for (size_t i = 0; i < count && p.taken == PL_IMPL_NONE; i++) {
        if (!list[i].planned) continue;
        const char *why = why_not(c, op, &list[i]);
        if (pl_fault("predicate") && op == PL_OP_linear && p.planned == PL_IMPL_NONE) why = "no such shape";
        if (p.planned == PL_IMPL_NONE) {
            p.planned = list[i].impl;
            if (why != NULL) p.reason = why;
        }
        if (why == NULL) p.taken = list[i].impl;
    }
    PL_ASSERT(p.planned != PL_IMPL_NONE);
    if (c->strict && p.taken != p.planned) p.taken = PL_IMPL_NONE;
    return p;
}
