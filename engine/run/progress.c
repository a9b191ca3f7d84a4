#include "engine/run/run.h"

#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/system/numa.h"
#include "engine/base/system/thread.h"

/* Between two polls that found nothing to do: short against a unit's compute, long against a poll. On a GPU a unit takes a
 * tenth of that, and each step of an operation there waits for a poll. */
enum { POLL_NS = 300 * 1000, DEVICE_POLL_NS = 30 * 1000 };

/* On a GPU the next step often follows within a few microseconds. The thread goes on polling for this time before it sleeps,
 * unless there are too few CPUs. */
enum { SPIN_NS = 20 * 1000, SPIN_CPUS_MIN = 4 };

struct worker { /* does the jobs of a queue */
    pthread_t thread;
    struct progress *progress;
    enum job_queue queue;
};

struct progress {
    pthread_t thread;
    struct worker worker[JOB_QUEUES];
    struct fair_lock *lock;
    struct executor *executor;
    struct comm *comm;
    int node; /* of the device, where updates are done */
    long poll_ns;
    uint64_t spin_ns, moved_ns; /* moved_ns: when something moved */
    pthread_cond_t changed, queued;
    bool stop, rests; /* under lock */
    uint32_t workers; /* that run */
};

/* By default Linux ends a sleep up to 50 us late. */
static void sleep_exactly(void) { prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0); }

static void nap(struct progress *p, long ns) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ns;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&p->changed, &p->lock->mutex, &until);
}

static void pause_polling(struct progress *p) {
    if (p->spin_ns && clock_now_ns() - p->moved_ns < p->spin_ns)
        sched_yield();
    else
        nap(p, p->poll_ns);
}

/* Tells the other ranks now: the failure is sticky and the host's next call reports it, but that call may come late, and the
 * other ranks wait. The host may also wait, for its stream, which waits for work that needs a peer. */
static void tell(struct progress *p) {
    const struct zero_error *error = executor_error(p->executor);
    if (error->code != ZERO_E_PEER) comm_fail(p->comm, error);
    if (executor_runs_ahead(p->executor)) comm_abandon(p->comm);
}

static void *run(void *argument) {
    struct progress *p = argument;
    sleep_exactly();
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
        if (moved && p->spin_ns) p->moved_ns = clock_now_ns();
        if (!moved) pause_polling(p);
        fair_lock_yield(p->lock);
    }
    pthread_mutex_unlock(&p->lock->mutex);
    return NULL;
}

/* ---- jobs ---- */

static void wake_workers(void *user) { pthread_cond_broadcast(&((struct progress *)user)->queued); }

/* OpenMP threads that this thread starts stay on the node, too. If the rank has more threads than the node has CPUs,
 * it is not bound. */
static void *work(void *argument) {
    const struct worker *worker = argument;
    struct progress *p = worker->progress;
    numa_bind_thread(p->node, executor_threads(p->executor));
    fair_lock_take(p->lock);
    while (!p->stop) {
        struct job *job = executor_take_job(p->executor, worker->queue);
        if (!job) {
            pthread_cond_wait(&p->queued, &p->lock->mutex);
            continue;
        }
        fair_lock_give(p->lock);
        executor_run_job(job);
        pthread_cond_broadcast(&p->changed); /* the host may wait, too */
        fair_lock_take(p->lock);
    }
    fair_lock_give(p->lock);
    return NULL;
}

/* ---- */

static void open_condition(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void close_all(struct progress *p) {
    pthread_cond_destroy(&p->changed);
    pthread_cond_destroy(&p->queued);
    free(p);
}

static void start_workers(struct progress *p) {
    for (; p->workers < JOB_QUEUES; p->workers++) {
        struct worker *worker = &p->worker[p->workers];
        worker->progress = p, worker->queue = (enum job_queue)p->workers;
        if (thread_start(&worker->thread, work, worker)) break;
    }
}

struct progress *progress_start(struct fair_lock *lock, struct executor *executor, struct comm *comm,
                                const struct device *device, uint64_t detached_bytes) {
    struct progress *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->lock = lock;
    p->executor = executor;
    p->comm = comm;
    p->node = device->discrete ? device->node : -1;
    p->poll_ns = device->discrete ? DEVICE_POLL_NS : POLL_NS;
    p->spin_ns = device->discrete && sysconf(_SC_NPROCESSORS_ONLN) >= SPIN_CPUS_MIN ? SPIN_NS : 0;
    open_condition(&p->changed);
    open_condition(&p->queued);
    if (thread_start(&p->thread, run, p)) return close_all(p), NULL;
    start_workers(p);
    fair_lock_take(lock);
    if (p->workers == JOB_QUEUES) executor_detach(executor, detached_bytes, wake_workers, p);
    fair_lock_give(lock);
    return p;
}

void progress_stop(struct progress *p) {
    if (!p) return;
    fair_lock_take(p->lock);
    p->stop = true;
    pthread_cond_signal(&p->changed);
    pthread_cond_broadcast(&p->queued);
    fair_lock_give(p->lock);
    pthread_join(p->thread, NULL);
    while (p->workers) pthread_join(p->worker[--p->workers].thread, NULL);
    close_all(p);
}

void progress_rest(struct progress *p, bool rests) {
    if (!p) return;
    p->rests = rests;
}

void progress_await_job(struct progress *p, long at_most_ns) { nap(p, at_most_ns); }

void progress_wake(struct progress *p) {
    if (!p) return;
    fair_lock_take(p->lock);
    bool moves = !executor_waits_for_host(p->executor);
    fair_lock_give(p->lock); /* first: the thread would wake up only to wait for the lock */
    if (moves) pthread_cond_signal(&p->changed);
}
