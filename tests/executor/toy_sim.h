/* The toy model on the simulator's virtual ranks, with data; and bugs planted in the executor's waits. */
#ifndef ZERO_TESTS_EXECUTOR_TOY_SIM_H
#define ZERO_TESTS_EXECUTOR_TOY_SIM_H

#include "kernels/quantize.h"
#include "tests/engine/toy_trainer.h"
#include "tools/sim/sim.h"

enum { TOY_SIM_RANKS_MAX = 8 };

/* Bugs to plant. */
enum toy_bug {
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
    BUG_UPDATE_IGNORES_GRADIENT, /* a gradient is fetched before it is stored */
    BUG_REDUCE_IGNORES_STORE,    /* the next reduction writes where a gradient is being stored from */
    BUG_SUM_IGNORES_FETCH,       /* a reduction adds to a gradient before that is fetched */
    BUG_PARAMS_IGNORE_GATHER,    /* parameters come to a slot from which others are being gathered */
    BUG_PARAMS_IGNORE_READERS,   /* or to a gathered unit's place while that is still in use */
    BUG_SHORT_LIST,              /* the list of an event has too few rows */
    BUG_SHORT_EXPANSION,         /* that of an operation's chunks */
    BUG_TOO_MANY_AGREEMENTS,     /* an event emits more on a stream than that has room for */
    TOY_BUGS
};

struct toy_sim {
    /* Ranks, stage, micro_steps, mode, depth, steps, threshold, clip, skip_unit, evaluate. */
    struct toy_setup toy;
    const struct stage *stage;
    uint32_t mesh[AXES], backward_depth;
    uint64_t live_max, ahead_max;   /* elements; 0: no bound */
    enum code_format param_code[2]; /* of parameters with even numbers, and with odd ones */
    enum code_format gradient_code; /* struct executor_shape */
    enum tier_kind state_tier, param_tier, grad_tier;
    uint32_t slots, chunk_elements, page_bytes;
    uint64_t resident_bytes, grad_resident_bytes, piece_bytes;
    double device_share; /* struct terms */
    uint64_t seed, chaos_ns;
    bool with_data, one_order; /* struct sim_setup */
    enum toy_bug bug;
};

/* The simulator's setup of it: `model` is filled in. */
struct sim_setup toy_sim_setup(const struct toy_sim *toy, struct sim_model *model);

/* Runs to the end. out->error holds the failure; if it is "", the weights are the ranks'. */
void toy_simulate(const struct toy_sim *toy, struct toy_result *out);

#endif
