/* The wires of transport tcp: their memory, and their connections, of which some are made when a group first needs them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/comm/tcp/tcp.h"

/* Every call of a group queues two messages per phase for each member. */
enum { QUEUE_PER_GROUP = 2 * PHASES * COMM_CALLS_MAX };

/* A wire to a rank; its connection may be made later. */
static zero_status open_wire(struct tcp_comm *tcp, uint32_t rank) {
    struct wire *wire = &tcp->wires[rank];
    if (wire->queue) return ZERO_OK;
    wire->queue = malloc(tcp->queue_capacity * sizeof *wire->queue);
    for (uint64_t i = 0; i < AHEAD_SLICES; i++)
        wire->kept[i].bytes = tcp->room + (rank * (uint64_t)AHEAD_SLICES + i) * tcp->ahead_bytes;
    return wire->queue ? ZERO_OK : ZERO_E_MEMORY;
}

zero_status tcp_adopt(struct tcp_comm *tcp) {
    if (tcp->meeting) tcp->made = rendezvous_made(tcp->meeting);
    for (uint32_t q = 0; q < tcp->base.size; q++) {
        const struct lanes *peer = &tcp->peers[q];
        if (!atomic_load(&peer->made[LANE_DATA]) || tcp->set.socket[q] >= 0 || tcp->wires[q].broken_ns)
            continue;
        tcp->wires[q].seals = peer->seals[LANE_DATA];
        tcp_endure(&tcp->base, peer->socket[LANE_DATA]);
        if (open_wire(tcp, q) || !tcp_set_add(&tcp->set, q, peer->socket[LANE_DATA]))
            return tcp->base.failure ? tcp_raise_no_room(&tcp->base, q) : ZERO_E_MEMORY;
        tcp_list(tcp, q);
    }
    return ZERO_OK;
}

zero_status tcp_open_wires(struct tcp_comm *tcp, uint64_t slice_bytes) {
    tcp->ahead_bytes = slice_bytes;
    tcp->queue_capacity = QUEUE_PER_GROUP;
    tcp->room = malloc(tcp->base.size * AHEAD_SLICES * tcp->ahead_bytes);
    tcp->pending = malloc(tcp->base.size * sizeof *tcp->pending);
    zero_status status = tcp_set_open(&tcp->set, tcp->base.size);
    if (!tcp->room || !tcp->pending) status = ZERO_E_MEMORY;
    return status ? status : tcp_adopt(tcp);
}

bool tcp_grow_queues(struct tcp_comm *tcp, const struct comm_group *group) {
    uint32_t capacity = tcp->queue_capacity + QUEUE_PER_GROUP;
    if (group->count == 1) return true;
    for (uint32_t q = 0; q < tcp->base.size; q++) {
        struct wire *wire = &tcp->wires[q];
        if (!wire->queue) continue;
        struct outgoing *queue = malloc(capacity * sizeof *queue);
        if (!queue) return false;
        for (uint32_t i = 0; i < wire->count; i++)
            queue[i] = wire->queue[(wire->first + i) % tcp->queue_capacity];
        free(wire->queue);
        wire->queue = queue, wire->first = 0;
    }
    tcp->queue_capacity = capacity;
    return true;
}

/* ---- connections that are made when a group first needs them ---- */

static bool gives_up(void *user) {
    struct comm *comm = user;
    comm_ask_interrupted(comm);
    return comm_failure_raised(comm->failure);
}

/* There is a wire to this rank then, and the connections are made: at once, or by the other rank. */
static zero_status reach(struct tcp_comm *tcp, uint32_t rank) {
    struct comm *comm = &tcp->base;
    struct patience patience = {.deadline_ns = clock_now_ns() + (uint64_t)(comm->timeout_s * 1e9),
                                .interrupted = gives_up,
                                .user = comm};
    if (!tcp->meeting) return ZERO_OK;
    if (open_wire(tcp, rank)) return tcp_raise_no_room(comm, rank);
    if (tcp_link_left(&tcp->link, rank) || rendezvous_reach(tcp->meeting, rank, patience)) return ZERO_OK;
    if (comm_failure_raised(comm->failure)) return comm->failure->error.code;
    int why = errno;
    bool full = why == EMFILE || why == ENFILE;
    return comm_raise(
        comm, full ? ZERO_E_IO : ZERO_E_PEER, (int32_t)(full ? comm->rank : rank), !full,
        "comm tcp: rank %u cannot connect to rank %u: %s: %s", comm->rank, rank, strerror(why),
        full
            ? "two connections to each of many ranks need more open files: raise ulimit -n"
            : "see whether a firewall between them closes ports: ranks listen at any free port; or that rank "
              "has no more open files: see its log");
}

zero_status tcp_reach_peers(const struct comm_work *work) {
    struct tcp_group *group = (struct tcp_group *)work->group;
    bool *reached = &group->reached[mine_of(work)->spread];
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < tcp_peers(work) && !*reached && status == ZERO_OK; i++)
        status = reach(tcp_of(work->group), work->group->ranks[tcp_peer(work, i)]);
    *reached = status == ZERO_OK;
    return status;
}

/* The control channel compares the calls of ranks that follow each other in a group. */
zero_status tcp_reach_ring(struct comm_group *group) {
    uint32_t after = (group->index + 1) % group->count,
             before = (group->index + group->count - 1) % group->count;
    if (group->count == 1) return ZERO_OK;
    zero_status status = reach(tcp_of(group), group->ranks[after]);
    return status ? status : reach(tcp_of(group), group->ranks[before]);
}
