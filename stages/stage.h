/* A stage is a row of placements: it says where optimizer state, gradients and parameters are at each moment of a
 * step. stages/policy.c turns the changes of placement into operations. (Rajbhandari et al. 2020, section 5: P_os is
 * zero1, P_os+g zero2, P_os+g+p zero3; zero0 is data parallelism. Wang et al. 2023, "ZeRO++", section 3.2: hpZ.) */
#pragma once

#include <stddef.h>

#include "engine/base/operation.h"
#include "engine/base/placement.h"
#include "stages/choices.h"

struct stage {
    const char *name;
    uint32_t number;      /* the configuration's zero_optimization.stage, which selects the row, */
    enum reshard reshard; /* together with this */
    struct placement state;
    struct placement grad_between[ACCUMULATIONS]; /* gradients between micro-steps */
    struct placement grad_step;                   /* gradients at the step */
    struct placement param_rest;                  /* parameters between passes */
    struct placement param_between;               /* parameters between the uses of a unit in one pass */
    enum accumulation accumulation;               /* the default */
};

extern const struct stage *const stages[]; /* ends with NULL */
uint32_t stage_count(void);

/* The row of a configuration; NULL: there is none. */
const struct stage *stage_find(uint32_t number, enum reshard reshard);
uint32_t stage_number_max(void);

/* No rank keeps whole parameters between passes. */
static inline bool stage_shards_params(const struct stage *stage) {
    return !placement_is(stage->param_rest, REPLICATE, REPLICATE);
}
/* No rank has whole reduced gradients. */
static inline bool stage_shards_grads(const struct stage *stage) {
    return !placement_is(stage->grad_step, REPLICATE, REPLICATE);
}
/* The number of the first row for which `shards`, one of these, is true; if there is none, of the last row. */
uint32_t stage_first(bool (*shards)(const struct stage *stage));

extern const struct stage stage_zero0, stage_zero1, stage_zero2, stage_zero3, stage_zero3_keep, stage_hpz;

/* Computes the operations that bring a buffer from one placement to another, in order: reductions and gathers with
 * their axes, or a release. The mesh has mesh[AXIS_SHARD] x mesh[AXIS_REPLICATE] ranks. Two axes that change in the
 * same way become one operation on the group of both axes; otherwise the shard axis comes first. PARTIAL -> REPLICATE
 * on the shard axis goes through SHARD, so that every stage adds with the same call. Returns the number of
 * operations, at most 4. */
struct placement_step {
    uint8_t kind, axes; /* OP_REDUCE, OP_GATHER or OP_RELEASE; AXES_* */
};
uint32_t placement_change(struct placement from, struct placement to, const uint32_t mesh[AXES],
                          struct placement_step out[4]);
