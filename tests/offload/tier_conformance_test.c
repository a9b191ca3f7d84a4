/* The suite against one row of this table: tier_conformance_test NAME. */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/offload/faults.h"
#include "tests/offload/tier_conformance.h"

enum { BLOCK = 64 << 10 };

/* Those that must leave the bytes right. */
static struct faults benign = {.seed = 4,
                               .probability = {[FAULT_EINTR] = 0.05,
                                               [FAULT_EAGAIN] = 0.05,
                                               [FAULT_SHORT] = 0.2,
                                               [FAULT_ONE_BYTE] = 0.05,
                                               [FAULT_TRANSFER_REORDERED] = 0.3,
                                               [FAULT_TRANSFER_DELAYED] = 0.01,
                                               [FAULT_DELAYED] = 0.2,
                                               [FAULT_REORDERED] = 0.2}};

static const struct tier_case cases[] = {
    {.name = "device", .tier = &tier_device},
    {.name = "cpu", .tier = &tier_cpu},
    {.name = "cpu_faulty", .tier = &tier_cpu, .faults = &benign},
    {.name = "nvme", .tier = &tier_nvme, .paths = 1},
    {.name = "nvme_small_blocks", .tier = &tier_nvme, .paths = 1, .block_bytes = BLOCK, .queue_depth = 4},
    {.name = "nvme_one_page", .tier = &tier_nvme, .paths = 1, .block_bytes = 4096, .queue_depth = 1},
    {.name = "nvme_registered", .tier = &tier_nvme, .paths = 1, .block_bytes = BLOCK, .registered = true},
    {.name = "nvme_named", .tier = &tier_nvme, .paths = 1, .named_files = true},
    {.name = "nvme_2_paths", .tier = &tier_nvme, .paths = 2, .block_bytes = BLOCK},
    {.name = "nvme_3_paths_pool", .tier = &tier_nvme, .paths = 3, .block_bytes = BLOCK, .no_uring = true},
    {.name = "nvme_pool", .tier = &tier_nvme, .paths = 1, .block_bytes = BLOCK, .no_uring = true},
    {.name = "nvme_tmpfs", .tier = &tier_nvme, .paths = 2, .in_memory = true, .block_bytes = BLOCK},
    {.name = "nvme_faulty", .tier = &tier_nvme, .paths = 2, .block_bytes = BLOCK, .faults = &benign},
    {.name = "nvme_faulty_pool",
     .tier = &tier_nvme,
     .paths = 1,
     .block_bytes = BLOCK,
     .no_uring = true,
     .faults = &benign},
    {.name = "nvme_faulty_tmpfs",
     .tier = &tier_nvme,
     .paths = 2,
     .in_memory = true,
     .block_bytes = BLOCK,
     .faults = &benign},
};

static void check_fired(const struct tier_case *c) {
    for (int f = 0; c->faults && f < FAULTS; f++) {
        bool of_transfer = f < FAULT_DELAYED;
        if (benign.probability[f] <= 0 || (of_transfer && c->tier->kind != TIER_NVME)) continue;
        if (!CHECK(atomic_load(&benign.fired[f]) > 0)) fprintf(stderr, "  never fired: %s\n", fault_names[f]);
    }
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, argv[1]) != 0) continue;
        for (uint64_t seed = 1; seed <= 2; seed++) tier_conformance(&cases[i], seed);
        check_fired(&cases[i]);
        return check_end();
    }
    fprintf(stderr, "usage: tier_conformance_test NAME\n");
    return 2;
}
