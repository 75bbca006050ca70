#include "base/topology.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

enum { PATH = 1024 };

/* The first line of a file below root; false when there is none. */
PL_PRINTF(4, 5) static bool read_line(const char *root, char *line, size_t size, const char *fmt, ...) {
    char path[PATH];
    va_list ap;
    va_start(ap, fmt);
    int n = snprintf(path, sizeof path, "%s", root);
    int m = n > 0 || root[0] == 0 ? vsnprintf(path + n, sizeof path - (size_t)n, fmt, ap) : -1;
    va_end(ap);
    if (n < 0 || m < 0 || (size_t)(n + m) >= sizeof path) return false;
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    bool got = fgets(line, (int)size, f) != NULL;
    fclose(f);
    if (got) line[strcspn(line, "\n")] = 0;
    return got;
}

/* --- cgroups --- */
static void tighten(double *quota, double period, double allowed) {
    if (period <= 0 || allowed <= 0) return;
    double cpus = allowed / period;
    if (*quota <= 0 || cpus < *quota) *quota = cpus;
}
static void group_v2(const char *root, const char *base, const char *path, double *quota) {
    char line[128], allowed[64];
    double period;
    if (!read_line(root, line, sizeof line, "%s%s/cpu.max", base, path)) return;
    if (sscanf(line, "%63s %lf", allowed, &period) == 2 && strcmp(allowed, "max") != 0)
        tighten(quota, period, strtod(allowed, NULL));
}
static void group_v1(const char *root, const char *base, const char *path, double *quota) {
    char allowed[64], period[64];
    if (!read_line(root, allowed, sizeof allowed, "%s%s/cpu.cfs_quota_us", base, path)) return;
    if (!read_line(root, period, sizeof period, "%s%s/cpu.cfs_period_us", base, path)) return;
    tighten(quota, strtod(period, NULL), strtod(allowed, NULL)); /* -1: no limit */
}

/* The group and every one above it: the tightest counts. A container may see a path of its host, which is not there. */
static void walk_up(const char *root, const char *base, const char *path,
                    void (*group)(const char *root, const char *base, const char *path, double *quota), double *quota) {
    char at[PATH];
    snprintf(at, sizeof at, "%s", path);
    for (char *slash; (slash = strrchr(at, '/')) != NULL; *slash = 0)
        if (slash[1] != 0) group(root, base, at, quota);
    group(root, base, "", quota);
}

static bool names_cpu(const char *controllers) {
    for (const char *p = controllers; (p = strstr(p, "cpu")) != NULL; p += 3)
        if ((p == controllers || p[-1] == ',') && (p[3] == ',' || p[3] == 0)) return true;
    return false;
}

static double cgroup_quota(const char *root) {
    char path[PATH], line[PATH];
    double quota = 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (f == NULL) { /* no way to tell which group: the outermost */
        group_v2(root, "/sys/fs/cgroup", "", &quota);
        return quota;
    }
    while (fgets(line, sizeof line, f) != NULL) { /* hierarchy:controllers:path */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL) continue;
        *group++ = 0, controllers++;
        if (*controllers == 0) {
            walk_up(root, "/sys/fs/cgroup", group, group_v2, &quota);
            walk_up(root, "/sys/fs/cgroup/unified", group, group_v2, &quota);
        } else if (names_cpu(controllers)) {
            snprintf(path, sizeof path, "/sys/fs/cgroup/%.200s", controllers);
            walk_up(root, path, group, group_v1, &quota);
            if (strcmp(controllers, "cpu") != 0) walk_up(root, "/sys/fs/cgroup/cpu", group, group_v1, &quota);
        }
    }
    fclose(f);
    return quota;
}

/* --- cores and nodes --- */
static int number_of(const char *root, int cpu, const char *what, int otherwise) {
    char line[32];
    if (!read_line(root, line, sizeof line, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what)) return otherwise;
    char *end;
    long v = strtol(line, &end, 10);
    return end != line && v >= 0 && v < 1 << 20 ? (int)v : otherwise;
}

/* "0-3,8,10-11" */
static bool list_has(const char *list, int cpu) {
    for (const char *p = list; *p != 0;) {
        char *end;
        long from = strtol(p, &end, 10), to = from;
        if (end == p) return false;
        if (*end == '-') to = strtol(end + 1, &end, 10);
        if (cpu >= from && cpu <= to) return true;
        p = *end == ',' ? end + 1 : end;
        if (p == end && *p != 0) return false;
    }
    return false;
}

static void read_nodes(const char *root, struct pl_topology *t) {
    enum { NODES = 64 };
    char list[4096];
    int seen = 0;
    for (int i = 0; i < t->count; i++) t->cpus[i].node = -1;
    for (int n = 0; n < NODES; n++) {
        if (!read_line(root, list, sizeof list, "/sys/devices/system/node/node%d/cpulist", n)) continue;
        bool used = false;
        for (int i = 0; i < t->count; i++) {
            if (t->cpus[i].node >= 0 || !list_has(list, t->cpus[i].cpu)) continue; /* two claim it: the first has it */
            t->cpus[i].node = seen;
            used = true;
        }
        seen += used;
    }
    for (int i = 0; i < t->count; i++) t->cpus[i].node = PL_MAX(0, t->cpus[i].node);
    t->nodes = PL_MAX(1, seen);
}

static void read_cores(const char *root, struct pl_topology *t) {
    int key[PL_TOPOLOGY_CPUS][2];
    for (int i = 0; i < t->count; i++) {
        struct pl_topology_cpu *c = &t->cpus[i];
        key[i][0] = number_of(root, c->cpu, "physical_package_id", 0);
        key[i][1] = number_of(root, c->cpu, "core_id", -1 - c->cpu);
        c->core = -1;
        for (int k = 0; k < i; k++) {
            if (key[k][0] != key[i][0] || key[k][1] != key[i][1]) continue;
            c->core = t->cpus[k].core;
            c->sibling++;
        }
        if (c->core < 0) c->core = t->cores++;
    }
}

/* One CPU of each core first; of those the nodes in turn. */
static void put_in_order(struct pl_topology *t) {
    struct pl_topology_cpu sorted[PL_TOPOLOGY_CPUS];
    int n = 0;
    for (int sibling = 0; n < t->count; sibling++) {
        bool taken[PL_TOPOLOGY_CPUS] = {false};
        for (bool any = true; any;) {
            any = false;
            for (int node = 0; node < t->nodes; node++)
                for (int i = 0; i < t->count; i++) {
                    if (taken[i] || t->cpus[i].sibling != sibling || t->cpus[i].node != node) continue;
                    sorted[n++] = t->cpus[i];
                    taken[i] = any = true;
                    break;
                }
        }
    }
    for (int i = 0; i < n; i++) t->cpus[i] = sorted[i];
}

void pl_topology_read(const char *root, const cpu_set_t *mask, struct pl_topology *out) {
    *out = (struct pl_topology){.nodes = 1, .quota = cgroup_quota(root)};
    for (int cpu = 0; cpu < CPU_SETSIZE && out->count < PL_TOPOLOGY_CPUS; cpu++)
        if (CPU_ISSET(cpu, mask)) out->cpus[out->count++].cpu = cpu;
    read_cores(root, out);
    read_nodes(root, out);
    put_in_order(out);
}

/* --- this machine --- */
static struct pl_topology here;
static cpu_set_t given;

static void read_here(void) {
    CPU_ZERO(&given);
    if (sched_getaffinity(0, sizeof given, &given) != 0 || CPU_COUNT(&given) == 0)
        for (long i = 0; i < PL_MAX(1L, PL_MIN(sysconf(_SC_NPROCESSORS_ONLN), (long)CPU_SETSIZE)); i++) CPU_SET(i, &given);
    pl_topology_read("", &given, &here);
}
const struct pl_topology *pl_topology_here(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_here);
    return &here;
}

int pl_topology_threads(const struct pl_topology *t) {
    int n = t->cores;
    if (t->quota > 0 && t->quota < n) n = (int)t->quota + ((double)(int)t->quota < t->quota);
    return PL_MAX(1, n);
}

void pl_topology_free_thread(void) {
    (void)pl_topology_here();
    (void)sched_setaffinity(0, sizeof given, &given);
}
