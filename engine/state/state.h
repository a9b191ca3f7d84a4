/* The state at rest: parameters, masters and optimizer states wherever they are, and the work on them between steps: get, put,
 * fill, hash, check, save, load, recover.
 *
 * Threads: the host's thread, with nothing in flight. A save in the background reads through a view of its own. */
#pragma once

#include "engine/blueprint/blueprint.h"
#include "engine/checkpoint/manifest.h"
#include "engine/ranks/peers.h"
#include "engine/ranks/rank_agreement.h"
#include "engine/run/run.h"
#include "engine/state/stored_state.h"
#include "engine/state/training.h"

/* Bytes of the host's that the next save keeps. */
struct program {
    const void *data;
    uint64_t bytes;
};

struct state {
    struct running *run;
    struct ranks *ranks;
    const struct blueprint *blueprint;
    const struct model *model;
    const struct peers *peers;
    struct training *training;
    uint8_t *piece;                 /* PIECE_BYTES of the plan, through which the host's calls move state */
    struct stored_view host;        /* the host's thread reads and writes through it */
    struct stored_view background;  /* a save in the background reads through it */
    bool filled;                    /* the weights have values */
    bool averaged;                  /* the weights are the averages (state_exchange_averages) */
    bool unseen;                    /* zero_param_put_owned wrote values that other ranks do not know of */
    struct manifest_entries notes;  /* the host's, for checkpoints */
    struct program program[2];      /* for all, and of this rank */
    struct background_save *saving; /* NULL: none */
    struct zero_error saved;        /* how the last save ended */
    bool warned_of_left_over;       /* a save has warned of a left-over that it could not remove */
    struct shadow {                 /* with nvme.shadow */
        zero_shadow kind;           /* at commit: the shadow that an earlier run left, */
        uint64_t steps;             /* its step, */
        struct manifest_entries notes;
        char text[400]; /* and the sentence that says so */
        bool guarded;   /* this run's files still hold that shadow */
        bool discarded; /* the host has discarded it */
    } shadow;
};

/* Call it after the executor is open, and whenever the plan's row of messages, which holds this room's memory, has
 * moved. */
void state_place(struct state *state, uint8_t *messages);

/* The region has averaged weights. */
static inline bool state_averages(const struct state *state, uint32_t region) {
    return state->blueprint->terms.precision.average && !state->blueprint->regions[region].frozen;
}

/* Elements [first, first + count) of a region, as stored_state.h has them. A failure is the engine's: sticky. */
zero_status state_read(struct state *state, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                       float *out);
zero_status state_write(struct state *state, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                        const float *in);
/* The averaged weights of these elements, if the run has any, become the weights, which were written just now. Passes through
 * state->piece: at most PIECE_BYTES of fp32. */
zero_status state_begin_average(struct state *state, uint32_t region, uint64_t first, uint64_t count);
/* The averaged weights become the weights that passes compute with; or the weights come back. Collective. */
zero_status state_exchange_averages(struct state *state, bool averages);
/* Ends stored_sweep of the host's view. Returns `status`, if it is a failure. */
zero_status state_end_sweep(struct state *state, zero_status status);

/* The hash of all weights, a sum over elements: 32 hexadecimal digits and a final zero. Collective, after a settle. */
zero_status weights_hash(struct state *state, char out[33]);

/* Adds the words of the elements of a parameter that this rank counts. The sums of all data ranks make two hashes of its weights. */
zero_status weights_hash_param(struct state *state, const struct model_param *param, uint64_t sum[2]);

/* For debug.compare_every, after a step that was applied: waits for the refresh, hashes everything that is replicated (parameters,
 * and by the stage the reduced gradients, states and masters), and compares the ranks that store the same part. ZERO_E_DIVERGED, on
 * all ranks: names the parameter, its unit and the rank that differs. Collective. */
zero_status replica_check(struct state *state);
