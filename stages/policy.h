/* The policy: events of the training loop -> operations, for any stage. Pure: it owns no memory, stream or
 * socket, reads nothing but its own context, and so emits the same operations on every rank.
 *
 * The context holds what was emitted, never what has finished: what has finished differs between ranks, and a
 * decision that read it would make collectives start in different orders.
 *
 * A pass is a sequence of positions: 0 .. uses-1 are the forward uses in the declared order, uses .. 2*uses-1
 * their backwards in reverse. A use is a list of regions (a unit's own, and those of the owners of its tied
 * parameters). Forwards that are run again inside the backward have positions of their own: 2*uses + the use.
 *
 *   region, parameters:   rest --want--> full --settle--> rest or between --want--> full --> rest
 *   region, gradient:     none --backward--> partial --grad_to--> shard --final--> the step's placement
 *   region, after a step: stale --refresh, before its first use--> fresh
 *
 * Invariants: a unit's parameters are gathered before its use is emitted; a unit stays gathered if its next
 * use is the next position; nothing is gathered further ahead than `depth` gathers, within the pass, nor
 * beyond `ahead_max` and `live_max` elements; every full gradient is reduced after its last use of the pass.
 * How far is ahead depends on the position alone, and not on which uses were skipped: what a pass that skips
 * has gathered at a position, one that skips nothing has too, and so has the plan (plan.c). */
#ifndef ZERO_STAGES_POLICY_H
#define ZERO_STAGES_POLICY_H

#include "stages/stage.h"

struct use {
    uint16_t region[USE_REGIONS_MAX];
    uint8_t count;
    uint16_t
        behind; /* uses before it in its segment, which is run again as one before its last one's backward; of
                        the first, and of one by itself: 0 */
};

struct region {
    bool frozen;       /* no gradient, no state */
    bool persistent;   /* parameters are replicated at rest in every stage */
    uint64_t elements; /* of its flat buffer */

    /* From the stage's row, by policy_open. */
    struct placement state, grad_between, grad_step, rest, between;
    bool grad_kept;     /* the full gradient's buffer lives from step to step */
    bool grad_in_place; /* reduced into this rank's part of it */

    /* What was emitted. */
    bool full, second, stale;     /* parameters */
    bool partial, reduced, final; /* gradient */
    bool grad_live;               /* an interval of the full gradient is open */

    uint32_t counted; /* scratch: by which sum of elements */
};

struct policy {
    /* Set by the owner, constant. */
    const struct stage *stage;
    uint32_t mesh[AXES];
    enum accumulation accumulation;
    uint32_t micro_steps;           /* per step */
    uint32_t depth, backward_depth; /* gathers ahead of a use of forward, of backward */
    uint64_t
        live_max; /* elements gathered at once, by gathers ahead and by what is kept between its uses; a use
                           gathers what it needs, whatever it takes. UINT64_MAX: no bound */
    uint64_t ahead_max; /* of them, ahead of the use at the cursor */
    uint32_t stagings;  /* buffers that reductions take turns with; 0: none needed */
    uint32_t
        gather_stagings; /* the same of gathers from the shards at rest, which are quantised then; 0: they are not.
                                 A second shard holds what was decoded: it is gathered as it is, or a backward's weights
                                 would be coded twice, and other than their forward's */
    bool
        grad_widens; /* a reduced gradient is wider than what a backward writes: it needs a place of its own */
    const struct use *forward;
    uint32_t uses;
    struct region *region;
    uint32_t regions;
    uint16_t *refresh; /* room for `regions`: the trainable ones in the order of first use, by policy_open */

    /* Set by policy_open. */
    uint32_t refreshes;
    bool eager; /* nothing rests sharded: the refresh's gathers are emitted at once */
    uint32_t
        kept_from; /* the first forward position whose regions stay whole to their backward, where the stage
                           has it so; 0: all */

    /* The state. */
    bool evaluating, last;
    uint32_t cursor, positions;
    uint32_t reductions, gathers; /* that took a staging */
    uint32_t sums;                /* of elements, so far */
};

/* Resolves the stage's row for every region and clears the state. */
void policy_open(struct policy *policy);

/* The most operations that one event can emit: the capacity that a list needs. */
uint32_t policy_operations_max(const struct policy *policy);

const struct use *policy_use(const struct policy *policy, uint32_t position);
bool policy_backward(const struct policy *policy, uint32_t position);
bool policy_used_later(const struct policy *policy, uint16_t region, uint32_t after, bool backward_only,
                       uint32_t *out_position);

/* ---- events: each appends to `out`; the caller has checked the order of calls ---- */

/* A pass begins: units return to rest. `last`: of the step's micro-steps. */
void policy_pass(struct policy *policy, bool evaluating, bool last, struct operation_list *out);

/* The use at `position` >= cursor begins; positions in between are skipped. The COMPUTE operation is the last
 * one. */
void policy_begin(struct policy *policy, uint32_t position, struct operation_list *out);

/* The use at the cursor ends. */
void policy_end(struct policy *policy, struct operation_list *out);

/* Inside the backward the forward of `use` begins again, or ends; `next` is the position of the backward that comes
 * next, which is that of `use` or of a later one of its segment. The forwards up to that one are looked ahead to as a pass
 * of their own; a unit whose backward is next, or as near as gathers are looked ahead to, stays gathered for it. Both within
 * the bounds on elements, of which what came ahead of the backward at `next` has its part; that came only if it leaves each
 * forward of the segment its room. COMPUTE is the last operation. */
void policy_recompute(struct policy *policy, uint32_t use, uint32_t next, struct operation_list *out);
void policy_recomputed(struct policy *policy, uint32_t use, struct operation_list *out);
/* The position of a recomputation's gather: that of the backward it stays for, or one of its own. */
uint32_t policy_recompute_position(const struct policy *policy, uint32_t use, uint32_t next);

/* After the last micro-step: what is still partial is reduced, what nobody produced is zero. */
void policy_complete(struct policy *policy, struct operation_list *out);

/* The step's first half: all gradients are completed, then AGREE. */
void policy_agree(struct policy *policy, struct operation_list *out);

/* Its second half, after the agreement; `skip`: gradients are dropped, nothing is updated. */
void policy_apply(struct policy *policy, bool skip, struct operation_list *out);

/* Parameters were written at rest (fill, put, load): what rests replicated becomes stale. */
void policy_written(struct policy *policy, struct operation_list *out);

/* Everything is brought up to date. */
void policy_flush(struct policy *policy, struct operation_list *out);

#endif
