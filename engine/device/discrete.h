/* Memory for device sim in discrete mode: the host crashes if it touches this memory outside of work. All devices of
 * the process share this memory, as ranks that are threads share a GPU: work of one device may read another device's
 * memory. Threads: any. */
#ifndef ZERO_ENGINE_DEVICE_DISCRETE_H
#define ZERO_ENGINE_DEVICE_DISCRETE_H

#include <stdint.h>

void *discrete_allocate(uint64_t bytes); /* zeroed, whole pages; NULL when the system refuses */
void discrete_release(void *memory, uint64_t bytes);

/* Between discrete_enter and discrete_leave the calling thread may touch the memory. If the processor has no protection keys, all
 * threads may touch it then. */
void discrete_enter(void);
void discrete_leave(void);

#endif
