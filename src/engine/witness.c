/* witness - what ran, counted by the host and by the device, and how each choice of an implementation ended. */
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "jit/jit.h"

static json_t *launches_json(const struct pl_ops_launches *l) {
    return json_pack("{s:s, s:s, s:I, s:I}", "op", l->op, "kernel", l->kernel, "launches", (json_int_t)l->launches, "bytes",
                     (json_int_t)l->bytes);
}

json_t *pl_engine_witness(struct plumb_engine *e) {
    size_t count = pl_ops_witness(e->ops, NULL, 0);
    struct pl_ops_launches *list = pl_calloc(count, sizeof *list);
    json_t *kernels = json_array();
    bool ok = list != NULL && kernels != NULL;
    if (ok) count = PL_MIN(count, pl_ops_witness(e->ops, list, count));
    for (size_t i = 0; ok && i < count; i++) ok = json_array_append_new(kernels, launches_json(&list[i])) == 0;
    pl_free(list);
    if (ok) return kernels;
    json_decref(kernels);
    return NULL;
}

/* "device" is null where nothing counts on the device: calls of a library, kernels made without counting. */
static json_t *module_json(const struct pl_ops_kernel *k) {
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I}", "kernel", k->kernel, "symbol", k->symbol, "variant",
                          k->variant, "module", k->module, "target", k->target, "origin", k->origin, "eager",
                          (json_int_t)k->eager, "graph", (json_int_t)k->graph);
    uint64_t host = k->eager + k->graph;
    if (o == NULL) return NULL;
    json_object_set_new(o, "host", json_integer((json_int_t)host));
    json_object_set_new(o, "device", k->counted ? json_integer((json_int_t)k->device) : json_null());
    json_object_set_new(o, "agree", k->counted ? json_boolean(k->device == (host & UINT32_MAX)) : json_null());
    return o;
}

static json_t *modules_json(struct plumb_engine *e, struct pl_err *err) {
    size_t count = 0;
    if (pl_ops_kernels(e->ops, NULL, 0, &count, err) != PL_OK) return NULL;
    size_t cap = count;
    struct pl_ops_kernel *list = pl_calloc(cap + 1, sizeof *list);
    json_t *modules = json_array();
    bool ok = list != NULL && modules != NULL && pl_ops_kernels(e->ops, list, cap, &count, err) == PL_OK;
    for (size_t i = 0; ok && i < PL_MIN(count, cap); i++) ok = json_array_append_new(modules, module_json(&list[i])) == 0;
    pl_free(list);
    if (ok) return modules;
    json_decref(modules);
    return NULL;
}

static json_t *outcomes_json(const struct pl_ops *ops) {
    size_t count = pl_ops_decisions(ops, NULL, 0);
    struct pl_ops_decision *list = pl_calloc(count + 1, sizeof *list);
    json_t *rows = json_array();
    for (size_t i = 0; list != NULL && i < PL_MIN(count, pl_ops_decisions(ops, list, count)); i++) {
        const struct pl_ops_decision *d = &list[i];
        json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:s, s:s, s:I}", "op", d->op, "outcome", d->outcome, "taken",
                                              d->taken, "planned", d->planned, "reason", d->reason, "count",
                                              (json_int_t)d->count));
    }
    pl_free(list);
    return rows;
}

static json_t *asked_json(const struct pl_ops *ops) {
    json_t *o = json_object();
    for (int op = 0; op < PL_OP_COUNT; op++) {
        uint64_t n = pl_ops_asked(ops, (enum pl_op)op);
        if (n > 0) json_object_set_new(o, pl_op_name((enum pl_op)op), json_integer((json_int_t)n));
    }
    return o;
}

static void add_identity(struct plumb_engine *e, json_t *o, const char *schema) {
    char hash[33];
    pl_jit_sources_hash(hash);
    json_object_set_new(o, "schema", json_string(schema));
    json_object_set_new(o, "backend", json_string(pl_ops_describe(e->ops)));
    json_object_set_new(o, "build_id", json_string(plumb_build_id()));
    json_object_set_new(o, "kernel_sources", json_string(hash));
    json_object_set_new(o, "strict", json_boolean(pl_ops_strict(e->ops)));
    json_object_set_new(o, "forced", json_string(pl_ops_forced(e->ops)));
}

static json_t *forms_json(const struct pl_ops *ops, size_t (*rows)(const struct pl_ops *, struct pl_ops_attention *, size_t),
                          const char *name) {
    struct pl_ops_attention list[64];
    size_t count = PL_MIN(rows(ops, list, PL_COUNT_OF(list)), PL_COUNT_OF(list));
    json_t *all = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(all,
                              json_pack("{s:s, s:s, s:I, s:I}", name, list[i].form, "reason", list[i].reason, "layer_steps",
                                        (json_int_t)list[i].layer_steps, "bytes", (json_int_t)list[i].bytes));
    }
    return all;
}

static json_t *attention_json(struct plumb_engine *e) {
    struct pl_ops_attention_totals t;
    if (pl_ops_attention_settle(e->ops) != PL_OK) pl_log("the device did not end its last step");
    pl_ops_attention_totals(e->ops, &t);
    const struct {
        const char *name;
        uint64_t value;
    } list[] = {{"layers", e->config.layers},
                {"steps", t.steps},
                {"layer_steps", t.layer_steps},
                {"rows", t.rows},
                {"tokens", t.tokens},
                {"plans", t.plans},
                {"plans_reused", t.plans_reused},
                {"chunks", t.chunks},
                {"merged_rows", t.merged_rows},
                {"merged_states", t.merged_states},
                {"cascade_groups", t.cascade_groups},
                {"cascade_members", t.cascade_members},
                {"cascade_span_pages", t.cascade_span_pages},
                {"cascade_tokens_saved", t.cascade_tokens_saved},
                {"gathered_pages", t.gathered_pages},
                {"gathered_bytes", t.gathered_bytes},
                {"value_rows", t.value_rows},
                {"value_rows_skipped", t.value_rows_skipped}};
    json_t *o = json_object();
    for (size_t i = 0; i < PL_COUNT_OF(list); i++)
        json_object_set_new(o, list[i].name, json_integer((json_int_t)list[i].value));
    json_object_set_new(o, "invariant", json_boolean(pl_ops_invariant(e->ops)));
    json_object_set_new(o, "forms", forms_json(e->ops, pl_ops_attention_rows, "form"));
    json_object_set_new(o, "cascade", forms_json(e->ops, pl_ops_cascade_rows, "outcome"));
    return o;
}

json_t *pl_engine_counters(struct plumb_engine *e) {
    json_t *o = json_object();
    if (o == NULL) return NULL;
    add_identity(e, o, "plumb-counters-1");
    json_object_set_new(o, "decisions", asked_json(e->ops));
    json_object_set_new(o, "outcomes", outcomes_json(e->ops));
    json_object_set_new(o, "attention", attention_json(e));
    json_object_set_new(o, "ahead",
                        json_pack("{s:I, s:I, s:I}", "steps", (json_int_t)e->ahead.steps, "surplus_rows",
                                  (json_int_t)e->ahead.surplus_rows, "unconverged_draws",
                                  (json_int_t)pl_ops_unconverged(e->ops)));
    json_object_set_new(o, "add_up", json_boolean(pl_ops_decisions_add_up(e->ops)));
    json_t *kernels = pl_engine_witness(e);
    if (kernels != NULL && json_object_set_new(o, "kernels", kernels) == 0) return o;
    json_decref(o);
    return NULL;
}

static void add_cache(struct plumb_engine *e, json_t *o) {
    struct pl_ops_cache c;
    if (!pl_ops_cache_state(e->ops, &c)) return;
    json_object_set_new(o, "jit",
                        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "mode", c.mode, "dir", c.dir, "compiler",
                                  c.compiler, "memory_hits", (json_int_t)c.memory_hits, "disk_hits", (json_int_t)c.disk_hits,
                                  "compiled", (json_int_t)c.compiled, "shipped", (json_int_t)c.shipped, "differed",
                                  (json_int_t)c.differed, "damaged", (json_int_t)c.damaged));
}

json_t *pl_engine_witness_full(struct plumb_engine *e, struct pl_err *err) {
    json_t *o = pl_engine_counters(e), *modules = o != NULL ? modules_json(e, err) : NULL;
    if (modules == NULL) {
        if (err != NULL && err->text[0] == 0)
            pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "out of memory for the witness");
        json_decref(o);
        return NULL;
    }
    json_object_set_new(o, "schema", json_string("plumb-witness-1"));
    json_object_set_new(o, "modules", modules);
    add_cache(e, o);
    return o;
}
