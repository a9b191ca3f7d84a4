/* The plan of all memory: which buffer is where, made before anything is allocated.
 *
 * What lives from step to step has a place of its own. Gathered parameters and their gradients share one
 * arena: a dry run of the policy itself finds from when to when each is live, and intervals that do not meet
 * may share bytes, so that one giant embedding does not make every slot giant. A buffer's place is a fixed
 * function of region, pass and position. Hazards between buffers that share bytes follow from hazard.h.
 *
 * Pure: it allocates its own tables, nothing else. Owns them. */
#ifndef ZERO_ENGINE_PLAN_PLAN_H
#define ZERO_ENGINE_PLAN_PLAN_H

#include "engine/base/hazard.h"
#include "engine/model/model.h"
#include "engine/model/precision.h"
#include "engine/plan/chunk_layout.h"
#include "kernels/optimizer.h"
#include "offload/tier.h"

enum memory_row {
    MEMORY_PARAMETERS,
    MEMORY_GRADIENTS,
    MEMORY_STATE0,
    MEMORY_STATE1,
    MEMORY_GATHERED,
    MEMORY_STAGING,
    MEMORY_MESSAGES,
    MEMORY_MASTERS,              /* where they are not the parameters */
    MEMORY_OFFLOADED_PARAMETERS, /* on the drive, or in host memory */
    MEMORY_RECORDS,              /* of chunks, on the drive; twice with a shadow */
    MEMORY_COMMITS,              /* with a shadow: a page each for the last two steps that are whole */
    MEMORY_SLOTS,                /* of the staging ring, and one more for access between steps */
    MEMORY_PARAM_STAGING,        /* shards of parameters on their way from the drive */
    MEMORY_CHECKPOINT,           /* of a save in the background: what waits for the drive */
    MEMORY_HOST_GRADIENTS,       /* of a discrete device, where the host updates: reduced shards rest here */
    MEMORY_UPDATE_STAGING,       /* parameters on their way back */
    MEMORY_NORMS,                /* of a discrete device: sums of blocks */
    MEMORY_ROWS
};

enum { NO_BUFFER = UINT32_MAX, UPDATE_STAGINGS = 2 /* one on its way while the next is made */ };

struct plan_buffer {
    uint64_t offset, bytes; /* in its row */
    uint8_t row;            /* enum memory_row */
};

struct plan_options {
    const struct model *model;
    const struct policy *policy;           /* opened; copied for the dry run */
    uint32_t state_count;                  /* of the optimizer */
    enum tier_kind state_tier, param_tier; /* param_tier: of parameters that rest sharded */
    uint64_t chunk_elements_max;           /* struct chunk_layout_options: if one of them is on the drive */
    uint32_t chunk_align_bytes;
    uint32_t slots;
    uint64_t resident_bytes;
    bool shadow;
    bool
        discrete; /* the device's memory is not the host's: what the host reads and writes is in the cpu tier */
    uint64_t staging_bytes;        /* of one staging buffer; policy->stagings of them */
    uint64_t gather_staging_bytes; /* the same of quantised gathers */
    uint64_t message_bytes;
    uint64_t checkpoint_bytes; /* 0: saves are not in the background */
    struct precision precision;
};

struct plan {
    const struct model *model;
    const struct policy *policy;
    struct precision precision;
    struct chunk_layout layout;
    struct plan_buffer *buffer;
    uint32_t buffers, capacity;
    uint32_t *fixed; /* [BUFFER_KINDS][regions or stagings]: a buffer, or NO_BUFFER */
    uint32_t fixed_width;
    uint32_t *
        slot; /* [position in training, recomputation or evaluation][index of the region in the use][parameters,
                       gradient] */
    uint32_t *overlap_first, *overlap; /* struct hazard_overlaps */
    uint64_t row_bytes[MEMORY_ROWS];
    uint64_t row_offset[MEMORY_ROWS]; /* in its tier's extent */
    enum tier_kind row_tier[MEMORY_ROWS];
    uint64_t tier_bytes[TIERS];
    enum tier_kind param_tier;
    bool shadow, discrete;
    uint64_t live, live_most;   /* elements gathered at once: in the dry run at present, and at most */
    uint64_t param_fetch_bytes; /* that the gathers of one step's passes read from the drive */
};

/* A step returns with everything up to date: there is nothing to overlap a refresh in memory with. One from a drive goes
 * on under the next forward. */
static inline bool plan_settles(const struct plan *plan) {
    return !plan->discrete && !plan->tier_bytes[TIER_NVME];
}

zero_status plan_make(struct plan *plan, const struct plan_options *options, struct zero_error *error);
void plan_free(struct plan *plan);

/* The buffer behind a symbolic reference that has a place of its own; NO_BUFFER for one that is planned by
 * position. */
uint32_t plan_fixed(const struct plan *plan, struct buffer_ref ref);
/* The buffer of an interval that begins at `position` of a pass. */
uint32_t plan_slot(const struct plan *plan, bool evaluating, uint32_t position, struct buffer_ref ref);

/* Where in its tier's extent a buffer begins. */
uint64_t plan_place(const struct plan *plan, uint32_t buffer);

/* The state is in the host's memory, or on a drive, and the parameters are not: the host updates for a discrete device. */
bool plan_host_updates(const struct plan *plan);

struct hazard_overlaps plan_overlaps(const struct plan *plan);
const char *memory_row_name(enum memory_row row);

#endif
