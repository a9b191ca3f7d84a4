/* The one declared thread of a rank: it polls the executor while the host computes, so that collectives and
 * updates move under compute. Asleep otherwise. */
#ifndef ZERO_ENGINE_RUN_PROGRESS_H
#define ZERO_ENGINE_RUN_PROGRESS_H

#include "engine/executor/executor.h"
#include "engine/ranks/turn.h"

struct progress;

/* Starts the thread. `lock` guards the executor, which works on a `discrete` device or not, and the comm, which the other
 * ranks hear of a failure through; all are borrowed. NULL where the system refuses. */
struct progress *progress_start(struct turn *lock, struct executor *executor, struct comm *comm,
                                bool discrete);
void progress_stop(struct progress *progress); /* joins; NULL is allowed */

/* With the lock. `rests`: the host polls the executor by itself; two threads that poll would only wait for each other. Call
 * progress_wake when the host polls no more. NULL is allowed. */
void progress_rest(struct progress *progress, bool rests);

/* There may be something to do. Called without the lock; NULL is allowed. */
void progress_wake(struct progress *progress);

#endif
