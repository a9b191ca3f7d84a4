/* The CPU time that the control groups of this process allow. More threads than that are stopped for a part of each period, and are
 * slower than fewer threads. Threads: any. */
#ifndef ZERO_ENGINE_OPEN_CPU_QUOTA_H
#define ZERO_ENGINE_OPEN_CPU_QUOTA_H

#include <stdint.h>

struct cpu_quota {
    uint32_t cpus;  /* whole ones, at least 1; UINT32_MAX: no quota */
    uint64_t group; /* equal for processes of this host that share the quota */
};

/* `root`: as in control_group_each. */
void cpu_quota_read(const char *root, struct cpu_quota *out);

#endif
