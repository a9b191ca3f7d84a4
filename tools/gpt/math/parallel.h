/* Runs task(context, 0 ... count - 1, thread) on `threads` OpenMP threads. Any thread may run any index. A task
 * therefore writes only data that belongs to its index, or scratch that belongs to its thread, and the results do not
 * depend on the schedule. Inside a task of several threads oneDNN uses only the calling thread. */
#pragma once

#include <stdint.h>

typedef void (*parallel_fn)(void *context, uint32_t index, uint32_t thread);

void parallel_run(uint32_t threads, uint32_t count, parallel_fn task, void *context);

/* Sets the number of threads that oneDNN and OpenMP use when this thread calls them outside of tasks. Returns the
 * previous number, which the caller restores. */
uint32_t parallel_limit(uint32_t threads);
