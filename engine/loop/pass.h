/* Passes and uses: what the host does between two steps, and what it must not do.
 *
 *   DECLARING --commit--> READY --pass_begin--> PASS --forward/backward begin--> USE --end--> PASS
 *   PASS --step, settle--> READY
 *   READY --park--> PARKED --unpark--> READY
 *
 * A pass is a micro-step's forward and backward, or a forward to evaluate. A use is the time between begin and end of
 * one unit: its parameters are gathered, and their slots hold the addresses. */
#pragma once

#include "engine/blueprint/blueprint.h"
#include "engine/run/run.h"
#include "engine/state/state.h"

/* In free order a use may begin inside another one, which goes on afterwards. */
enum { NESTED_USES_MAX = 64 };

struct open_use {
    struct zero_unit *unit;
    bool backward;
};

enum phase { PHASE_DECLARING, PHASE_READY, PHASE_PASS, PHASE_USE, PHASE_PARKED };

struct pass {
    struct running *run;
    struct state *state;
    const struct blueprint *blueprint;
    struct model *model;
    uint32_t threads; /* of this rank, for gradients that the host gives */
    enum phase phase;
    zero_mode mode;                         /* of the open pass, or the last one */
    uint32_t micro;                         /* training passes since the last step */
    uint64_t backwards;                     /* uses in the backward, since the last step */
    struct open_use outer[NESTED_USES_MAX]; /* the uses around the present one, the outermost first */
    uint32_t nested;
    uint64_t made, made_before;       /* uses of this pass; `backwards` when it began */
    uint32_t use_micro;               /* of the present use: micro-batches that have ended */
    struct zero_unit *unit;           /* PHASE_USE: the unit */
    bool backward, recomputes;        /* PHASE_USE: which */
    struct zero_unit *recompute_next; /* a recomputation has begun and goes on with this unit; else NULL */
    bool recomputed;                  /* the unit whose backward comes next, since the last backward */
    bool suspended;                   /* an evaluation has interrupted a training pass before its backward */
    bool settled;                     /* nothing was started since pass_settle */
    bool completed; /* by_program: the step's gradients were read, and no micro-step may follow */
    uint64_t compute_began;
    double compute_s; /* spent in uses */
};

/* The sticky failure; or refuses with ZERO_E_ORDER, in the name of the call `what`, while the engine is parked. */
zero_status pass_check(const struct pass *pass, const char *what);

/* Refuses with ZERO_E_ORDER if the forward of a training pass has begun and its backward has not: the pass would be lost. */
zero_status pass_check_forward(const struct pass *pass, const char *what);

/* As pass_check; and refuse with ZERO_E_ORDER before commit and inside a use; and _between also as pass_check_forward. */
zero_status pass_check_outside(const struct pass *pass, const char *what);
zero_status pass_check_between(const struct pass *pass, const char *what);

zero_status pass_begin(struct pass *pass, zero_mode mode);
zero_status pass_forward_begin(struct pass *pass, struct zero_unit *unit);
zero_status pass_backward_begin(struct pass *pass, struct zero_unit *unit);
zero_status pass_end(struct pass *pass, struct zero_unit *unit, bool backward);
zero_status pass_next_micro(struct pass *pass, struct zero_unit *unit);

/* With updates in the backward: the step's updates have begun, and it must end. */
bool pass_updates(const struct pass *pass);
#define PASS_UPDATES                                                                                         \
    "%s: the backward of the step's last micro-step updates weights "                                        \
    "(zero_optimization.update_in_backward): end it, and call zero_engine_step"

/* A training pass whose forward has begun and whose backward has not; also while an evaluation interrupts it. */
bool pass_awaits_backward(const struct pass *pass);

/* interrupt.c */
void pass_suspend(struct pass *pass); /* an evaluation begins there */
zero_status pass_resume(struct pass *pass);
zero_status pass_cancel(struct pass *pass);

/* Gradients that the host computed in memory of its own. _give_gradient: of one parameter of a unit in its backward.
 * _give_gradients: of all of them, in the order in which they were added; NULL is zero. `what`: the call. */
zero_status pass_give_gradient(struct pass *pass, const struct model_param *param, const void *gradient,
                               const char *what);
zero_status pass_give_gradients(struct pass *pass, const struct zero_unit *unit, const void *const *gradients,
                                const char *what);

/* Ends an open pass and brings everything up to date. Every collective call between steps begins with it. */
zero_status pass_settle(struct pass *pass);
