/* The compile cache: every field of the key matters, a weak key is caught, damage and full disks are survived.
 * test-timeout: 600 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "jit/store.h"
#include "tensor/convert.h"
#include "tests/devices.h"

static const char *const text = "#include \"kv.h\"\n"
                                "KERNEL(widen)(GLOBAL const KV_TYPE *p, GLOBAL f32 *out) {\n"
                                "    out[GROUP_X] = kv_load(p + GROUP_X);\n"
                                "}\n";
enum { N = 32 };
static enum pl_device_kind kind;
static int device_index;
static struct pl_err err;
static char dir[64];
static int warnings;

static void count_warnings(const char *line, void *user) {
    (void)user;
    if (strstr(line, "kernel cache") != NULL) warnings++;
}

static int find_device(void **state) {
    (void)state;
    for (int k = 0; k < PL_DEVICE_KIND_COUNT; k++) {
        kind = (enum pl_device_kind)k;
        device_index = test_device_of(kind);
        if (device_index >= 0) return 0;
    }
    kind = PL_DEVICE_KIND_COUNT;
    return 0;
}
#define NEED_DEVICE()  \
    find_device(NULL); \
    if (kind == PL_DEVICE_KIND_COUNT) SKIP("no device here")

static int fresh_dir(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/plumb-jit-test-XXXXXX");
    warnings = 0;
    pl_log_set_sink(count_warnings, NULL);
    return mkdtemp(dir) == NULL;
}
static size_t each_file(void (*fn)(const char *path)) {
    char pattern[96];
    snprintf(pattern, sizeof pattern, "%s/*.pljit", dir);
    glob_t g = {0};
    size_t n = glob(pattern, 0, NULL, &g) == 0 ? g.gl_pathc : 0;
    for (size_t i = 0; i < n && fn != NULL; i++) fn(g.gl_pathv[i]);
    globfree(&g);
    return n;
}
static void remove_file(const char *path) { unlink(path); }
static int remove_dir(void **state) {
    (void)state;
    char lock[96];
    each_file(remove_file);
    snprintf(lock, sizeof lock, "%s/lock", dir);
    unlink(lock);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0) return 1;
    pl_log_set_sink(NULL, NULL);
    return 0;
}

struct bench {
    struct pl_device *d;
    struct pl_jit *j;
    struct pl_device_stream s;
};
static struct bench open_with(enum pl_jit_mode mode, const char *folder, uint64_t max_bytes) {
    struct bench b = {0};
    struct pl_jit_options opt = {mode, folder, max_bytes};
    assert_int_equal(pl_device_open(kind, device_index, &b.d, &err), PL_OK);
    assert_int_equal(pl_jit_create(b.d, &opt, &b.j, &err), PL_OK);
    assert_int_equal(pl_device_stream_create(b.d, &b.s, &err), PL_OK);
    return b;
}
static void close_bench(struct bench *b) {
    pl_device_stream_destroy(b->d, &b->s);
    pl_jit_destroy(b->j);
    pl_device_close(b->d);
}

static struct pl_jit_spec spec_of(const char *dtype, uint32_t extra) {
    struct pl_jit_spec s = {.entry = "pk_widen", .text = text};
    pl_jit_set(&s, dtype, "1");
    pl_jit_set_u32(&s, "HEAD_DIM", 64);
    pl_jit_set_u32(&s, "PAGE_TOKENS", 16 + extra);
    return s;
}

/* One geometry, one dtype: is what the kernel made right? */
static bool widens(struct bench *b, const char *dtype) {
    float in[N], out[N];
    uint16_t half[N];
    bool plain = strcmp(dtype, "KV_F32") == 0, f16 = strcmp(dtype, "KV_F16") == 0, right = true;
    for (int i = 0; i < N; i++) {
        in[i] = (float)i - 7.25f; /* exact in all three types */
        half[i] = f16 ? pl_f32_to_f16(in[i]) : pl_f32_to_bf16(in[i]);
    }
    struct pl_device_buffer from = {0}, to = {0};
    const struct pl_jit_kernel *k = NULL;
    struct pl_jit_spec s = spec_of(dtype, 0);
    assert_int_equal(pl_jit_get(b->j, &s, &k, &err), PL_OK);
    assert_int_equal(pl_device_alloc(b->d, N * 4, &from, &err), PL_OK);
    assert_int_equal(pl_device_alloc(b->d, N * 4, &to, &err), PL_OK);
    assert_int_equal(pl_device_fill(b->d, b->s, &from, 0, &err), PL_OK);
    assert_int_equal(pl_device_fill(b->d, b->s, &to, 0xFF, &err), PL_OK);
    assert_int_equal(pl_device_upload(b->d, b->s, &from, 0, plain ? (void *)in : (void *)half, plain ? N * 4 : N * 2, &err),
                     PL_OK);
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&from), PL_ARG_BUFFER(&to)};
    struct pl_device_launch l = {
        .function = k->function, .grid = {N, 1, 1}, .group = {1, 1, 1}, .args = args, .arg_count = 2};
    assert_int_equal(pl_device_launch(b->d, b->s, &l, &err), PL_OK);
    assert_int_equal(pl_device_download(b->d, b->s, out, &to, 0, sizeof out, &err), PL_OK);
    assert_int_equal(pl_device_stream_wait(b->d, b->s, &err), PL_OK);
    for (int i = 0; i < N; i++) right = right && out[i] == in[i];
    pl_device_free(b->d, &from);
    pl_device_free(b->d, &to);
    return right;
}
static bool sequence(struct bench *b) {
    static const char *const order[] = {"KV_F32", "KV_F16", "KV_BF16", "KV_F32"};
    bool right = true;
    for (size_t i = 0; i < PL_COUNT_OF(order); i++) right = widens(b, order[i]) && right;
    return right;
}

static void dtypes_in_one_process(void **state) {
    (void)state;
    NEED_DEVICE();
    struct bench b = open_with(PL_JIT_ON, dir, 0);
    assert_true(sequence(&b));
    assert_int_equal(pl_jit_stats(b.j).compiled, 3);
    assert_int_equal(pl_jit_stats(b.j).memory_hits, 1);
    close_bench(&b);
    b = open_with(PL_JIT_ON, dir, 0); /* the same from disk */
    assert_true(sequence(&b));
    assert_int_equal(pl_jit_stats(b.j).compiled, 0);
    assert_int_equal(pl_jit_stats(b.j).disk_hits, 3);
    close_bench(&b);
    b = open_with(PL_JIT_OFF, dir, 0);
    assert_true(sequence(&b));
    assert_int_equal(pl_jit_stats(b.j).compiled, 3);
    close_bench(&b);
}

/* Negative control: with the specialisation values left out of the key, the very same sequence must fail, in memory and,
 * from a process of its own, on disk. */
static void a_weak_key_is_caught(void **state) {
    (void)state;
    NEED_DEVICE();
    struct bench b = open_with(PL_JIT_ON, dir, 0);
    pl_jit_test_weaken(b.j, PL_JIT_FIELD_VALUES);
    assert_false(sequence(&b));
    assert_int_equal(pl_jit_stats(b.j).compiled, 1);
    close_bench(&b);
    b = open_with(PL_JIT_ON, dir, 0);
    pl_jit_test_weaken(b.j, PL_JIT_FIELD_VALUES);
    assert_false(widens(&b, "KV_BF16"));
    assert_int_equal(pl_jit_stats(b.j).disk_hits, 1);
    close_bench(&b);
}

static void every_field_matters(void **state) {
    (void)state;
    NEED_DEVICE();
    struct bench b = open_with(PL_JIT_ON, dir, 0);
    struct pl_jit_spec s = spec_of("KV_F32", 0);
    const struct pl_jit_kernel *first = NULL, *k = NULL;
    assert_int_equal(pl_jit_get(b.j, &s, &first, &err), PL_OK);
    for (int f = 0; f < PL_JIT_FIELD_COUNT; f++) {
        uint64_t before = pl_jit_stats(b.j).compiled;
        pl_jit_test_mutate(b.j, (enum pl_jit_field)f, "x");
        assert_int_equal(pl_jit_get(b.j, &s, &k, &err), PL_OK);
        assert_ptr_not_equal(k, first);
        assert_int_equal(pl_jit_stats(b.j).compiled, before + 1);
        pl_jit_test_weaken(b.j, (enum pl_jit_field)f); /* and without the field, the change is not seen */
        assert_int_equal(pl_jit_get(b.j, &s, &k, &err), PL_OK);
        before = pl_jit_stats(b.j).compiled;
        pl_jit_test_mutate(b.j, (enum pl_jit_field)f, "y");
        assert_int_equal(pl_jit_get(b.j, &s, &k, &err), PL_OK);
        assert_int_equal(pl_jit_stats(b.j).compiled, before);
        pl_jit_test_weaken(b.j, PL_JIT_FIELD_COUNT);
        pl_jit_test_mutate(b.j, PL_JIT_FIELD_COUNT, NULL);
    }
    assert_int_equal(pl_jit_get(b.j, &s, &k, &err), PL_OK);
    assert_ptr_equal(k, first);
    struct pl_jit_spec other = spec_of("KV_F32", 1); /* one value */
    assert_int_equal(pl_jit_get(b.j, &other, &k, &err), PL_OK);
    assert_ptr_not_equal(k, first);
    close_bench(&b);
}

static long damage_at;
static void damage(const char *path) {
    int fd = open(path, O_RDWR);
    struct stat st;
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    if (damage_at < 0) {
        assert_int_equal(ftruncate(fd, st.st_size + damage_at), 0);
    } else {
        char c = 0;
        off_t at = damage_at % st.st_size;
        assert_int_equal(pread(fd, &c, 1, at), 1);
        c ^= 0x40;
        assert_int_equal(pwrite(fd, &c, 1, at), 1);
    }
    close(fd);
}

static void damage_is_a_miss(void **state) {
    (void)state;
    NEED_DEVICE();
    static const long places[] = {0, 9, 17, 25, 40, 700, 2500, -1, -100000};
    for (size_t i = 0; i < PL_COUNT_OF(places); i++) {
        struct bench b = open_with(PL_JIT_ON, dir, 0);
        assert_true(widens(&b, "KV_F16"));
        close_bench(&b);
        damage_at = places[i] == -100000 ? -1 : places[i];
        assert_int_equal(each_file(damage), 1);
        b = open_with(PL_JIT_ON, dir, 0);
        warnings = 0;
        assert_true(widens(&b, "KV_F16"));
        assert_int_equal(pl_jit_stats(b.j).damaged, 1);
        assert_int_equal(pl_jit_stats(b.j).compiled, 1);
        assert_int_equal(warnings, 1);
        close_bench(&b);
    }
}

static void unusable_folders(void **state) {
    (void)state;
    NEED_DEVICE();
    struct bench b = open_with(PL_JIT_ON, "/proc/self/no/such/folder", 0);
    assert_true(sequence(&b));
    assert_string_equal(pl_jit_dir(b.j), "");
    assert_int_equal(warnings, 1);
    close_bench(&b);
    assert_int_equal(chmod(dir, 0755), 0); /* readable by others: not ours alone */
    b = open_with(PL_JIT_ON, dir, 0);
    assert_true(widens(&b, "KV_F32"));
    assert_string_equal(pl_jit_dir(b.j), "");
    assert_int_equal(each_file(NULL), 0);
    assert_int_equal(warnings, 2);
    close_bench(&b);
    assert_int_equal(chmod(dir, 0700), 0);
    b = open_with(PL_JIT_ON, dir, 0);
    char gone[96];
    snprintf(gone, sizeof gone, "%s.moved", dir);
    assert_int_equal(rename(dir, gone), 0); /* removed while running: made again */
    assert_true(sequence(&b));
    assert_int_equal(pl_jit_stats(b.j).stored, 3);
    assert_int_equal(each_file(NULL), 3);
    assert_int_equal(rmdir(gone), 0);
    close_bench(&b);
}

static void the_folder_is_bounded(void **state) {
    (void)state;
    NEED_DEVICE();
    struct bench b = open_with(PL_JIT_ON, dir, 1); /* one byte: nothing survives, nothing fails */
    assert_true(sequence(&b));
    assert_int_equal(each_file(NULL), 0);
    assert_int_equal(pl_jit_stats(b.j).evicted, 3);
    close_bench(&b);
}

static void verify_compares(void **state) {
    (void)state;
    NEED_DEVICE();
    struct bench b = open_with(PL_JIT_ON, dir, 0);
    pl_jit_test_weaken(b.j, PL_JIT_FIELD_VALUES);
    assert_true(widens(&b, "KV_F32"));
    close_bench(&b);
    b = open_with(PL_JIT_VERIFY, dir, 0); /* a file stored under a weak key is found out */
    pl_jit_test_weaken(b.j, PL_JIT_FIELD_VALUES);
    struct pl_jit_spec s = spec_of("KV_BF16", 0), same = spec_of("KV_F32", 0);
    const struct pl_jit_kernel *k = NULL;
    if (kind == PL_DEVICE_OPENCL) { /* code that is not reproducible: what was stored does not run */
        assert_true(widens(&b, "KV_BF16"));
        assert_int_equal(pl_jit_stats(b.j).differed, 1);
    } else {
        assert_int_equal(pl_jit_get(b.j, &s, &k, &err), PL_INTERNAL);
        assert_non_null(strstr(err.text, "differs"));
        assert_int_equal(pl_jit_get(b.j, &same, &k, &err), PL_OK);
    }
    assert_int_equal(pl_jit_stats(b.j).disk_hits, kind == PL_DEVICE_OPENCL ? 1 : 2);
    close_bench(&b);
}

/* Another program: a copy of a process that has opened a device would not do. */
static int child(const char *folder) {
    if (find_device(NULL) != 0 || kind == PL_DEVICE_KIND_COUNT) return 0;
    snprintf(dir, sizeof dir, "%s", folder);
    struct bench b = open_with(PL_JIT_ON, dir, 0);
    bool right = sequence(&b) && pl_jit_stats(b.j).damaged == 0;
    close_bench(&b);
    return right ? 0 : 1;
}

static void concurrent_processes(void **state) {
    (void)state;
    pid_t pids[4];
    for (int i = 0; i < 4; i++) {
        pids[i] = fork();
        if (pids[i] != 0) continue;
        char own[96]; /* PoCL's own cache is not ours to test */
        snprintf(own, sizeof own, "%s/pocl.%d", dir, i);
        setenv("POCL_CACHE_DIR", own, 1);
        setenv("PLUMB_TEST_CHILD", dir, 1);
        execl("/proc/self/exe", "test_jit", (char *)NULL);
        _exit(9);
    }
    for (int i = 0; i < 4; i++) {
        int status = -1;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    assert_true(each_file(NULL) == 3 || each_file(NULL) == 0);
    find_device(NULL);
    if (kind != PL_DEVICE_KIND_COUNT) assert_int_equal(each_file(NULL), 3);
}

static void prepared_together(void **state) {
    (void)state;
    NEED_DEVICE();
    static const char *const types[] = {"KV_F32", "KV_F16", "KV_BF16", "KV_F32"};
    for (int mode = PL_JIT_OFF; mode <= PL_JIT_ON; mode++) {
        struct bench b = open_with((enum pl_jit_mode)mode, dir, 0);
        struct pl_jit_spec specs[4];
        size_t compiled = 0;
        for (size_t i = 0; i < 4; i++) specs[i] = spec_of(types[i], 0);
        assert_int_equal(pl_jit_prepare(b.j, specs, 4, &compiled, &err), PL_OK);
        assert_int_equal(compiled, 3); /* one of them twice */
        assert_true(sequence(&b));
        assert_int_equal(pl_jit_stats(b.j).compiled, 3);
        assert_int_equal(each_file(NULL), mode == PL_JIT_ON ? 3 : 0);
        assert_int_equal(pl_jit_prepare(b.j, specs, 4, &compiled, &err), PL_OK); /* loaded already */
        assert_int_equal(compiled, 0);
        close_bench(&b);
    }
    struct bench b = open_with(PL_JIT_ON, dir, 0); /* stored already */
    struct pl_jit_spec specs[2] = {spec_of("KV_F16", 0), spec_of("KV_F32", 7)};
    size_t compiled = 0;
    assert_int_equal(pl_jit_prepare(b.j, specs, 2, &compiled, &err), PL_OK);
    assert_int_equal(compiled, 1);
    specs[1].text = "this is no kernel";
    err = (struct pl_err){0};
    assert_int_equal(pl_jit_prepare(b.j, specs, 2, &compiled, &err), PL_DEVICE);
    assert_non_null(strstr(err.text, "does not compile"));
    assert_true(widens(&b, "KV_F16")); /* and nothing of it is left behind */
    assert_int_equal(pl_jit_get(b.j, &specs[1], &(const struct pl_jit_kernel *){NULL}, &err), PL_DEVICE);
    close_bench(&b);
}

/* Writing fails in the middle: nothing is stored, nothing half written stays, one warning. */
static void a_full_disk(void **state) {
    (void)state;
    struct pl_jit_stats stats = {0};
    struct pl_jit_options opt = {PL_JIT_ON, dir, 0};
    struct pl_jit_store s;
    struct pl_buf key = {0}, image = {0};
    struct rlimit before, small = {1000, 1000};
    for (int i = 0; i < 4000; i++) pl_buf_add_char(&image, 'x');
    pl_buf_add_c(&key, "the key");
    pl_jit_store_open(&s, &opt, &stats);
    assert_string_equal(s.dir, dir);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pl_jit_store_put(&s, &key, "0123456789abcdef0123456789abcdef", &image);
    pl_jit_store_put(&s, &key, "0123456789abcdef0123456789abcdef", &image);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(stats.stored, 0);
    assert_int_equal(warnings, 1);
    struct pl_jit_file_info *left = NULL;
    assert_int_equal(pl_jit_store_files(&s, ".tmp.", &left), 0);
    assert_int_equal(each_file(NULL), 0);
    pl_jit_store_put(&s, &key, "0123456789abcdef0123456789abcdef", &image); /* room again */
    assert_int_equal(stats.stored, 1);
    assert_true(pl_jit_store_find(&s, &key, "0123456789abcdef0123456789abcdef", &image));
    pl_buf_deinit(&key);
    pl_buf_deinit(&image);
}

/* In a process of its own, which is not root: root may write anywhere. */
static void a_read_only_folder(void **state) {
    (void)state;
    bool root = geteuid() == 0;
    assert_int_equal(chmod(dir, 0500), 0);
    if (root) assert_int_equal(chown(dir, 65534, 65534), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct pl_jit_stats stats = {0};
        struct pl_jit_options opt = {PL_JIT_ON, dir, 0};
        struct pl_jit_store s;
        struct pl_buf key = {0}, image = {0};
        if (root && (setegid(65534) != 0 || seteuid(65534) != 0)) _exit(9);
        pl_buf_add_c(&key, "the key");
        pl_buf_add_c(&image, "the image");
        pl_jit_store_open(&s, &opt, &stats);
        for (int i = 0; i < 2; i++) pl_jit_store_put(&s, &key, "0123456789abcdef0123456789abcdef", &image);
        bool found = pl_jit_store_find(&s, &key, "0123456789abcdef0123456789abcdef", &image);
        _exit(stats.stored == 0 && warnings == 1 && !found ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    if (root) assert_int_equal(chown(dir, 0, 0), 0);
    assert_int_equal(chmod(dir, 0700), 0);
}

static void the_folder_is_listed_and_emptied(void **state) {
    (void)state;
    NEED_DEVICE();
    struct pl_jit_options opt = {PL_JIT_ON, dir, 0};
    struct pl_jit_entry *list = NULL;
    size_t count = 9, removed = 0;
    uint64_t bytes = 0;
    char found[200];
    assert_int_equal(pl_jit_cache_list(&opt, found, sizeof found, &list, &count, &err), PL_OK);
    assert_int_equal(count, 0);
    assert_string_equal(found, dir);
    pl_free(list);
    struct bench b = open_with(PL_JIT_ON, dir, 0);
    assert_true(widens(&b, "KV_F16") && widens(&b, "KV_BF16"));
    close_bench(&b);
    assert_int_equal(pl_jit_cache_list(&opt, found, sizeof found, &list, &count, &err), PL_OK);
    assert_int_equal(count, 2);
    for (size_t i = 0; i < count; i++) {
        assert_true(list[i].sound && list[i].bytes > 100);
        assert_string_equal(list[i].entry, "pk_widen");
        assert_string_equal(list[i].kind, pl_device_kind_name(kind));
        assert_non_null(strstr(list[i].values, "HEAD_DIM=64u PAGE_TOKENS=16u"));
        assert_true(strlen(list[i].target) > 2 && strlen(list[i].compiler) > 2);
    }
    assert_string_not_equal(list[0].values, list[1].values);
    pl_free(list);
    damage_at = 700;
    each_file(damage);
    assert_int_equal(pl_jit_cache_list(&opt, found, sizeof found, &list, &count, &err), PL_OK);
    assert_int_equal(count, 2);
    assert_false(list[0].sound);
    pl_free(list);
    char left[128];
    snprintf(left, sizeof left, "%s/0123456789abcdef0123456789abcdef.tmp.1.1", dir); /* of a process that was killed */
    int fd = open(left, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0 && close(fd) == 0);
    assert_int_equal(pl_jit_cache_clear(&opt, &removed, &bytes, &err), PL_OK);
    assert_int_equal(removed, 3);
    assert_true(bytes > 200);
    assert_int_equal(each_file(NULL), 0);
    opt.dir = "/no/such/folder";
    assert_int_equal(pl_jit_cache_list(&opt, found, sizeof found, &list, &count, &err), PL_OK);
    assert_string_equal(found, "");
    pl_free(list);
    assert_int_equal(pl_jit_cache_clear(&opt, &removed, &bytes, &err), PL_OK);
    assert_int_equal(removed, 0);
}

static void every_kernel_file_is_embedded(void **state) {
    (void)state;
    static const char *const patterns[] = {"kernels/*.c", "kernels/*.h", "kernels/*/*.c", "kernels/*/*.h"};
    size_t found = 0;
    for (size_t i = 0; i < PL_COUNT_OF(patterns); i++) {
        glob_t g = {0};
        if (glob(patterns[i], 0, NULL, &g) != 0) continue;
        for (size_t k = 0; k < g.gl_pathc; k++, found++) {
            bool here = false;
            for (size_t f = 0; f < pl_jit_file_count(); f++) {
                here = here || strcmp(pl_jit_file_at(f).name, g.gl_pathv[k] + strlen("kernels/")) == 0;
            }
            if (!here) print_message("# %s is not in src/jit/embedded.c\n", g.gl_pathv[k]);
            assert_true(here);
        }
        globfree(&g);
    }
    assert_true(found == 0 || found == pl_jit_file_count());
    char a[33], b[33];
    pl_jit_sources_hash(a);
    pl_jit_sources_hash(b);
    assert_string_equal(a, b);
}

static size_t pasted(const char *value, char *out, size_t size) {
    struct pl_jit_spec s = {.entry = "pk_x", .text = "first\n#include FILE\n#include FILE\n#include <stdint.h>\nlast\n"};
    struct pl_buf b = {0};
    if (value != NULL) pl_jit_set(&s, "FILE", value);
    enum pl_status st = pl_jit_source(&s, &b, &err);
    snprintf(out, size, "%.*s", (int)size - 1, st == PL_OK ? pl_buf_cstr(&b) : err.text);
    size_t len = b.len;
    pl_buf_deinit(&b);
    return st == PL_OK ? len : 0;
}

/* Long tables are in the text of kernels that name them, and in no other's. */
static void an_include_of_a_word_is_what_its_value_says(void **state) {
    (void)state;
    char text_of[256];
    const size_t bare = pasted(NULL, text_of, sizeof text_of), with = pasted("\"iq_grids.h\"", text_of, sizeof text_of);
    struct pl_jit_file f = {0};
    for (size_t i = 0; i < pl_jit_file_count(); i++)
        if (strcmp(pl_jit_file_at(i).name, "iq_grids.h") == 0) f = pl_jit_file_at(i);
    assert_true(f.len > 1000);
    assert_int_equal(with, bare + f.len + strlen("#define FILE \"iq_grids.h\"\n"));
    pasted(NULL, text_of, sizeof text_of);
    assert_string_equal(text_of, "first\n#include <stdint.h>\nlast\n");
    assert_int_equal(pasted("\"no_such.h\"", text_of, sizeof text_of), 0);
    assert_non_null(strstr(text_of, "an include that is no kernel file"));
    assert_int_equal(pasted("iq_grids.h", text_of, sizeof text_of), 0);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fresh_dir, remove_dir)

int main(void) {
    struct CMUnitTest tests[] = {
        CASE(concurrent_processes),
        CASE(dtypes_in_one_process),
        CASE(a_weak_key_is_caught),
        CASE(every_field_matters),
        CASE(damage_is_a_miss),
        CASE(unusable_folders),
        CASE(the_folder_is_bounded),
        CASE(verify_compares),
        CASE(prepared_together),
        CASE(a_full_disk),
        CASE(a_read_only_folder),
        CASE(the_folder_is_listed_and_emptied),
        cmocka_unit_test(every_kernel_file_is_embedded),
        cmocka_unit_test(an_include_of_a_word_is_what_its_value_says),
    };
    if (getenv("PLUMB_TEST_CHILD") != NULL) return child(getenv("PLUMB_TEST_CHILD"));
    return TEST_RUN("jit", tests); /* tests/jit/test_order.py runs this shuffled, and each test alone */
}
