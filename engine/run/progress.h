/* The threads that a rank has beside the host's. One polls the executor while the host computes, so that collectives and
 * updates move under compute. The workers do the work of the host that takes long: updates, checksums, sums. Asleep otherwise. */
#ifndef ZERO_ENGINE_RUN_PROGRESS_H
#define ZERO_ENGINE_RUN_PROGRESS_H

#include "engine/executor/executor.h"
#include "engine/ranks/turn.h"

struct progress;

/* Starts the threads. `lock` guards the executor, which works on `device`, and the comm, which tells the other ranks of a
 * failure; all are borrowed. `detached_bytes`: see executor_detach. If the system refuses the workers, the progress thread or
 * the host does their work. NULL: the system refuses the progress thread. */
struct progress *progress_start(struct turn *lock, struct executor *executor, struct comm *comm,
                                const struct device *device, uint64_t detached_bytes);
void progress_stop(struct progress *progress); /* joins; NULL is allowed */

/* With the lock. `rests`: the host polls the executor by itself; two threads that poll would only wait for each other. Call
 * progress_wake when the host polls no more. NULL is allowed. */
void progress_rest(struct progress *progress, bool rests);

/* With the lock, which it gives away meanwhile: sleeps until a job is done, or for `at_most_ns`. */
void progress_await_job(struct progress *progress, long at_most_ns);

/* Wakes the progress thread. Call it without the lock; NULL is allowed. */
void progress_wake(struct progress *progress);

#endif
