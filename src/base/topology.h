/* topology - which CPUs this process may use, how they share cores and memory nodes, and how much of them a cgroup grants.
 *
 * Read from /sys and /proc under a root, so that tests can lay out machines of their own. What cannot be read is taken as
 * the plain case: every CPU a core of its own, one node, no quota. CPUs come in the order in which threads should take
 * them: one of each core before the second of any, neighbours on different nodes. */
#ifndef PL_BASE_TOPOLOGY_H
#define PL_BASE_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

enum { PL_TOPOLOGY_CPUS = 1024 };

struct pl_topology_cpu {
    int cpu, core, node; /* the system's number; cores and nodes numbered from 0 in order of appearance */
    int sibling;         /* 0: the first usable CPU of its core */
};
struct pl_topology {
    int count, cores, nodes;
    double quota; /* CPUs that the tightest cgroup grants; 0: no limit */
    struct pl_topology_cpu cpus[PL_TOPOLOGY_CPUS];
};

/* root "" is the machine. mask: the CPUs to look at. */
void pl_topology_read(const char *root, const cpu_set_t *mask, struct pl_topology *out);
/* This machine and the CPUs this process was given when it first asked; read once. */
const struct pl_topology *pl_topology_here(void);
/* Threads worth starting: one a core, no more than the quota fills; at least 1. */
int pl_topology_threads(const struct pl_topology *t);
/* The calling thread may use every CPU again that the process was given (it, or who started it, may have been pinned). */
void pl_topology_free_thread(void);

#endif
