/* What a rank's host does in a training micro-step, and for how long it computes: units forward, then backward; forwards
 * that are made again for activations that were not kept; and the backward's end, below which nobody needs a gradient.
 * The order is tools/gpt's (gpt.c), for plans and simulations. Pure but for memory. */
#ifndef ZERO_TOOLS_PLAN_PASS_H
#define ZERO_TOOLS_PLAN_PASS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

struct pass_work { /* of a unit, in a micro-step */
    uint64_t forward_ns, backward_ns;
    uint64_t again_ns; /* of its forward again where its backward comes next, which needs no output */
    bool trains;
};

/* Activation checkpointing: units [first, end) are computed again, `blocks` of them together; the last ones, whose
 * activations are still there, are not. blocks 0: none are. */
struct pass_segments {
    uint32_t first, end, blocks;
};

/* Unit `last` ends units that are computed again together; *out_first: where they begin. */
bool pass_segment(const struct pass_segments *segments, uint32_t last, uint32_t *out_first);

struct pass_use {
    uint32_t unit;
    uint32_t position; /* of the pass; again: of the backward for which it is */
    bool again;
    uint64_t compute_ns;
};

struct pass {
    struct pass_use *use;
    uint32_t uses;
};

/* `work`: per unit. A unit's backward is at position 2 * units - 1 - unit. pass_free frees it. */
zero_status pass_make(const struct pass_work *work, uint32_t units, const struct pass_segments *segments,
                      struct pass *out, struct zero_error *error);
void pass_free(struct pass *pass);

#endif
