/* The training loop of a host: which move comes next, when the executor allows it, and its event. A host program makes these moves by
 * the order of its calls; the planner and the simulator follow this loop.
 *
 *   a pass  PASS
 *   a use   BEGIN  COMPUTE  END, and again for each further micro-batch of it
 *   a step  AGREE  AGREED  APPLY  SETTLE */
#pragma once

#include "engine/executor/executor.h"
#include "tools/plan/pass.h"

enum move {
    MOVE_PASS,
    MOVE_BEGIN,
    MOVE_COMPUTE, /* the parameters of the use are gathered. The host's work: it computes */
    MOVE_END,
    MOVE_AGREE,
    MOVE_AGREED, /* the agreements of all ranks are there. The host's work: it decides what the update does */
    MOVE_APPLY,
    MOVE_SETTLE
};

struct loop {
    const struct pass *pass; /* of a training micro-step */
    uint32_t forwards;       /* the first uses of the pass, which are all that an evaluation makes */
    uint32_t micro_steps;
    uint32_t use_micros; /* of them in a use: 1, or all (struct policy, vertical) */
    bool evaluates;      /* an evaluation after each training pass and after each step */
    int32_t skip_unit;   /* left out of each step's first micro-step; -1: none */

    enum move next;
    /* Of the next move, from loop_prepare; COMPUTE, AGREED and SETTLE have none. The host sets the fields that follow from its work. */
    struct event event;
    /* Completed steps; micro-steps of this step before this pass; the index of the use in `pass`. */
    uint32_t step, micro, use;
    uint32_t within; /* micro-batches of this use that have ended */
    bool evaluating;
};

struct loop loop_begin(const struct pass *pass, const struct policy *policy);

/* The current use of the pass. */
const struct pass_use *loop_use(const struct loop *loop);

void loop_prepare(struct loop *loop);

/* The next move may be made. */
bool loop_ready(const struct loop *loop, const struct executor *executor);

/* True if the host's work in the next move commits the step before, whose chunks are all stored by then. */
bool loop_commits(const struct loop *loop, const struct executor *executor);

/* Emits the next move's event, if it has one. */
zero_status loop_emit(const struct loop *loop, struct executor *executor);

/* Advances past the next move. */
void loop_advance(struct loop *loop);

/* True if `steps` steps and the evaluations after them are complete. */
bool loop_ended(const struct loop *loop, uint32_t steps);
