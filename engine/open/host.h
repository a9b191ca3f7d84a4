/* The surroundings of an engine: the options of the host program, and the machine that its rank runs on. */
#ifndef ZERO_ENGINE_OPEN_HOST_H
#define ZERO_ENGINE_OPEN_HOST_H

#include <stdbool.h>
#include <sys/types.h>

#include "engine/open/device_memory.h"
#include "engine/open/host_memory.h"
#include "engine/zero.h"

struct host {
    pid_t process;                  /* that opened the engine */
    zero_local *local;              /* NULL: ranks are processes */
    int (*interrupted)(void *user); /* zero_runtime's, or NULL */
    void *interrupted_user;
    uint32_t threads;          /* CPU threads of this rank: given; or `cpus`, which */
    uint32_t cpus, sharers;    /* `sharers` ranks share, divided by them; cpus 0: given */
    struct host_memory memory; /* what the processes may take that share it, */
    uint32_t memory_ranks;     /* and the ranks among them */
    struct device_room device; /* what was found on the GPU */
    bool plans_only;           /* zero_runtime.plan_ranks: the other ranks are not there */
    bool discard_shadow;       /* zero_runtime's */
};

#endif
