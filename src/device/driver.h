/* driver - what a kind of device must implement (inside src/device only).
 *
 * Every function returns the vendor's code, 0 meaning success, or PL_DRIVER_BAD for a request the driver was not asked.
 * `state` is the kind's own record of an open device. device.c checks ranges, injects faults, poisons, words errors. */
#ifndef PL_DEVICE_DRIVER_H
#define PL_DEVICE_DRIVER_H

#include "device/device.h"

enum { PL_DRIVER_BAD = -100000 };

struct pl_driver {
    enum pl_device_kind kind;
    enum pl_status (*load)(struct pl_err *err); /* opens the library once; later calls are cheap */
    int (*count)(int *count);
    int (*describe)(int index, struct pl_device_info *info);
    int (*open)(int index, const struct pl_device_info *info, void **state);
    void (*close)(void *state);
    const char *(*code_name)(int code);
    bool (*is_out_of_memory)(int code);
    int (*memory_free)(void *state, uint64_t *bytes);
    int (*sync)(void *state);
    int (*alloc)(void *state, uint64_t bytes, void **out);
    void (*free)(void *state, void *p);
    int (*view)(void *state, void *parent, uint64_t offset, uint64_t bytes, void **out);
    void (*view_drop)(void *state, void *v); /* NULL: a view is only an address */
    int (*host_alloc)(void *state, uint64_t bytes, void **out);
    void (*host_free)(void *state, void *p);
    int (*stream_create)(void *state, void **out);
    void (*stream_destroy)(void *state, void *s);
    int (*stream_wait)(void *state, void *s);
    int (*event_create)(void *state, void **out);
    void (*event_destroy)(void *state, void *e);
    int (*event_record)(void *state, void **e, void *s);
    int (*event_wait)(void *state, void *e);
    int (*stream_after)(void *state, void *s, void *e);
    int (*event_elapsed_us)(void *state, void *from, void *to, double *us);
    int (*upload)(void *state, void *s, void *to, uint64_t offset, const void *from, uint64_t bytes);
    int (*download)(void *state, void *s, void *to, void *from, uint64_t offset, uint64_t bytes);
    int (*copy)(void *state, void *s, void *to, uint64_t to_offset, void *from, uint64_t from_offset, uint64_t bytes);
    int (*fill)(void *state, void *s, void *to, uint64_t bytes, uint8_t value);
    enum pl_status (*compile)(void *state, const char *target, const struct pl_device_source *src, struct pl_buf *image,
                              struct pl_buf *log, struct pl_err *err);
    enum pl_status (*compiler)(void *state, char *out, size_t size, struct pl_err *err);
    int (*module_load)(void *state, const void *image, size_t bytes, void **out);
    void (*module_unload)(void *state, void *m);
    int (*function)(void *state, void *m, const char *name, void **out);
    void (*function_release)(void *state, void *f);
    int (*function_info)(void *state, void *f, struct pl_device_function_info *out);
    int (*launch)(void *state, void *s, const struct pl_device_launch *l);
    int (*capture_begin)(void *state, void *s); /* NULL: no graphs */
    int (*capture_end)(void *state, void *s, void **out);
    int (*graph_launch)(void *state, void *s, void *g);
    void (*graph_destroy)(void *state, void *g);
};

int pl_cuda_keep_context(int index); /* 0: the primary context stays for the life of the process */
extern const struct pl_driver pl_driver_cuda, pl_driver_rocm, pl_driver_opencl;

/* A list of libraries to try and the symbols wanted from them. */
struct pl_library_symbol {
    const char *name;
    void **slot;
    bool optional;
};
struct pl_library {
    const char *what;           /* "the CUDA driver" */
    const char *help;           /* how to get it */
    const char *const *names;   /* file names, best first, NULL-terminated */
    const char *const *folders; /* further folders, searched after the loader's own, NULL-terminated; may be NULL */
    const char *env;            /* an environment variable naming a folder searched first; may be NULL */
    const char *off;            /* an environment variable that leaves it out when it says off; may be NULL */
    const char *pip;            /* folder pattern inside Python package folders, such as nvidia/cu13; may be NULL */
};
/* Fills every slot or fails naming the library or the symbol that is missing. *handle stays open for good. */
enum pl_status pl_library_open(const struct pl_library *lib, const struct pl_library_symbol *symbols, size_t count,
                               void **handle, struct pl_err *err) PL_MUST_CHECK;

/* Run-time compilers of one shape: NVRTC and hipRTC. */
enum pl_status pl_rtc_compile(enum pl_device_kind kind, const char *target, const struct pl_device_source *src,
                              struct pl_buf *image, struct pl_buf *log, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_rtc_version(enum pl_device_kind kind, char *out, size_t size, struct pl_err *err) PL_MUST_CHECK;

#endif
