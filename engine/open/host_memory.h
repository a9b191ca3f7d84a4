/* What the ranks of a machine may take of it. Host memory: the least of what its control groups and the machine allow. A
 * process that takes more is killed by the kernel, without a word. CPU time: see below.
 *
 * Threads: any. */
#pragma once

#include "engine/base/error.h"

struct host_memory {
    uint64_t bytes;   /* UINT64_MAX: unknown */
    uint64_t group;   /* equal for processes of this host that share the limit */
    char source[512]; /* the file that sets the limit */
};

/* Reads /proc/self/cgroup and /proc/meminfo, and the limits of control groups (version 1 and 2, with those above them)
 * under /sys/fs/cgroup. `root`: what stands before these paths; "" but in tests. */
void host_memory_read(const char *root, struct host_memory *out);

/* ZERO_E_BUDGET, with what is needed and what is allowed, where `ranks` ranks of `bytes` each take more. */
zero_status host_memory_check(const struct host_memory *memory, uint64_t bytes, uint32_t ranks,
                              struct zero_error *error);

/* The CPU time that the control groups of this process allow. More threads than that are stopped for a part of each period, and are
 * slower than fewer threads. */
struct cpu_quota {
    uint32_t cpus;  /* whole ones, at least 1; UINT32_MAX: no quota */
    uint64_t group; /* equal for processes of this host that share the quota */
};

/* `root`: as in host_memory_read. */
void cpu_quota_read(const char *root, struct cpu_quota *out);
