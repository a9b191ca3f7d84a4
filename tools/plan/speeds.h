/* What collectives and drives take: the one place that says so, for plans (timeline.c) and simulations (tools/sim). Whole
 * bytes and operations per second, so that times are whole nanoseconds and the same everywhere. Pure. */
#ifndef ZERO_TOOLS_PLAN_SPEEDS_H
#define ZERO_TOOLS_PLAN_SPEEDS_H

#include <stdbool.h>
#include <stdint.h>

struct speeds_link {
    uint64_t bytes_per_s;        /* that one rank sends */
    uint64_t reduce_bytes_per_s; /* the same in a reduction, its additions included */
    uint64_t latency_ns;         /* of one message */
};

struct speeds { /* of one rank; what a node's ranks share is divided among them */
    uint64_t flops_per_s;
    uint64_t device_bytes_per_s, host_bytes_per_s; /* of memory */
    uint64_t bus_bytes_per_s;                      /* between them, each way; 0: they are one memory */
    struct speeds_link inside, between;            /* of a node; between nodes */
    uint64_t drive_read_bytes_per_s, drive_write_bytes_per_s;
    uint64_t drive_mixed_bytes_per_s; /* read and written together */
    uint64_t drive_latency_ns;
    uint32_t node_ranks;
};

/* Rounded up; 0 of nothing. per_s is not 0. */
uint64_t speeds_ns(uint64_t amount, uint64_t per_s);

/* One call of a group: for how long it has each member's links, which work at the same time. */
struct speeds_call {
    uint64_t inside_ns, between_ns;
};

/* On how many nodes `ranks` are: ascending, node by node. */
uint32_t speeds_nodes(const struct speeds *speeds, const uint32_t *ranks, uint32_t count);

/* `ranks` fill `nodes` nodes evenly; `bytes`: that each rank sends, as zero_counters counts them: (ranks - 1) shares;
 * `host_bytes` of a rank come from the host's memory first. A ring sends them over each of its links, and crosses from
 * node to node on the adapters of all its ranks there at once; latencies add up as in recursive doubling (Thakur,
 * Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH", section 4). */
struct speeds_call speeds_collective(const struct speeds *speeds, uint32_t ranks, uint32_t nodes,
                                     uint64_t bytes, uint64_t host_bytes, bool reduces);

/* A rank's part of a drive: until when each way is taken, and both. Zeros at first. */
struct speeds_turns {
    uint64_t read_free_ns, write_free_ns, free_ns;
};

/* When a transfer that is posted now has been made: one way goes at its own rate, both together at theirs. */
uint64_t speeds_transfer(const struct speeds *speeds, struct speeds_turns *turns, uint64_t now_ns, bool write,
                         uint64_t bytes);

#endif
