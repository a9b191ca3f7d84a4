/* clang-format off */
/* The control channel runs beside the data. It finds dead ranks, compares the calls that the ranks posted, and
 * tells all ranks of a failure. It needs only a clock and a port that carries small messages between ranks.
 * Transports mpi and tcp drive it from a thread; tests drive it with virtual time.
 *
 *   subject    ring                  what the channel does
 *   --------   -------------------   ----------------------------------------------------------------------------
 *   life       all ranks             Each rank sends heartbeats to the next rank and watches the rank before it.
 *                                    Silence for timeout_s is a failure. If the port needs longer to resume after
 *                                    an outage, this longer time is the limit. The ring takes two messages per
 *                                    rank and interval, for any number of ranks.
 *   calls      members of a group    Each member sends the next member the number of calls that it posted and the
 *                                    last few records. If two records of one call differ, the ranks diverged: the
 *                                    next member asks for older records until it finds the first that differs. If
 *                                    ranks differ at all, then two neighbors on the ring differ. If this rank
 *                                    waits for a call that the member before it has not posted, that member is at
 *                                    fault once it has left or once 10 x timeout_s have passed (if the call is
 *                                    patient, only once it has left).
 *                                    With the number goes what a blocked rank waits for (block.h).
 *   failures   none                  A rank r that learns of a failure sends it once to ranks r + 1, r + 2, r + 4,
 *                                    and so on. The failure reaches all ranks in log2(N) hops, also around dead
 *                                    ranks.
 *
 * A rank closes its port when no message can be on its way to it. So in the closing each rank says which of its messages
 * are the last ones: for each group, the message that says that it left; then one heartbeat, of a type of its own.
 *
 * Threads: control_tick from one thread at a time; the other functions from any thread. */
/* clang-format on */
#pragma once

#include "engine/comm/block.h"
#include "engine/comm/transport.h"

enum { CONTROL_MESSAGE_BYTES = 1792 };

/* A network outage of up to this fraction of timeout_s does not end the run. */
#define CONTROL_OUTAGE 0.8

struct control_port {
    void *user;
    /* Equal on all ranks, different for each comm: messages of an earlier comm are dropped. */
    uint64_t opening;
    bool (*send)(void *user, uint32_t to, const void *message, uint32_t bytes); /* false: no room now */
    /* False: there is no message. */
    bool (*receive)(void *user, void *message, uint32_t bytes_max, uint32_t *out_bytes);
    /* True while earlier messages have not arrived: another heartbeat would add no information. NULL: the port cannot
     * know. */
    bool (*under_way)(void *user, uint32_t to);
    /* The rank closed in order, before the others: its silence is no failure. NULL: no rank does. */
    bool (*has_left)(void *user, uint32_t rank);
    /* The longest time after an outage of CONTROL_OUTAGE x timeout_s until messages pass again. */
    double resume_s;
};

struct control;
struct control_group;

/* Raises failures on comm->failure and counts messages in comm->control_messages. NULL: no memory. */
struct control *control_create(struct comm *comm, const struct control_port *port);
void control_destroy(struct control *control);

/* The longest time between two calls of control_tick. */
uint64_t control_period_ns(const struct control *control);
void control_tick(struct control *control, uint64_t now_ns);

/* The time of the last tick: every message that had arrived by then has been heard. */
uint64_t control_ticked_ns(const struct control *control);

/* True once this rank has sent a raised failure, and the other ranks have had time to pass the failure on. */
bool control_quiet(const struct control *control, uint64_t now_ns);

/* The control_group lives until control_destroy: the ring reports a group's calls also after the group's close. */
struct control_group *control_group_open(struct control *control, const struct comm_group *group);
/* counts_ns: when the time begins in which the other members must post the call; UINT64_MAX: there is no limit. */
void control_posted(struct control_group *group, const struct comm_record *record, uint64_t counts_ns);
void control_done(struct control_group *group, uint64_t sequence);
/* See comm_stand; calls 0: this rank is not blocked any more. */
void control_block(struct control *control, const struct comm_block *block);

/* control_leave: this rank posts no more calls. control_left: true once this rank has told its neighbors that it left,
 * has received the last records of its neighbors, and these records agree. */
void control_leave(struct control *control);
bool control_left(struct control *control);

/* control_finish: this rank sends its last heartbeat. Call it once all ranks have left. control_finished: true once it has sent it,
 * and has received that of the rank before it. */
void control_finish(struct control *control);
bool control_finished(const struct control *control);

/* The world rank of a neighbor that has not said that it left; -1: all neighbors have. */
int32_t control_staying(struct control *control);
