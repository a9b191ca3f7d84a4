/* The training loop of a host: which move of engine/executor/host_moves.h comes next. A host program makes these moves by the
 * order of its calls; the planner and the simulator follow this loop. Pure. */
#ifndef ZERO_TOOLS_PLAN_LOOP_H
#define ZERO_TOOLS_PLAN_LOOP_H

#include "engine/executor/host_moves.h"
#include "tools/plan/pass.h"

struct loop {
    const struct pass *pass; /* of a training micro-step */
    uint32_t forwards;       /* the first uses of the pass, which are all that an evaluation makes */
    uint32_t micro_steps;
    uint32_t use_micros; /* of them in a use: 1, or all (struct policy, vertical) */
    bool evaluates;      /* an evaluation after each training pass and after each step */
    int32_t skip_unit;   /* left out of each step's first micro-step; -1: none */

    enum host_move next;
    /* Completed steps; micro-steps of this step before this pass; the index of the use in `pass`. */
    uint32_t step, micro, use;
    uint32_t within; /* micro-batches of this use that have ended */
    bool evaluating;
};

struct loop loop_begin(const struct pass *pass, const struct policy *policy);

/* The current use of the pass. */
const struct pass_use *loop_use(const struct loop *loop);

/* Sets what the next move needs: the pass's or the use's arguments. */
void loop_prepare(const struct loop *loop, struct host_moves *moves);

/* Advances past the next move. */
void loop_advance(struct loop *loop);

/* True if `steps` steps and the evaluations after them are complete. */
bool loop_ended(const struct loop *loop, uint32_t steps);

#endif
