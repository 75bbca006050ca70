/* resolve - which variable a name means, decided once before any rendering.
 *
 * jinja2 compiles to Python functions and gives each scope its own local variables; what a name means follows from the
 * order of loads and stores in the scope's source. The same analysis runs here: a scope entering copies from an outer
 * variable (alias), asks the caller's variables (resolve) or starts unset, and a function activation (template, macro,
 * call block, recursive loop, loop test, block) holds the slots. Also checked here: unknown filters and tests outside
 * branches, break and continue outside loops. */
#include <string.h>

#include "chat/ast.h"
#include "chat/rt.h"

struct func {
    struct func *up;
    uint32_t depth;
    size_t nslots;
};
struct ident {
    struct func *fn;
    uint32_t index;
};
struct named { /* the variables of one scope */
    struct tj_str *name;
    struct ident id;
};
struct frame_data {
    struct func *fn;
    struct named *v;
    size_t n, cap;
};
enum { LOAD_NONE = -1, LOAD_PARAM = 100 };
struct sym {
    struct tj_str *name;
    struct ident id, from;
    bool ref, stored;
    int load;
};
struct syms {
    struct syms *parent;
    struct frame_data *fd;
    struct sym *v;
    size_t n, cap;
};
struct frame {
    struct frame *parent;
    struct syms *syms;
    bool toplevel, soft, in_loop;
};
struct ctx {
    struct tj_rt *R;
};

static void gen(struct ctx *c, struct tj_node *n, struct frame *f);
static void sym_visit(struct ctx *c, struct syms *s, struct tj_node *n, bool as_param);

/* --- children in jinja2's order --- */

typedef void (*visit_fn)(struct ctx *c, void *arg, struct tj_node *n);

static void each(struct ctx *c, struct tj_node **v, size_t n, visit_fn fn, void *arg) {
    for (size_t i = 0; i < n; i++) fn(c, arg, v[i]);
}
static void one(struct ctx *c, struct tj_node *n, visit_fn fn, void *arg) {
    if (n != NULL) fn(c, arg, n);
}

static void children(struct ctx *c, struct tj_node *n, visit_fn fn, void *arg) {
    switch (n->kind) {
    case TJ_N_DICT:
        for (size_t i = 0; i < n->nkids; i++) {
            fn(c, arg, n->kids[i]);
            fn(c, arg, n->kids2[i]);
        }
        break;
    case TJ_N_CALL:
    case TJ_N_FILTER:
    case TJ_N_TEST:
        one(c, n->a, fn, arg);
        each(c, n->kids, n->nkids, fn, arg);
        each(c, n->kids2, n->nkids2, fn, arg);
        one(c, n->b, fn, arg);
        one(c, n->c, fn, arg);
        break;
    case TJ_N_FOR:
        fn(c, arg, n->a);
        fn(c, arg, n->b);
        each(c, n->kids, n->nkids, fn, arg);
        each(c, n->kids2, n->nkids2, fn, arg);
        one(c, n->c, fn, arg);
        break;
    case TJ_N_FILTERBLOCK:
        each(c, n->kids, n->nkids, fn, arg);
        fn(c, arg, n->a);
        break;
    default: /* every other kind keeps its parts in the order of its fields */
        one(c, n->a, fn, arg);
        one(c, n->b, fn, arg);
        one(c, n->c, fn, arg);
        each(c, n->kids, n->nkids, fn, arg);
        each(c, n->kids2, n->nkids2, fn, arg);
        each(c, n->kids3, n->nkids3, fn, arg);
    }
}

/* --- which of a few special names a body uses before setting them --- */

struct undeclared {
    const char *const *names;
    unsigned left, found;
};

static void undeclared_visit(struct ctx *c, void *arg, struct tj_node *n) {
    struct undeclared *u = arg;
    tj_charge(c->R, 1);
    if (n->kind == TJ_N_BLOCK) return;
    if (n->kind == TJ_N_NAME) {
        for (unsigned i = 0; u->names[i] != NULL; i++) {
            if (!tj_str_is(n->name, u->names[i])) continue;
            if (!n->store && (u->left >> i & 1) != 0)
                u->found |= 1u << i;
            else
                u->left &= ~(1u << i);
        }
        return;
    }
    children(c, n, undeclared_visit, u);
}

static unsigned find_undeclared(struct ctx *c, struct tj_node **body, size_t n, const char *const *names) {
    struct undeclared u = {names, ~0u, 0};
    each(c, body, n, undeclared_visit, &u);
    return u.found;
}

/* --- symbols --- */

static struct ident frame_ident(struct ctx *c, struct frame_data *fd, struct tj_str *name) {
    tj_charge(c->R, fd->n / 8 + 1);
    for (size_t i = 0; i < fd->n; i++)
        if (tj_str_eq(fd->v[i].name, name)) return fd->v[i].id;
    if (fd->n == fd->cap) {
        size_t cap = fd->cap == 0 ? 8 : fd->cap * 2;
        struct named *grown = tj_alloc(c->R, cap, sizeof *grown);
        if (fd->n > 0) memcpy(grown, fd->v, fd->n * sizeof *grown);
        fd->v = grown;
        fd->cap = cap;
    }
    struct ident id = {fd->fn, (uint32_t)fd->fn->nslots++};
    fd->v[fd->n++] = (struct named){name, id};
    return id;
}

static struct sym *find_sym(struct ctx *c, struct syms *s, const struct tj_str *name) {
    tj_charge(c->R, s->n / 8 + 1);
    for (size_t i = 0; i < s->n; i++)
        if (tj_str_eq(s->v[i].name, name)) return &s->v[i];
    return NULL;
}

static struct sym *get_sym(struct ctx *c, struct syms *s, struct tj_str *name) {
    struct sym *found = find_sym(c, s, name);
    if (found != NULL) return found;
    if (s->n == s->cap) {
        size_t cap = s->cap == 0 ? 8 : s->cap * 2;
        struct sym *grown = tj_alloc(c->R, cap, sizeof *grown);
        if (s->n > 0) memcpy(grown, s->v, s->n * sizeof *grown);
        s->v = grown;
        s->cap = cap;
    }
    s->v[s->n] = (struct sym){.name = name, .load = LOAD_NONE};
    return &s->v[s->n++];
}

static bool find_ref(struct ctx *c, struct syms *s, const struct tj_str *name, struct ident *out) {
    for (; s != NULL; s = s->parent) {
        struct sym *y = find_sym(c, s, name);
        if (y != NULL && y->ref) {
            *out = y->id;
            return true;
        }
    }
    return false;
}

static struct sym *define(struct ctx *c, struct syms *s, struct tj_str *name, int load) {
    struct sym *y = get_sym(c, s, name);
    y->ref = true;
    y->id = frame_ident(c, s->fd, name);
    y->load = load;
    return y;
}

static struct ident declare_parameter(struct ctx *c, struct syms *s, struct tj_str *name) {
    struct sym *y = define(c, s, name, LOAD_PARAM);
    y->stored = true;
    return y->id;
}

static void sym_store(struct ctx *c, struct syms *s, struct tj_str *name) {
    struct sym *y = get_sym(c, s, name);
    y->stored = true;
    if (y->ref) return;
    struct ident outer;
    bool has_outer = s->parent != NULL && find_ref(c, s->parent, name, &outer);
    y = define(c, s, name, has_outer ? TJ_LOAD_ALIAS : TJ_LOAD_UNDEFINED);
    if (has_outer) y->from = outer;
}

static void sym_load(struct ctx *c, struct syms *s, struct tj_str *name) {
    struct ident id;
    if (!find_ref(c, s, name, &id)) define(c, s, name, TJ_LOAD_RESOLVE);
}

static struct syms *syms_new(struct ctx *c, struct syms *parent, struct func *fn) {
    struct syms *s = tj_alloc(c->R, 1, sizeof *s);
    s->parent = parent;
    s->fd = tj_alloc(c->R, 1, sizeof *s->fd);
    s->fd->fn = fn;
    return s;
}

static struct syms syms_copy(struct ctx *c, const struct syms *s) {
    struct syms r = *s;
    r.v = tj_alloc(c->R, s->cap, sizeof *r.v);
    if (s->n > 0) memcpy(r.v, s->v, s->n * sizeof *r.v);
    return r;
}

static void branch_update(struct ctx *c, struct syms *s, struct syms *branches, size_t count) {
    for (size_t k = 0; k < count; k++) {
        struct syms *b = &branches[k];
        for (size_t i = 0; i < b->n; i++) {
            struct sym from = b->v[i], *to = find_sym(c, s, from.name);
            bool stored_before = to != NULL && to->stored;
            to = get_sym(c, s, from.name);
            to->ref = to->ref || from.ref;
            to->id = from.id;
            if (from.load != LOAD_NONE) {
                to->load = from.load;
                to->from = from.from;
            }
            if (from.stored && !stored_before) to->stored = true;
        }
    }
}

/* Names that only branches stored: after the branches they come from outside unless a branch ran. */
static void branch_loads(struct ctx *c, struct syms *s, const struct syms *before) {
    for (size_t i = 0; i < s->n; i++) {
        struct sym *y = &s->v[i];
        const struct sym *old = i < before->n ? &before->v[i] : NULL; /* entries keep their places */
        if (!y->stored || (old != NULL && old->stored)) continue;
        struct ident outer;
        if (s->parent != NULL && find_ref(c, s->parent, y->name, &outer)) {
            y->load = TJ_LOAD_ALIAS;
            y->from = outer;
        } else {
            y->load = TJ_LOAD_RESOLVE;
        }
    }
}

static void visit_all(struct ctx *c, struct syms *s, struct tj_node **v, size_t n) {
    for (size_t i = 0; i < n; i++) sym_visit(c, s, v[i], false);
}

static void visit_if(struct ctx *c, struct syms *s, struct tj_node *n) {
    sym_visit(c, s, n->a, false);
    struct syms before = syms_copy(c, s), branch[3];
    for (int k = 0; k < 3; k++) branch[k] = syms_copy(c, s);
    visit_all(c, &branch[0], n->kids, n->nkids);
    visit_all(c, &branch[1], n->kids2, n->nkids2);
    visit_all(c, &branch[2], n->kids3, n->nkids3);
    branch_update(c, s, branch, 3);
    branch_loads(c, s, &before);
}

struct visit_arg {
    struct syms *s;
    bool as_param;
};
static void visit_child(struct ctx *c, void *arg, struct tj_node *n) {
    struct visit_arg *v = arg;
    sym_visit(c, v->s, n, v->as_param);
}

static void sym_visit(struct ctx *c, struct syms *s, struct tj_node *n, bool as_param) {
    tj_charge(c->R, 1);
    switch (n->kind) {
    case TJ_N_NAME:
        if (as_param || n->param)
            declare_parameter(c, s, n->name);
        else if (n->store)
            sym_store(c, s, n->name);
        else
            sym_load(c, s, n->name);
        return;
    case TJ_N_NSREF: sym_load(c, s, n->name); return;
    case TJ_N_IF: visit_if(c, s, n); return;
    case TJ_N_MACRO: sym_store(c, s, n->name); return;
    case TJ_N_FOR: sym_visit(c, s, n->b, as_param); return;
    case TJ_N_CALLBLOCK:
    case TJ_N_FILTERBLOCK: sym_visit(c, s, n->a, as_param); return;
    case TJ_N_SET:
        sym_visit(c, s, n->b, as_param);
        sym_visit(c, s, n->a, as_param);
        return;
    case TJ_N_SETBLOCK: sym_visit(c, s, n->a, as_param); return;
    case TJ_N_WITH: visit_all(c, s, n->kids2, n->nkids2); return;
    case TJ_N_BLOCK:
    case TJ_N_GENERATION: return;
    default: {
        struct visit_arg arg = {s, as_param};
        children(c, n, visit_child, &arg);
    }
    }
}

/* --- binding --- */

static struct tj_slot slot_of(struct ctx *c, struct func *here, struct ident id) {
    (void)c;
    PL_ASSERT(here->depth >= id.fn->depth);
    return (struct tj_slot){here->depth - id.fn->depth, id.index};
}

static struct tj_slot bind(struct ctx *c, struct frame *f, const struct tj_node *n, struct tj_str *name) {
    struct ident id;
    if (!find_ref(c, f->syms, name, &id))
        tj_syntax(c->R, n->line, "the name '%.*s' cannot be used here", (int)PL_MIN(name->len, 100), name->data);
    return slot_of(c, f->syms->fd->fn, id);
}

/* The scope's entry actions; begins says a function starts here. Called after everything inside was generated, because
 * slots may still be added until then. */
static struct tj_scope *scope_of(struct ctx *c, struct syms *s, bool begins) {
    struct tj_scope *r = tj_alloc(c->R, 1, sizeof *r);
    r->loads = tj_alloc(c->R, s->n, sizeof *r->loads);
    for (size_t i = 0; i < s->n; i++) {
        const struct sym *y = &s->v[i];
        if (!y->ref || y->load == LOAD_NONE || y->load == LOAD_PARAM) continue;
        struct tj_load *l = &r->loads[r->nloads++];
        *l = (struct tj_load){.to = {0, y->id.index}, .name = y->name, .kind = y->load};
        if (y->load == TJ_LOAD_ALIAS) l->from = slot_of(c, s->fd->fn, y->from);
    }
    r->nslots = begins ? PL_MAX(s->fd->fn->nslots, 1) : 0;
    return r;
}

static struct func *func_new(struct ctx *c, struct func *up) {
    struct func *fn = tj_alloc(c->R, 1, sizeof *fn);
    fn->up = up;
    fn->depth = up == NULL ? 0 : up->depth + 1;
    return fn;
}

static struct frame inner(struct ctx *c, struct frame *parent, struct func *fn) {
    struct frame f = {.parent = parent, .in_loop = parent->in_loop};
    f.syms = syms_new(c, parent->syms, fn);
    return f;
}

static void gen_all(struct ctx *c, struct tj_node **v, size_t n, struct frame *f) {
    for (size_t i = 0; i < n; i++) gen(c, v[i], f);
}

static struct tj_node *clone_target(struct ctx *c, const struct tj_node *n) {
    struct tj_node *r = tj_alloc(c->R, 1, sizeof *r);
    *r = *n;
    if (n->kind == TJ_N_TUPLE) {
        r->kids = tj_alloc(c->R, n->nkids, sizeof(struct tj_node *));
        for (size_t i = 0; i < n->nkids; i++) r->kids[i] = clone_target(c, n->kids[i]);
    }
    return r;
}

static void refuse_loop_store(struct ctx *c, void *arg, struct tj_node *n) {
    if (n->kind == TJ_N_NAME && n->store && !n->param && tj_str_is(n->name, "loop"))
        tj_syntax(c->R, n->line, "Can't assign to special loop variable in for-loop target");
    tj_charge(c->R, 1);
    children(c, n, refuse_loop_store, arg);
}

static void gen_for(struct ctx *c, struct tj_node *n, struct frame *f) {
    static const char *const loop_name[] = {"loop", NULL};
    struct func *here = f->syms->fd->fn;
    struct func *body_fn = n->recursive ? func_new(c, here) : here;
    struct frame loop = inner(c, f, body_fn), other = inner(c, f, body_fn);
    n->extended = n->recursive || find_undeclared(c, n->kids, n->nkids, loop_name) != 0;
    if (n->extended) {
        struct tj_str *name = tj_str_borrow(c->R, "loop", 4, false);
        n->slot = slot_of(c, body_fn, declare_parameter(c, loop.syms, name));
    }
    sym_visit(c, loop.syms, n->a, true);
    visit_all(c, loop.syms, n->kids, n->nkids);
    visit_all(c, other.syms, n->kids2, n->nkids2);
    if (n->c != NULL) {
        struct frame test = inner(c, f, func_new(c, here));
        test.in_loop = false;
        n->d = clone_target(c, n->a);
        sym_visit(c, test.syms, n->d, true);
        sym_visit(c, test.syms, n->c, false);
        gen(c, n->d, &test);
        gen(c, n->c, &test);
        n->scope3 = scope_of(c, test.syms, true);
    }
    refuse_loop_store(c, NULL, n);
    gen(c, n->a, &loop);
    gen(c, n->b, f);
    loop.in_loop = true;
    gen_all(c, n->kids, n->nkids, &loop);
    if (n->recursive) other.in_loop = false;
    gen_all(c, n->kids2, n->nkids2, &other);
    n->scope2 = scope_of(c, other.syms, false);
    n->scope = scope_of(c, loop.syms, n->recursive);
}

static void analyze_macro(struct ctx *c, struct syms *s, struct tj_node *n) {
    visit_all(c, s, n->kids, n->nkids);
    visit_all(c, s, n->kids2, n->nkids2);
    visit_all(c, s, n->kids3, n->nkids3);
}

static void gen_macro_body(struct ctx *c, struct tj_node *n, struct frame *f) {
    static const char *const special[] = {"caller", "kwargs", "varargs", NULL};
    struct func *fn = func_new(c, f->syms->fd->fn);
    struct frame m = inner(c, f, fn);
    m.in_loop = false;
    analyze_macro(c, m.syms, n);
    bool has[3] = {0};
    for (size_t i = 0; i < n->nkids; i++)
        for (int k = 0; k < 3; k++)
            if (tj_str_is(n->kids[i]->name, special[k])) {
                has[k] = true;
                if (k == 0 && i + n->nkids2 < n->nkids) has[k] = true;
            }
    unsigned used = find_undeclared(c, n->kids3, n->nkids3, special);
    n->wants_caller = (used & 1) != 0;
    n->wants_kwargs = (used & 2) != 0 && !has[1];
    n->wants_varargs = (used & 4) != 0 && !has[2];
    if (n->wants_caller && has[0]) {
        for (size_t i = 0; i + n->nkids2 < n->nkids; i++)
            if (tj_str_is(n->kids[i]->name, "caller"))
                tj_syntax(c->R, n->line,
                          "When defining macros or call blocks the special \"caller\" argument must be omitted or be "
                          "given a default.");
    }
    struct tj_slot *slots[] = {&n->slot2, &n->slot3, &n->slot4};
    bool declare[] = {n->wants_caller && !has[0], n->wants_kwargs, n->wants_varargs};
    for (int k = 0; k < 3; k++)
        if (declare[k])
            *slots[k] =
                slot_of(c, fn, declare_parameter(c, m.syms, tj_str_borrow(c->R, special[k], strlen(special[k]), false)));
    analyze_macro(c, m.syms, n);
    gen_all(c, n->kids, n->nkids, &m);
    gen_all(c, n->kids2, n->nkids2, &m);
    gen_all(c, n->kids3, n->nkids3, &m);
    n->scope = scope_of(c, m.syms, true);
}

static void gen_block(struct ctx *c, struct tj_node *n) {
    static const char *const special[] = {"self", "super", NULL};
    struct func *fn = func_new(c, NULL);
    struct frame b = {.syms = syms_new(c, NULL, fn)};
    unsigned used = find_undeclared(c, n->kids, n->nkids, special);
    n->wants_kwargs = (used & 1) != 0;  /* here: uses self */
    n->wants_varargs = (used & 2) != 0; /* here: uses super */
    if (n->wants_kwargs) n->slot2 = slot_of(c, fn, declare_parameter(c, b.syms, tj_str_borrow(c->R, "self", 4, false)));
    if (n->wants_varargs) n->slot3 = slot_of(c, fn, declare_parameter(c, b.syms, tj_str_borrow(c->R, "super", 5, false)));
    visit_all(c, b.syms, n->kids, n->nkids);
    gen_all(c, n->kids, n->nkids, &b);
    n->scope = scope_of(c, b.syms, true);
}

static void check_known(struct ctx *c, const struct tj_node *n, const struct frame *f) {
    if (n->id >= 0 || f->soft) return;
    tj_syntax(c->R, n->line, "No %s named '%.*s'.", n->kind == TJ_N_FILTER ? "filter" : "test",
              (int)PL_MIN(n->name->len, 200), n->name->data);
}

/* The kinds of node that jinja2's compiler hands to its optimizer; other kinds are reached through these only. */
static bool optimized(int kind) {
    switch (kind) {
    case TJ_N_COND:
    case TJ_N_AND:
    case TJ_N_OR:
    case TJ_N_NOT:
    case TJ_N_NEG:
    case TJ_N_POS:
    case TJ_N_BIN:
    case TJ_N_CONCAT:
    case TJ_N_COMPARE:
    case TJ_N_GETATTR:
    case TJ_N_GETITEM:
    case TJ_N_CALL:
    case TJ_N_FILTER:
    case TJ_N_TEST: return true;
    default: return false;
    }
}

struct gen_arg {
    struct frame *f;
};
static void gen_child(struct ctx *c, void *arg, struct tj_node *n) { gen(c, n, ((struct gen_arg *)arg)->f); }

static void gen_scoped(struct ctx *c, struct tj_node *n, struct frame *f) { /* filter, with and set blocks */
    struct frame in = inner(c, f, f->syms->fd->fn);
    if (n->kind == TJ_N_WITH) {
        visit_all(c, in.syms, n->kids, n->nkids);
        visit_all(c, in.syms, n->kids3, n->nkids3);
        gen_all(c, n->kids, n->nkids, &in);
        gen_all(c, n->kids2, n->nkids2, f);
        gen_all(c, n->kids3, n->nkids3, &in);
    } else {
        visit_all(c, in.syms, n->kids, n->nkids);
        if (n->kind == TJ_N_FILTERBLOCK) sym_visit(c, in.syms, n->a, false);
        gen_all(c, n->kids, n->nkids, &in);
        if (n->kind == TJ_N_FILTERBLOCK) {
            gen(c, n->a, &in);
        } else {
            gen(c, n->a, f);
            if (n->b != NULL) gen(c, n->b, &in);
        }
    }
    n->scope = scope_of(c, in.syms, false);
}

static void gen(struct ctx *c, struct tj_node *n, struct frame *f) {
    struct gen_arg arg = {f};
    struct frame soft = *f;
    soft.soft = true;
    tj_enter(c->R);
    tj_charge(c->R, 1);
    n->toplevel = f->toplevel;
    if (optimized(n->kind)) tj_fold(c->R, n);
    switch (n->kind) {
    case TJ_N_NAME:
    case TJ_N_NSREF: n->slot = bind(c, f, n, n->name); break;
    case TJ_N_COND:
    case TJ_N_IF:
        arg.f = &soft;
        children(c, n, gen_child, &arg);
        break;
    case TJ_N_FILTER:
    case TJ_N_TEST:
        check_known(c, n, f);
        children(c, n, gen_child, &arg);
        break;
    case TJ_N_FOR: gen_for(c, n, f); break;
    case TJ_N_MACRO:
        gen_macro_body(c, n, f);
        n->slot = bind(c, f, n, n->name);
        break;
    case TJ_N_CALLBLOCK:
        gen_macro_body(c, n, f);
        gen(c, n->a, f);
        break;
    case TJ_N_GENERATION: gen_macro_body(c, n, f); break;
    case TJ_N_SETBLOCK:
    case TJ_N_FILTERBLOCK:
    case TJ_N_WITH: gen_scoped(c, n, f); break;
    case TJ_N_BLOCK: break; /* generated on its own */
    case TJ_N_BREAK:
    case TJ_N_CONTINUE:
        if (!f->in_loop) tj_syntax(c->R, n->line, "'%s' outside loop", n->kind == TJ_N_BREAK ? "break" : "continue");
        break;
    case TJ_N_OUTPUT:
        for (size_t i = 0; i < n->nkids; i++) tj_fold_output(c->R, n->kids[i]);
        children(c, n, gen_child, &arg);
        break;
    default: children(c, n, gen_child, &arg);
    }
    tj_leave(c->R);
}

void tj_resolve(struct tj_rt *R, struct pl_template *t) {
    static const char *const special[] = {"self", NULL};
    struct ctx c = {R};
    struct func *fn = func_new(&c, NULL);
    struct frame root = {.syms = syms_new(&c, NULL, fn), .toplevel = true};
    t->uses_self = find_undeclared(&c, t->body, t->nbody, special) != 0;
    if (t->uses_self) t->self = slot_of(&c, fn, declare_parameter(&c, root.syms, tj_str_borrow(R, "self", 4, false)));
    visit_all(&c, root.syms, t->body, t->nbody);
    gen_all(&c, t->body, t->nbody, &root);
    t->scope = scope_of(&c, root.syms, true);
    for (size_t i = 0; i < t->nblocks; i++) gen_block(&c, t->blocks[i]);
}
