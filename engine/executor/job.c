/* Jobs: work of the host that takes long: updates, checksums, and collectives in which a rank is alone. Other threads do it, one for
 * each queue, without the lock under which the executor is used, so that the host's calls and all other operations go on meanwhile.
 *
 *   FREE --submit--> QUEUED --executor_take_job--> RUNNING --executor_run_job--> DONE --the item's test--> FREE
 *
 * A job touches the memory of its operation. Nothing else does before the operation is done: operations wait for each other's memory,
 * as if a GPU did the work. Besides, an update reads its scalar set, which is not written before its last update is done
 * (take_settings), and adds to update_ns, which is atomic; a reduction writes its region's norm, which AGREE reads: it waits for all
 * reductions; checksums go to their item. All else that a job and the executor share is `state`. */
#include "engine/executor/executor_internal.h"

#include <string.h>

enum { FREE, QUEUED, RUNNING, DONE };

void executor_detach(struct executor *e, uint64_t bytes, void (*queued)(void *user), void *user) {
    e->jobs.from_bytes = bytes, e->jobs.queued = queued, e->jobs.user = user;
}

/* The jobs of a queue are taken in the order in which they were queued. */
bool job_submit(struct executor *e, struct item *item, enum job_queue queue, const struct kernel *kernel,
                const void *argument, uint64_t bytes) {
    struct job_line *line = &e->jobs.line[queue];
    struct job *job = &line->ring[line->submitted % JOBS_MAX];
    bool host = e->jobs.queued && !kernel->grid && e->m.device->runs_at_once;
    if (!host || bytes < e->jobs.from_bytes) return false;
    if (atomic_load_explicit(&job->state, memory_order_relaxed) != FREE) return false;
    job->kernel = kernel;
    memcpy(job->argument, argument, kernel->argument_bytes);
    atomic_store_explicit(&job->state, QUEUED, memory_order_relaxed);
    item->job = job;
    item->job_queue = (uint8_t)queue;
    line->submitted++;
    e->jobs.queued(e->jobs.user);
    return true;
}

struct job *executor_take_job(struct executor *e, enum job_queue queue) {
    struct job_line *line = &e->jobs.line[queue];
    if (line->taken == line->submitted) return NULL;
    struct job *job = &line->ring[line->taken++ % JOBS_MAX];
    atomic_store_explicit(&job->state, RUNNING, memory_order_relaxed);
    return job;
}

bool executor_works(const struct executor *e) {
    bool works = false;
    for (int q = 0; q < JOB_QUEUES; q++) works |= e->jobs.line[q].ended != e->jobs.line[q].submitted;
    return works;
}

uint32_t executor_threads(const struct executor *e) { return e->m.threads ? e->m.threads : 1; }

void executor_run_job(struct job *job) {
    job->kernel->run(job->argument);
    atomic_store_explicit(&job->state, DONE, memory_order_release);
}

zero_status job_test(struct executor *e, struct item *item, bool *out_done) {
    *out_done = atomic_load_explicit(&item->job->state, memory_order_acquire) == DONE;
    if (!*out_done) return ZERO_OK;
    atomic_store_explicit(&item->job->state, FREE, memory_order_relaxed);
    item->job = NULL;
    e->jobs.line[item->job_queue].ended++;
    return ZERO_OK;
}
