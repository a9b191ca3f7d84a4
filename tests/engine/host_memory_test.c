/* Limits are read from trees of files as Linux has them, and the least one counts. */
#include "engine/open/host_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/check.h"

static const uint64_t gib = 1 << 30;

static void put(const char *path, const char *text) {
    char parent[256];
    for (const char *at = strchr(path, '/'); at; at = strchr(at + 1, '/')) {
        snprintf(parent, sizeof parent, "%.*s", (int)(at - path), path);
        mkdir(parent, 0700);
    }
    FILE *file = fopen(path, "w");
    if (!CHECK(file != NULL)) return;
    fputs(text, file);
    fclose(file);
}

static struct host_memory read_root(const char *root) {
    struct host_memory memory;
    host_memory_read(root, &memory);
    return memory;
}

static void the_machine_sets_a_limit(void) {
    put("machine/proc/meminfo", "MemTotal: 4194304 kB\nMemFree: 1 kB\nSwapTotal: 1048576 kB\n");
    put("machine/proc/self/cgroup", "0::/\n");
    CHECK_INT(read_root("machine").bytes, 5 * gib);
    CHECK_CONTAINS(read_root("machine").source, "machine/proc/meminfo");
}

static void version_2_counts_all_groups_above(void) {
    put("two/proc/meminfo", "MemTotal: 16777216 kB\n");
    put("two/proc/self/cgroup", "0::/job/step\n");
    put("two/sys/fs/cgroup/job/memory.max", "3221225472\n");
    put("two/sys/fs/cgroup/job/step/memory.max", "max\n");
    CHECK_INT(read_root("two").bytes, 3 * gib);
    CHECK_CONTAINS(read_root("two").source, "two/sys/fs/cgroup/job/memory.max");
    put("two/sys/fs/cgroup/job/step/memory.max", "1073741824\n");
    CHECK_INT(read_root("two").bytes, gib);
}

static void version_1_has_a_tree_of_its_own(void) {
    put("one/proc/meminfo", "MemTotal: 16777216 kB\n");
    put("one/proc/self/cgroup", "5:cpu:/elsewhere\n4:memory:/job\n0::/\n");
    put("one/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("one/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648\n");
    CHECK_INT(read_root("one").bytes, 2 * gib);
}

/* Without a namespace of its own it is told the host's path, and sees its group as the root. */
static void a_container_sees_its_group_as_the_root(void) {
    put("container/proc/meminfo", "MemTotal: 16777216 kB\n");
    put("container/proc/self/cgroup", "0::/docker/0123\n");
    put("container/sys/fs/cgroup/memory.max", "1073741824\n");
    CHECK_INT(read_root("container").bytes, gib);
}

/* containerd names its groups so. */
static void a_path_may_have_colons(void) {
    put("colons/proc/meminfo", "MemTotal: 16777216 kB\n");
    put("colons/proc/self/cgroup", "0::/pods/pod.slice:cri-containerd:f00\n");
    put("colons/sys/fs/cgroup/pods/memory.max", "3221225472\n");
    CHECK_INT(read_root("colons").bytes, 3 * gib);
    put("colons/sys/fs/cgroup/pods/pod.slice:cri-containerd:f00/memory.max", "2147483648\n");
    CHECK_INT(read_root("colons").bytes, 2 * gib);
    put("colons/proc/self/cgroup", "11:memory:/pods/pod.slice:cri-containerd:f00\n");
    put("colons/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    CHECK_INT(read_root("colons").bytes, gib);
}

static uint32_t quota_of(const char *root) {
    struct cpu_quota quota;
    cpu_quota_read(root, &quota);
    CHECK_INT(quota.group != 0, quota.cpus != UINT32_MAX);
    return quota.cpus;
}

/* Whole CPUs, and at least one; the least of the group and those above it. */
static void quotas_of_time_are_whole_cpus(void) {
    put("time2/proc/self/cgroup", "0::/job/step\n");
    CHECK_INT(quota_of("time2"), UINT32_MAX);
    put("time2/sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
    CHECK_INT(quota_of("time2"), UINT32_MAX);
    put("time2/sys/fs/cgroup/job/cpu.max", "350000 100000\n");
    CHECK_INT(quota_of("time2"), 3);
    put("time2/sys/fs/cgroup/job/step/cpu.max", "20000 50000\n");
    CHECK_INT(quota_of("time2"), 1);
    put("time1/proc/self/cgroup", "6:cpuset:/other\n4:cpu,cpuacct:/job\n");
    put("time1/sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "100000\n");
    put("time1/sys/fs/cgroup/cpu/other/cpu.cfs_period_us", "100000\n");
    put("time1/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put("time1/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    CHECK_INT(quota_of("time1"), UINT32_MAX);
    put("time1/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n");
    CHECK_INT(quota_of("time1"), 2);
}

static void nothing_known_is_no_limit(void) {
    struct host_memory memory = read_root("nothing");
    struct zero_error error;
    error_clear(&error);
    CHECK(memory.bytes == UINT64_MAX);
    CHECK_INT(host_memory_check(&memory, UINT64_MAX, 1000, &error), ZERO_OK);
}

static void ranks_with_one_limit_are_one_group(void) {
    CHECK(read_root("one").group == read_root("one").group);
    CHECK(read_root("one").group != read_root("two").group);
}

static void too_much_is_refused_with_both_numbers(void) {
    struct host_memory memory = read_root("one");
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(host_memory_check(&memory, gib, 2, &error), ZERO_OK);
    CHECK_INT(host_memory_check(&memory, gib + 1, 2, &error), ZERO_E_BUDGET);
    CHECK_CONTAINS(error.message, "2 ranks here need 2.00 GiB, 1.00 GiB each");
    CHECK_CONTAINS(error.message, "memory/job/memory.limit_in_bytes allows 2.00 GiB");
    error_clear(&error);
    CHECK_INT(host_memory_check(&memory, UINT64_MAX, 1, &error), ZERO_E_BUDGET);
}

int main(void) {
    const char *folder = getenv("TEST_TMPDIR");
    if (folder && chdir(folder) != 0) return 1;
    the_machine_sets_a_limit();
    version_2_counts_all_groups_above();
    version_1_has_a_tree_of_its_own();
    a_container_sees_its_group_as_the_root();
    a_path_may_have_colons();
    quotas_of_time_are_whole_cpus();
    nothing_known_is_no_limit();
    ranks_with_one_limit_are_one_group();
    too_much_is_refused_with_both_numbers();
    return check_end();
}
