/* Opening: from the configuration's text to a rank that knows the others and agrees with them on the configuration. */
#pragma once

#include "engine/comm/comm.h"
#include "engine/comm/tcp/secret.h"
#include "engine/config/config.h"
#include "engine/open/host.h"
#include "engine/run/run.h"
#include "engine/zero.h"

/* A rank's membership: its number, and how it reaches the other ranks. The host program or the launcher gives it. */
struct membership {
    const struct comm_ops *transport;
    struct comm_options options; /* of the transport: who and where the ranks are */
    struct secret secret;        /* which the options point to */
    uint32_t local_rank;         /* this rank's number on its host, by which it takes a GPU */
};

/* In the order of zero.h, "ranks"; `out` does not move afterwards. ZERO_E_ARGUMENT: what zero.h refuses. `mine`: a fault that does not
 * keep this rank from the others, so that it can tell them. Local. */
zero_status membership_find(const zero_runtime *runtime, struct membership *out, struct zero_error *mine,
                            struct zero_error *error);

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
 * also after a failure. `local_rank`: see struct membership. */
zero_status join_device(struct joining *joining, const zero_runtime *runtime, uint32_t local_rank,
                        struct zero_error *error);
