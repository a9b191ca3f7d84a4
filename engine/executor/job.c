/* Jobs: work of the host that takes long, as an update. It is done by a thread of its own, without the lock under which the
 * executor is used, so that the host's calls and the collectives go on meanwhile.
 *
 *   FREE --submit--> QUEUED --executor_take_job--> RUNNING --executor_run_job--> DONE --the item's test--> FREE
 *
 * A job touches the memory of its operation. Nothing else does before the operation is done: operations wait for each other's memory,
 * as if a GPU did the work. Besides, an update reads its scalar set, which is not written before its last update is done
 * (executor_settle), and adds to update_ns, which is atomic; a reduction writes its region's norm, which AGREE reads: it waits for all
 * reductions. All else that a job and the executor share is `state`. */
#include <string.h>

#include "engine/executor/steps.h"

enum { FREE, QUEUED, RUNNING, DONE };

void executor_detach(struct executor *e, uint64_t bytes, void (*queued)(void *user), void *user) {
    e->jobs.from_bytes = bytes, e->jobs.queued = queued, e->jobs.user = user;
}

static uint64_t written_bytes(const struct device_work *work) {
    uint64_t bytes = 0;
    for (uint8_t i = 0; i < work->writes; i++) bytes += work->write[i].bytes;
    return bytes;
}

/* Jobs are taken in the order in which they were queued. */
bool job_submit(struct executor *e, struct item *item, const struct device_work *work) {
    struct job *job = &e->jobs.ring[e->jobs.submitted % JOBS_MAX];
    bool host = !work->kernel->grid && e->o.device->runs_at_once;
    if (!e->jobs.queued || !host || written_bytes(work) < e->jobs.from_bytes) return false;
    if (atomic_load_explicit(&job->state, memory_order_relaxed) != FREE) return false;
    job->kernel = work->kernel;
    memcpy(job->argument, work->argument, sizeof job->argument);
    atomic_store_explicit(&job->state, QUEUED, memory_order_relaxed);
    item->awaits = AWAITS_JOB;
    item->job = job;
    e->jobs.submitted++;
    e->jobs.queued(e->jobs.user);
    return true;
}

struct job *executor_take_job(struct executor *e) {
    if (e->jobs.taken == e->jobs.submitted) return NULL;
    struct job *job = &e->jobs.ring[e->jobs.taken++ % JOBS_MAX];
    atomic_store_explicit(&job->state, RUNNING, memory_order_relaxed);
    return job;
}

bool executor_works(const struct executor *e) { return e->jobs.ended != e->jobs.submitted; }

uint32_t executor_threads(const struct executor *e) { return e->o.threads ? e->o.threads : 1; }

void executor_run_job(struct job *job) {
    job->kernel->run(job->argument);
    atomic_store_explicit(&job->state, DONE, memory_order_release);
}

zero_status job_test(struct executor *e, struct item *item, bool *out_done) {
    *out_done = atomic_load_explicit(&item->job->state, memory_order_acquire) == DONE;
    if (*out_done) atomic_store_explicit(&item->job->state, FREE, memory_order_relaxed);
    e->jobs.ended += *out_done;
    return ZERO_OK;
}
