/* The times of collectives and drives, for plans (timeline.c) and simulations (tools/sim). Rates are whole bytes and
 * operations per second, so that times are whole nanoseconds and the same everywhere. Pure. */
#pragma once

#include "engine/base/integer.h"
#include "engine/comm/comm.h"

struct speeds_link {
    uint64_t bytes_per_s;        /* sent by one rank */
    uint64_t reduce_bytes_per_s; /* the same in a reduction, with its additions */
    uint64_t latency_ns;         /* of one message */
};

struct speeds { /* of one rank; shared resources of a node are divided among its ranks */
    uint64_t flops_per_s;
    uint64_t device_bytes_per_s, host_bytes_per_s; /* of memory */
    uint64_t update_bytes_per_s; /* of the host's update, while nothing else uses the memory */
    /* between host and device, each way; 0: they share one memory */
    uint64_t bus_bytes_per_s;
    struct speeds_link inside, between; /* of a node; between nodes */
    uint64_t drive_read_bytes_per_s, drive_write_bytes_per_s;
    uint64_t drive_mixed_bytes_per_s; /* for reads and writes together */
    uint64_t drive_latency_ns;
    uint32_t node_ranks;
    uint64_t matrix_flops_per_s; /* of an optimizer's products, which are fp32 in each run; 0: flops_per_s */
};

static inline uint64_t speeds_matrix_flops(const struct speeds *speeds) {
    return speeds->matrix_flops_per_s ? speeds->matrix_flops_per_s : speeds->flops_per_s;
}

/* Rounds up; 0 for an amount of 0. per_s is not 0. */
uint64_t speeds_ns(uint64_t amount, uint64_t per_s);

/* How long one call of a group occupies each member's links. */
struct speeds_call {
    uint64_t inside_ns, between_ns;
    bool in_turn; /* first inside, then between; false: at the same time */
};

/* The number of nodes of `ranks`, which are in ascending order. */
uint32_t speeds_nodes(const struct speeds *speeds, const uint32_t *ranks, uint32_t count);

/* `ranks` fill `nodes` nodes evenly. `sent`: what each rank sends. `host_bytes` of a rank come from the host's memory first. A ring
 * sends the bytes over each of its links; between nodes it uses the adapters of all the ranks of a node at once. What a rank sends
 * straight to others, or by levels, leaves the node by its own adapter. Latencies add up as in recursive doubling
 * (Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH", section 4). */
struct speeds_call speeds_collective(const struct speeds *speeds, uint32_t ranks, uint32_t nodes,
                                     const struct comm_sent *sent, uint64_t host_bytes, bool reduces);

/* A rank's part of a drive: the times when reads, writes and the drive itself are free again. Zeros at first. */
struct speeds_turns {
    uint64_t read_free_ns, write_free_ns, free_ns;
};

/* The time when a transfer that is posted now ends. Reads or writes alone run at their own rate, both together at
 * theirs. */
uint64_t speeds_transfer(const struct speeds *speeds, struct speeds_turns *turns, uint64_t now_ns, bool write,
                         uint64_t bytes);

/* Memory of a host that copies and its update share: when the bytes that began so far have all passed through it. Zero at first. Copies
 * do not wait for it, because a DMA engine does not wait for the cores; the update does. */
static inline uint64_t speeds_pass(const struct speeds *speeds, uint64_t *passed_ns, uint64_t now_ns,
                                   uint64_t bytes) {
    *passed_ns = max64(now_ns, *passed_ns) + speeds_ns(bytes, speeds->host_bytes_per_s);
    return *passed_ns;
}
