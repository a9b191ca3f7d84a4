/* Memory and threads on a node. What the system has: node 0, on any host. */
#include <linux/mempolicy.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/system/numa.h"
#include "tests/check.h"

enum { BYTES = 64 << 20, PAGE = 4096, MANY = 1 << 20 };

static void nothing_is_done(void) {
    cpu_set_t before, after;
    CHECK_INT(sched_getaffinity(0, sizeof before, &before), 0);
    CHECK(!numa_bind_thread(-1, 1));
    CHECK(!numa_bind_thread(MANY, 1));
    CHECK(!numa_bind_thread(0, MANY)); /* fewer CPUs than threads */
    CHECK_INT(sched_getaffinity(0, sizeof after, &after), 0);
    CHECK(CPU_EQUAL(&before, &after));
    CHECK(!numa_prefer(NULL, 0, -1));
    CHECK(!numa_prefer(NULL, 0, MANY));
}

/* A thread that may run on one CPU stays there. */
static void binds_inside(void) {
    cpu_set_t before, one, after;
    int cpu = 0;
    sched_getaffinity(0, sizeof before, &before);
    while (!CPU_ISSET(cpu, &before)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK_INT(sched_setaffinity(0, sizeof one, &one), 0);
    bool bound = numa_bind_thread(0, 1);
    sched_getaffinity(0, sizeof after, &after);
    CHECK(CPU_EQUAL(&one, &after));
    if (access("/sys/devices/system/node/node1", F_OK) &&
        !access("/sys/devices/system/node/node0/cpulist", R_OK))
        CHECK(bound); /* the only node has the CPU */
    sched_setaffinity(0, sizeof before, &before);
}

static void touches_all(void) {
    static unsigned char there[BYTES / PAGE];
    int policy = -1, missing = 0;
    unsigned long nodes[16] = {0};
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!CHECK(memory != MAP_FAILED)) return;
    bool preferred = numa_prefer(memory, BYTES, 0);
    if (syscall(SYS_get_mempolicy, &policy, nodes, 1024ul, memory, (unsigned long)MPOL_F_ADDR) == 0 &&
        preferred) {
        CHECK_INT(policy, MPOL_PREFERRED);
        CHECK_INT(nodes[0], 1);
    }
    numa_touch(memory, BYTES - PAGE, 0);
    CHECK_INT(mincore(memory, BYTES, there), 0);
    for (int i = 0; i < BYTES / PAGE - 1; i++) missing += !(there[i] & 1);
    CHECK_INT(missing, 0);
    munmap(memory, BYTES);
}

/* What the system grants is its own choice: whole huge pages, none where they are forbidden, and those of other memory do not count. */
static void counts_huge_pages(void) {
    enum { HUGE = 2 << 20, ALL = 8 * HUGE };
    uint8_t *memory = mmap(NULL, 3 * ALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!CHECK(memory != MAP_FAILED)) return;
    uint8_t *forbidden = memory + (HUGE - (uintptr_t)memory % HUGE) % HUGE, *asked = forbidden + ALL;
    madvise(forbidden, ALL, MADV_NOHUGEPAGE);
    bool granted = madvise(asked, ALL, MADV_HUGEPAGE) == 0;
    numa_touch(forbidden, 2 * ALL, -1);
    uint64_t huge = numa_huge_bytes(asked, ALL);
    CHECK_INT(numa_huge_bytes(forbidden, ALL), 0);
    CHECK_INT(huge % HUGE, 0);
    CHECK_INT(numa_huge_bytes(memory, 3 * ALL), huge);
    if (granted && !huge) fprintf(stderr, "the system grants no huge pages here\n");
    munmap(memory, 3 * ALL);
}

int main(void) {
    nothing_is_done();
    binds_inside();
    touches_all();
    counts_huge_pages();
    return check_end();
}
