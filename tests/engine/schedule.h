/* Random trainings: a model and the order of its uses, both from one seed; and their run on ranks that are threads. A
 * schedule is plain data. It is the same on all ranks, at all stages and in all tiers, and so are its results. */
#ifndef ZERO_TESTS_ENGINE_SCHEDULE_H
#define ZERO_TESTS_ENGINE_SCHEDULE_H

#include <stdbool.h>
#include <stdio.h>

#include "engine/zero.h"

enum {
    SCHEDULE_RANKS_MAX = 4,
    SCHEDULE_UNITS_MAX = 7,
    SCHEDULE_PARAMS_MAX = 3 * SCHEDULE_UNITS_MAX,
    SCHEDULE_COUNT_MAX = 6000,  /* elements of a parameter */
    SCHEDULE_COUNT_SMALL = 300, /* of most */
    SCHEDULE_MICRO_STEPS_MAX = 3,
    SCHEDULE_STEPS = 4,
    SCHEDULE_STAGES = 4
};

struct schedule_param {
    uint32_t unit, count, flags;
    int32_t tied_to; /* -1: to none */
};

struct schedule_pass {
    zero_mode mode;
    uint32_t forward, backward; /* bit u: unit u is used; no backward without its forward */
    bool flush, sum;            /* after the pass */
};

struct schedule_step {
    struct schedule_pass pass[2 * SCHEDULE_MICRO_STEPS_MAX];
    uint32_t passes;
    int32_t nan_pass; /* in this pass the last rank's gradients have a NaN each; -1: in none */
    int32_t inspect;  /* of this parameter the gradient is read before the step; -1: none */
    int32_t put;      /* this parameter is read and written after the step; -1: none */
    double lr;        /* then set; 0: not */
    bool refill;      /* then training begins anew */
};

enum schedule_tier {
    SCHEDULE_DEVICE,
    SCHEDULE_CPU,
    SCHEDULE_NVME,
    SCHEDULE_NVME_TWO,   /* paths */
    SCHEDULE_PARAM_CPU,  /* at stage 3: what follows too */
    SCHEDULE_PARAM_NVME, /* and state in memory */
    SCHEDULE_ALL_NVME,
    SCHEDULE_TIERS
};

struct schedule {
    uint64_t seed;
    uint32_t ranks, micro_steps, threshold, units, params, depth[SCHEDULE_STAGES];
    uint32_t slots;               /* of what is on nvme */
    uint32_t shard_ranks;         /* of a group, at every stage */
    uint32_t reshard_ranks;       /* at stage 3, as comm.reshard_after_forward has it; 0: true, 1: false */
    uint32_t backward_depth;      /* at stage 3, as is what follows */
    uint32_t live_max, ahead_max; /* elements; 0: no bound */
    enum schedule_tier tier[SCHEDULE_STAGES];
    bool narrow; /* bf16, but for parameters with ZERO_KEEP_FP32 */
    const char *mode;
    struct schedule_param param[SCHEDULE_PARAMS_MAX];
    struct schedule_step step[SCHEDULE_STEPS];
};

void schedule_make(uint64_t seed, struct schedule *out);
void schedule_print(const struct schedule *schedule, FILE *file);

struct schedule_result {
    zero_status status;
    char error[600], hash[33];
    double norm[SCHEDULE_STEPS];
    int skipped[SCHEDULE_STEPS];
    uint64_t seen; /* digests all that the rank read: weights in every use, gradients, sums */
};

/* One result for each rank. */
void schedule_run(const struct schedule *schedule, uint32_t stage, enum schedule_tier tier,
                  struct schedule_result *out);

extern const char *const schedule_tiers[SCHEDULE_TIERS];

#endif
