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

/* There may be something to do. Called without the lock; NULL is allowed. */
void progress_wake(struct progress *progress);

#endif
