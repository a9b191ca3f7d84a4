/* How fast the virtual machine is: whole bytes and operations per second, so that times are whole nanoseconds and the
 * same everywhere. Pure. */
#ifndef ZERO_TOOLS_SIM_SPEEDS_H
#define ZERO_TOOLS_SIM_SPEEDS_H

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
    uint64_t drive_read_bytes_per_s, drive_write_bytes_per_s, drive_latency_ns;
    uint32_t node_ranks;
};

/* Rounded up; 0 of nothing. per_s is not 0. */
uint64_t speeds_ns(uint64_t amount, uint64_t per_s);

/* One call of a group: for how long it has each member's links, which work at the same time, and what it takes beyond. */
struct speeds_call {
    uint64_t inside_ns, between_ns, latency_ns;
};

/* `ranks` ascending, node by node; `bytes`: that each rank sends. A ring sends them over each of its links, and crosses
 * from node to node on the adapters of all its ranks there at once; latencies add up as in recursive doubling (Thakur,
 * Rabenseifner and Gropp 2005, section 4). */
struct speeds_call speeds_collective(const struct speeds *speeds, const uint32_t *ranks, uint32_t count,
                                     uint64_t bytes, bool reduces);

#endif
