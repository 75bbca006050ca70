/* fold - constant parts are computed when the template is parsed, where jinja2's optimizer computes them.
 *
 * It shows in three places, and only for them does this file exist: a slice of something that has no slices is an
 * undefined value while folding and an error in a run; a branch that folding drops may name unknown filters; a dict
 * with an unhashable key is refused although nothing would reach it. What cannot be computed (a name, a call, an error,
 * a limit) is left to the run, node by node from the leaves up, as jinja2 leaves it.
 *
 * Lists, tuples and dicts become nodes again, so that every run makes its own and no value is shared between runs. */
#include <string.h>

#include "chat/ast.h"
#include "chat/rt.h"

enum {
    FOLD_BYTES = 1 << 20,      /* one value with all that it took */
    FOLD_BYTES_ALL = 16 << 20, /* all of one template */
    FOLD_STEPS = 100000,       /* one value */
    FOLD_STEPS_ALL = 20000000, /* all of one template */
};

struct fold_job {
    const struct tj_node *n;
    bool text;
    struct tj_val out;
};

static void fold_job(struct tj_rt *R, void *arg) {
    struct fold_job *j = arg;
    j->out = tj_eval(R, j->n);
    if (j->text) j->out = tj_strv(tj_str_plain(R, tj_to_str(R, j->out)));
}

/* The value of n without a run: false when jinja2 would say "impossible". */
static bool as_const(struct tj_rt *R, const struct tj_node *n, bool text, struct tj_val *out) {
    struct fold_job job = {.n = n, .text = text};
    if (R->fold_bytes >= FOLD_BYTES_ALL || R->fold_steps >= FOLD_STEPS_ALL) return false;
    struct pl_err err = {0}, *outer_err = R->err;
    jmp_buf outer;
    memcpy(&outer, &R->out, sizeof outer);
    size_t limit = R->arena.limit_bytes, used = R->arena.used_bytes;
    uint64_t steps_max = R->steps_max, steps = R->steps;
    uint32_t nest = R->nest, calls = R->calls, line = R->line;
    R->err = &err;
    R->arena.limit_bytes = PL_MIN(limit, used + FOLD_BYTES);
    R->steps_max = PL_MIN(steps_max, steps + FOLD_STEPS);
    R->folding = true;
    R->fold_fatal = false;
    bool ok = tj_protect(R, fold_job, &job);
    R->folding = false;
    memcpy(&R->out, &outer, sizeof outer);
    R->err = outer_err;
    R->fold_bytes += R->arena.used_bytes - used;
    R->fold_steps += R->steps - steps;
    R->arena.limit_bytes = limit;
    R->steps_max = steps_max;
    R->steps = steps;
    R->nest = nest;
    R->calls = calls;
    R->line = line;
    if (!ok && R->status == PL_NO_MEMORY) tj_raise(R, PL_NO_MEMORY, "out of memory while parsing a chat template");
    if (!ok && R->fold_fatal && !text) tj_syntax(R, n->line, "unhashable type in a dict's key");
    if (ok) *out = job.out;
    return ok;
}

/* jinja2's has_safe_repr: what may stand in the compiled template. */
static bool may_stand(struct tj_rt *R, struct tj_val v, unsigned depth) {
    tj_charge(R, 1);
    if (depth > 50) return false;
    switch (v.type) {
    case TJ_NONE:
    case TJ_BOOL:
    case TJ_INT:
    case TJ_FLOAT:
    case TJ_STR: return true;
    case TJ_LIST:
    case TJ_TUPLE:
        for (size_t i = 0; i < v.l->n; i++)
            if (!may_stand(R, v.l->v[i], depth + 1)) return false;
        return true;
    case TJ_DICT:
        for (size_t i = 0; i < v.d->n; i++)
            if (!may_stand(R, v.d->e[i].k, depth + 1) || !may_stand(R, v.d->e[i].v, depth + 1)) return false;
        return true;
    default: return false;
    }
}

static struct tj_node *node_of(struct tj_rt *R, struct tj_val v, uint32_t line);

static void fill(struct tj_rt *R, struct tj_node *n, struct tj_val v, uint32_t line) {
    *n = (struct tj_node){.kind = TJ_N_CONST, .line = line, .id = -1, .folded = true, .val = v};
    if (v.type == TJ_STR) tj_str_chars(R, v.s); /* counted now: a parsed template is never written to */
    if (v.type == TJ_LIST || v.type == TJ_TUPLE) {
        n->kind = v.type == TJ_LIST ? TJ_N_LIST : TJ_N_TUPLE;
        n->nkids = v.l->n;
        n->kids = tj_alloc(R, v.l->n, sizeof(struct tj_node *));
        for (size_t i = 0; i < v.l->n; i++) n->kids[i] = node_of(R, v.l->v[i], line);
    } else if (v.type == TJ_DICT) {
        n->kind = TJ_N_DICT;
        n->nkids = n->nkids2 = v.d->n;
        n->kids = tj_alloc(R, v.d->n, sizeof(struct tj_node *));
        n->kids2 = tj_alloc(R, v.d->n, sizeof(struct tj_node *));
        for (size_t i = 0; i < v.d->n; i++) {
            n->kids[i] = node_of(R, v.d->e[i].k, line);
            n->kids2[i] = node_of(R, v.d->e[i].v, line);
        }
    }
}

static struct tj_node *node_of(struct tj_rt *R, struct tj_val v, uint32_t line) {
    struct tj_node *n = tj_alloc(R, 1, sizeof *n);
    fill(R, n, v, line);
    return n;
}

static void fold_all(struct tj_rt *R, struct tj_node **v, size_t n) {
    for (size_t i = 0; i < n; i++) tj_fold(R, v[i]);
}

void tj_fold(struct tj_rt *R, struct tj_node *n) {
    if (n == NULL || n->folded) return;
    tj_enter(R);
    tj_charge(R, 1);
    n->folded = true;
    tj_fold(R, n->a);
    tj_fold(R, n->b);
    tj_fold(R, n->c);
    fold_all(R, n->kids, n->nkids);
    fold_all(R, n->kids2, n->nkids2);
    bool leaf = n->kind == TJ_N_CONST || n->kind == TJ_N_NAME || n->kind == TJ_N_CALL || n->kind == TJ_N_SLICE ||
                n->kind >= TJ_N_DATA;
    struct tj_val v;
    if (!leaf && as_const(R, n, false, &v) && may_stand(R, v, 0)) fill(R, n, v, n->line);
    tj_leave(R);
}

void tj_fold_output(struct tj_rt *R, struct tj_node *n) {
    struct tj_val v;
    if (n->kind == TJ_N_DATA || n->kind == TJ_N_NAME || n->kind == TJ_N_CALL) return;
    if (as_const(R, n, true, &v)) fill(R, n, v, n->line);
}
