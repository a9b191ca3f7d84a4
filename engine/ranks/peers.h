/* The peers: what the other model ranks declared (zero_runtime.model_size). At commit all ranks learn it, and check that the pieces
 * make one model: a tensor has each of its elements on one model rank, or copies that are declared as such. Of copies, the one on
 * the first model rank counts.
 *
 * Where the model is whole, nothing is exchanged: the rank is its own only peer. */
#pragma once

#include "engine/ranks/declared.h"
#include "engine/ranks/ranks.h"

/* A piece of a tensor on a model rank. */
struct peer_piece {
    const char *tensor;
    const struct declared_param *param;
    uint32_t model; /* the model rank */
    /* In the first piece with these elements: the number of model ranks that have them. In the other pieces: 0. */
    uint32_t copies;
};

struct peers {
    struct declared **rank; /* by model rank; owned */
    uint32_t ranks;
    struct peer_piece *piece; /* of all model ranks, by tensor, element and model rank; owned */
    uint32_t pieces;
};

/* Sets `copies` and `elsewhere` of the model's parameters, and what the groups found on other model ranks; checks all pieces. All
 * ranks find the same failure. `alike`: a hash of what all model ranks must give alike. Before groups_check and model_lay_out.
 * Collective. */
zero_status peers_meet(struct peers *peers, struct ranks *ranks, struct model *model,
                       struct param_groups *groups, uint64_t alike, struct zero_error *error);

/* The same where the other ranks exist only in a plan. What is replicated counts on model rank 0. */
void peers_plan(const struct ranks *ranks, struct model *model, struct param_groups *groups);

void peers_close(struct peers *peers);

/* The first piece of a tensor. NULL: no model rank has a tensor of this name. */
const struct peer_piece *peers_find(const struct peers *peers, const char *tensor);

/* The name of unit `unit` of a model rank. */
const char *peers_unit(const struct peers *peers, uint32_t model, uint32_t unit);

/* The most parameters that a model rank has declared. */
uint32_t peers_params(const struct peers *peers);
