/* jit - kernel source and specialisation values to a loaded kernel, through a cache that cannot lie.
 *
 * Promise: what is returned was compiled from exactly this text, by exactly this compiler, for exactly this target. The
 * key is the full text of everything that can change the artefact (source after includes, options, specialisation,
 * entry name, compiler, target, ABI); a hash of it only names the file, and the text itself is compared on every hit,
 * in memory and on disk. A damaged file, a full or read-only disk, a folder that is not ours: compiled afresh, with a
 * warning, never a failure.
 *
 * Kernels returned stay valid until pl_jit_destroy. One thread at a time; pl_jit_prepare uses threads of its own inside. */
#ifndef PL_JIT_JIT_H
#define PL_JIT_JIT_H

#include "device/device.h"

enum pl_jit_mode { PL_JIT_OFF, PL_JIT_ON, PL_JIT_VERIFY }; /* off: compile, do not store; verify: recompile and compare */
bool pl_jit_mode_from_name(const char *name, enum pl_jit_mode *out);
const char *pl_jit_mode_name(enum pl_jit_mode m);

struct pl_jit_options {
    enum pl_jit_mode mode;
    const char *dir;    /* NULL: $XDG_CACHE_HOME/plumb/jit, else ~/.cache/plumb/jit */
    uint64_t max_bytes; /* 0: 512 MiB */
};

/* One specialisation value; text is what the kernel sees after "#define name ". */
struct pl_jit_value {
    const char *name;
    char text[48];
};
enum { PL_JIT_VALUES_MAX = 24 };
struct pl_jit_spec {
    const char *file;  /* "norm.k.c" under kernels/ */
    const char *entry; /* the kernel's name */
    struct pl_jit_value values[PL_JIT_VALUES_MAX];
    size_t value_count;
    const char *text; /* tests: source instead of file; NULL otherwise */
};
void pl_jit_set(struct pl_jit_spec *s, const char *name, const char *text);
void pl_jit_set_u32(struct pl_jit_spec *s, const char *name, uint32_t v);

/* Where the code of a loaded kernel came from. */
enum pl_jit_origin { PL_JIT_COMPILED, PL_JIT_CACHED, PL_JIT_SHIPPED };
const char *pl_jit_origin_name(enum pl_jit_origin o); /* "compiled", "cache", "shipped" */
struct pl_jit_kernel {
    struct pl_device_function function;
    char hash[33]; /* of the key: names the module in witnesses */
    enum pl_jit_origin origin;
};

struct pl_jit_stats {
    uint64_t memory_hits, disk_hits, compiled, shipped, loaded, damaged, stored, evicted; /* loaded: onto the device */
    uint64_t differed; /* verify: stored code that was not what the compiler makes now */
};

struct pl_jit;
enum pl_status pl_jit_create(struct pl_device *d, const struct pl_jit_options *opt, struct pl_jit **out,
                             struct pl_err *err) PL_MUST_CHECK;
void pl_jit_destroy(struct pl_jit *j); /* NULL is allowed */
enum pl_status pl_jit_get(struct pl_jit *j, const struct pl_jit_spec *spec, const struct pl_jit_kernel **out,
                          struct pl_err *err) PL_MUST_CHECK;
/* Compiles, on all processors, what of these is neither loaded nor stored; pl_jit_get then finds it. *compiled of them were.
 * One line says how many before, one after, when there are any. Nothing under verify: there each is compiled when it is
 * got. */
enum pl_status pl_jit_prepare(struct pl_jit *j, const struct pl_jit_spec *specs, size_t count, size_t *compiled,
                              struct pl_err *err) PL_MUST_CHECK;
struct pl_jit_stats pl_jit_stats(const struct pl_jit *j);
const char *pl_jit_dir(const struct pl_jit *j); /* "" when nothing is stored on disk */
enum pl_jit_mode pl_jit_mode(const struct pl_jit *j);
const char *pl_jit_compiler(const struct pl_jit *j);
bool pl_jit_shipped(const struct pl_jit *j); /* there is no compiler: shipped code serves, made for older targets too */

/* The source text after includes, for the compile gates. Caller frees *out with pl_buf_deinit. */
enum pl_status pl_jit_source(const struct pl_jit_spec *spec, struct pl_buf *out, struct pl_err *err) PL_MUST_CHECK;

/* The compiler options of a kind. */
void pl_jit_compile_options(enum pl_device_kind kind, struct pl_device_source *src);

/* The pieces of a key, each stored with its length. */
#define PL_JIT_FIELD_LIST(X) X(ABI) X(KIND) X(TARGET) X(COMPILER) X(OPTIONS) X(ENTRY) X(VALUES) X(SOURCE)
enum pl_jit_field {
#define PL_JIT_FIELD_ENUM(name) PL_JIT_FIELD_##name,
    PL_JIT_FIELD_LIST(PL_JIT_FIELD_ENUM)
#undef PL_JIT_FIELD_ENUM
        PL_JIT_FIELD_COUNT
};
/* Test hooks. weaken: this field is left out of every key (the negative control: the dtype test must then fail).
 * mutate: suffix is appended to the field, as if it had changed. PL_JIT_FIELD_COUNT switches them off. */
void pl_jit_test_weaken(struct pl_jit *j, enum pl_jit_field field);
void pl_jit_test_mutate(struct pl_jit *j, enum pl_jit_field field, const char *suffix);

/* Told on the thread that waits, how many of all are compiled; NULL: nobody listens. */
typedef void (*pl_jit_pack_progress)(uint64_t done, uint64_t total);
/* Compiles specs for d (a paper device of a virtual target, such as compute_80) into one file that serves where there is no
 * compiler (pack.h). */
enum pl_status pl_jit_pack_write(struct pl_device *d, const struct pl_jit_spec *specs, size_t count, const char *path,
                                 pl_jit_pack_progress progress, struct pl_err *err) PL_MUST_CHECK;

/* --- the folder, for people --- */
struct pl_jit_entry {
    char file[64];
    uint64_t bytes;
    int64_t used_s; /* last use, seconds since 1970 */
    bool sound;     /* false: damaged; the fields below are empty */
    char kind[16], target[160], compiler[192], entry[64], values[256];
};
/* The folder options stand for ("" when there is none) and its entries, newest first. Caller frees *out with pl_free. */
enum pl_status pl_jit_cache_list(const struct pl_jit_options *opt, char *dir, size_t dir_size, struct pl_jit_entry **out,
                                 size_t *count, struct pl_err *err) PL_MUST_CHECK;
/* Removes every entry, and leftovers of processes that were killed. */
enum pl_status pl_jit_cache_clear(const struct pl_jit_options *opt, size_t *removed, uint64_t *bytes,
                                  struct pl_err *err) PL_MUST_CHECK;

/* Kernel files inside the binary. */
struct pl_jit_file {
    const char *name, *text;
    size_t len;
};
size_t pl_jit_file_count(void);
struct pl_jit_file pl_jit_file_at(size_t i);
/* A hash of all of them: build evidence. */
void pl_jit_sources_hash(char out[33]);

#endif
