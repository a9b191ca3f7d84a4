/* Virtual ranks in one thread: real executors over the simulated transport and device, with real data and
 * completions in random order. Trains the toy model; whatever is overwritten too early is found. */
#ifndef ZERO_TESTS_EXECUTOR_VIRTUAL_RANK_H
#define ZERO_TESTS_EXECUTOR_VIRTUAL_RANK_H

#include "engine/comm/sim.h"
#include "engine/executor.h"
#include "tests/engine/toy_trainer.h"
#include "tests/executor/virtual_drive.h"

enum { VIRTUAL_RANKS_MAX = 4 };

/* Bugs to plant. */
enum virtual_bug {
    BUG_NONE,
    BUG_GATHER_IGNORES_READERS,  /* a gather does not wait for compute that still reads the slot */
    BUG_GATHER_IGNORES_UPDATE,   /* nor for the update of what it gathers */
    BUG_COMPUTE_IGNORES_GATHER,  /* compute does not wait for its parameters */
    BUG_AGREE_IGNORES_REDUCE,    /* the norm is taken before all gradients are reduced */
    BUG_BACKWARD_IGNORES_REDUCE, /* a backward overwrites a gradient that is being reduced */
    BUG_OVERLAPPING_PLAN,        /* all gathered units share one place, unknown to the waits */
    BUG_DEPTH_DIFFERS,           /* ranks look ahead by different depths */
    BUG_STORE_IGNORES_UPDATE,    /* a chunk goes to the drive before it was updated */
    BUG_UPDATE_IGNORES_FETCH,    /* a chunk is updated before it came */
    BUG_FETCH_IGNORES_STORE,     /* a slot is used again before its chunk went */
    BUG_GATHER_IGNORES_FETCH,    /* parameters are gathered before they came from the drive */
    BUG_PARAMS_IGNORE_STORE,     /* and come from there before the update's went */
    VIRTUAL_BUGS
};

struct virtual_setup {
    struct toy_setup
        toy; /* ranks, stage, micro_steps, mode, depth, steps, threshold, clip, skip_unit, evaluate */
    enum stage_index stage;
    uint32_t mesh[AXES], backward_depth;
    uint64_t live_max, ahead_max;       /* elements */
    uint32_t param_bits, gradient_bits; /* struct executor_options */
    struct virtual_drive_options drive;
    uint64_t seed;
    double completion; /* the chance that a test finds something done */
    enum virtual_bug bug;
};

/* Runs to the end; what went wrong is in out->error, else it is "" and the weights are rank 0's. */
void virtual_train(const struct virtual_setup *setup, struct toy_result *out);

#endif
