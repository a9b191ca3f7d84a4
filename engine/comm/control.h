/* The control channel beside the data: who is alive, who posted what, who failed. Needs only a port that
 * carries small messages between ranks, and a clock; transport mpi drives it from a thread, tests from
 * virtual time.
 *
 * Life: a ring over all ranks. Each rank beats to the next one and watches the one before. Silence for timeout_s is a
 * failure. Where the port needs longer to resume after an outage, that time counts. It takes two messages per rank and
 * interval, whatever the number of ranks.
 *
 * Calls: a ring over the members of each group. Each member tells the next one how many calls it posted, and the records of
 * the last few. Where two records of one call differ, the ranks diverged; the next one then asks for older records until it
 * has found the first that differs. Where this rank waits for a call that the one before has not posted, and that rank left
 * or the limit of 10 x timeout_s has passed, that rank is at fault. Ranks that differ at all differ somewhere along the ring.
 *
 * Failures: a rank that learns of a failure first tells ranks r + 1, r + 2, r + 4, ..., once. The failure reaches all ranks
 * in log2(N) hops, also around dead ones.
 *
 * Threads: control_tick from one thread at a time; the others from any. */
#ifndef ZERO_ENGINE_COMM_CONTROL_H
#define ZERO_ENGINE_COMM_CONTROL_H

#include "engine/comm/transport.h"

enum { CONTROL_MESSAGE_BYTES = 1536 };

/* An outage of the network of up to that part of timeout_s ends no run. */
#define CONTROL_OUTAGE 0.8

struct control_port {
    void *user;
    uint64_t opening; /* the same on all ranks, another one each time: what an earlier comm sent is dropped */
    bool (*send)(void *user, uint32_t to, const void *message, uint32_t bytes); /* false: no room now */
    bool (*receive)(void *user, void *message, uint32_t bytes_max,
                    uint32_t *out_bytes); /* false: nothing there */
    /* What was sent has not arrived yet: another beat would say nothing more. Or NULL: it cannot be known. */
    bool (*under_way)(void *user, uint32_t to);
    double
        resume_s; /* how long after an outage of CONTROL_OUTAGE x timeout_s messages may take to pass again */
};

struct control;
struct control_group;

/* Raises on comm->failure, counts in comm->control_messages. NULL where memory is short. */
struct control *control_create(struct comm *comm, const struct control_port *port);
void control_destroy(struct control *control);

/* How often to tick, at least. */
uint64_t control_period_ns(const struct control *control);
void control_tick(struct control *control, uint64_t now_ns);

/* Everything that was raised is told, and the others had the time to tell it on. */
bool control_quiet(const struct control *control, uint64_t now_ns);

/* Until control_destroy: after its close, too, the ring hears of a group's calls. */
struct control_group *control_group_open(struct control *control, const struct comm_group *group);
void control_posted(struct control_group *group, const struct comm_record *record, uint64_t now_ns);
void control_done(struct control_group *group, uint64_t sequence);

/* This rank posts nothing more. control_left: this is told, and the neighbours' last words are heard and
 * agree. */
void control_leave(struct control *control);
bool control_left(struct control *control);

/* A neighbour that was not heard to leave, as a world rank; -1 where there is none. */
int32_t control_staying(struct control *control);

#endif
