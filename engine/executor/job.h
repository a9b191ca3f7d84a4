/* Jobs of items. The threads that run jobs use executor.h. */
#ifndef ZERO_ENGINE_EXECUTOR_JOB_H
#define ZERO_ENGINE_EXECUTOR_JOB_H

#include "engine/executor/executor_internal.h"

/* Gives the item a job that reads or writes `bytes` bytes; false: the work is too small for a job or not the host's, or there is
 * no free job. */
bool job_submit(struct executor *e, struct item *item, enum job_queue queue, const struct kernel *kernel,
                const void *argument, uint64_t bytes);
/* Tests the item's job, and removes a job that is done. */
zero_status job_test(struct executor *e, struct item *item, bool *out_done);

#endif
