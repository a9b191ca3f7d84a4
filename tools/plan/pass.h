/* The work of a rank's host in a training micro-step, and its times: the units' forwards, then their backwards;
 * forwards that run again because their activations were not kept; and the last backward, below which no unit needs a
 * gradient. The order is that of tools/gpt (gpt.c). For plans and simulations. Pure, except for memory. */
#pragma once

#include <stdbool.h>

#include "engine/base/error.h"

struct pass_work { /* of a unit, in a micro-step */
    uint64_t forward_ns, backward_ns;
    /* of its forward when it runs again directly before its backward and needs no output */
    uint64_t recompute_ns;
    bool trains;
    uint64_t kept_ns; /* by which this and a repeated forward are shorter: parts of the unit are kept */
};

/* Activation checkpointing: units [first, end) form segments of `blocks` units. The last segment is not computed again,
 * because its activations are still in memory. blocks 0: no recomputation. */
struct pass_segments {
    uint32_t first, end, blocks;
    /* Each unit's backward itself recomputes its forward, in its own use, also that of the last unit. */
    bool in_use;
    /* The inputs of all segments except this number of last ones go to the drive (gpt_checkpoints_kept); with in_use, the part
     * after the units counts as a segment. 0: no input goes to the drive. */
    uint32_t stay;
    /* On a device whose checkpoints leave it. `near`: the inputs of all segments except this number of last ones cross to the host and
     * come back; 0: none does. `waits`: a use has several micro-batches, whose streams and their gradients wait on the host from one
     * use to the next. */
    uint32_t near;
    bool waits;
};

/* True if unit `last` ends a recomputed segment; *out_first: the segment's first unit. */
bool pass_segment(const struct pass_segments *segments, uint32_t last, uint32_t *out_first);

struct pass_use {
    uint32_t unit;
    uint32_t position; /* in the pass; for a repeated forward: the position of the backward that needs it */
    bool recomputes;
    uint64_t compute_ns;
    /* After the use, the input of a segment leaves for the drive; before it, one has come back. */
    bool stores, fetches;
    /* Streams of a micro-batch, [rows][width] each, that cross from the host before the use, and to it afterwards. */
    uint8_t enters, leaves;
};

struct pass {
    struct pass_use *use;
    uint32_t uses;
    uint64_t kept_ns; /* of all repeated forwards */
};

/* `work`: one per unit. The backward of a unit is at position 2 * units - 1 - unit. pass_free frees `out`. */
zero_status pass_make(const struct pass_work *work, uint32_t units, const struct pass_segments *segments,
                      struct pass *out, struct zero_error *error);
void pass_free(struct pass *pass);
