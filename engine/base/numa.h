/* The memory nodes of a host (NUMA): one per socket. Node numbers are those of Linux; below 0: unknown, and nothing is done. All
 * of this is advice: where the system refuses it, memory and threads stay where they are. Threads: any. */
#ifndef ZERO_ENGINE_BASE_NUMA_H
#define ZERO_ENGINE_BASE_NUMA_H

#include <stdbool.h>
#include <stdint.h>

/* Pages of this memory that are not touched yet come from the node while it has some, else from others. `memory` begins at a page. */
bool numa_prefer(void *memory, uint64_t bytes, int node);

/* The calling thread, and those that it starts, run on the node's CPUs: on those among them on which it may run now. Nothing is done
 * where these are fewer than the `least` threads that are to run there. */
bool numa_bind_thread(int node, uint32_t least);

/* Touches each page of memory that nobody uses yet, from threads on the node, so that all of them are there. */
void numa_touch(void *memory, uint64_t bytes, int node);

#endif
