/* The terms that decide a rank's operations and memory, beside the model. A configuration or a simulation gives them. The blueprint
 * has a copy, in which it changes the room that budgets leave; the plan, the layout of chunks and the executor use that copy. */
#pragma once

#include "engine/base/placement.h"
#include "engine/base/precision.h"
#include "kernels/quantize.h"
#include "offload/tier_kind.h"
#include "stages/choices.h"

struct config;
struct stage;

/* The host's calls move state in pieces of this size. */
enum { PIECE_BYTES = 256 * 1024 };

struct terms {
    const struct stage *stage;
    uint32_t mesh[AXES]; /* ranks on each axis */
    uint32_t node_ranks; /* adjacent data ranks of a node; 0: all */
    enum accumulation accumulation;
    uint32_t micro_steps;
    uint64_t depth, backward_depth; /* gathers ahead of use, and in the backward; default: the same */
    bool by_program, vertical, update_in_backward, repeats; /* struct policy; so are the next three */
    double waiting_share;
    uint64_t live_max, ahead_max; /* elements; UINT64_MAX: no bound */
    struct precision precision;
    /* The format of codes for gradients that a reduction scatters (kernels/quantize.h). CODE_NONE: elements are sent.
     * region_code has the format of gathers. */
    enum code_format gradient_code;
    /* Multiplies gradients before they are sent; the product is rounded to the message type. 0: no multiplication. */
    float gradient_factor;
    bool native_reduction;
    /* Set by the caller: the host cannot touch the device's memory. All data that the host reads and writes is in the cpu
     * tier. */
    bool discrete;
    /* Set by the caller: the page of the device's address space (device.h). 0: it has none. */
    uint32_t page_bytes;
    enum tier_kind state_tier, param_tier; /* param_tier: for parameters that rest sharded */
    /* For reduced shards. TIER_DEVICE: where they are updated. TIER_NVME: on the drive, if the state is there, too. */
    enum tier_kind grad_tier;
    uint64_t chunk_elements_max; /* 0: only the default bound, CHUNK_BYTES_DEFAULT */
    /* The page of a drive's requests. Chunks, records and slots are multiples of it. 0: CHUNK_ALIGN_BYTES. */
    uint32_t chunk_align_bytes;
    uint64_t slots; /* of the staging ring; 0: SLOTS_DEFAULT */
    /* The part on the device while other state is elsewhere: at most this share of all state (0 to 1), and at most this number
     * of bytes of state and of the gradients that then also rest on the device. */
    double device_share;
    uint64_t device_bytes;
    /* Of other state that may stay in memory, from the first region to be refreshed on; and of gradients, whole shards. */
    uint64_t resident_bytes, grad_resident_bytes;
    /* Pieces of parameters and gradients of a drive, and rounds of collectives that need scratch memory, have at most so many bytes of
     * all shares. 0: PIECE_BYTES_DEFAULT. */
    uint64_t piece_bytes;
    bool shadow;
    uint64_t checkpoint_bytes; /* 0: no saves in the background */
};

/* Whether each of them is on the drive. */
static inline bool terms_state_staged(const struct terms *t) { return t->state_tier == TIER_NVME; }
static inline bool terms_params_staged(const struct terms *t) { return t->param_tier == TIER_NVME; }
static inline bool terms_grads_staged(const struct terms *t) {
    return terms_state_staged(t) && t->grad_tier == TIER_NVME;
}

/* The last part of config_resolve: fills what of config->terms no key and no earlier part has set. */
void config_resolve_terms(struct config *config, uint32_t ranks);
