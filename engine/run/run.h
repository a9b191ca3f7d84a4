/* The executor at work: with the lock around it, the progress thread beside it, and the host's calls that wait for it.
 *
 * Threads: the host's thread, and a save in the background, which takes the lock as the host does. */
#ifndef ZERO_ENGINE_RUN_RUN_H
#define ZERO_ENGINE_RUN_RUN_H

#include "engine/executor/host_moves.h"
#include "engine/ranks/ranks.h"

struct running {
    struct ranks *ranks;
    struct device *device;
    /* the host cannot touch the device's memory (of an engine that only plans: could not touch it) */
    bool discrete;
    struct tier *tier[TIERS];
    struct executor *executor;
    struct host_moves moves;
    struct progress *progress; /* NULL: nothing moves by itself */
    uint64_t detached_bytes;   /* tests: for executor_detach, set before commit; 0: the default */
    uint64_t weights_version;  /* counts changes of the weights, for borrowed copies */
    double wait_s;             /* spent in waiting */
};

/* One event of the executor, under the lock. */
#define RUN_EVENT(run, call)                                                                                 \
    __extension__({                                                                                          \
        turn_take(&(run)->ranks->lock);                                                                      \
        zero_status event_status = (call);                                                                   \
        turn_give(&(run)->ranks->lock);                                                                      \
        event_status ? ranks_fail((run)->ranks, executor_error((run)->executor)) : ZERO_OK;                  \
    })

/* Once the executor is open: from now on ranks_call moves its operations. */
void run_begin(struct running *run);

/* Starts the progress thread, and the thread of updates. */
void run_start_progress(struct running *run);

/* Polls the executor until the condition holds. */
zero_status run_wait(struct running *run, bool (*holds)(const void *what), const void *what);
zero_status run_wait_idle(struct running *run); /* everything emitted has retired */

/* Before the engine is destroyed: performs the collectives that were emitted, until nothing has moved for a second, but for at most
 * `most_s`. Other ranks may wait for this rank's part in them. Time in which this rank gets no CPU time is no part of the second. */
void run_leave(struct running *run, double most_s);

/* Makes moves of the training loop: waits, does the host's work (or NULL: none), makes the event. */
zero_status run_moves(struct running *run, enum host_move first, enum host_move last,
                      zero_status (*work)(void *user, struct host_moves *moves, enum host_move move),
                      void *user);

/* Ends what is under way and brings everything up to date on its tier. */
zero_status run_settle(struct running *run);

/* The parameters at rest were written: what is replicated is gathered again. */
zero_status run_weights_written(struct running *run);

#endif
