/* rt - the half that CUDA's driver API and HIP's module API share: the same calls with the same arguments under other
 * names. Each kind fills one struct pl_rt_api with the addresses it found. Own declarations: no SDK header is needed. */
#ifndef PL_DEVICE_RT_H
#define PL_DEVICE_RT_H

#include "device/driver.h"

struct pl_rt_launch_attribute { /* CUlaunchAttribute: 8 bytes of id and padding, 64 of value */
    int id;
    char pad[4];
    union {
        char bytes[64];
        int value;
    } v;
};
struct pl_rt_launch_config { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    struct pl_rt_launch_attribute *attrs;
    unsigned attr_count;
};
_Static_assert(sizeof(struct pl_rt_launch_attribute) == 72, "as in the driver's ABI");
_Static_assert(sizeof(struct pl_rt_launch_config) == 56, "as in the driver's ABI");

struct pl_rt_api {
    int (*init)(unsigned flags);
    int (*driver_version)(int *v);
    int (*count)(int *n);
    int (*device_get)(int *dev, int index);
    int (*device_name)(char *name, int len, int dev);
    int (*attribute)(int *v, int attribute, int dev);
    int (*total_mem)(size_t *bytes, int dev);
    int (*mem_info)(size_t *free_bytes, size_t *total);
    int (*alloc)(void **p, size_t bytes);
    int (*free)(void *p);
    int (*host_alloc)(void **p, size_t bytes, unsigned flags);
    int (*host_free)(void *p);
    int (*upload)(void *to, const void *from, size_t bytes, void *stream);
    int (*download)(void *to, void *from, size_t bytes, void *stream);
    int (*copy)(void *to, void *from, size_t bytes, void *stream);
    int (*fill)(void *to, unsigned char value, size_t bytes, void *stream);
    int (*stream_create)(void **s, unsigned flags);
    int (*stream_destroy)(void *s);
    int (*stream_wait)(void *s);
    int (*stream_after)(void *s, void *event, unsigned flags);
    int (*event_create)(void **e, unsigned flags);
    int (*event_destroy)(void *e);
    int (*event_record)(void *e, void *s);
    int (*event_wait)(void *e);
    int (*event_elapsed)(float *ms, void *from, void *to);
    int (*module_load)(void **m, const void *image);
    int (*module_unload)(void *m);
    int (*function)(void **f, void *m, const char *name);
    int (*function_attribute)(int *v, int attribute, void *f);
    int (*function_set)(void *f, int attribute, int value); /* optional */
    int (*launch)(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                  void *s, void **params, void **extra);
    int (*launch_ex)(const struct pl_rt_launch_config *c, void *f, void **params, void **extra); /* optional */
    int (*capture_begin)(void *s, int mode);
    int (*capture_end)(void *s, void **graph);
    int (*graph_instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*graph_launch)(void *exec, void *s);
    int (*graph_destroy)(void *graph);
    int (*graph_exec_destroy)(void *exec);
    int (*sync)(void);
};

/* Filled by pl_rt_fill; the kind adds load, count, describe, open, close, names, compile. */
struct pl_rt {
    const struct pl_rt_api *api;
    int (*make_current)(struct pl_rt *rt); /* once per thread that calls */
    void *context;
    int device;
};
/* The functions of struct pl_driver that need nothing but a struct pl_rt as state. */
int pl_rt_memory_free(void *state, uint64_t *bytes);
int pl_rt_sync(void *state);
int pl_rt_alloc(void *state, uint64_t bytes, void **out);
void pl_rt_free(void *state, void *p);
int pl_rt_view(void *state, void *parent, uint64_t offset, uint64_t bytes, void **out);
int pl_rt_host_alloc(void *state, uint64_t bytes, void **out);
void pl_rt_host_free(void *state, void *p);
int pl_rt_stream_create(void *state, void **out);
void pl_rt_stream_destroy(void *state, void *s);
int pl_rt_stream_wait(void *state, void *s);
int pl_rt_event_create(void *state, void **out);
void pl_rt_event_destroy(void *state, void *e);
int pl_rt_event_record(void *state, void **e, void *s);
int pl_rt_event_wait(void *state, void *e);
int pl_rt_stream_after(void *state, void *s, void *e);
int pl_rt_event_elapsed_us(void *state, void *from, void *to, double *us);
int pl_rt_upload(void *state, void *s, void *to, uint64_t offset, const void *from, uint64_t bytes);
int pl_rt_download(void *state, void *s, void *to, void *from, uint64_t offset, uint64_t bytes);
int pl_rt_copy(void *state, void *s, void *to, uint64_t to_offset, void *from, uint64_t from_offset, uint64_t bytes);
int pl_rt_fill(void *state, void *s, void *to, uint64_t bytes, uint8_t value);
int pl_rt_module_load(void *state, const void *image, size_t bytes, void **out);
void pl_rt_module_unload(void *state, void *m);
int pl_rt_function(void *state, void *m, const char *name, void **out);
void pl_rt_function_release(void *state, void *f);
int pl_rt_function_info(void *state, void *f, struct pl_device_function_info *out);
int pl_rt_launch(void *state, void *s, const struct pl_device_launch *l);
int pl_rt_capture_begin(void *state, void *s);
int pl_rt_capture_end(void *state, void *s, void **out);
int pl_rt_graph_launch(void *state, void *s, void *g);
void pl_rt_graph_destroy(void *state, void *g);

#define PL_RT_FUNCTIONS                                                                                                 \
    .memory_free = pl_rt_memory_free, .sync = pl_rt_sync, .alloc = pl_rt_alloc, .free = pl_rt_free, .view = pl_rt_view, \
    .host_alloc = pl_rt_host_alloc, .host_free = pl_rt_host_free, .stream_create = pl_rt_stream_create,                 \
    .stream_destroy = pl_rt_stream_destroy, .stream_wait = pl_rt_stream_wait, .event_create = pl_rt_event_create,       \
    .event_destroy = pl_rt_event_destroy, .event_record = pl_rt_event_record, .event_wait = pl_rt_event_wait,           \
    .stream_after = pl_rt_stream_after, .event_elapsed_us = pl_rt_event_elapsed_us, .upload = pl_rt_upload,             \
    .download = pl_rt_download, .copy = pl_rt_copy, .fill = pl_rt_fill, .module_load = pl_rt_module_load,               \
    .module_unload = pl_rt_module_unload, .function = pl_rt_function, .function_release = pl_rt_function_release,       \
    .function_info = pl_rt_function_info, .launch = pl_rt_launch, .capture_begin = pl_rt_capture_begin,                 \
    .capture_end = pl_rt_capture_end, .graph_launch = pl_rt_graph_launch, .graph_destroy = pl_rt_graph_destroy

#endif
