/* Calls shared by CUDA and HIP. Each makes the device's context current on this thread first. */
#include "device/rt.h"

#include <string.h>

#define ENTER(state)                   \
    struct pl_rt *rt = (state);        \
    int enter_ = rt->make_current(rt); \
    if (enter_ != 0) return enter_

int pl_rt_memory_free(void *state, uint64_t *bytes) {
    ENTER(state);
    size_t avail = 0, total = 0;
    int code = rt->api->mem_info(&avail, &total);
    *bytes = avail;
    return code;
}
int pl_rt_sync(void *state) {
    ENTER(state);
    return rt->api->sync();
}
int pl_rt_alloc(void *state, uint64_t bytes, void **out) {
    ENTER(state);
    return rt->api->alloc(out, bytes);
}
void pl_rt_free(void *state, void *p) {
    struct pl_rt *rt = state;
    if (rt->make_current(rt) == 0) rt->api->free(p);
}
int pl_rt_view(void *state, void *parent, uint64_t offset, uint64_t bytes, void **out) {
    (void)state;
    (void)bytes;
    *out = (char *)parent + offset;
    return 0;
}
int pl_rt_host_alloc(void *state, uint64_t bytes, void **out) {
    ENTER(state);
    return rt->api->host_alloc(out, bytes, 0);
}
void pl_rt_host_free(void *state, void *p) {
    struct pl_rt *rt = state;
    if (rt->make_current(rt) == 0) rt->api->host_free(p);
}
int pl_rt_stream_create(void *state, void **out) {
    ENTER(state);
    return rt->api->stream_create(out, 1 /* does not wait for the default stream */);
}
void pl_rt_stream_destroy(void *state, void *s) {
    struct pl_rt *rt = state;
    if (rt->make_current(rt) == 0) rt->api->stream_destroy(s);
}
int pl_rt_stream_wait(void *state, void *s) {
    ENTER(state);
    return rt->api->stream_wait(s);
}
int pl_rt_event_create(void *state, void **out) {
    ENTER(state);
    return rt->api->event_create(out, 0);
}
void pl_rt_event_destroy(void *state, void *e) {
    struct pl_rt *rt = state;
    if (rt->make_current(rt) == 0) rt->api->event_destroy(e);
}
int pl_rt_event_record(void *state, void **e, void *s) {
    ENTER(state);
    return rt->api->event_record(*e, s);
}
int pl_rt_event_wait(void *state, void *e) {
    ENTER(state);
    return rt->api->event_wait(e);
}
int pl_rt_stream_after(void *state, void *s, void *e) {
    ENTER(state);
    return rt->api->stream_after(s, e, 0);
}
int pl_rt_event_elapsed_us(void *state, void *from, void *to, double *us) {
    ENTER(state);
    float ms = 0;
    int code = rt->api->event_elapsed(&ms, from, to);
    *us = (double)ms * 1e3;
    return code;
}
int pl_rt_upload(void *state, void *s, void *to, uint64_t offset, const void *from, uint64_t bytes) {
    ENTER(state);
    return rt->api->upload((char *)to + offset, from, bytes, s);
}
int pl_rt_download(void *state, void *s, void *to, void *from, uint64_t offset, uint64_t bytes) {
    ENTER(state);
    return rt->api->download(to, (char *)from + offset, bytes, s);
}
int pl_rt_copy(void *state, void *s, void *to, uint64_t to_offset, void *from, uint64_t from_offset, uint64_t bytes) {
    ENTER(state);
    return rt->api->copy((char *)to + to_offset, (char *)from + from_offset, bytes, s);
}
int pl_rt_fill(void *state, void *s, void *to, uint64_t bytes, uint8_t value) {
    ENTER(state);
    return rt->api->fill(to, value, bytes, s);
}
int pl_rt_module_load(void *state, const void *image, size_t bytes, void **out) {
    ENTER(state);
    (void)bytes;
    return rt->api->module_load(out, image);
}
void pl_rt_module_unload(void *state, void *m) {
    struct pl_rt *rt = state;
    if (rt->make_current(rt) == 0) rt->api->module_unload(m);
}
int pl_rt_function(void *state, void *m, const char *name, void **out) {
    ENTER(state);
    return rt->api->function(out, m, name);
}
void pl_rt_function_release(void *state, void *f) {
    (void)state;
    (void)f; /* belongs to its module */
}
int pl_rt_function_info(void *state, void *f, struct pl_device_function_info *out) {
    ENTER(state);
    int shared = 0, local = 0, registers = 0;
    int code = rt->api->function_attribute(&shared, 1, f);
    if (code == 0) code = rt->api->function_attribute(&local, 3, f);
    if (code == 0) code = rt->api->function_attribute(&registers, 4, f);
    if (code != 0) return code;
    *out = (struct pl_device_function_info){(uint32_t)registers, (uint32_t)local, (uint32_t)shared};
    return 0;
}

int pl_rt_launch(void *state, void *s, const struct pl_device_launch *l) {
    ENTER(state);
    void *params[PL_DEVICE_ARGS_MAX], *pointers[PL_DEVICE_ARGS_MAX];
    for (size_t i = 0; i < l->arg_count; i++) {
        const struct pl_device_arg *a = &l->args[i];
        pointers[i] = a->value == NULL && a->buffer != NULL ? a->buffer->handle : NULL;
        /* The API takes its parameters through pointers to non-const and only reads them. */
        params[i] = a->value != NULL ? (void *)(uintptr_t)a->value : (void *)&pointers[i];
    }
    enum { ALWAYS_ALLOWED = 48 * 1024, OF_THE_CODE = 32 * 1024 }; /* what the kernel declares itself counts as well */
    if (l->shared_bytes > ALWAYS_ALLOWED - OF_THE_CODE && rt->api->function_set != NULL) {
        int code = rt->api->function_set(l->function.handle, 8 /* largest dynamic shared size */, (int)l->shared_bytes);
        if (code != 0) return code;
    }
    if (l->overlap && rt->api->launch_ex != NULL) {
        struct pl_rt_launch_attribute attr = {.id = 6 /* programmatic stream serialisation */};
        attr.v.value = 1;
        struct pl_rt_launch_config c = {.shared_bytes = l->shared_bytes, .stream = s, .attrs = &attr, .attr_count = 1};
        memcpy(c.grid, l->grid, sizeof c.grid);
        memcpy(c.block, l->group, sizeof c.block);
        return rt->api->launch_ex(&c, l->function.handle, params, NULL);
    }
    return rt->api->launch(l->function.handle, l->grid[0], l->grid[1], l->grid[2], l->group[0], l->group[1], l->group[2],
                           l->shared_bytes, s, params, NULL);
}

int pl_rt_capture_begin(void *state, void *s) {
    ENTER(state);
    return rt->api->capture_begin(s, 2 /* nothing is restricted: libraries load their code when first used */);
}
int pl_rt_capture_end(void *state, void *s, void **out) {
    ENTER(state);
    void *graph = NULL;
    int code = rt->api->capture_end(s, &graph);
    if (code != 0) return code;
    code = rt->api->graph_instantiate(out, graph, 0);
    rt->api->graph_destroy(graph);
    return code;
}
int pl_rt_graph_launch(void *state, void *s, void *g) {
    ENTER(state);
    return rt->api->graph_launch(g, s);
}
void pl_rt_graph_destroy(void *state, void *g) {
    struct pl_rt *rt = state;
    if (rt->make_current(rt) == 0) rt->api->graph_exec_destroy(g);
}
