/* Memory that the host crashes on when it touches it, except inside work: how `sim` stands for a device of its own. All
 * devices of the process share one memory, as ranks that are threads share a GPU: work of one may read another's. Any
 * thread. */
#ifndef ZERO_ENGINE_DEVICE_DISCRETE_H
#define ZERO_ENGINE_DEVICE_DISCRETE_H

#include <stdint.h>

void *discrete_allocate(uint64_t bytes); /* zeroed, whole pages; NULL when the system refuses */
void discrete_release(void *memory, uint64_t bytes);

/* Between the two, this and all other threads may touch it. */
void discrete_enter(void);
void discrete_leave(void);

#endif
