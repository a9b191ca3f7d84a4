/* The executor at work: with the lock around it, the progress thread beside it, and the host's calls that wait for it.
 *
 * Threads: the host's thread, and a save in the background, which takes the lock as the host does. */
#pragma once

#include "engine/executor/executor.h"
#include "engine/ranks/ranks.h"
#include "engine/ranks/fair_lock.h"

struct running {
    struct ranks *ranks;
    struct device *device;
    /* the host cannot touch the device's memory (of an engine that only plans: could not touch it) */
    bool discrete;
    struct tier *tier[TIERS];
    struct tier_hook *hook; /* of drives: tests set it before commit; or NULL */
    struct executor *executor;
    /* of the next updates: of the open pass, or of the step */
    struct update_settings update;
    struct progress *progress; /* NULL: nothing moves by itself */
    uint64_t detached_bytes;   /* tests: for executor_detach, set before commit; 0: the default */
    uint64_t weights_version;  /* counts changes of the weights, for borrowed copies */
    double wait_s;             /* spent in waiting */
};

/* One call of the executor, under the lock. */
#define RUN_EVENT(run, call)                                                                                 \
    __extension__({                                                                                          \
        fair_lock_take(&(run)->ranks->lock);                                                                 \
        zero_status event_status = (call);                                                                   \
        fair_lock_give(&(run)->ranks->lock);                                                                 \
        event_status ? ranks_fail((run)->ranks, executor_error((run)->executor)) : ZERO_OK;                  \
    })

/* Once the executor is open: from now on ranks_call moves its operations. */
void run_begin(struct running *run);

/* Starts the progress thread, and the thread of updates. */
void run_start_progress(struct running *run);

/* Polls the executor until the condition holds. */
zero_status run_wait(struct running *run, bool (*holds)(const struct executor *executor));

/* Waits until the executor has room for the event, and emits it. */
zero_status run_event(struct running *run, struct event event);

/* Before the engine is destroyed: performs the collectives that were emitted, until nothing has moved for a second, but for at most
 * `most_s`. Other ranks may wait for this rank's part in them. Time in which this rank gets no CPU time is no part of the second. */
void run_leave(struct running *run, double most_s);

/* Ends what is under way and brings everything up to date on its tier. */
zero_status run_settle(struct running *run);

/* The parameters at rest were written: what is replicated is gathered again. */
zero_status run_weights_written(struct running *run);

/* ---- device_copy.c: copies between the host's memory and a discrete device's, on behalf of the host's calls: each call waits for its
 * copy. ---- */
/* One of the two memories may be a discrete device's. A failure of the device is returned in `error`: not sticky, because a save
 * in the background must not fail the engine beside the host's thread. */
zero_status device_copy(struct running *run, void *target, const void *source, uint64_t bytes,
                        struct zero_error *error);
/* The same from any memory that a discrete device reaches, after the work that is now on the host's stream. */
zero_status device_fetch(struct running *run, void *target, const void *source, uint64_t bytes,
                         struct zero_error *error);
zero_status device_clear(struct running *run, void *memory, uint64_t bytes, struct zero_error *error);

/* The address is in a discrete device's memory. */
bool device_has(const struct running *run, const void *address);

/* ---- progress.c: the threads that a rank has beside the host's. One polls the executor while the host computes, so that collectives
 * and updates move under compute. The workers do the work of the host that takes long: updates, checksums, sums. Asleep otherwise. ---- */
struct progress;

/* Starts the threads. `lock` guards the executor, which works on `device`, and the comm, which tells the other ranks of a
 * failure; all are borrowed. `detached_bytes`: see executor_detach. If the system refuses the workers, the progress thread or
 * the host does their work. NULL: the system refuses the progress thread. */
struct progress *progress_start(struct fair_lock *lock, struct executor *executor, struct comm *comm,
                                const struct device *device, uint64_t detached_bytes);
void progress_stop(struct progress *progress); /* joins; NULL is allowed */

/* With the lock. `rests`: the host polls the executor by itself; two threads that poll would only wait for each other. Call
 * progress_wake when the host polls no more. NULL is allowed. */
void progress_rest(struct progress *progress, bool rests);

/* With the lock, which it gives away meanwhile: sleeps until a job is done, or for `at_most_ns`. */
void progress_await_job(struct progress *progress, long at_most_ns);

/* Wakes the progress thread. Call it without the lock; NULL is allowed. */
void progress_wake(struct progress *progress);
