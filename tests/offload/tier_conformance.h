/* One suite for every tier: it checks the promises of offload/tier.h, whatever implements the tier. */
#ifndef ZERO_TESTS_OFFLOAD_TIER_CONFORMANCE_H
#define ZERO_TESTS_OFFLOAD_TIER_CONFORMANCE_H

#include <stddef.h>
#include <stdint.h>

#include "offload/tier.h"

enum { PATHS_MAX = 4 };

struct tier_case {
    const char *name;
    const struct tier_ops *tier;
    uint32_t paths; /* nvme; under the test's own directory */
    bool in_memory; /* nvme: paths on tmpfs */
    uint32_t block_bytes, queue_depth;
    bool no_uring, named_files, registered;
    struct faults *faults; /* NULL: none */
};

/* Runs every check. `seed` decides offsets, sizes and order. */
void tier_conformance(const struct tier_case *c, uint64_t seed);

/* A fresh directory for a case, and whether nothing is in it (nor in what it holds). */
void directory_make(char *out, size_t size, bool in_memory);
uint64_t directory_entries(const char *path, bool directories_too);
void directory_remove(const char *path);

/* Posts, waits, and returns the request's status. */
zero_status tier_perform(struct tier *tier, bool write, uint64_t offset, uint64_t bytes, void *memory,
                         struct zero_error *error);
/* Waits for a posted request. */
zero_status tier_finish(struct tier *tier, struct tier_work *work, struct zero_error *error);

/* Page-aligned; never NULL. */
void *page_alloc(uint64_t bytes);

#endif
