#include "tools/plan/machine/speeds.h"

enum { NS_PER_S = 1000000000 };

uint64_t speeds_ns(uint64_t amount, uint64_t per_s) {
    __extension__ unsigned __int128 ns = (unsigned __int128)amount * NS_PER_S;
    return (uint64_t)((ns + per_s - 1) / per_s);
}

/* ---- collectives ---- */

static uint64_t rate(const struct speeds_link *link, bool reduces) {
    return reduces ? link->reduce_bytes_per_s : link->bytes_per_s;
}

static uint32_t rounds(uint32_t count) {
    uint32_t rounds = 0;
    while (1u << rounds < count) rounds++;
    return rounds;
}

uint32_t speeds_nodes(const struct speeds *s, const uint32_t *ranks, uint32_t count) {
    uint32_t nodes = 1;
    for (uint32_t i = 1; i < count; i++) nodes += ranks[i] / s->node_ranks != ranks[i - 1] / s->node_ranks;
    return nodes;
}

/* A call begins when the previous call on its links has ended, so its latency is not hidden. */
struct speeds_call speeds_collective(const struct speeds *s, uint32_t ranks, uint32_t nodes,
                                     const struct comm_sent *sent, uint64_t host_bytes, bool reduces) {
    uint32_t sharers = (ranks + nodes - 1) / nodes; /* ranks that share a node's way out */
    uint64_t near = ranks > 1 ? sent->straight / (ranks - 1) * (sharers - 1) : 0,
             inside = sent->ring + near + sent->inside, own = sent->straight - near + sent->between;
    bool in_turn = sent->between > 0; /* then each level waits for its own messages alone */
    uint64_t way_out = rate(&s->between, reduces), bring = 0,
             latency[2] = {rounds(sharers) * s->inside.latency_ns, rounds(nodes) * s->between.latency_ns};
    if (host_bytes && s->bus_bytes_per_s) bring = speeds_ns(host_bytes, s->bus_bytes_per_s);
    if (!in_turn) latency[0] = latency[1] = latency[0] + latency[1] + bring;
    if (nodes == 1) inside += sent->between, own = 0; /* the group counts on more nodes than there are */
    struct speeds_call call = {.in_turn = in_turn};
    if (nodes == 1 || sharers > 1)
        call.inside_ns = latency[0] + (sharers > 1 ? speeds_ns(inside, rate(&s->inside, reduces)) : 0);
    if (nodes > 1)
        call.between_ns = latency[1] + speeds_ns(sent->ring, way_out * sharers) + speeds_ns(own, way_out);
    return call;
}

/* ---- drives ---- */

uint64_t speeds_transfer(const struct speeds *s, struct speeds_turns *t, uint64_t now_ns, bool write,
                         uint64_t bytes) {
    uint64_t alone = write ? s->drive_write_bytes_per_s : s->drive_read_bytes_per_s;
    uint64_t *way = write ? &t->write_free_ns : &t->read_free_ns;
    bool other_idle = now_ns >= (write ? t->read_free_ns : t->write_free_ns);
    uint64_t together = other_idle ? max64(alone, s->drive_mixed_bytes_per_s) : s->drive_mixed_bytes_per_s;
    *way = max64(now_ns, *way) + speeds_ns(bytes, alone);
    t->free_ns = max64(now_ns, t->free_ns) + speeds_ns(bytes, together);
    return max64(*way, t->free_ns) + s->drive_latency_ns;
}
