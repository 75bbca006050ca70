/* Machines laid out as files: cores with two threads, two nodes, quotas of both kinds of cgroup; and pools on them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/pool.h"
#include "base/topology.h"

static char root[64];

/* Writes text to root/path, making the folders on the way. */
static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; *p++ = '/') {
        *p = 0;
        mkdir(full, 0700);
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", text);
    fclose(f);
}
static void put_cpu(int cpu, int package, int core) {
    char path[128], text[16];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
    snprintf(text, sizeof text, "%d", package);
    put(path, text);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", cpu);
    snprintf(text, sizeof text, "%d", core);
    put(path, text);
}
static int fresh(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/plumb-topology-XXXXXX");
    return mkdtemp(root) == NULL;
}
static int remove_root(void **state) {
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}
static cpu_set_t cpus(int n) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++) CPU_SET(i, &set);
    return set;
}
static struct pl_topology read_with(int n) {
    static struct pl_topology t;
    cpu_set_t set = cpus(n);
    pl_topology_read(root, &set, &t);
    return t;
}

static void nothing_to_read(void **state) {
    (void)state;
    struct pl_topology t = read_with(3);
    assert_int_equal(t.count, 3);
    assert_int_equal(t.cores, 3);
    assert_int_equal(t.nodes, 1);
    assert_true(t.quota <= 0);
    assert_int_equal(pl_topology_threads(&t), 3);
}

/* Two packages of two cores with two threads each, numbered as Linux does: siblings are i and i + 4. */
static void two_by_two_by_two(void) {
    for (int cpu = 0; cpu < 8; cpu++) put_cpu(cpu, cpu / 2 % 2, cpu % 2);
    put("/sys/devices/system/node/node0/cpulist", "0-1,4-5");
    put("/sys/devices/system/node/node2/cpulist", "2-3,6,7");
}

static void one_thread_a_core_and_nodes_in_turn(void **state) {
    (void)state;
    two_by_two_by_two();
    struct pl_topology t = read_with(8);
    assert_int_equal(t.cores, 4);
    assert_int_equal(t.nodes, 2);
    assert_int_equal(pl_topology_threads(&t), 4);
    static const int order[8] = {0, 2, 1, 3, 4, 6, 5, 7}, node[8] = {0, 1, 0, 1, 0, 1, 0, 1};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(t.cpus[i].cpu, order[i]);
        assert_int_equal(t.cpus[i].node, node[i]);
        assert_int_equal(t.cpus[i].sibling, i / 4);
    }
    cpu_set_t only; /* a process that may use one core's two threads and nothing of the first node */
    CPU_ZERO(&only);
    CPU_SET(3, &only), CPU_SET(7, &only);
    pl_topology_read(root, &only, &t);
    assert_int_equal(t.cores, 1);
    assert_int_equal(t.nodes, 1);
    assert_int_equal(t.cpus[0].node, 0);
    assert_int_equal(pl_topology_threads(&t), 1);
}

/* Lists of four nodes' CPUs (NULL: no such folder) and the node that each of eight CPUs belongs to. */
struct layout {
    const char *lists[4];
    int nodes, of[8];
};

static void nodes_of_every_layout(void **state) {
    (void)state;
    char longer[5000] = "";
    for (int i = 0; i < 1500; i++) strcat(longer, "0,"); /* longer than a line that is read */
    const struct layout layouts[] = {
        {{"0-7"}, 1, {0}},
        {{"0-3", "4-7"}, 2, {0, 0, 0, 0, 1, 1, 1, 1}},
        {{"0-1", "2-3", "4-5", "6-7"}, 4, {0, 0, 1, 1, 2, 2, 3, 3}},
        {{"0,2,4,6", "1,3,5,7"}, 2, {0, 1, 0, 1, 0, 1, 0, 1}},
        {{"7", "0,3-4,6", NULL, "1-2,5"}, 3, {1, 2, 2, 1, 1, 2, 1, 0}}, /* a number is missing */
        {{"0-7,64-1023", "8-63"}, 1, {0}},                              /* CPUs that this process may not use */
        {{"", "0-3", "", "4-7"}, 2, {0, 0, 0, 0, 1, 1, 1, 1}},          /* memory without CPUs */
        {{"0-3", "2-5"}, 2, {0, 0, 0, 0, 1, 1, 0, 0}},                  /* two claim a CPU, none claims two */
        {{"0-7", "0-7"}, 1, {0}},
        {{"nonsense", "4-7"}, 1, {0}},
        {{"0-", "-3", "5-2,6", ",7"}, 2, {0, 0, 0, 0, 0, 0, 1, 0}}, /* what stands before the fault counts */
        {{"0-99999999999999999999"}, 1, {0}},
        {{"0-1 2-7", "3"}, 2, {0, 0, 0, 1, 0, 0, 0, 0}},
        {{longer, "6-7"}, 2, {0, 0, 0, 0, 0, 0, 1, 1}},
    };
    for (size_t i = 0; i < PL_COUNT_OF(layouts); i++) {
        char path[64], full[160];
        for (int n = 0; n < 4; n++) {
            snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", n);
            snprintf(full, sizeof full, "%s%s", root, path);
            remove(full);
            if (layouts[i].lists[n] != NULL) put(path, layouts[i].lists[n]);
        }
        struct pl_topology t = read_with(8);
        bool has[4] = {false};
        assert_int_equal(t.count, 8);
        if (t.nodes != layouts[i].nodes) fail_msg("layout %zu: %d nodes", i, t.nodes);
        for (int k = 0; k < 8; k++) {
            if (t.cpus[k].node != layouts[i].of[t.cpus[k].cpu])
                fail_msg("layout %zu: CPU %d on node %d", i, t.cpus[k].cpu, t.cpus[k].node);
            has[t.cpus[k].node] = true;
        }
        for (int n = 0; n < t.nodes; n++) assert_true(has[n]);              /* a node without a thread: no use */
        for (int n = 0; n < t.nodes; n++) assert_true(t.cpus[n].node == n); /* neighbours on different nodes */
        struct pl_pool_options o = {.threads = 8, .topology = &t};
        struct pl_pool *p;
        assert_int_equal(pl_pool_create_with(&o, &p, NULL), PL_OK);
        assert_int_equal(pl_pool_nodes(p), t.nodes);
        for (int k = 0; k < 8; k++) assert_int_equal(pl_pool_node(p, k), t.cpus[k].node);
        pl_pool_destroy(p);
    }
    char folder[160];
    snprintf(folder, sizeof folder, "%s/sys/devices/system/node/node0/cpulist", root);
    assert_int_equal(remove(folder), 0);
    assert_int_equal(mkdir(folder, 0700), 0); /* no file at all */
    assert_int_equal(read_with(8).nodes, 1);
}

static void quotas_of_the_second_version(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/system.slice/box");
    put("/sys/fs/cgroup/cpu.max", "max 100000");
    assert_true(read_with(8).quota <= 0);
    put("/sys/fs/cgroup/system.slice/box/cpu.max", "600000 100000");
    assert_true(read_with(8).quota == 6);
    put("/sys/fs/cgroup/system.slice/cpu.max", "250000 100000"); /* the tightest on the way up */
    struct pl_topology t = read_with(8);
    assert_true(t.quota == 2.5);
    assert_int_equal(pl_topology_threads(&t), 3);
    put("/sys/fs/cgroup/system.slice/cpu.max", "1000 100000");
    t = read_with(8);
    assert_int_equal(pl_topology_threads(&t), 1);
    put("/sys/fs/cgroup/system.slice/cpu.max", "nonsense");
    put("/sys/fs/cgroup/system.slice/box/cpu.max", "-5 0");
    assert_true(read_with(8).quota <= 0);
    put("/proc/self/cgroup", "0::/a/path/of/the/host"); /* seen from inside a container: only the root is there */
    put("/sys/fs/cgroup/cpu.max", "200000 100000");
    assert_true(read_with(8).quota == 2);
}

static void quotas_of_the_first_version(void **state) {
    (void)state;
    put("/proc/self/cgroup", "12:memory:/box\n3:cpu,cpuacct:/box\n2:cpuset:/\n0::/");
    put("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1");
    put("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000");
    assert_true(read_with(4).quota <= 0);
    put("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "150000");
    assert_true(read_with(4).quota == 1.5);
    put("/sys/fs/cgroup/unified/cpu.max", "50000 100000"); /* both mounted */
    assert_true(read_with(4).quota == 0.5);
    put("/proc/self/cgroup", "2:cpuset:/\n4:cpuacct:/box"); /* neither is the cpu controller */
    put("/sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "1000");
    put("/sys/fs/cgroup/cpuset/cpu.cfs_period_us", "100000");
    assert_true(read_with(4).quota <= 0);
}

/* --- pools on them --- */
struct seen {
    _Atomic int hits, cpu_sets_of_one;
};
static void look(void *arg, int index, int count) {
    (void)index, (void)count;
    struct seen *s = arg;
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    s->hits++;
    if (CPU_COUNT(&set) == 1) s->cpu_sets_of_one++;
}

static void threads_are_counted_pinned_and_released(void **state) {
    (void)state;
    two_by_two_by_two();
    struct pl_topology t = read_with(8);
    struct pl_pool_options o = {.topology = &t};
    struct pl_pool *p;
    assert_int_equal(pl_pool_create_with(&o, &p, NULL), PL_OK);
    assert_int_equal(pl_pool_threads(p), 4);
    assert_int_equal(pl_pool_nodes(p), 2);
    for (int i = 0; i < 4; i++) assert_int_equal(pl_pool_node(p, i), i % 2);
    pl_pool_destroy(p);

    const struct pl_topology *here = pl_topology_here();
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    o = (struct pl_pool_options){.threads = here->count, .pin = true};
    assert_int_equal(pl_pool_create_with(&o, &p, NULL), PL_OK);
    struct seen s = {0};
    pl_pool_run(p, look, &s);
    assert_int_equal(s.hits, here->count);
    if (here->count > 1) assert_int_equal(s.cpu_sets_of_one, here->count);
    struct pl_pool *free_pool; /* made by a pinned thread, and not pinned itself */
    assert_int_equal(pl_pool_create(3, &free_pool, NULL), PL_OK);
    struct seen f = {0};
    pl_pool_run(free_pool, look, &f);
    if (here->count > 1) assert_int_equal(f.cpu_sets_of_one, 1); /* the caller itself */
    pl_pool_destroy(free_pool);
    pl_pool_release_caller();
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    pl_pool_run(p, look, &s); /* pinned again */
    pl_pool_destroy(p);
    o.threads = 1; /* the caller alone */
    for (int any = 0; any < 2; any++) {
        struct seen one = {0};
        assert_int_equal(pl_pool_create_with(&o, &p, NULL), PL_OK);
        (any ? pl_pool_run_any : pl_pool_run)(p, look, &one);
        assert_int_equal(one.hits, 1);
        assert_int_equal(one.cpu_sets_of_one, 1);
        pl_pool_destroy(p);
    }
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

struct burn {
    _Atomic size_t next, done;
};
static void burn(void *arg, int index, int count) {
    (void)index, (void)count;
    struct burn *b = arg;
    while (b->next++ < 64) b->done++;
}

/* Many more threads than CPUs, and a quota below them: still right, thousands of times. */
static void crowded_pools_get_done(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/");
    put("/sys/fs/cgroup/cpu.max", "50000 100000");
    struct pl_topology t = read_with(1);
    struct pl_pool_options o = {.threads = 9, .topology = &t};
    struct pl_pool *p;
    assert_int_equal(pl_pool_create_with(&o, &p, NULL), PL_OK);
    for (int i = 0; i < 1000; i++) {
        struct burn b = {0};
        pl_pool_run_any(p, burn, &b);
        assert_int_equal(b.done, 64);
        struct seen s = {0};
        if (i % 16 == 0) pl_pool_run(p, look, &s);
        if (i % 16 == 0) assert_int_equal(s.hits, 9);
    }
    pl_pool_destroy(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_to_read, fresh, remove_root),
        cmocka_unit_test_setup_teardown(one_thread_a_core_and_nodes_in_turn, fresh, remove_root),
        cmocka_unit_test_setup_teardown(nodes_of_every_layout, fresh, remove_root),
        cmocka_unit_test_setup_teardown(quotas_of_the_second_version, fresh, remove_root),
        cmocka_unit_test_setup_teardown(quotas_of_the_first_version, fresh, remove_root),
        cmocka_unit_test_setup_teardown(threads_are_counted_pinned_and_released, fresh, remove_root),
        cmocka_unit_test_setup_teardown(crowded_pools_get_done, fresh, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
