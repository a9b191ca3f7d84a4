/* Ranks that are threads of one process (zero_local), and memory that outlives a rank.
 *
 * After a failure, or in the middle of a collective, peers may still read and write the buffers of a rank that has left. Such
 * memory is kept until the zero_local is destroyed, or, where ranks are processes, until the process ends. */
#pragma once

#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "engine/zero.h"
#include "offload/tier.h"

struct outliving;

uint32_t local_ranks(const zero_local *local);
struct local_world *local_world_of(const zero_local *local);

/* Made when the engine opens, because its destruction must not fail. NULL: no memory. */
struct outliving *outliving_create(void);

/* Zeroed; replaces the message before it, whose call has ended. NULL: no memory. */
void *outliving_message(struct outliving *outliving, uint64_t bytes);

/* The same for memory from malloc, which becomes the property of `outliving`; NULL is allowed. */
void outliving_take(struct outliving *outliving, void *message);

/* Takes over the tiers and the device of a rank that leaves. Closes them at once unless peers use them. `local`: NULL where
 * ranks are processes. */
void outliving_release(struct outliving *outliving, zero_local *local, struct tier *tier[TIERS],
                       struct device *device, bool peers_use_it);
