/* Runs calls of a group, with buffers in the host's memory or, meanwhile, in a device's. A failed call ends the process. */
#ifndef ZERO_TESTS_COMM_RING_H
#define ZERO_TESTS_COMM_RING_H

#include "tests/comm/conformance.h"

enum { MEMBERS_MAX = 64 };

struct ring {
    struct comm_group *group;
    uint32_t ranks[MEMBERS_MAX], members, me;
};

/* A host buffer of a call, and its place in the device's memory meanwhile. */
struct shadow {
    char *host, *place;
    uint64_t bytes;
};

struct pending {
    struct comm_work *work;
    void *staging;
    struct shadow shadow[2]; /* source and target, or both in one */
};

/* Ranks first, first + step, ... below `end`. */
void ring_open(struct conformance *c, struct ring *ring, uint32_t first, uint32_t step, uint32_t end);

/* Memory of the device, where there is one. */
void *ring_allocate(struct conformance *c, uint64_t bytes);

struct pending ring_post(struct conformance *c, struct comm_group *group, struct comm_call call);
void ring_finish(struct conformance *c, struct pending *pending);
void ring_run(struct conformance *c, struct comm_group *group, struct comm_call call);

#endif
