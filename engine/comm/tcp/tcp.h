/* The structs and functions that the files of transport tcp share: comm_tcp.c opens and closes, tcp_open.c makes wires,
 * tcp_calls.c drives a
 * call through its phases, tcp_wires.c moves bytes. */
#pragma once

#include "engine/comm/tcp/rendezvous.h"
#include "engine/comm/tcp/tcp_link.h"
#include "engine/comm/watch.h"

enum frame_kind { FRAME_READY, FRAME_DATA };
enum phase { EXCHANGING, GATHERING, PHASES };

/* Groups of more members agree, broadcast and meet with few peers: tcp_slices.c. */
enum { SPREAD_MEMBERS = 32, SPREAD_BYTES = 64 << 10, SPREAD_PEERS = 64 };

/* Slices that a rank may send ahead: before the receiver is ready for them. The receiver keeps them. */
enum { AHEAD_SLICES = 16, AHEAD_BYTES_MIN = 1 << 10, AHEAD_BYTES_MAX = 64 << 10 };

struct frame {
    uint32_t kind, phase;
    uint64_t key, sequence, bytes; /* the group's key; the call's sequence; the bytes after the frame */
};

/* It follows the bytes of a frame. */
struct frame_seal {
    uint64_t check; /* of the bytes (XXH3, block by block); 0: none was made */
    struct tag tag; /* of the frame, of `check`, and of a ready frame's record */
};

struct tcp_work {
    uint32_t phase; /* PHASES: the call is done */
    uint32_t arrived, unsent;
    bool spread;
    const void *source; /* holds the slices that phase EXCHANGING sends */
};

struct outgoing {
    struct frame frame;
    const void *data;
    struct comm_work *work;
};

/* A place for a slice that comes ahead. */
struct kept {
    struct frame frame;
    bool used, whole; /* whole: all its bytes have come */
    char *bytes;      /* tcp_comm.ahead_bytes */
};

/* The data connection to one rank. */
struct wire {
    struct seals seals;
    struct outgoing *queue; /* a ring of queue_capacity */
    uint32_t first, count;
    uint64_t out_done;    /* sent bytes of the first entry, including its frame and seal */
    uint64_t out_checked; /* bytes of its data that out_seal.check covers */
    struct frame_seal out_seal;
    bool out_sealed; /* out_seal is made */
    struct frame in;
    uint64_t in_done, in_check;
    struct frame_seal in_seal;
    uint32_t early; /* ready frames of it that are kept in tcp_comm.early */
    char *in_target;
    struct comm_work *in_work;
    struct kept *in_kept; /* the place for the data of `in`, if they come ahead */
    struct kept kept[AHEAD_SLICES];
    uint32_t ahead; /* slices that were sent ahead, and for which the peer has not said that it is ready */
    struct comm_record in_record;
    bool listed;        /* in tcp_comm.pending */
    bool blocked;       /* the socket takes no more bytes now */
    uint64_t broken_ns; /* when the connection broke; 0: it works */
    int why;            /* errno, or 0: the peer closed it */
};

/* A ready frame that arrived before this rank opened the group. */
struct early {
    struct early *next;
    uint32_t from;
    struct frame frame;
    struct comm_record record;
};

struct tcp_comm {
    struct comm base;
    struct comm_failure failure;
    struct lanes *peers;
    struct tcp_link link;
    struct watch watch;
    struct meeting *meeting;          /* of later connections, or NULL */
    uint32_t made;                    /* of these connections, the number when the owner last looked */
    struct wire *wires;               /* one per rank; those without a queue are not in use */
    struct tcp_set set;               /* the connections of LANE_DATA */
    uint32_t in_flight;               /* calls that are posted and not done */
    uint32_t *pending, pending_count; /* ranks to which frames may go now */
    uint32_t queue_capacity;
    struct early *early;
    /* Of all places for slices that come ahead. The system gives pages only when a slice first uses them. */
    char *room;
    uint64_t ahead_bytes; /* the largest slice that is sent ahead; the same on all ranks */
    bool unchecked;       /* no checksums of data */
};

/* Another member may be COMM_CALLS_MAX calls ahead of this one's oldest call, and begin as many at once. */
enum { HEARD_CALLS = 2 * COMM_CALLS_MAX };

/* The state of one member's part of a call. */
struct heard {
    struct comm_record record;       /* its sequence names the call */
    uint32_t ready, answered, taken; /* phases of the call: announced ready, answered with data, received */
    /* ahead_call: 1 + the sequence of the last call for which this rank sent the member a slice ahead; 0: none. ahead_phases: bit p is
     * set if the slice of phase p went ahead. */
    uint64_t ahead_call;
    uint32_t ahead_phases;
};

struct tcp_group {
    struct comm_group base;
    struct control_group *ring;
    const void **inputs;
    struct heard *heard;                     /* [HEARD_CALLS][count] */
    uint32_t near[SPREAD_PEERS], near_count; /* the peers of a spread call, as indices in the group */
    bool reached[2]; /* there are wires to all peers of a call that is not spread, or is */
    struct tcp_work works[COMM_CALLS_MAX];
};

static inline struct tcp_comm *tcp_of(const struct comm_group *group) {
    return (struct tcp_comm *)group->comm;
}

static inline struct tcp_work *mine_of(const struct comm_work *work) {
    return &((struct tcp_group *)work->group)->works[work_slot(work)];
}

static inline struct heard *heard_of(const struct comm_group *group, uint64_t sequence, uint32_t member) {
    return &((const struct tcp_group *)group)->heard[sequence % HEARD_CALLS * group->count + member];
}

/* The members with which this rank exchanges slices, as indices in the group. */
static inline uint32_t tcp_peers(const struct comm_work *work) {
    const struct tcp_group *group = (const struct tcp_group *)work->group;
    return mine_of(work)->spread ? group->near_count : group->base.count - 1;
}

static inline uint32_t tcp_peer(const struct comm_work *work, uint32_t i) {
    return mine_of(work)->spread ? ((const struct tcp_group *)work->group)->near[i]
                                 : i + (i >= work->group->index);
}

/* Frames wait for this rank. */
static inline void tcp_list(struct tcp_comm *tcp, uint32_t rank) {
    if (!tcp->wires[rank].listed) tcp->pending[tcp->pending_count++] = rank;
    tcp->wires[rank].listed = true;
}

/* tcp_open.c. Makes tcp->set, places for slices that come ahead, of up to `slice_bytes`, and the wires of the connections
 * that are made; tcp->wires and tcp->peers are there. ZERO_E_MEMORY. */
zero_status tcp_open_wires(struct tcp_comm *tcp, uint64_t slice_bytes);
/* Makes the wires of connections that are made now. ZERO_E_MEMORY: raised, if the comm is open. */
zero_status tcp_adopt(struct tcp_comm *tcp);
bool tcp_grow_queues(struct tcp_comm *tcp,
                     const struct comm_group *group); /* for one more group; false: no memory */
/* There are wires then to the peers of a call, or to the ranks beside this one in a group. Connections to ranks above this
 * one may come later. Blocks for as long as these ranks take to answer; raises a failure. */
zero_status tcp_reach_peers(const struct comm_work *work);
zero_status tcp_reach_ring(struct comm_group *group);

/* tcp_slices.c. Whether a call is spread, and the peers of such calls. */
bool tcp_spreads(const struct comm_group *group, const struct comm_call *call);
void tcp_find_near(struct tcp_group *group);
/* This rank has what its slice to `member` holds. */
bool tcp_has_slice(const struct comm_work *work, uint32_t member);
/* A spread call has all slices: puts them into place. */
void tcp_end_spread(const struct comm_work *work);
/* The bytes that member `from` sends to member `to` in a phase; and the place for the slice that comes from `member`. */
uint64_t tcp_slice_bytes(const struct comm_work *work, uint32_t phase, uint32_t from, uint32_t to);
char *tcp_slice_from(const struct comm_work *work, uint32_t phase, uint32_t member);
const char *tcp_slice_to(const struct comm_work *work, uint32_t phase, uint32_t member);
void tcp_keep_own_slice(const struct comm_work *work);
/* True if the member has announced the phase of the frame, and has not sent its slice yet. */
bool tcp_announced(const struct comm_group *group, uint32_t member, const struct frame *frame);
/* True if the frame is the slice of the current phase that `member` has to send. */
bool tcp_data_fits(const struct comm_work *work, uint32_t member, const struct frame *frame);
void tcp_take_slice(struct comm_work *work, uint32_t member); /* it has come */
/* Takes the slice of the current phase that came ahead from `member`, if there is one. */
zero_status tcp_take_kept(struct comm_work *work, uint32_t member);
zero_status tcp_refuse(struct tcp_comm *tcp, uint32_t from, const struct frame *in); /* it fits no call */

/* tcp_calls.c */
/* Sends the slices for which `member` is ready, if this rank has them. */
zero_status tcp_answer(struct comm_work *work, uint32_t member);
/* The current phase begins: announces it, sends slices, and takes those that came ahead. */
zero_status tcp_begin_phase(struct comm_work *work);
zero_status tcp_advance(struct comm_work *work); /* to the next phase, if the current phase is over */

/* tcp_wires.c */
void tcp_list(struct tcp_comm *tcp, uint32_t rank); /* frames wait for this rank */
zero_status tcp_hear_ready(struct comm_group *group, uint32_t from, const struct frame *frame,
                           const struct comm_record *record);
/* Sends as much as possible, waits at most `at_most_ms` until a connection is ready, and receives. Does nothing while no call is
 * in flight, unless it shall wait. */
zero_status tcp_pump(struct tcp_comm *tcp, int at_most_ms);
