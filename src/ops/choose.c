#include "ops/choose.h"

#include <stdio.h>
#include <string.h>

const char *pl_impl_name(enum pl_impl i) {
    static const char *const names[] = {
#define IMPL_TEXT(id, text) text,
        PL_IMPL_LIST(IMPL_TEXT)};
    if (i < PL_IMPL_ISA) return names[i];
    return i < PL_IMPL_COUNT ? pl_isa_name((enum pl_isa)(i - PL_IMPL_ISA)) : "";
}

enum pl_op pl_op_leader(enum pl_op op) {
    switch (op) {
    case PL_OP_linear_add: return PL_OP_linear;
    case PL_OP_add_norm:
    case PL_OP_layer_norm: return PL_OP_norm;
    case PL_OP_scale: return PL_OP_embed; /* which scales its rows */
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
    for (int isa = PL_ISA_COUNT - 1; isa >= 0; isa--) out[n++] = (enum pl_impl)(PL_IMPL_ISA + isa);
    if (op == PL_OP_linear) out[n++] = PL_IMPL_WIDENED; /* types without a packed form; never asked for by name */
    return n;
}
static size_t cuda_ranked(enum pl_op op, enum pl_impl out[PL_IMPL_COUNT]) {
    size_t n = 0;
    if (op == PL_OP_linear) {
        out[n++] = PL_IMPL_CUBLASLT;
        out[n++] = PL_IMPL_GEMV;
    }
    if (op == PL_OP_attention) {
        out[n++] = PL_IMPL_TILES;
        out[n++] = PL_IMPL_SPLIT;
    }
    out[n++] = PL_IMPL_PORTABLE;
    return n;
}

size_t pl_impl_ranked(enum pl_backend b, enum pl_op op, enum pl_impl out[PL_IMPL_COUNT]) {
    op = pl_op_leader(op);
    switch (b) {
    case PL_BACKEND_CPU: return cpu_ranked(op, out);
    case PL_BACKEND_CUDA: return cuda_ranked(op, out);
    case PL_BACKEND_ROCM:
    case PL_BACKEND_OPENCL: out[0] = PL_IMPL_PORTABLE; return 1;
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

enum pl_status pl_choice_parse(enum pl_backend b, const char *force, const char *disable, bool strict, struct pl_choice *out,
                               struct pl_err *err) {
    struct pl_choice c = {.strict = strict};
    for (int op = 0; op < PL_OP_COUNT; op++) c.forced[op] = PL_IMPL_NONE;
    PL_TRY(add_list("--force-kernel", b, force, true, &c, err));
    PL_TRY(add_list("--disable-kernel", b, disable, false, &c, err));
    for (int i = 0; i < PL_OP_COUNT; i++) {
        enum pl_op op = (enum pl_op)i, leader = pl_op_leader(op);
        enum pl_impl list[PL_IMPL_COUNT];
        size_t left = 0, n = pl_impl_ranked(b, leader, list);
        for (size_t k = 0; k < n; k++) left += list[k] != PL_IMPL_WIDENED && (c.disabled[leader] >> list[k] & 1u) == 0;
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
    snprintf(out, size, "%s", b.len > 0 ? pl_buf_cstr(&b) : "");
    pl_buf_deinit(&b);
}

/* --- one choice --- */

struct pl_pick pl_choose(const struct pl_choice *c, enum pl_op op, const struct pl_candidate *list, size_t count) {
    struct pl_pick p = {PL_IMPL_NONE, PL_IMPL_NONE, ""};
    if (c->forced[op] != PL_IMPL_NONE) {
        p.planned = c->forced[op];
        p.reason = "the forced implementation is not among those for this case";
        for (size_t i = 0; i < count; i++) {
            if (list[i].impl != p.planned) continue;
            if (list[i].why_not == NULL) p.taken = p.planned;
            p.reason = list[i].why_not != NULL ? list[i].why_not : "";
        }
        return p;
    }
    for (size_t i = 0; i < count && p.taken == PL_IMPL_NONE; i++) {
        if (!list[i].planned) continue;
        const char *why = (c->disabled[op] >> list[i].impl & 1u) != 0 ? "disabled by request" : list[i].why_not;
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
