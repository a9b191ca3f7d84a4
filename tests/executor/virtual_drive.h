/* The drive of a virtual rank: memory behind the decorator that delays and reorders, with chunks so small that
 * the toy model has several; and its parameters, wherever they live. */
#ifndef ZERO_TESTS_EXECUTOR_VIRTUAL_DRIVE_H
#define ZERO_TESTS_EXECUTOR_VIRTUAL_DRIVE_H

#include "engine/executor.h"
#include "offload/faults.h"

struct virtual_drive_options {
    bool state, params; /* which of them are on it */
    uint32_t slots, chunk_elements;
    uint64_t resident_bytes;
};

struct virtual_drive {
    struct faults faults;
    struct device *host;
    struct tier *tier; /* NULL: nothing is planned there */
};

void virtual_drive_plan(const struct virtual_drive_options *options, struct plan_options *plan);
zero_status virtual_drive_open(struct virtual_drive *drive, const struct plan *plan, uint64_t seed,
                               struct zero_error *error);
void virtual_drive_close(struct virtual_drive *drive);

/* `count` elements of a region's shard of parameters that is on the drive, with nothing in flight. */
zero_status virtual_drive_read(struct executor *executor, const struct swap *swap, uint32_t region,
                               uint64_t count, float *out);
zero_status virtual_drive_write(struct executor *executor, const struct swap *swap, uint32_t region,
                                uint64_t count, const float *in);

#endif
