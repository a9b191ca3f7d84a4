/* Opening: from the configuration's text to a rank that knows the others and agrees with them on the configuration. */
#ifndef ZERO_ENGINE_OPEN_JOIN_H
#define ZERO_ENGINE_OPEN_JOIN_H

#include "engine/config/config.h"
#include "engine/open/host.h"
#include "engine/run/run.h"

/* The parts of the engine that joining opens. */
struct joining {
    struct config *config;
    struct ranks *ranks;
    struct running *run;
    struct host *host;
};

/* Reads the configuration, opens the device, finds the other ranks and agrees with them. Ends alike on all ranks, so that no rank
 * need tell the others of a failure. Collective. */
zero_status join_ranks(struct joining *joining, const char *json, const zero_runtime *runtime,
                       struct zero_error *error);

/* Opens the device that the configuration and the runtime choose. A device that the runtime brings belongs to the engine,
 * also after a failure. `local_rank`: see struct seat. */
zero_status join_device(struct joining *joining, const zero_runtime *runtime, uint32_t local_rank,
                        struct zero_error *error);

#endif
