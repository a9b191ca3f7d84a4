/* A rank's seat: its number, and how it reaches the other ranks. The host program or the launcher gives it. */
#ifndef ZERO_ENGINE_OPEN_SEAT_H
#define ZERO_ENGINE_OPEN_SEAT_H

#include "engine/comm/comm.h"
#include "engine/comm/secret.h"
#include "engine/zero.h"

struct seat {
    const struct comm_ops *transport;
    struct comm_options options; /* of the transport: who and where the ranks are */
    struct secret secret;        /* which the options point to */
    uint32_t local_rank;         /* this rank's number on its host, by which it takes a GPU */
};

/* In the order of zero.h, "ranks"; `out` does not move afterwards. ZERO_E_ARGUMENT: what zero.h refuses. Local. */
zero_status seat_find(const zero_runtime *runtime, struct seat *out, struct zero_error *error);

#endif
