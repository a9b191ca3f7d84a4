/* The blueprint: from the configuration, the declared model and the number of ranks to the mesh, the policy and the plan of
 * one rank. Pure: it allocates its own tables, nothing else, and asks nobody. Commit, the advice on budgets, the planner and
 * the simulator all use it. It must not move, since its parts point at each other. */
#ifndef ZERO_ENGINE_BLUEPRINT_BLUEPRINT_H
#define ZERO_ENGINE_BLUEPRINT_BLUEPRINT_H

#include "engine/comm/comm.h"
#include "engine/config/config.h"
#include "engine/executor/executor.h"
#include "engine/model/reservations.h"
#include "engine/plan/plan.h"

/* The host's calls move state in pieces of this size. */
enum { PIECE_BYTES = 256 * 1024 };

/* What a blueprint is made from; all of it is borrowed. */
struct blueprint_options {
    const struct config *config; /* resolved */
    const struct model *model;   /* laid out (model_lay_out) */
    const struct optimizer *optimizer;
    const struct optimizer_params *params; /* of group 0 */
    uint32_t state_count;
    uint32_t ranks;
    bool discrete; /* the host cannot touch the device's memory */
    const struct reservations *reservations;
    struct comm_group *const (
        *group)[STREAMS]; /* [AXES_BOTH + 1]: by axes and stream; for sizes and scratch memory */
};

struct blueprint {
    struct blueprint_options o;
    struct precision precision;
    uint32_t param_bits, gradient_bits; /* struct executor_options */
    float gradient_factor;              /* the same */
    struct region *regions;
    uint16_t *refresh;
    struct policy policy;
    struct plan plan;
};

/* Where the engine's messages and the host's pieces are, in the plan's row of messages. */
struct blueprint_messages {
    uint64_t agreements, message, piece, bounce[2], norms; /* bounce and norms: of a discrete device */
    uint64_t bytes;
};

/* The stage's row of placements. */
const struct stage *blueprint_stage(const struct config *config);

/* Which element type is where. */
struct precision blueprint_precision(const struct config *config);

/* Ranks on each axis. */
void blueprint_mesh(const struct config *config, uint32_t ranks, uint32_t out_mesh[AXES]);

/* The plan of a rank on its own: without chunks that other ranks' budgets make smaller. blueprint_free also after a failure. */
zero_status blueprint_make(struct blueprint *blueprint, const struct blueprint_options *options,
                           struct zero_error *error);
void blueprint_free(struct blueprint *blueprint);

/* What this rank's budgets leave room for: elements of a chunk, and bytes of state that need not go to the drive. */
struct blueprint_room {
    uint64_t chunk_elements, resident_bytes;
};
bool blueprint_has_drive(const struct config *config);
struct blueprint_room blueprint_room(const struct blueprint *blueprint);

/* Plans again within a room: all ranks take the least of theirs, because they must emit alike. */
zero_status blueprint_replan(struct blueprint *blueprint, struct blueprint_room room,
                             struct zero_error *error);

/* Planned and reserved bytes of a tier. */
uint64_t blueprint_bytes(const struct blueprint *blueprint, int tier);

/* Of them, what the host's memory holds. */
uint64_t blueprint_host_bytes(const struct blueprint *blueprint);

struct blueprint_messages blueprint_messages(const struct blueprint *blueprint);

/* Memory of a save in the background: a piece, and staging in whole pieces. 0: saves are not in the background. */
uint64_t blueprint_checkpoint_bytes(const struct config *config);

/* The part of the executor's options that shapes memory: all of it that the blueprint knows. */
struct executor_options blueprint_executor_options(const struct blueprint *blueprint);

#endif
