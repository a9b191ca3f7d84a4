/* The moves of a training loop: the order in which a host calls the executor, and when it may make each call. The engine
 * makes them for its host program, and the planner and the simulator make them in virtual time.
 *
 *   a pass  PASS
 *   a use   BEGIN  COMPUTE  END, and again for each further micro-batch of it
 *   a step  AGREE  AGREED  APPLY  SETTLE
 *
 * In each move a host waits until the move is ready, does its own work, and then makes the executor's event. */
#ifndef ZERO_ENGINE_EXECUTOR_HOST_MOVES_H
#define ZERO_ENGINE_EXECUTOR_HOST_MOVES_H

#include "engine/executor/executor.h"

/* The policy's event of a PASS. */
enum pass_event {
    PASS_BEGINS,
    PASS_RESUMES, /* a training pass, at the end of its forward, after an evaluation that interrupted it */
    PASS_CANCELLED,
    PASS_STEP_CANCELLED
};

enum host_move {
    MOVE_PASS,
    MOVE_BEGIN,
    /* The parameters of the use are gathered. The host's work: it computes. */
    MOVE_COMPUTE,
    MOVE_END,
    MOVE_AGREE,
    /* The agreements of all ranks are there. The host's work: it reads them and decides what the update does. */
    MOVE_AGREED,
    MOVE_APPLY,
    /* The updates are complete, if the plan needs that before the next pass. */
    MOVE_SETTLE
};

/* The input of the moves. The host's work may set it, up to the move's event. */
struct host_moves {
    struct executor *executor;
    struct { /* PASS: executor_pass; the other events: executor_resume_pass, executor_cancel */
        enum pass_event event;
        bool evaluating, last;
    } pass;
    struct { /* BEGIN, END: executor_begin, or executor_recompute with the position of the next backward */
        bool recomputes;
        /* The use steps aside (END: executor_step_aside), and goes on (BEGIN: executor_go_on). Free order: meanwhile another use
         * begins and ends. Vertical order: one micro-batch has ended, and the next begins. `position` is then the use's own, also
         * where it recomputes. */
        bool aside;
        uint32_t unit, position;
    } use;
    /* With a shadow: the last step, or values that the host wrote, must be committed. APPLY and shadow_written set it; the
     * commit clears it. */
    bool commits;
    const struct agreement *mine; /* AGREE: this rank's contribution */
    struct point agreed;          /* set by AGREE */
    enum outcome outcome;         /* APPLY: executor_apply */
    /* APPLY: executor_apply. With updates in the backward, PASS: executor_settle, where the last pass of a step begins. */
    struct update_settings update;
    bool settles; /* SETTLE: plan_settles */
};

/* The decisions of a step, from the agreements of all ranks: the same on all ranks. */
struct host_decision {
    double norm; /* of the gradient, before clipping */
    float scale; /* struct update_settings: the mean, and clipping by the norm */
    enum outcome outcome;
};

/* The squared norm of the summed gradient, for a data rank: adds over the ranks that share one copy, model rank by model rank, and
 * their data ranks in order. `at`: the indices in `all` in this order; NULL: 0, 1, ... */
double host_norm_squared(const struct policy *policy, uint32_t data_rank, const struct agreement *all,
                         const uint32_t *at, uint32_t model_ranks);

/* `mean`: the factor from the summed gradient to the mean. Updates in the backward use it without clipping. `clip`: 0: no clipping. */
struct host_decision host_decide(const struct policy *policy, double norm_squared, double mean, double clip);

bool host_move_ready(const struct host_moves *moves, enum host_move move);

/* True if the host's work in this move commits the step before, whose chunks are all stored by then. The move is AGREED. With updates
 * in the backward it is the BEGIN of the first use in which, or after which, the step may update: a use of the last pass's backward, or
 * a forward that is recomputed for it. These updates overwrite the step before the one that is committed. */
bool host_move_commits(const struct host_moves *moves, enum host_move move);

/* The executor's event of the move; for COMPUTE, AGREED and SETTLE there is none. */
zero_status host_move_event(struct host_moves *moves, enum host_move move);

/* A host that blocks. A status other than ZERO_OK ends its moves. */
struct host_calls {
    /* Returns when the move is ready. */
    zero_status (*wait)(void *user, const struct host_moves *moves, enum host_move move);
    /* The host's own work, or NULL. */
    zero_status (*work)(void *user, struct host_moves *moves, enum host_move move);
    /* Calls host_move_event. */
    zero_status (*event)(void *user, struct host_moves *moves, enum host_move move);
    void *user;
};

/* The moves from `first` to `last`. */
zero_status host_make_moves(const struct host_calls *host, struct host_moves *moves, enum host_move first,
                            enum host_move last);

#endif
