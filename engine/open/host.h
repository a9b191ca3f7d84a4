/* The surroundings of an engine: the options of the host program, and the machine that its rank runs on. */
#pragma once

#include "engine/open/device_memory.h"
#include "engine/open/host_memory.h"
#include "engine/zero.h"

struct host {
    zero_local *local;              /* NULL: ranks are processes */
    int (*interrupted)(void *user); /* zero_runtime's, or NULL */
    void *interrupted_user;
    uint32_t threads;          /* CPU threads of this rank: given, or cpus / sharers: */
    uint32_t cpus, sharers;    /* CPUs, and the ranks that share them; cpus 0: threads was given */
    struct host_memory memory; /* the limit for the processes that share it */
    uint32_t memory_ranks;     /* the ranks among these processes */
    struct device_room device; /* the memory found on the GPU */
    bool plans_only;           /* zero_runtime.plan_ranks: the other ranks are not there */
    bool discard_shadow;       /* zero_runtime's */
    /* Why the CPU computes although a GPU seems to be here; its code is ZERO_OK where that is not so. */
    struct zero_error without_gpu;
};
