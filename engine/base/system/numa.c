#include "engine/base/system/numa.h"

#include <inttypes.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/system/thread.h"

enum { NODES_MAX = 1024, PAGE = 4096, TOUCHERS_MAX = 8, TOUCH_BYTES = 16 << 20 };

enum { LONG_BITS = 8 * sizeof(unsigned long) };

/* glibc has no function for it. The kernel reads one bit less than the number of bits that it is told. */
bool numa_prefer(void *memory, uint64_t bytes, int node) {
    unsigned long nodes[NODES_MAX / LONG_BITS] = {0};
    if (node < 0 || node >= NODES_MAX) return false;
    nodes[node / LONG_BITS] = 1ul << node % LONG_BITS;
    return syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes, (unsigned long)NODES_MAX + 1, 0) == 0;
}

/* The kernel lists CPUs as "0-31,64-95". */
static bool read_cpus(int node, cpu_set_t *out) {
    char path[64];
    unsigned first, last;
    int separator = ',';
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    FILE *file = fopen(path, "re");
    CPU_ZERO(out);
    while (file && separator == ',' && fscanf(file, "%u", &first) == 1) {
        last = first;
        separator = getc(file);
        if (separator == '-' && fscanf(file, "%u", &last) == 1) separator = getc(file);
        for (unsigned cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) CPU_SET(cpu, out);
    }
    if (file) fclose(file);
    return CPU_COUNT(out) > 0;
}

bool numa_bind_thread(int node, uint32_t least) {
    cpu_set_t cpus, mine;
    if (node < 0 || !read_cpus(node, &cpus) || sched_getaffinity(0, sizeof mine, &mine)) return false;
    CPU_AND(&cpus, &cpus, &mine);
    return CPU_COUNT(&cpus) >= (int)least && sched_setaffinity(0, sizeof cpus, &cpus) == 0;
}

struct toucher {
    pthread_t thread;
    volatile uint8_t *from;
    uint64_t bytes;
    int node;
    bool runs;
};

static void *touch(void *argument) {
    struct toucher *t = argument;
    if (t->runs) numa_bind_thread(t->node, 1);
    for (uint64_t at = 0; at < t->bytes; at += PAGE) t->from[at] = 0;
    return NULL;
}

static uint64_t touchers_for(uint64_t bytes) {
    cpu_set_t mine;
    uint64_t cpus = sched_getaffinity(0, sizeof mine, &mine) ? 1 : (uint64_t)CPU_COUNT(&mine);
    uint64_t count = bytes / TOUCH_BYTES < TOUCHERS_MAX ? bytes / TOUCH_BYTES : TOUCHERS_MAX;
    count = count < cpus ? count : cpus;
    return count ? count : 1;
}

/* If a thread cannot start, this thread touches its part. */
void numa_touch(void *memory, uint64_t bytes, int node) {
    struct toucher t[TOUCHERS_MAX];
    uint64_t count = touchers_for(bytes), each = (bytes / count + PAGE - 1) / PAGE * PAGE;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t first = i * each < bytes ? i * each : bytes;
        t[i] = (struct toucher){.from = (uint8_t *)memory + first,
                                .bytes = bytes - first < each ? bytes - first : each,
                                .node = node,
                                .runs = true};
        if (!thread_start(&t[i].thread, touch, &t[i])) continue;
        t[i].runs = false;
        touch(&t[i]);
    }
    for (uint64_t i = 0; i < count; i++)
        if (t[i].runs) pthread_join(t[i].thread, NULL);
}

/* The kernel lists areas, each with a line "first-end ..." in base 16, then lines of its numbers. */
uint64_t numa_huge_bytes(const void *memory, uint64_t bytes) {
    FILE *file = fopen("/proc/self/smaps", "re");
    uintptr_t begin = (uintptr_t)memory, first = 0, end = 0, low, high;
    uint64_t kib, all = 0;
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &low, &high) == 2) first = low, end = high;
        bool inside = first < begin + bytes && end > begin;
        if (inside && sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1) all += kib * 1024;
    }
    if (file) fclose(file);
    return all < bytes ? all : bytes;
}
