/* The memory nodes of a host (NUMA): one per socket. Node numbers are those of Linux; below 0: unknown, and nothing is done. All
 * of this is advice: where the system refuses it, memory and threads stay where they are. Threads: any. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Pages of this memory that nobody has touched yet come from the node while it has free pages, else from other nodes.
 * `memory` begins at a page. */
bool numa_prefer(void *memory, uint64_t bytes, int node);

/* Binds the calling thread, and the threads that it starts, to those CPUs of the node on which it may run now. Does nothing if
 * these CPUs are fewer than `least`, the number of threads that will run there. */
bool numa_bind_thread(int node, uint32_t least);

/* Touches each page of memory that is not in use yet, from threads on the node, so that the system allocates all
 * pages there. */
void numa_touch(void *memory, uint64_t bytes, int node);

/* The bytes of this memory that the system has put into huge pages. May count more at its ends. */
uint64_t numa_huge_bytes(const void *memory, uint64_t bytes);
