#include "engine/open/cpu_quota.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/open/control_group.h"

/* Microseconds in each period: version 2 has both in one file; without a quota it says "max", and version 1 says -1. */
static void take_quota(void *user, const char *folder, bool unified) {
    struct cpu_quota *least = user;
    char path[CONTROL_GROUP_PATH_BYTES], other[CONTROL_GROUP_PATH_BYTES], line[128] = "", period[64];
    int64_t quota_us, period_us;
    if (!control_group_line(folder, unified ? "cpu.max" : "cpu.cfs_quota_us", path, line)) return;
    if (!unified && control_group_line(folder, "cpu.cfs_period_us", other, period)) strcat(line, period);
    if (sscanf(line, "%" SCNd64 " %" SCNd64, &quota_us, &period_us) != 2 || quota_us <= 0 || period_us <= 0)
        return;
    int64_t cpus = quota_us < period_us ? 1 : quota_us / period_us;
    if (cpus < least->cpus) *least = (struct cpu_quota){(uint32_t)cpus, control_group_identity(path)};
}

void cpu_quota_read(const char *root, struct cpu_quota *out) {
    *out = (struct cpu_quota){.cpus = UINT32_MAX};
    control_group_each(root, "cpu", take_quota, out);
}
