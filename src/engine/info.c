/* info - what an engine is and what it ran, as JSON. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"

static json_t *sizes_json(const struct pl_model_config *c) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "layers", (json_int_t)c->layers, "width",
                     (json_int_t)c->width, "mlp_width", (json_int_t)c->mlp_width, "heads", (json_int_t)c->heads, "kv_heads",
                     (json_int_t)c->kv_heads, "head_dim", (json_int_t)c->head_dim, "vocab", (json_int_t)c->vocab,
                     "context_train", (json_int_t)c->context_train);
}

static json_t *memory_json(const struct plumb_engine *e) {
    const struct pl_memory_budget *b = &e->budget;
    uint64_t total = b->weight_bytes_resident + b->kv_bytes + b->scratch_bytes;
    json_t *o = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "weights_mapped_bytes", (json_int_t)b->weight_bytes_mapped,
                          "weights_owned_bytes_max", (json_int_t)b->weight_bytes_owned, "weights_resident_bytes_max",
                          (json_int_t)b->weight_bytes_resident, "kv_bytes", (json_int_t)b->kv_bytes, "scratch_bytes",
                          (json_int_t)b->scratch_bytes, "total_bytes_max", (json_int_t)total, "limit_bytes",
                          (json_int_t)PL_MIN(e->memory_limit, (uint64_t)INT64_MAX));
    if (o != NULL && e->model != NULL)
        json_object_set_new(o, "weights_owned_bytes", json_integer((json_int_t)pl_model_bytes_owned(e->model)));
    return o;
}

/* Pages by group: of all layers, or of windowed ones beside the others. */
static json_t *pages_json(const struct plumb_engine *e) {
    const struct pl_kv_shape *s = &e->kv_shape;
    json_t *o = json_pack("{s:I}", "full", (json_int_t)s->page_count);
    if (o != NULL && s->window_page_count > 0) {
        json_object_set_new(o, "windowed", json_integer((json_int_t)s->window_page_count));
        json_object_set_new(o, "windowed_layers", json_integer((json_int_t)pl_kv_windowed_layers(s)));
        json_object_set_new(o, "window", json_integer((json_int_t)e->config.window));
    }
    return o;
}

static double seconds(uint64_t ns) { return (double)ns * 1e-9; }
static uint64_t start_ns(const struct pl_engine_start *s) {
    return s->file + s->backend + s->weights + s->memory + s->kernels;
}
static double weights_gb_s(const struct plumb_engine *e) {
    return e->start.weights == 0 ? 0.0 : (double)pl_file_bytes(e->file) / (double)e->start.weights;
}

json_t *pl_engine_start_json(const struct plumb_engine *e) {
    const struct pl_engine_start *s = &e->start;
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "total_s", seconds(start_ns(s)), "file_s", seconds(s->file),
                     "backend_s", seconds(s->backend), "weights_s", seconds(s->weights), "weights_gb_s", weights_gb_s(e),
                     "memory_s", seconds(s->memory), "kernels_s", seconds(s->kernels));
}

void pl_engine_start_text(const struct plumb_engine *e, char out[PL_ENGINE_START_TEXT]) {
    const struct pl_engine_start *s = &e->start;
    snprintf(out, PL_ENGINE_START_TEXT,
             "%.2f s: file %.2f, backend %.2f, weights %.2f (%.2f GB, %.1f GB/s), memory %.2f, kernels %.2f",
             seconds(start_ns(s)), seconds(s->file), seconds(s->backend), seconds(s->weights),
             (double)pl_file_bytes(e->file) * 1e-9, weights_gb_s(e), seconds(s->memory), seconds(s->kernels));
}

json_t *pl_engine_info(struct plumb_engine *e) {
    json_t *o = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:I, s:o, s:o, s:o}", "model", e->model_path,
                          "architecture", pl_arch_name(e->config.arch), "fingerprint", pl_file_fingerprint(e->file),
                          "file_bytes", (json_int_t)pl_file_bytes(e->file), "context", (json_int_t)e->context,
                          "max_sessions", (json_int_t)e->max_sessions, "batch_rows", (json_int_t)e->batch_rows, "kv_dtype",
                          pl_kv_type_name(e->kv_shape.dtype), "page_tokens", (json_int_t)e->kv_shape.page_tokens, "pages",
                          pages_json(e), "sizes", sizes_json(&e->config), "memory", memory_json(e));
    if (o == NULL || e->ops == NULL) return o;
    json_t *kernels = pl_engine_witness(e);
    if (json_object_set_new(o, "backend", json_string(pl_ops_describe(e->ops))) == 0 &&
        json_object_set_new(o, "kernels", kernels) == 0 && json_object_set_new(o, "start", pl_engine_start_json(e)) == 0)
        return o;
    json_decref(o);
    return NULL;
}
