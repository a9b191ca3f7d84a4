#include "tools/sim/speeds.h"

enum { NS_PER_S = 1000000000 };

uint64_t speeds_ns(uint64_t amount, uint64_t per_s) {
    __extension__ unsigned __int128 ns = (unsigned __int128)amount * NS_PER_S;
    return (uint64_t)((ns + per_s - 1) / per_s);
}

static uint64_t rate(const struct speeds_link *link, bool reduces) {
    return reduces ? link->reduce_bytes_per_s : link->bytes_per_s;
}

static uint32_t rounds(uint32_t count) {
    uint32_t rounds = 0;
    while (1u << rounds < count) rounds++;
    return rounds;
}

struct speeds_call speeds_collective(const struct speeds *s, const uint32_t *ranks, uint32_t count,
                                     uint64_t bytes, bool reduces) {
    uint32_t nodes = 1;
    for (uint32_t i = 1; i < count; i++) nodes += ranks[i] / s->node_ranks != ranks[i - 1] / s->node_ranks;
    uint32_t sharers = count / nodes; /* of the way out of a node */
    return (struct speeds_call){
        .inside_ns = sharers > 1 ? speeds_ns(bytes, rate(&s->inside, reduces)) : 0,
        .between_ns = nodes > 1 ? speeds_ns(bytes, rate(&s->between, reduces) * sharers) : 0,
        .latency_ns = rounds(sharers) * s->inside.latency_ns + rounds(nodes) * s->between.latency_ns};
}
