/* Memory for device sim in discrete mode: the host crashes if it touches this memory outside of work. All devices of
 * the process share this memory, as ranks that are threads share a GPU: work of one device may read another device's
 * memory. Threads: any. */
#ifndef ZERO_TESTS_DEVICE_DISCRETE_H
#define ZERO_TESTS_DEVICE_DISCRETE_H

#include "engine/device/device.h"

extern const struct device_guard discrete_guard;

/* Between discrete_enter and discrete_leave the calling thread may touch the memory. If the processor has no protection keys, all
 * threads may touch it then. */
void discrete_enter(void);
void discrete_leave(void);

#endif
