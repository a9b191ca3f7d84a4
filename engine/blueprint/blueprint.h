/* The blueprint: from the configuration, the declared model and the number of ranks to the mesh, the policy and the plan of
 * one rank. Pure: it allocates its own tables and nothing else, and does not talk to other ranks. Commit, the advice on
 * budgets, the planner and the simulator all use it. A struct blueprint must not move, because its parts point at each
 * other. */
#pragma once

#include "engine/comm/comm.h"
#include "engine/config/config.h"
#include "engine/executor/executor.h"
#include "engine/model/reservations.h"
#include "engine/plan/plan.h"
#include "kernels/quantize.h"

/* The other inputs of a blueprint, all borrowed. */
struct blueprint_options {
    const struct model *model; /* laid out (model_lay_out) */
    /* other: of the regions of region_other; NULL: there are none. */
    const struct optimizer *optimizer, *other;
    /* The states of the optimizer; of two optimizers, the larger count. blueprint_make adds one for the averaged
     * weights. */
    uint32_t state_count;
    uint32_t model_ranks; /* 0: the model is whole */
    /* [AXES_BOTH + 1]: by axes and stream; for sizes and scratch memory */
    struct comm_group *const (*group)[STREAMS];
    /* For budgets; a simulation has none of them. */
    const struct config *config;           /* resolved */
    const struct optimizer_params *params; /* of group 0 */
    const struct reservations *reservations;
    /* The budget of tiered state if memory.device gives none: the free memory of the GPU. 0: no bound. */
    uint64_t device_budget;
    /* What the GPU has free for state that fills memory.device by default; UINT64_MAX: no bound. */
    uint64_t device_room;
};

struct blueprint {
    struct blueprint_options o;
    struct terms terms; /* blueprint_replan changes what struct blueprint_room has */
    uint32_t ranks;     /* data ranks (engine/ranks/model_ranks.h) */
    struct region *regions;
    uint16_t *refresh;
    /* Per parameter: the rank that changes its direction (matrices_share_out). */
    uint32_t *matrix_owner;
    struct policy policy;
    struct plan plan;
};

/* Where the engine's messages and the host's pieces are, in the plan's row of messages. */
struct blueprint_messages {
    uint64_t agreements, message, piece, bounce[2], norms; /* bounce and norms: of a discrete device */
    uint64_t bytes;
};

/* The optimizer of a region. */
static inline const struct optimizer *blueprint_optimizer(const struct blueprint *b, uint32_t region) {
    return b->o.other && region_other(&b->o.model->region[region]) ? b->o.other : b->o.optimizer;
}

/* Which element type is where, in one region. */
struct precision blueprint_precision_of(const struct blueprint *blueprint, uint32_t region);

/* Plans for this rank alone: budgets of other ranks may later make chunks smaller (blueprint_replan). Call
 * blueprint_free also after a failure. */
zero_status blueprint_make(struct blueprint *blueprint, const struct terms *terms,
                           const struct blueprint_options *options, struct zero_error *error);
void blueprint_free(struct blueprint *blueprint);

/* The room that this rank's budgets leave: elements of a chunk, bytes of state and bytes of gradients that need not go to the
 * drive, and bytes of state and gradients that may be on the device. */
struct blueprint_room {
    uint64_t chunk_elements, resident_bytes, grad_resident_bytes, device_bytes;
};
/* The number of rounds in which a rank computes its room and plans again. State that fills the device needs two: the first round decides
 * what the device takes, which frees room on the host. `round` counts from 0. */
uint32_t blueprint_rooms(const struct config *config, bool discrete);
struct blueprint_room blueprint_room(const struct blueprint *blueprint, uint32_t round);

/* Plans again within a room. All ranks pass the smallest room of any rank, because all ranks must emit the same
 * operations. */
zero_status blueprint_replan(struct blueprint *blueprint, struct blueprint_room room,
                             struct zero_error *error);

/* Plans again within this rank's own room, in all rounds. */
zero_status blueprint_fit(struct blueprint *blueprint, struct zero_error *error);

/* Planned and reserved bytes of a tier. */
uint64_t blueprint_bytes(const struct blueprint *blueprint, int tier);

/* Planned and reserved bytes in host memory. */
uint64_t blueprint_host_bytes(const struct blueprint *blueprint);

struct blueprint_messages blueprint_messages(const struct blueprint *blueprint);

/* The executor's options. Valid while the blueprint is. */
struct executor_options blueprint_executor_options(const struct blueprint *blueprint);

/* ---- memory_owners.c: who owns the memory of a plan: rows by unit, and reservations ---- */
/* All owners, the largest first; *out_list is the caller's to free, NULL where there is no memory. Returns their number. */
uint32_t memory_owners(const struct blueprint *blueprint, zero_memory_owner **out_list);

/* ---- budget_advice.c: budgets of memory, and what to change where the plan exceeds one ---- */
/* ZERO_E_BUDGET: the sentence names the tier, keys with values with which all budgets hold (each was planned, with the model and
 * the ranks as they are), and the largest owners. `config`: the blueprint's, changed for each trial, and as it was afterwards. */
zero_status budget_check(const struct blueprint *blueprint, struct config *config, struct zero_error *error);

/* ---- matrices.c: optimizers that update whole parameters: where they are refused, and which rank owns which matrix ---- */
/* The parameters are matrices, or whole tensors, where the update needs that; and the device has such an update. */
zero_status scopes_check(const struct blueprint *blueprint, struct zero_error *error);

/* Sets blueprint->matrix_owner: one rank of all for each matrix. In the order of updates, the largest matrix of a region goes to the
 * rank with the least work so far, the lowest one of equals. */
zero_status matrices_share_out(struct blueprint *blueprint, struct zero_error *error);

/* Scratch for the largest matrix. */
uint64_t matrices_scratch_bytes(const struct blueprint *blueprint);
