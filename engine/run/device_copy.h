/* Copies between the host's memory and a discrete device's, on behalf of the host's calls: each call waits for its copy. */
#ifndef ZERO_ENGINE_RUN_DEVICE_COPY_H
#define ZERO_ENGINE_RUN_DEVICE_COPY_H

#include "engine/run/run.h"

/* One of the two memories may be a discrete device's. A failure of the device is returned in `error`: not sticky, because a save
 * in the background must not fail the engine beside the host's thread. */
zero_status device_copy(struct running *run, void *target, const void *source, uint64_t bytes,
                        struct zero_error *error);
/* The same from any memory that a discrete device reaches, after the work that is now on the host's stream. */
zero_status device_fetch(struct running *run, void *target, const void *source, uint64_t bytes,
                         struct zero_error *error);
zero_status device_clear(struct running *run, void *memory, uint64_t bytes, struct zero_error *error);

/* The address is in a discrete device's memory. */
bool device_has(const struct running *run, const void *address);

#endif
