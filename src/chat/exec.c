/* exec - statements, macros, loops, blocks, and the variables a template starts with. */
#include <string.h>

#include "chat/ast.h"
#include "chat/rt.h"

enum flow { NEXT, BREAK, CONTINUE };

static enum flow exec(struct tj_rt *R, const struct tj_node *n);

static enum flow exec_all(struct tj_rt *R, struct tj_node *const *v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        enum flow f = exec(R, v[i]);
        if (f != NEXT) return f;
    }
    return NEXT;
}

/* --- scopes --- */

struct tj_env *tj_env_new(struct tj_rt *R, struct tj_env *up, size_t nslots) {
    struct tj_env *e = tj_alloc(R, 1, sizeof *e + nslots * sizeof e->slot[0]); /* zero is TJ_MISSING */
    e->up = up;
    return e;
}

static struct tj_val resolve(struct tj_rt *R, const struct tj_str *name) {
    struct tj_val key = tj_strv((struct tj_str *)(uintptr_t)name), *v = tj_dict_get(R, R->exported, key);
    if (v == NULL) v = tj_dict_get(R, R->vars, key);
    if (v != NULL) return *v;
    int f = tj_func_find(name);
    return f < 0 ? tj_missing() : (struct tj_val){.type = TJ_FUNC, .func = f};
}

static void enter_scope(struct tj_rt *R, const struct tj_scope *s) {
    for (size_t i = 0; i < s->nloads; i++) {
        const struct tj_load *l = &s->loads[i];
        struct tj_val v = l->kind == TJ_LOAD_ALIAS     ? *tj_slot_at(R, l->from)
                          : l->kind == TJ_LOAD_RESOLVE ? resolve(R, l->name)
                                                       : tj_missing();
        *tj_slot_at(R, l->to) = v;
    }
}

/* --- assignment --- */

static void check_namespaces(struct tj_rt *R, const struct tj_node *target) {
    for (size_t i = 0; target->kind == TJ_N_TUPLE && i < target->nkids; i++) check_namespaces(R, target->kids[i]);
    if (target->kind == TJ_N_NSREF && tj_slot_at(R, target->slot)->type != TJ_NS)
        tj_raise(R, PL_INVALID, "cannot assign attribute on non-namespace object");
}

static void check_attr_name(struct tj_rt *R, const struct tj_str *name) {
    if (name->len == 0 || name->data[0] != '_') return;
    struct tj_str *r = tj_to_repr(R, tj_strv((struct tj_str *)(uintptr_t)name));
    tj_raise(R, PL_INVALID,
             "Chat templates cannot store underscore-prefixed attributes on a namespace, but got %.*s. Please rename the "
             "attribute.",
             (int)PL_MIN(r->len, 500), r->data);
}

static void assign(struct tj_rt *R, const struct tj_node *target, struct tj_val v);

static void unpack(struct tj_rt *R, const struct tj_node *target, struct tj_val v) {
    if (!tj_iterable(v)) tj_raise(R, PL_INVALID, "cannot unpack non-iterable %s object", tj_type_name(v));
    struct tj_iter *it = tj_iter(R, v);
    struct tj_val item;
    struct tj_list *items = tj_list_new(R, target->nkids);
    for (size_t i = 0; i < target->nkids; i++) {
        if (!tj_next(R, it, &item))
            tj_raise(R, PL_INVALID, "not enough values to unpack (expected %zu, got %zu)", target->nkids, i);
        tj_list_add(R, items, item);
    }
    if (tj_next(R, it, &item)) tj_raise(R, PL_INVALID, "too many values to unpack (expected %zu)", target->nkids);
    for (size_t i = 0; i < target->nkids; i++) assign(R, target->kids[i], items->v[i]);
}

static void assign(struct tj_rt *R, const struct tj_node *target, struct tj_val v) {
    if (target->kind == TJ_N_TUPLE) {
        unpack(R, target, v);
        return;
    }
    struct tj_val *slot = tj_slot_at(R, target->slot);
    if (target->kind == TJ_N_NSREF) {
        check_attr_name(R, target->val.s);
        tj_dict_set(R, slot->d, target->val, v);
        return;
    }
    *slot = v;
    if (target->toplevel && R->t->nblocks > 0) tj_dict_set(R, R->exported, tj_strv(target->name), v);
}

/* --- output --- */

static struct tj_str *capture(struct tj_rt *R, struct tj_node *const *v, size_t n, enum flow *flow) {
    struct tj_sb b, *outer = R->sb;
    tj_sb_init(R, &b);
    R->sb = &b;
    *flow = exec_all(R, v, n);
    R->sb = outer;
    return tj_sb_done(&b);
}

static void exec_output(struct tj_rt *R, const struct tj_node *n) {
    for (size_t i = 0; i < n->nkids; i++) {
        const struct tj_node *k = n->kids[i];
        R->line = k->line;
        if (k->kind == TJ_N_DATA)
            tj_sb_str(R->sb, k->val.s);
        else
            tj_emit_str(R->sb, tj_eval(R, k));
    }
    if (R->sb == R->root && R->sb->len > R->output_max)
        tj_raise(R, PL_LIMIT, "the rendered prompt is longer than %zu bytes", R->output_max);
}

/* --- loops --- */

int64_t tj_loop_length(struct tj_rt *R, struct tj_loop *l) {
    if (l->length >= 0) return l->length;
    if (tj_has_len(l->iterable)) return l->length = tj_len(R, l->iterable);
    struct tj_list *rest = tj_list_new(R, 0);
    struct tj_val v;
    while (tj_next(R, l->it, &v)) tj_list_add(R, rest, v);
    l->it = tj_iter(R, tj_listv(rest));
    return l->length = (int64_t)rest->n + l->index0 + 1 + (l->after.type != TJ_MISSING);
}

static struct tj_val peek_next(struct tj_rt *R, struct tj_loop *l) {
    if (l->after.type == TJ_MISSING) {
        struct tj_val v;
        l->after = tj_next(R, l->it, &v) ? v : tj_missing();
    }
    return l->after;
}

bool tj_loop_next(struct tj_rt *R, struct tj_loop *l, struct tj_val *out) {
    struct tj_val v;
    if (l->after.type != TJ_MISSING) {
        v = l->after;
        l->after = tj_missing();
    } else if (!tj_next(R, l->it, &v)) {
        return false;
    }
    l->index0++;
    l->before = l->current;
    l->current = v;
    *out = v;
    return true;
}

bool tj_loop_attr(struct tj_rt *R, struct tj_loop *l, const struct tj_str *name, struct tj_val *out) {
    bool first = l->index0 == 0;
    if (tj_str_is(name, "index0"))
        *out = tj_int(l->index0);
    else if (tj_str_is(name, "index"))
        *out = tj_int(l->index0 + 1);
    else if (tj_str_is(name, "first"))
        *out = tj_bool(first);
    else if (tj_str_is(name, "last"))
        *out = tj_bool(peek_next(R, l).type == TJ_MISSING);
    else if (tj_str_is(name, "length"))
        *out = tj_int(tj_loop_length(R, l));
    else if (tj_str_is(name, "revindex"))
        *out = tj_int(tj_loop_length(R, l) - l->index0);
    else if (tj_str_is(name, "revindex0"))
        *out = tj_int(tj_loop_length(R, l) - l->index0 - 1);
    else if (tj_str_is(name, "depth"))
        *out = tj_int(l->depth0 + 1);
    else if (tj_str_is(name, "depth0"))
        *out = tj_int(l->depth0);
    else if (tj_str_is(name, "previtem"))
        *out = first ? tj_undef_hint(R, "there is no previous item") : l->before;
    else if (tj_str_is(name, "nextitem"))
        *out = peek_next(R, l).type == TJ_MISSING ? tj_undef_hint(R, "there is no next item") : l->after;
    else
        return false;
    return true;
}

bool tj_loop_test(struct tj_rt *R, struct tj_iter *it, struct tj_val item) {
    struct tj_env *saved = R->env;
    if (!it->started) {
        it->started = true;
        it->env = tj_env_new(R, it->env, it->node->scope3->nslots);
        R->env = it->env;
        enter_scope(R, it->node->scope3);
    }
    R->env = it->env;
    assign(R, it->node->d, item);
    bool yes = tj_truth(R, tj_eval(R, it->node->c));
    R->env = saved;
    return yes;
}

/* The iterations; R->env is the function that holds the loop's variables, closure the one it was defined in. */
static enum flow run_loop(struct tj_rt *R, const struct tj_node *n, struct tj_val iterable, struct tj_env *closure,
                          int64_t depth) {
    struct tj_iter *it;
    if (n->c != NULL) {
        it = tj_iter_new(R, TJ_IT_LOOPTEST, tj_none(), "generator");
        it->inner = tj_iter(R, iterable);
        it->node = n;
        it->env = closure;
        iterable = (struct tj_val){.type = TJ_ITER, .it = it};
    } else {
        it = tj_iter(R, iterable);
    }
    struct tj_loop *l = NULL;
    if (n->extended) {
        l = tj_alloc(R, 1, sizeof *l);
        *l = (struct tj_loop){.it = it,
                              .iterable = iterable,
                              .index0 = -1,
                              .length = -1,
                              .depth0 = depth,
                              .node = n->recursive ? n : NULL,
                              .env = closure};
    }
    bool any = false;
    struct tj_val v;
    while (l != NULL ? tj_loop_next(R, l, &v) : tj_next(R, it, &v)) {
        tj_charge(R, 1);
        assign(R, n->a, v);
        if (l != NULL) *tj_slot_at(R, n->slot) = (struct tj_val){.type = TJ_LOOP, .loop = l};
        enter_scope(R, n->scope);
        enum flow f = exec_all(R, n->kids, n->nkids);
        any = any || f == NEXT; /* as in jinja2: only an iteration that reaches its end keeps `else` from running */
        if (f == BREAK) break;
    }
    if (any || n->nkids2 == 0) return NEXT;
    enter_scope(R, n->scope2);
    return exec_all(R, n->kids2, n->nkids2);
}

static struct tj_str *recursive_loop(struct tj_rt *R, const struct tj_node *n, struct tj_val iterable,
                                     struct tj_env *closure, int64_t depth) {
    struct tj_sb b, *outer = R->sb;
    struct tj_env *saved = R->env;
    tj_sb_init(R, &b);
    R->sb = &b;
    R->env = tj_env_new(R, closure, n->scope->nslots);
    run_loop(R, n, iterable, closure, depth);
    R->env = saved;
    R->sb = outer;
    return tj_sb_done(&b);
}

struct tj_val tj_loop_call(struct tj_rt *R, struct tj_loop *l, struct tj_val iterable) {
    if (l->node == NULL) tj_raise(R, PL_INVALID, "The loop must have the 'recursive' marker to be called recursively.");
    return tj_strv(recursive_loop(R, l->node, iterable, l->env, l->depth0 + 1));
}

static enum flow exec_for(struct tj_rt *R, const struct tj_node *n) {
    struct tj_val iterable = tj_eval(R, n->b);
    if (!n->recursive) return run_loop(R, n, iterable, R->env, 0);
    tj_sb_str(R->sb, recursive_loop(R, n, iterable, R->env, 0));
    return NEXT;
}

/* --- macros --- */

static struct tj_str *run_macro(struct tj_rt *R, struct tj_macro *m, const struct tj_list *args, struct tj_val caller,
                                struct tj_val kwargs, struct tj_val varargs) {
    const struct tj_node *n = m->node;
    struct tj_env *saved = R->env;
    uint32_t line = R->line;
    R->env = tj_env_new(R, m->env, n->scope->nslots);
    for (size_t i = 0; i < args->n; i++) *tj_slot_at(R, n->kids[i]->slot) = args->v[i];
    if (caller.type != TJ_MISSING) *tj_slot_at(R, n->slot2) = caller;
    if (n->wants_kwargs) *tj_slot_at(R, n->slot3) = kwargs;
    if (n->wants_varargs) *tj_slot_at(R, n->slot4) = varargs;
    enter_scope(R, n->scope);
    for (size_t i = 0; i < n->nkids; i++) {
        struct tj_val *slot = tj_slot_at(R, n->kids[i]->slot);
        if (slot->type != TJ_MISSING) continue;
        if (i + n->nkids2 >= n->nkids) {
            struct tj_val v = tj_eval(R, n->kids2[i + n->nkids2 - n->nkids]);
            *slot = v;
        } else {
            struct tj_str *name = n->kids[i]->name;
            struct tj_val u = tj_undef_hint(R, "");
            u.u->hint =
                tj_str_printf(R, false, "parameter '%.*s' was not provided", (int)PL_MIN(name->len, 500), name->data);
            *slot = u;
        }
    }
    enum flow flow;
    struct tj_str *s = capture(R, n->kids3, n->nkids3, &flow);
    R->env = saved;
    R->line = line;
    return s;
}

static bool pop_kw(struct tj_args *a, const char *name, const struct tj_str *as_str, struct tj_val *out) {
    for (size_t i = 0; i < a->nkw; i++) {
        if (as_str != NULL ? !tj_str_eq(a->kwname[i], as_str) : !tj_str_is(a->kwname[i], name)) continue;
        *out = a->kw[i];
        memmove(a->kw + i, a->kw + i + 1, (a->nkw - i - 1) * sizeof *a->kw);
        memmove(a->kwname + i, a->kwname + i + 1, (a->nkw - i - 1) * sizeof(struct tj_str *));
        a->nkw--;
        return true;
    }
    return false;
}

static struct tj_args copy_args(struct tj_rt *R, const struct tj_args *a) {
    struct tj_args r = *a;
    r.kw = tj_alloc(R, a->nkw, sizeof *r.kw);
    r.kwname = tj_alloc(R, a->nkw, sizeof(struct tj_str *));
    if (a->nkw > 0) {
        memcpy(r.kw, a->kw, a->nkw * sizeof *r.kw);
        memcpy(r.kwname, a->kwname, a->nkw * sizeof(struct tj_str *));
    }
    return r;
}

struct tj_val tj_macro_call(struct tj_rt *R, struct tj_macro *m, const struct tj_args *given) {
    const struct tj_node *n = m->node;
    struct tj_args a = copy_args(R, given);
    struct tj_list *args = tj_list_new(R, n->nkids);
    struct tj_val caller = tj_missing(), kwargs = tj_none(), varargs = tj_none(), v;
    bool found_caller = false, explicit_caller = false;
    for (size_t i = 0; i < n->nkids; i++) explicit_caller = explicit_caller || tj_str_is(n->kids[i]->name, "caller");
    for (size_t i = 0; i < a.npos && i < n->nkids; i++) tj_list_add(R, args, a.pos[i]);
    if (args->n == n->nkids) {
        found_caller = explicit_caller;
    } else {
        for (size_t i = args->n; i < n->nkids; i++) {
            struct tj_val arg = pop_kw(&a, NULL, n->kids[i]->name, &v) ? v : tj_missing();
            found_caller = found_caller || tj_str_is(n->kids[i]->name, "caller");
            tj_list_add(R, args, arg);
        }
    }
    if (n->wants_caller && !found_caller) {
        caller = tj_undef_hint(R, "No caller defined");
        if (pop_kw(&a, "caller", NULL, &v) && v.type != TJ_NONE) caller = v;
    }
    struct tj_str *name = n->name != NULL ? tj_to_repr(R, tj_strv(n->name)) : tj_str_borrow(R, "None", 4, false);
    int len = (int)PL_MIN(name->len, 200);
    if (n->wants_kwargs) {
        kwargs = tj_dictv(tj_dict_new(R));
        for (size_t i = 0; i < a.nkw; i++) tj_dict_set(R, kwargs.d, tj_strv(a.kwname[i]), a.kw[i]);
    } else if (a.nkw > 0) {
        if (pop_kw(&a, "caller", NULL, &v))
            tj_raise(R, PL_INVALID,
                     "macro %.*s was invoked with two values for the special caller argument. This is most likely a bug.",
                     len, name->data);
        struct tj_str *kw = tj_to_repr(R, tj_strv(a.kwname[0]));
        tj_raise(R, PL_INVALID, "macro %.*s takes no keyword argument %.*s", len, name->data, (int)PL_MIN(kw->len, 200),
                 kw->data);
    }
    if (n->wants_varargs) {
        struct tj_list *rest = tj_list_new(R, 0);
        for (size_t i = n->nkids; i < a.npos; i++) tj_list_add(R, rest, a.pos[i]);
        varargs = tj_tuplev(rest);
    } else if (a.npos > n->nkids) {
        tj_raise(R, PL_INVALID, "macro %.*s takes not more than %zu argument(s)", len, name->data, n->nkids);
    }
    return tj_strv(run_macro(R, m, args, caller, kwargs, varargs));
}

static struct tj_macro *macro_here(struct tj_rt *R, const struct tj_node *n) {
    struct tj_macro *m = tj_alloc(R, 1, sizeof *m);
    *m = (struct tj_macro){n, R->env};
    return m;
}

static void exec_callblock(struct tj_rt *R, const struct tj_node *n) {
    struct tj_args given, args;
    struct tj_val caller = {.type = TJ_MACRO, .m = macro_here(R, n)}, callee = tj_eval(R, n->a->a);
    tj_eval_args(R, n->a, &given);
    args = given;
    args.kw = tj_alloc(R, given.nkw + 1, sizeof *args.kw);
    args.kwname = tj_alloc(R, given.nkw + 1, sizeof(struct tj_str *));
    if (given.nkw > 0) {
        memcpy(args.kw, given.kw, given.nkw * sizeof *args.kw);
        memcpy(args.kwname, given.kwname, given.nkw * sizeof(struct tj_str *));
    }
    args.kwname[given.nkw] = tj_str_borrow(R, "caller", 6, false);
    args.kw[args.nkw++] = caller;
    tj_emit_str(R->sb, tj_call(R, callee, &args));
}

static void exec_generation(struct tj_rt *R, const struct tj_node *n) {
    struct tj_args none = {0};
    struct tj_macro *m = macro_here(R, n);
    tj_sb_str(R->sb, tj_macro_call(R, m, &none).s);
}

/* --- the rest --- */

struct tj_val tj_block_call(struct tj_rt *R, const struct tj_node *n) {
    struct tj_env *saved = R->env;
    enum flow flow;
    R->env = tj_env_new(R, NULL, n->scope->nslots);
    if (n->wants_kwargs) *tj_slot_at(R, n->slot2) = (struct tj_val){.type = TJ_SELF};
    if (n->wants_varargs) {
        struct tj_val u = tj_undef_hint(R, "");
        u.u->hint = tj_str_printf(R, false, "there is no parent block called '%.*s'.", (int)PL_MIN(n->name->len, 200),
                                  n->name->data);
        *tj_slot_at(R, n->slot3) = u;
    }
    enter_scope(R, n->scope);
    struct tj_str *s = capture(R, n->kids, n->nkids, &flow);
    R->env = saved;
    return tj_strv(s);
}

static enum flow exec_if(struct tj_rt *R, const struct tj_node *n) {
    if (tj_truth(R, tj_eval(R, n->a))) return exec_all(R, n->kids, n->nkids);
    for (size_t i = 0; i < n->nkids2; i++) {
        const struct tj_node *e = n->kids2[i];
        R->line = e->line;
        if (tj_truth(R, tj_eval(R, e->a))) return exec_all(R, e->kids, e->nkids);
    }
    return exec_all(R, n->kids3, n->nkids3);
}

static enum flow exec_setblock(struct tj_rt *R, const struct tj_node *n) {
    enum flow flow;
    enter_scope(R, n->scope);
    struct tj_str *s = capture(R, n->kids, n->nkids, &flow);
    if (flow != NEXT) return flow;
    struct tj_val v = tj_strv(s);
    struct tj_node *chain[64];
    size_t depth = 0;
    for (struct tj_node *f = n->b; f != NULL; f = f->a) {
        if (depth == PL_COUNT_OF(chain)) tj_raise(R, PL_LIMIT, "too many filters on a set block");
        chain[depth++] = f;
    }
    while (depth > 0) v = tj_eval_filter(R, chain[--depth], v);
    check_namespaces(R, n->a);
    assign(R, n->a, v);
    return NEXT;
}

static enum flow exec_filterblock(struct tj_rt *R, const struct tj_node *n) {
    enum flow flow;
    enter_scope(R, n->scope);
    struct tj_val v = tj_strv(capture(R, n->kids, n->nkids, &flow));
    if (flow != NEXT) return flow;
    struct tj_node *chain[64];
    size_t depth = 0;
    for (struct tj_node *f = n->a; f != NULL; f = f->a) {
        if (depth == PL_COUNT_OF(chain)) tj_raise(R, PL_LIMIT, "too many filters on a filter block");
        chain[depth++] = f;
    }
    while (depth > 0) v = tj_eval_filter(R, chain[--depth], v);
    tj_emit_str(R->sb, v);
    return NEXT;
}

static enum flow exec_with(struct tj_rt *R, const struct tj_node *n) {
    enter_scope(R, n->scope);
    for (size_t i = 0; i < n->nkids; i++) assign(R, n->kids[i], tj_eval(R, n->kids2[i]));
    return exec_all(R, n->kids3, n->nkids3);
}

static void exec_macro(struct tj_rt *R, const struct tj_node *n) {
    struct tj_val v = {.type = TJ_MACRO, .m = macro_here(R, n)};
    *tj_slot_at(R, n->slot) = v;
    if (n->toplevel && R->t->nblocks > 0) tj_dict_set(R, R->exported, tj_strv(n->name), v);
}

static enum flow exec_node(struct tj_rt *R, const struct tj_node *n) {
    switch (n->kind) {
    case TJ_N_OUTPUT: exec_output(R, n); return NEXT;
    case TJ_N_FOR: return exec_for(R, n);
    case TJ_N_IF: return exec_if(R, n);
    case TJ_N_SET:
        check_namespaces(R, n->a);
        assign(R, n->a, tj_eval(R, n->b));
        return NEXT;
    case TJ_N_SETBLOCK: return exec_setblock(R, n);
    case TJ_N_MACRO: exec_macro(R, n); return NEXT;
    case TJ_N_CALLBLOCK: exec_callblock(R, n); return NEXT;
    case TJ_N_GENERATION: exec_generation(R, n); return NEXT;
    case TJ_N_FILTERBLOCK: return exec_filterblock(R, n);
    case TJ_N_WITH: return exec_with(R, n);
    case TJ_N_BLOCK: tj_sb_str(R->sb, tj_block_call(R, n).s); return NEXT;
    case TJ_N_BREAK: return BREAK;
    case TJ_N_CONTINUE: return CONTINUE;
    case TJ_N_REFUSED:
        tj_raise(R, PL_UNSUPPORTED, "'%.*s' is refused in chat templates: a template is one file and loads no other",
                 (int)n->name->len, n->name->data);
    default: tj_raise(R, PL_INTERNAL, "unexpected statement kind %d", n->kind);
    }
}

static enum flow exec(struct tj_rt *R, const struct tj_node *n) {
    tj_charge(R, 1);
    tj_enter(R);
    if (n->kind != TJ_N_OUTPUT) R->line = n->line;
    enum flow f = exec_node(R, n);
    tj_leave(R);
    return f;
}

void tj_run(struct tj_rt *R, const struct pl_template *t) {
    R->env = tj_env_new(R, NULL, t->scope->nslots);
    if (t->uses_self) *tj_slot_at(R, t->self) = (struct tj_val){.type = TJ_SELF};
    enter_scope(R, t->scope);
    exec_all(R, t->body, t->nbody);
}
