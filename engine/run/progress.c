#include "engine/run/progress.h"

#include <stdlib.h>
#include <time.h>

#include "engine/base/thread.h"

/* Between two polls that found nothing to do: short against a unit's compute, long against a poll. On a GPU a unit takes a
 * tenth of that, and each step of an operation there waits for a poll. */
enum { POLL_NS = 300 * 1000, DEVICE_POLL_NS = 30 * 1000 };

struct progress {
    pthread_t thread;
    struct turn *lock;
    struct executor *executor;
    struct comm *comm;
    long poll_ns;
    pthread_cond_t changed;
    bool stop, rests; /* under lock */
};

static void nap(struct progress *p) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += p->poll_ns;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&p->changed, &p->lock->mutex, &until);
}

/* The failure is sticky and the host's next call reports it; but that may be long in coming, and the others wait. The host may
 * wait, too: for its stream, which waits for work that needs a peer. */
static void tell(struct progress *p) {
    const struct zero_error *error = executor_error(p->executor);
    if (error->code != ZERO_E_PEER) comm_fail(p->comm, error);
    if (executor_runs_ahead(p->executor)) comm_abandon(p->comm);
}

static void *run(void *argument) {
    struct progress *p = argument;
    pthread_mutex_lock(&p->lock->mutex);
    while (!p->stop) {
        if (p->rests || executor_waits_for_host(p->executor)) {
            pthread_cond_wait(&p->changed, &p->lock->mutex);
            continue;
        }
        bool moved;
        if (executor_poll(p->executor, &moved)) tell(p);
        if (!moved && executor_runs_ahead(p->executor))
            comm_idle(p->comm, 0); /* the host may be in no call */
        if (!moved) nap(p);
        turn_yield(p->lock);
    }
    pthread_mutex_unlock(&p->lock->mutex);
    return NULL;
}

struct progress *progress_start(struct turn *lock, struct executor *executor, struct comm *comm,
                                bool discrete) {
    struct progress *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->lock = lock;
    p->executor = executor;
    p->comm = comm;
    p->poll_ns = discrete ? DEVICE_POLL_NS : POLL_NS;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (thread_start(&p->thread, run, p) == 0) return p;
    pthread_cond_destroy(&p->changed);
    free(p);
    return NULL;
}

void progress_stop(struct progress *p) {
    if (!p) return;
    turn_take(p->lock);
    p->stop = true;
    pthread_cond_signal(&p->changed);
    turn_give(p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    free(p);
}

void progress_rest(struct progress *p, bool rests) {
    if (!p) return;
    p->rests = rests;
}

void progress_wake(struct progress *p) {
    if (!p) return;
    turn_take(p->lock);
    bool moves = !executor_waits_for_host(p->executor);
    turn_give(p->lock); /* first: the thread would wake up only to wait for the lock */
    if (moves) pthread_cond_signal(&p->changed);
}
