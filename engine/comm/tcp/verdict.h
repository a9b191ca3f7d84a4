/* How a rendezvous ends: rank 0 tells the other ranks that all have come, then that all have all connections, or a failure. A rank
 * that rank 0 has taken tells it its own failure. All this goes over the first connection of the rank to rank 0, under its seals.
 * Threads: any. */
#pragma once

#include "engine/comm/tcp/handshake.h"

#define VERDICT_GRACE_NS 2000000000ull /* for a verdict that is under way */

struct verdict {
    uint64_t key;
    uint32_t code;
    int32_t rank;
    char message[1000];
};

struct verdict verdict_make(uint64_t key, zero_status status, const struct zero_error *error);

/* Sends a verdict. A rank that died in the meantime is found later. */
bool verdict_send(int socket, struct seals *seals, const struct verdict *verdict);

/* False: errno; EPROTO: the message is no verdict, or not from this connection. `size`: the number of ranks. */
bool verdict_receive(int socket, struct seals *seals, uint32_t size, struct verdict *out,
                     struct patience patience);

/* Records the failure of a verdict, in place of an earlier one. */
zero_status verdict_take(const struct verdict *verdict, struct zero_error *error);

/* True if the next verdict over this connection has come and is a failure, or if the connection has ended. Never blocks. */
bool verdict_ends(int socket);

/* For the data that follows a verdict. */
bool sealed_send(int socket, struct seal *seal, const void *data, size_t bytes, struct patience patience);
bool sealed_receive(int socket, struct seal *seal, void *data, size_t bytes, struct patience patience);
