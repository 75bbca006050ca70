/* The contract's common half: range checks, fault injection, poisoning, wording of errors. */
#include "device/device.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/driver.h"

struct pl_device {
    const struct pl_driver *drv;
    void *state;
    struct pl_device_info info;
    bool poisoned;
};

/* The test hook is the one piece of process-wide state here, as pl_mem_fail_at is for the heap. */
static _Atomic uint64_t call_count, fail_at;

void pl_device_fail_at(uint64_t nth) { atomic_store(&fail_at, nth == 0 ? 0 : atomic_load(&call_count) + nth); }
uint64_t pl_device_calls(void) { return atomic_load(&call_count); }

static bool injected(void) {
    uint64_t n = atomic_fetch_add(&call_count, 1) + 1, at = atomic_load(&fail_at);
    if (at == 0 || n != at) return false;
    atomic_store(&fail_at, 0);
    return true;
}

static const struct pl_driver *driver_of(enum pl_device_kind kind) {
    switch (kind) {
    case PL_DEVICE_CUDA: return &pl_driver_cuda;
    case PL_DEVICE_ROCM: return &pl_driver_rocm;
    case PL_DEVICE_OPENCL: return &pl_driver_opencl;
    case PL_DEVICE_KIND_COUNT: break;
    }
    PL_ASSERT(kind < PL_DEVICE_KIND_COUNT); /* a kind without a driver */
    return NULL;
}

const char *pl_device_kind_name(enum pl_device_kind kind) {
    static const char *const names[PL_DEVICE_KIND_COUNT] = {"cuda", "rocm", "opencl"};
    return (unsigned)kind < PL_DEVICE_KIND_COUNT ? names[kind] : "?";
}

static enum pl_status failed(struct pl_device *d, struct pl_err *err, const char *what, int code, bool poisons) {
    const char *kind = pl_device_kind_name(d->drv->kind);
    if (code == PL_DRIVER_BAD) PL_FAIL(err, PL_UNSUPPORTED, "%s: this kind of device cannot %s", kind, what);
    if (d->drv->is_out_of_memory(code)) {
        PL_FAIL(err, PL_NO_MEMORY, "%s: could not %s on %s: %s (%d): the device's memory is full", kind, what, d->info.name,
                d->drv->code_name(code), code);
    }
    if (poisons) d->poisoned = true;
    PL_FAIL(err, PL_DEVICE, "%s: could not %s on %s: %s (%d)", kind, what, d->info.name, d->drv->code_name(code), code);
}

/* Every call that reaches a driver passes here first. */
static enum pl_status admit(struct pl_device *d, const char *what, bool allocates, struct pl_err *err) {
    if (d->poisoned) {
        if (err != NULL && err->status == PL_DEVICE && err->text[0] != '\0') return PL_DEVICE; /* the first reason stands */
        PL_FAIL(err, PL_DEVICE, "%s: %s failed earlier and was not drained, so it cannot %s",
                pl_device_kind_name(d->drv->kind), d->info.name, what);
    }
    if (!injected()) return PL_OK;
    if (allocates) PL_FAIL(err, PL_NO_MEMORY, "could not %s: injected: the device's memory is full", what);
    d->poisoned = true;
    PL_FAIL(err, PL_DEVICE, "could not %s: injected device failure", what);
}

enum pl_status pl_device_count(enum pl_device_kind kind, int *count, struct pl_err *err) {
    const struct pl_driver *drv = driver_of(kind);
    PL_TRY(drv->load(err));
    int n = 0, code = drv->count(&n);
    if (code != 0) {
        PL_FAIL(err, PL_NOT_FOUND, "%s: the driver finds no usable device: %s (%d)", pl_device_kind_name(kind),
                drv->code_name(code), code);
    }
    *count = n;
    return PL_OK;
}

enum pl_status pl_device_describe(enum pl_device_kind kind, int index, struct pl_device_info *info, struct pl_err *err) {
    int n = 0;
    PL_TRY(pl_device_count(kind, &n, err));
    const char *name = pl_device_kind_name(kind);
    if (n == 0) PL_FAIL(err, PL_NOT_FOUND, "%s: the library is there but it lists no device", name);
    if (index < 0 || index >= n) {
        PL_FAIL(err, PL_NOT_FOUND, "%s: there is no device %d, only 0 to %d; 'plumb devices' lists them", name, index,
                n - 1);
    }
    struct pl_device_info found = {.kind = kind, .index = index};
    const struct pl_driver *drv = driver_of(kind);
    int code = drv->describe(index, &found);
    if (code != 0) {
        PL_FAIL(err, PL_DEVICE, "%s: device %d does not describe itself: %s (%d)", name, index, drv->code_name(code), code);
    }
    *info = found;
    return PL_OK;
}

enum pl_status pl_device_open(enum pl_device_kind kind, int index, struct pl_device **out, struct pl_err *err) {
    struct pl_device_info info;
    PL_TRY(pl_device_describe(kind, index, &info, err));
    struct pl_device *d = pl_calloc(1, sizeof *d);
    if (d == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory to open a device");
    d->drv = driver_of(kind);
    d->info = info;
    enum pl_status st = admit(d, "be opened", false, err);
    if (st == PL_OK) {
        int code = d->drv->open(index, &info, &d->state);
        if (code != 0) st = failed(d, err, "open a context", code, false);
    }
    if (st != PL_OK) {
        pl_free(d);
        return st;
    }
    *out = d;
    return PL_OK;
}

enum pl_status pl_device_paper(enum pl_device_kind kind, const char *target, struct pl_device **out, struct pl_err *err) {
    struct pl_device *d = pl_calloc(1, sizeof *d);
    if (d == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a device");
    d->drv = driver_of(kind);
    d->info = (struct pl_device_info){.kind = kind,
                                      .units = 100,
                                      .lanes = 32,
                                      .group_max = 1024,
                                      .shared_bytes = 48 * 1024,
                                      .shared_optin_bytes = 160 * 1024};
    snprintf(d->info.name, sizeof d->info.name, "no device");
    snprintf(d->info.target, sizeof d->info.target, "%s", target);
    *out = d;
    return PL_OK;
}

void pl_device_close(struct pl_device *d) {
    if (d == NULL) return;
    if (d->state != NULL) d->drv->close(d->state);
    pl_free(d);
}

const struct pl_device_info *pl_device_info(const struct pl_device *d) { return &d->info; }

void pl_device_line(const struct pl_device_info *info, char *out, size_t size) {
    double gb = (double)info->memory_bytes / 1e9;
    if (info->kind == PL_DEVICE_OPENCL) {
        snprintf(out, size, "%s, %s, %u units, %.0f GB", info->name, info->driver, info->units, gb);
    } else {
        snprintf(out, size, "%s, %s, driver %s, %u %s, %.0f GB", info->name, info->target, info->driver, info->units,
                 info->kind == PL_DEVICE_CUDA ? "SMs" : "CUs", gb);
    }
}

bool pl_device_poisoned(const struct pl_device *d) { return d->poisoned; }

enum pl_status pl_device_drain(struct pl_device *d, struct pl_err *err) {
    int code = d->drv->sync(d->state);
    if (code != 0) return failed(d, err, "finish its work", code, true);
    d->poisoned = false;
    return PL_OK;
}

void pl_device_settle(struct pl_device *d) { (void)d->drv->sync(d->state); }

enum pl_status pl_device_memory_free(struct pl_device *d, uint64_t *bytes, struct pl_err *err) {
    PL_TRY(admit(d, "tell its free memory", false, err));
    int code = d->drv->memory_free(d->state, bytes);
    return code == 0 ? PL_OK : failed(d, err, "tell its free memory", code, false);
}

enum pl_status pl_device_alloc(struct pl_device *d, uint64_t bytes, struct pl_device_buffer *out, struct pl_err *err) {
    char what[64];
    snprintf(what, sizeof what, "allocate %" PRIu64 " bytes", bytes);
    PL_ASSERT(bytes > 0);
    PL_TRY(admit(d, what, true, err));
    if (bytes > d->info.alloc_max_bytes) {
        PL_FAIL(err, PL_NO_MEMORY, "%s: %s allows at most %" PRIu64 " bytes in one buffer, %" PRIu64 " were asked for",
                pl_device_kind_name(d->drv->kind), d->info.name, d->info.alloc_max_bytes, bytes);
    }
    struct pl_device_buffer b = {NULL, bytes};
    int code = d->drv->alloc(d->state, bytes, &b.handle);
    if (code == 0) {
        *out = b;
        return PL_OK;
    }
    enum pl_status st = failed(d, err, what, code, false);
    uint64_t left = 0;
    if (st == PL_NO_MEMORY && d->drv->memory_free(d->state, &left) == 0) {
        pl_err_note(err,
                    "%" PRIu64 " of its %" PRIu64 " bytes were free: another process may hold the rest; a shorter context "
                    "or a smaller model needs less",
                    left, d->info.memory_bytes);
    }
    return st;
}

void pl_device_free(struct pl_device *d, struct pl_device_buffer *b) {
    if (b->handle != NULL) d->drv->free(d->state, b->handle);
    *b = (struct pl_device_buffer){0};
}

static enum pl_status in_range(const struct pl_device_buffer *b, uint64_t offset, uint64_t bytes, struct pl_err *err) {
    if (offset <= b->bytes && bytes <= b->bytes - offset) return PL_OK;
    PL_FAIL(err, PL_INVALID, "%" PRIu64 " bytes at offset %" PRIu64 " do not fit a device buffer of %" PRIu64, bytes, offset,
            b->bytes);
}

enum pl_status pl_device_view(struct pl_device *d, const struct pl_device_buffer *parent, uint64_t offset, uint64_t bytes,
                              struct pl_device_buffer *out, struct pl_err *err) {
    PL_ASSERT(bytes > 0 && offset % PL_DEVICE_VIEW_ALIGN == 0);
    PL_TRY(in_range(parent, offset, bytes, err));
    PL_TRY(admit(d, "make a part of a buffer", false, err));
    struct pl_device_buffer v = {NULL, bytes};
    int code = d->drv->view(d->state, parent->handle, offset, bytes, &v.handle);
    if (code != 0) return failed(d, err, "make a part of a buffer", code, false);
    *out = v;
    return PL_OK;
}
void pl_device_view_drop(struct pl_device *d, struct pl_device_buffer *v) {
    if (v->handle != NULL && d->drv->view_drop != NULL) d->drv->view_drop(d->state, v->handle);
    *v = (struct pl_device_buffer){0};
}

enum pl_status pl_device_host_alloc(struct pl_device *d, uint64_t bytes, void **out, struct pl_err *err) {
    PL_TRY(admit(d, "allocate staging memory", true, err));
    int code = d->drv->host_alloc(d->state, bytes, out);
    return code == 0 ? PL_OK : failed(d, err, "allocate staging memory", code, false);
}

void pl_device_host_free(struct pl_device *d, void *p) {
    if (p != NULL) d->drv->host_free(d->state, p);
}

/* The plain forwards: admit, call, word the failure. */
#define FORWARD(what, call)                                       \
    do {                                                          \
        PL_TRY(admit(d, what, false, err));                       \
        int code_ = (call);                                       \
        if (code_ != 0) return failed(d, err, what, code_, true); \
        return PL_OK;                                             \
    } while (0)

enum pl_status pl_device_stream_create(struct pl_device *d, struct pl_device_stream *out, struct pl_err *err) {
    FORWARD("create a stream", d->drv->stream_create(d->state, &out->handle));
}
void pl_device_stream_destroy(struct pl_device *d, struct pl_device_stream *s) {
    if (s->handle != NULL) d->drv->stream_destroy(d->state, s->handle);
    s->handle = NULL;
}
enum pl_status pl_device_stream_wait(struct pl_device *d, struct pl_device_stream s, struct pl_err *err) {
    FORWARD("finish a stream", d->drv->stream_wait(d->state, s.handle));
}
enum pl_status pl_device_event_create(struct pl_device *d, struct pl_device_event *out, struct pl_err *err) {
    FORWARD("create an event", d->drv->event_create(d->state, &out->handle));
}
void pl_device_event_destroy(struct pl_device *d, struct pl_device_event *e) {
    if (e->handle != NULL) d->drv->event_destroy(d->state, e->handle);
    e->handle = NULL;
}
enum pl_status pl_device_event_record(struct pl_device *d, struct pl_device_event *e, struct pl_device_stream s,
                                      struct pl_err *err) {
    FORWARD("record an event", d->drv->event_record(d->state, &e->handle, s.handle));
}
enum pl_status pl_device_event_wait(struct pl_device *d, struct pl_device_event *e, struct pl_err *err) {
    FORWARD("wait for an event", d->drv->event_wait(d->state, e->handle));
}
enum pl_status pl_device_stream_after(struct pl_device *d, struct pl_device_stream s, struct pl_device_event *e,
                                      struct pl_err *err) {
    FORWARD("order two streams", d->drv->stream_after(d->state, s.handle, e->handle));
}
enum pl_status pl_device_event_elapsed_us(struct pl_device *d, struct pl_device_event *from, struct pl_device_event *to,
                                          double *us, struct pl_err *err) {
    FORWARD("time two events", d->drv->event_elapsed_us(d->state, from->handle, to->handle, us));
}

enum pl_status pl_device_upload(struct pl_device *d, struct pl_device_stream s, const struct pl_device_buffer *to,
                                uint64_t offset, const void *from, uint64_t bytes, struct pl_err *err) {
    PL_TRY(in_range(to, offset, bytes, err));
    if (bytes == 0) return PL_OK;
    FORWARD("copy to the device", d->drv->upload(d->state, s.handle, to->handle, offset, from, bytes));
}
enum pl_status pl_device_download(struct pl_device *d, struct pl_device_stream s, void *to,
                                  const struct pl_device_buffer *from, uint64_t offset, uint64_t bytes, struct pl_err *err) {
    PL_TRY(in_range(from, offset, bytes, err));
    if (bytes == 0) return PL_OK;
    FORWARD("copy from the device", d->drv->download(d->state, s.handle, to, from->handle, offset, bytes));
}
enum pl_status pl_device_copy(struct pl_device *d, struct pl_device_stream s, const struct pl_device_buffer *to,
                              uint64_t to_offset, const struct pl_device_buffer *from, uint64_t from_offset, uint64_t bytes,
                              struct pl_err *err) {
    PL_TRY(in_range(to, to_offset, bytes, err));
    PL_TRY(in_range(from, from_offset, bytes, err));
    if (bytes == 0) return PL_OK;
    FORWARD("copy on the device", d->drv->copy(d->state, s.handle, to->handle, to_offset, from->handle, from_offset, bytes));
}
enum pl_status pl_device_fill(struct pl_device *d, struct pl_device_stream s, const struct pl_device_buffer *to,
                              uint8_t value, struct pl_err *err) {
    FORWARD("fill a buffer", d->drv->fill(d->state, s.handle, to->handle, to->bytes, value));
}

enum pl_status pl_device_compile(struct pl_device *d, enum pl_device_kind kind, const char *target,
                                 const struct pl_device_source *src, struct pl_buf *image, struct pl_buf *log,
                                 struct pl_err *err) {
    const struct pl_driver *drv = d != NULL ? d->drv : driver_of(kind);
    if (d != NULL) PL_TRY(admit(d, "compile", false, err));
    return drv->compile(d != NULL ? d->state : NULL, d != NULL ? d->info.target : target, src, image, log, err);
}
enum pl_status pl_device_compiler(struct pl_device *d, enum pl_device_kind kind, char *out, size_t size,
                                  struct pl_err *err) {
    const struct pl_driver *drv = d != NULL ? d->drv : driver_of(kind);
    return drv->compiler(d != NULL ? d->state : NULL, out, size, err);
}

enum pl_status pl_device_module_load(struct pl_device *d, const void *image, size_t bytes, struct pl_device_module *out,
                                     struct pl_err *err) {
    PL_TRY(admit(d, "load a module", false, err));
    int code = d->drv->module_load(d->state, image, bytes, &out->handle);
    return code == 0 ? PL_OK : failed(d, err, "load a module", code, false);
}
void pl_device_module_unload(struct pl_device *d, struct pl_device_module *m) {
    if (m->handle != NULL) d->drv->module_unload(d->state, m->handle);
    m->handle = NULL;
}
enum pl_status pl_device_function(struct pl_device *d, struct pl_device_module m, const char *name,
                                  struct pl_device_function *out, struct pl_err *err) {
    char what[128];
    snprintf(what, sizeof what, "find the kernel %s in its module", name);
    PL_TRY(admit(d, what, false, err));
    int code = d->drv->function(d->state, m.handle, name, &out->handle);
    return code == 0 ? PL_OK : failed(d, err, what, code, false);
}
void pl_device_function_release(struct pl_device *d, struct pl_device_function *f) {
    if (f->handle != NULL) d->drv->function_release(d->state, f->handle);
    f->handle = NULL;
}
enum pl_status pl_device_function_info(struct pl_device *d, struct pl_device_function f, struct pl_device_function_info *out,
                                       struct pl_err *err) {
    FORWARD("describe a kernel", d->drv->function_info(d->state, f.handle, out));
}

enum pl_status pl_device_launch(struct pl_device *d, struct pl_device_stream s, const struct pl_device_launch *l,
                                struct pl_err *err) {
    PL_ASSERT(l->arg_count <= PL_DEVICE_ARGS_MAX);
    FORWARD("launch a kernel", d->drv->launch(d->state, s.handle, l));
}

enum pl_status pl_device_capture_begin(struct pl_device *d, struct pl_device_stream s, struct pl_err *err) {
    FORWARD("capture a graph", d->drv->capture_begin ? d->drv->capture_begin(d->state, s.handle) : PL_DRIVER_BAD);
}
enum pl_status pl_device_capture_end(struct pl_device *d, struct pl_device_stream s, struct pl_device_graph *out,
                                     struct pl_err *err) {
    FORWARD("capture a graph", d->drv->capture_end ? d->drv->capture_end(d->state, s.handle, &out->handle) : PL_DRIVER_BAD);
}
void pl_device_capture_drop(struct pl_device *d, struct pl_device_stream s) {
    void *graph = NULL;
    if (d->drv->capture_end == NULL || d->drv->capture_end(d->state, s.handle, &graph) != 0) return;
    if (graph != NULL) d->drv->graph_destroy(d->state, graph);
}
enum pl_status pl_device_graph_launch(struct pl_device *d, struct pl_device_stream s, struct pl_device_graph g,
                                      struct pl_err *err) {
    FORWARD("launch a graph", d->drv->graph_launch ? d->drv->graph_launch(d->state, s.handle, g.handle) : PL_DRIVER_BAD);
}
void pl_device_graph_destroy(struct pl_device *d, struct pl_device_graph *g) {
    if (g->handle != NULL) d->drv->graph_destroy(d->state, g->handle);
    g->handle = NULL;
}

void *pl_device_raw_buffer(const struct pl_device_buffer *b) { return b->handle; }
void *pl_device_raw_stream(struct pl_device_stream s) { return s.handle; }
