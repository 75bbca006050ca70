/* device - GPUs and OpenCL devices behind one contract: buffers, streams, events, modules, launches, graphs.
 *
 * Promise: the vendors' libraries (CUDA driver, HIP, OpenCL loader) are opened with dlopen when first asked for, so one
 * binary runs everywhere; what is missing is named in the error (library, symbol, driver, device). Nothing here ever
 * falls back to another kind. Handles are plain values owned by the caller and die before the device that made them.
 *
 * Errors carry the vendor's own name of the code. Running out of memory is PL_NO_MEMORY and leaves the device usable;
 * any other failure of a copy, launch or wait poisons the device: every later call returns PL_DEVICE at once until
 * pl_device_drain. Work is enqueued on streams in order; a host array given to an upload or download must stay alive
 * until the stream was waited for.
 *
 * Tests make the n-th device call fail with pl_device_fail_at. Not thread safe: one thread owns a device at a time
 * (it may change between calls). */
#ifndef PL_DEVICE_DEVICE_H
#define PL_DEVICE_DEVICE_H

#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

enum pl_device_kind { PL_DEVICE_CUDA, PL_DEVICE_ROCM, PL_DEVICE_OPENCL, PL_DEVICE_KIND_COUNT };
const char *pl_device_kind_name(enum pl_device_kind kind);

struct pl_device_info {
    enum pl_device_kind kind;
    int index;
    char name[128];
    char target[240]; /* what code is compiled for: "sm_90", "gfx90a:sramecc+:xnack-", or platform, device and driver */
    char driver[128];
    uint64_t memory_bytes, alloc_max_bytes;
    uint32_t units;     /* multiprocessors, compute units */
    uint32_t lanes;     /* threads that run in step; 1 where the kind cannot say */
    uint32_t group_max; /* threads of one group */
    uint32_t shared_bytes, shared_optin_bytes;
    uint32_t l2_bytes; /* 0: unknown */
    bool graphs;       /* pl_device_capture_* work */
    bool is_cpu;       /* an OpenCL device that is the host's processor */
};

struct pl_device;
struct pl_device_buffer {
    void *handle;
    uint64_t bytes;
};
struct pl_device_stream {
    void *handle;
};
struct pl_device_event {
    void *handle;
};
struct pl_device_module {
    void *handle;
};
struct pl_device_function {
    void *handle;
};
struct pl_device_graph {
    void *handle;
};

/* How many devices of a kind there are. PL_NOT_FOUND names what is missing and how to get it. */
enum pl_status pl_device_count(enum pl_device_kind kind, int *count, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_device_describe(enum pl_device_kind kind, int index, struct pl_device_info *info,
                                  struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_device_open(enum pl_device_kind kind, int index, struct pl_device **out, struct pl_err *err) PL_MUST_CHECK;
void pl_device_close(struct pl_device *d); /* NULL is allowed */
/* A device that is not there: it describes itself as a typical one of that target and compiles, nothing else. For choosing
 * and compiling kernels ahead of time. */
enum pl_status pl_device_paper(enum pl_device_kind kind, const char *target, struct pl_device **out,
                               struct pl_err *err) PL_MUST_CHECK;
const struct pl_device_info *pl_device_info(const struct pl_device *d);
/* "NVIDIA H200, sm_90, driver 13.0, 132 units, 141 GB" */
void pl_device_line(const struct pl_device_info *info, char *out, size_t size);
/* For cleaning up after a failure: waits for all enqueued work, poisoned or not, before memory it uses is let go. */
void pl_device_settle(struct pl_device *d);
enum pl_status pl_device_memory_free(struct pl_device *d, uint64_t *bytes, struct pl_err *err) PL_MUST_CHECK;

bool pl_device_poisoned(const struct pl_device *d);
/* Waits for whatever still runs and clears the poison; fails while the device itself stays broken. */
enum pl_status pl_device_drain(struct pl_device *d, struct pl_err *err) PL_MUST_CHECK;

/* bytes > 0. */
enum pl_status pl_device_alloc(struct pl_device *d, uint64_t bytes, struct pl_device_buffer *out,
                               struct pl_err *err) PL_MUST_CHECK;
void pl_device_free(struct pl_device *d, struct pl_device_buffer *b); /* a zeroed buffer is allowed; zeroes *b */
/* A part of a buffer as a buffer of its own; offset is a multiple of PL_DEVICE_VIEW_ALIGN. It dies before its parent, and
 * with pl_device_view_drop, never pl_device_free. */
enum { PL_DEVICE_VIEW_ALIGN = 512 };
enum pl_status pl_device_view(struct pl_device *d, const struct pl_device_buffer *parent, uint64_t offset, uint64_t bytes,
                              struct pl_device_buffer *out, struct pl_err *err) PL_MUST_CHECK;
void pl_device_view_drop(struct pl_device *d, struct pl_device_buffer *v);
/* Host memory that copies run fastest from (pinned where the kind has it). */
enum pl_status pl_device_host_alloc(struct pl_device *d, uint64_t bytes, void **out, struct pl_err *err) PL_MUST_CHECK;
void pl_device_host_free(struct pl_device *d, void *p);

enum pl_status pl_device_stream_create(struct pl_device *d, struct pl_device_stream *out, struct pl_err *err) PL_MUST_CHECK;
void pl_device_stream_destroy(struct pl_device *d, struct pl_device_stream *s);
enum pl_status pl_device_stream_wait(struct pl_device *d, struct pl_device_stream s, struct pl_err *err) PL_MUST_CHECK;

enum pl_status pl_device_event_create(struct pl_device *d, struct pl_device_event *out, struct pl_err *err) PL_MUST_CHECK;
void pl_device_event_destroy(struct pl_device *d, struct pl_device_event *e);
enum pl_status pl_device_event_record(struct pl_device *d, struct pl_device_event *e, struct pl_device_stream s,
                                      struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_device_event_wait(struct pl_device *d, struct pl_device_event *e, struct pl_err *err) PL_MUST_CHECK;
/* Later work of s starts after e. */
enum pl_status pl_device_stream_after(struct pl_device *d, struct pl_device_stream s, struct pl_device_event *e,
                                      struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_device_event_elapsed_us(struct pl_device *d, struct pl_device_event *from, struct pl_device_event *to,
                                          double *us, struct pl_err *err) PL_MUST_CHECK;

/* Enqueued copies; ranges are checked against the buffers' sizes. */
enum pl_status pl_device_upload(struct pl_device *d, struct pl_device_stream s, const struct pl_device_buffer *to,
                                uint64_t offset, const void *from, uint64_t bytes, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_device_download(struct pl_device *d, struct pl_device_stream s, void *to,
                                  const struct pl_device_buffer *from, uint64_t offset, uint64_t bytes,
                                  struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_device_copy(struct pl_device *d, struct pl_device_stream s, const struct pl_device_buffer *to,
                              uint64_t to_offset, const struct pl_device_buffer *from, uint64_t from_offset, uint64_t bytes,
                              struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_device_fill(struct pl_device *d, struct pl_device_stream s, const struct pl_device_buffer *to,
                              uint8_t value, struct pl_err *err) PL_MUST_CHECK;

/* Source text to an image for exactly this device. d may be NULL for CUDA and ROCm, then target says for what. The
 * compiler's messages are appended to log. Options are the compiler's own. */
struct pl_device_source {
    const char *name, *text;
    const char *const *options;
    size_t option_count;
};
enum pl_status pl_device_compile(struct pl_device *d, enum pl_device_kind kind, const char *target,
                                 const struct pl_device_source *src, struct pl_buf *image, struct pl_buf *log,
                                 struct pl_err *err) PL_MUST_CHECK;
/* Identity and version of that compiler, for cache keys: "nvrtc 13.0". */
enum pl_status pl_device_compiler(struct pl_device *d, enum pl_device_kind kind, char *out, size_t size,
                                  struct pl_err *err) PL_MUST_CHECK;

enum pl_status pl_device_module_load(struct pl_device *d, const void *image, size_t bytes, struct pl_device_module *out,
                                     struct pl_err *err) PL_MUST_CHECK;
void pl_device_module_unload(struct pl_device *d, struct pl_device_module *m);
enum pl_status pl_device_function(struct pl_device *d, struct pl_device_module m, const char *name,
                                  struct pl_device_function *out, struct pl_err *err) PL_MUST_CHECK;
void pl_device_function_release(struct pl_device *d, struct pl_device_function *f);
struct pl_device_function_info {
    uint32_t registers, local_bytes, shared_bytes; /* 0 where the kind cannot say */
};
enum pl_status pl_device_function_info(struct pl_device *d, struct pl_device_function f, struct pl_device_function_info *out,
                                       struct pl_err *err) PL_MUST_CHECK;

/* One argument: a buffer (its start; a zeroed buffer passes a null pointer), or size bytes by value. */
struct pl_device_arg {
    const struct pl_device_buffer *buffer;
    const void *value;
    size_t size;
};
#define PL_ARG_BUFFER(b) ((struct pl_device_arg){.buffer = (b)})
#define PL_ARG_VALUE(v)  ((struct pl_device_arg){.value = &(v), .size = sizeof(v)})
enum { PL_DEVICE_ARGS_MAX = 24 };
struct pl_device_launch {
    struct pl_device_function function;
    uint32_t grid[3], group[3];
    uint32_t shared_bytes; /* dynamic; CUDA and ROCm only */
    bool overlap;          /* CUDA: programmatic dependent launch */
    const struct pl_device_arg *args;
    size_t arg_count;
};
enum pl_status pl_device_launch(struct pl_device *d, struct pl_device_stream s, const struct pl_device_launch *l,
                                struct pl_err *err) PL_MUST_CHECK;

/* What is enqueued on s between begin and end becomes a graph instead of running. */
enum pl_status pl_device_capture_begin(struct pl_device *d, struct pl_device_stream s, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_device_capture_end(struct pl_device *d, struct pl_device_stream s, struct pl_device_graph *out,
                                     struct pl_err *err) PL_MUST_CHECK;
/* After a failure between the two: s runs what it is given again. Poisoned or not. */
void pl_device_capture_drop(struct pl_device *d, struct pl_device_stream s);
enum pl_status pl_device_graph_launch(struct pl_device *d, struct pl_device_stream s, struct pl_device_graph g,
                                      struct pl_err *err) PL_MUST_CHECK;
void pl_device_graph_destroy(struct pl_device *d, struct pl_device_graph *g);

/* Vendor handles for libraries that take them (cuBLASLt): the raw address of a buffer, the raw stream. */
void *pl_device_raw_buffer(const struct pl_device_buffer *b);
void *pl_device_raw_stream(struct pl_device_stream s);

/* Test hook, process wide: the n-th device call from now (1 = the next) fails once; allocations fail as out of memory,
 * all others as a device failure. 0 switches it off. */
void pl_device_fail_at(uint64_t nth);
uint64_t pl_device_calls(void);

#endif
