/* The policy turns events of the training loop into operations, for any stage. It is pure: it owns no memory, stream
 * or socket, and reads only its own context. So it emits the same operations on every rank.
 *
 * The context holds what was emitted, never what has finished. What has finished differs between ranks, and a
 * decision from it would make collectives start in different orders.
 *
 * A pass is a sequence of positions. Positions 0 .. uses-1 are the forward uses in the declared order. Positions
 * uses .. 2*uses-1 are their backwards in reverse order. A use is a list of regions: those of a unit, and those of
 * the owners of its tied parameters. A forward that is recomputed inside the backward has a position of its own:
 * 2*uses + the use.
 *
 * In vertical order a step has one training pass, and each use has all micro-batches of the step, one after another:
 * between two of them the use steps aside and goes on. Gradients are reduced as micro-steps would reduce them, with the
 * same calls in the same order for each region that one use has. The gradient of a region of two uses is summed over the micro-batches of
 * the last use first; where micro-steps are reduced, its last micro-batch is reduced together with the first one of the other use.
 *
 * With updates in the backward, a region's last reduction of the step is followed by its update at once: after its last backward,
 * which is that of its first use. The order of refresh is then reversed, so that it is the order of these updates. These updates
 * know neither the norm of all gradients nor whether the step will be skipped. The step's outcome says whether they are taken back,
 * or repeated from the values before them with the kept gradients.
 *
 * A share of these updates may wait: the step emits them, in the order of use, so that they run under the next forward. A host that updates
 * more slowly than the backward makes gradients then updates during the whole step, and the units that the forward needs first are up to
 * date when it begins. Regions that wait are spread evenly over the backward, and the first one never waits. In the order of refresh they
 * come after all others. Their gradients stay until the step.
 *
 *   region, parameters:   rest --want--> full --after use--> rest or between --want--> full --> rest
 *   region, gradient:     none --backward--> partial --grad_to--> shard --final--> the step's placement
 *   region, after a step: stale --refresh, before its first use--> fresh
 *
 * An update is a row of legs (engine/base/update.h). At zero0 each rank has all directions, and the owners' directions come back as
 * gradients do. At the step the legs that lead come before all others; in the backward all legs follow the region's last reduction.
 *
 * Invariants:
 *   1. The parameters of a unit are gathered before its use is emitted.
 *   2. A unit stays gathered if the next position uses it again.
 *   3. Gathers ahead stay within the pass, within `depth` gathers (in backward: `backward_depth`), and within
 *      `ahead_max` and `live_max` elements.
 *   4. Every full gradient is reduced after its last use of the pass.
 *   5. A gradient that is reduced in every micro-step of a use has two addresses, which take turns: a reduction never
 *      reads what the next micro-step writes. A gradient whose buffer lives from step to step, or that two uses share, has one
 *      address, so the next micro-step waits for the reduction.
 *   6. How far the policy gathers ahead depends only on the position, not on which uses were skipped. So every buffer
 *      that a pass with skipped uses has gathered at a position is also gathered there in a complete pass, and the plan
 *      has a place for it (dry_run.c). */
#pragma once

#include "engine/base/update.h"
#include "stages/stage.h"

struct use {
    uint16_t region[USE_REGIONS_MAX];
    uint8_t count;
    /* The number of uses before this one in its segment. A segment is recomputed as a whole, before the backward of
     * its last use. 0: the first use of a segment, or a segment of one use. */
    uint16_t segment_offset;
};

struct region {
    bool frozen;     /* no gradient, no state */
    bool persistent; /* parameters rest replicated at every stage */
    bool staged; /* gathers from its shards at rest take staging memory: for codes, or for parts of shares */
    /* A reduced gradient has a wider type than the gradient that a backward writes, so it needs a place of its own. */
    bool grad_widens;
    enum optimizer_scope scope; /* of its optimizer */
    uint64_t elements;          /* in its flat buffer */
    /* Parameters rest whole in the host program's memory. Its arrays have the whole gradient until the step has used it. */
    bool lent, grad_lent;
    /* The host gives the gradient in memory of its own, which the region's reduction reads. Cleared by policy_open where the gradient is
     * whole for longer than one use. */
    bool grad_given;
    /* The bytes of memory that the region takes while it is gathered; its whole gradient takes the same. Used with
     * policy.bound. */
    uint64_t bytes;

    /* Set by policy_open from the stage's row. */
    struct placement state, grad_between, grad_step, rest, between;
    bool grad_kept;     /* the buffer of the full gradient lives from step to step */
    bool grad_in_place; /* the gradient is reduced into this rank's part of that buffer */
    bool grad_turns; /* micro-batches of a use write to two buffers in turn; of a region that one use has */
    bool grad_brief; /* the reduced shard lives for one use, so that regions take turns in its memory */
    bool waits;      /* its update waits for the next forward */
    /* Of entry k, below policy.refreshes: the k-th trained region, in the order of first use. */
    uint16_t kth_trained;

    uint32_t first_use, last_use; /* of a forward; first_use UINT32_MAX: no use has it */

    /* The state after the operations that were emitted. */
    bool full, second, stale;     /* parameters */
    bool partial, reduced, final; /* gradient */
    bool updated;                 /* in this step's backward */
    bool grad_live;               /* an interval of the full gradient is open */
    bool grad_second;             /* with grad_turns: the second buffer's turn */

    /* With policy.bound (room.c, eviction.c). */
    bool shared;      /* several uses share it: set by policy_open */
    uint32_t open;    /* uses of it that have begun and not ended */
    uint32_t awaited; /* forwards of this training pass whose backward has not ended */
    uint64_t used;    /* when the last use began, by policy.clock */

    uint32_t counted; /* scratch: number of the last sum that counted this region */
};

/* Objects that have a room of their own: OBJECT_PARAM and OBJECT_GRAD. */
enum { ROOMS = 2 };

struct policy {
    /* Set by the owner; constant. */
    const struct stage *stage;
    uint32_t mesh[AXES];
    enum accumulation accumulation;
    uint32_t micro_steps; /* per step; with by_program the number that the plan assumes */
    bool by_program;      /* a step has any number of training passes, and none is known to be its last */
    /* Vertical order: a use has all micro-batches of the step. Not in free order. */
    bool vertical;
    /* A region is updated in the last micro-step's backward, as soon as its gradient is final. Not in free order, and no gradient is
     * lent. */
    bool update_in_backward;
    /* With update_in_backward: a step's updates may be repeated, so its reduced gradients stay until the step. */
    bool repeats;
    /* With update_in_backward, and no shadow: the share of trained elements (0 to 1) whose updates wait for the next forward. */
    double waiting_share;
    /* A pass uses units in any order, any number of times, and its length is unknown. Nothing is gathered ahead. Without `bound`,
     * what a pass has gathered stays gathered until its end, and gradients are reduced there. */
    bool free_order;
    /* Free order: the most units that are in use at once. Gathered parameters, and whole gradients, then take no more memory than
     * `room` (room.c). 0: no bound. */
    uint32_t bound;
    /* With `bound`, where the device does not use address space in parts: all regions have memory. Parameters then stay until the pass ends, and
     * nothing waits for memory. */
    bool roomy;
    uint32_t depth, backward_depth; /* the most gathers ahead of a forward use, of a backward use */
    /* The most elements that may be gathered at once. It bounds gathers ahead, and units that are kept between their
     * uses. A use always gathers what it needs itself, even above the bound. UINT64_MAX: no bound. */
    uint64_t live_max;
    /* The most of these elements that may be gathered ahead of the use at the cursor. */
    uint64_t ahead_max;
    /* The number of staging buffers, which reductions use in turn. 0: reductions need none. */
    uint32_t stagings;
    /* The same for gathers from shards at rest; these gathers are then coded. 0: no gather is coded. A second shard
     * (hpZ) holds decoded parameters, and its gathers are never coded: otherwise the parameters of a backward would
     * be coded twice, and would differ from those of their forward. */
    uint32_t gather_stagings;
    /* The same for gathers to lent regions. 0: there are none. */
    uint32_t lent_stagings;
    /* The number of buffers for directions, which regions use in turn. */
    uint32_t directions;
    const struct use *forward;
    uint32_t uses;
    struct region *region;
    uint32_t regions;
    /* Room for `regions` entries. policy_open fills it with the trainable regions in the order of first use. With updates in the
     * backward those that are updated there come first, reversed. */
    uint16_t *refresh;

    /* Set by policy_open. */
    uint32_t refreshes;
    uint32_t legs;        /* the most of an update */
    uint64_t room[ROOMS]; /* bytes for gathered parameters, and for whole gradients; UINT64_MAX: no bound */
    bool eager;           /* no region rests sharded, so the gathers of a refresh are emitted at once */
    /* The first forward position whose regions stay whole until their backward, at a stage that keeps units. 0: all
     * stay. */
    uint32_t kept_from;

    /* The state. */
    bool evaluating, last;
    uint32_t cursor, positions;
    uint32_t reductions, gathers; /* that took a staging buffer */
    uint32_t directed;            /* updates that made directions */
    uint32_t sums;                /* sums of elements so far */
    bool turned;                  /* a backward of this pass has begun */
    uint32_t current;             /* the position of the present use */

    /* With `bound`. */
    uint64_t clock;                        /* uses begun */
    uint64_t taken[ROOMS], leaving[ROOMS]; /* bytes: in use or kept; released, and perhaps still being read */
};

static inline bool rests_replicated(const struct region *region) {
    return placement_is(region->rest, REPLICATE, REPLICATE);
}

/* The training passes of a step, and the micro-batches of each of their uses. */
static inline uint32_t policy_passes(const struct policy *policy) {
    return policy->vertical ? 1 : policy->micro_steps;
}
/* Of `passes` training passes since the last step, the newest is known to be the last one. */
static inline bool policy_last(const struct policy *policy, uint32_t passes) {
    return !policy->by_program && passes == policy_passes(policy);
}
/* They suffice for a step. */
static inline bool policy_suffices(const struct policy *policy, uint32_t passes) {
    return policy->by_program ? passes > 0 : passes == policy_passes(policy);
}
static inline uint32_t policy_use_micros(const struct policy *policy) {
    return policy->vertical ? policy->micro_steps : 1;
}

/* The leg of an UPDATE. */
static inline const struct update_leg *policy_leg(const struct policy *policy, const struct operation *op) {
    return &update_rows[policy->region[op->region].scope].leg[op->leg];
}

/* The buffer of the whole gradient that the region's next backward, or the present one, writes. */
static inline enum buffer_kind policy_gradient(const struct region *region) {
    return region->grad_second ? BUFFER_GRAD_SECOND : BUFFER_GRAD_FULL;
}

/* Resolves the stage's row for every region, and clears the state. */
void policy_open(struct policy *policy);

/* The most operations that one event can emit: the capacity that a list needs. */
uint32_t policy_operations_max(const struct policy *policy);

const struct use *policy_use(const struct policy *policy, uint32_t position);
bool policy_backward(const struct policy *policy, uint32_t position);
bool policy_used_later(const struct policy *policy, uint16_t region, uint32_t after, bool backward_only,
                       uint32_t *out_position);

/* ---- events ---- */

/* What a program does. Behind each kind: the fields that it has. */
enum event_kind {
    /* evaluating, last. A pass begins, and all units return to rest. `last`: it is the last micro-step of the step. */
    EVENT_PASS,
    /* last. An evaluation has interrupted a training pass between its forward and its backward, and the training pass goes on at its
     * first backward. Units that were kept for it are gathered again. */
    EVENT_RESUME,
    /* The pass is dropped, and all units return to rest. CANCEL_PASS: no backward of the pass has begun, and the gradients of
     * earlier micro-steps stay. CANCEL_STEP: all gradients of the step are dropped; gradients whose reduction is due are still
     * reduced, so that all ranks emit the same operations. */
    EVENT_CANCEL_PASS,
    EVENT_CANCEL_STEP,
    /* position. The use there begins; `position` is not below the cursor, and positions between are skipped. COMPUTE is the
     * last operation. */
    EVENT_BEGIN,
    EVENT_END, /* the use at the cursor ends; in free order: the present one */
    /* The present use steps aside. Free order: another one begins inside it. Vertical order: a micro-batch of it ends, and another
     * follows. */
    EVENT_STEP_ASIDE,
    EVENT_GO_ON, /* position: the use there goes on. COMPUTE is the last operation */
    /* unit, position. Recomputation: inside the backward, the forward of `unit` begins again. `position` is that of the next
     * backward, which is that of `unit` or of a later unit in its segment. COMPUTE is the last operation.
     *
     * Gathers look ahead over the forwards up to that later use, as over a pass. A unit stays gathered for its backward
     * if that backward is at `position`, or so near that the backward at `position` gathers it ahead. Both obey the bounds on
     * elements. Units that were gathered ahead of the backward at `position` count too; they were gathered only if each
     * forward of the segment still has room. */
    EVENT_RECOMPUTE,
    EVENT_RECOMPUTED, /* unit: that forward ends */
    /* After the last micro-step: gradients that are still partial are reduced, and those that no backward produced are cleared. */
    EVENT_COMPLETE,
    EVENT_AGREE, /* the first half of the step: COMPLETE, and AGREE is the last operation */
    EVENT_APPLY, /* outcome. The second half of the step, after the agreement. The gradients are dropped */
    EVENT_WRITTEN, /* the program wrote parameters at rest (fill, put, load): regions that rest replicated become stale */
    EVENT_FLUSH, /* ends the pass and refreshes every stale region */
    EVENTS
};

struct event {
    enum event_kind kind;
    bool evaluating, last;
    uint32_t unit, position;
    enum outcome outcome;
    /* For the executor. AGREE: this rank's contribution. APPLY, and PASS if its backward updates: the settings of the updates. */
    const struct agreement *mine;
    const struct update_settings *update;
};

/* The policy at an event: appends operations to `out`. The caller must check the order of events. */
typedef void policy_fn(struct policy *policy, const struct event *event, struct operation_list *out);
policy_fn policy_pass, policy_resume, policy_cancel, policy_begin, policy_end, policy_step_aside,
    policy_go_on, policy_recompute, policy_recomputed, policy_complete, policy_agree, policy_apply,
    policy_written, policy_flush;

/* The uses before `position` are skipped. */
void policy_skip_to(struct policy *policy, uint32_t position, struct operation_list *out);

/* The position of the gather for a recomputed use: the position of the backward that it stays for, or a position of
 * its own. `next`: the position of the next backward. */
uint32_t policy_recompute_position(const struct policy *policy, uint32_t use, uint32_t next);
