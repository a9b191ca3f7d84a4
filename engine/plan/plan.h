/* The plan of all memory. It says where each buffer is. It is made before anything is allocated.
 *
 * Buffers that live from step to step have a place of their own. Gathered parameters and their gradients share one
 * arena: a dry run of the policy finds the interval in which each buffer is live. Buffers whose intervals do not
 * overlap may share bytes, so one giant embedding does not make every place giant. The place of a buffer is a fixed
 * function of region, pass and position. hazard.h computes the hazards between buffers that share bytes.
 *
 * In free order within a bound (stages/room.c) any buffers may be live together, and no dry run knows which. So that each keeps its
 * address, they are parts of an address space, and only parts in use take memory, in the device's pages, at most what has the policy's room at
 * once. Where a device has no such address space, or its pages would take no less, all buffers have memory.
 *
 * Pure: it allocates only its own tables, and owns them. */
#pragma once

#include "engine/base/hazard.h"
#include "engine/base/integer.h"
#include "engine/config/terms.h"
#include "engine/device/device.h"
#include "engine/model/model.h"
#include "engine/plan/chunk_layout.h"
#include "kernels/optimizer.h"
#include "offload/tier.h"

enum memory_row {
#define MEMORY_ROW(row, tier, rests, name) MEMORY_##row,
#include "engine/plan/memory_rows.def"
    MEMORY_ROWS
};

enum {
    NO_BUFFER = UINT32_MAX,
    TENSOR_CUTS = 2,    /* a device may read one and write the other */
    UPDATE_STAGINGS = 2 /* a copy of one overlaps the update of the other */
};

/* The buffers of a region whose place depends on the position: parameters, gradient, gradient of every other micro-batch. */
enum { PLAN_SLOT_KINDS = 3 };
static inline uint32_t plan_slot_kind(uint32_t buffer_kind) {
    return buffer_kind == BUFFER_GRAD_FULL ? 1 : buffer_kind == BUFFER_GRAD_SECOND ? 2 : 0;
}
static inline bool plan_has_slots(uint32_t buffer_kind) {
    return buffer_kind == BUFFER_PARAM_FULL || plan_slot_kind(buffer_kind);
}

struct plan_buffer {
    uint64_t offset, bytes; /* offset in its row */
    uint8_t row;            /* enum memory_row */
    bool rests;             /* its content is needed from step to step */
};

struct plan_options {
    const struct terms *terms;
    const struct model *model;
    const struct policy *policy;   /* must be open; the dry run works on a copy */
    uint32_t state_count;          /* states per element, the average included (struct precision), */
    uint32_t states[2];            /* the number of these that each optimizer uses: by region_other */
    uint64_t matrix_scratch_bytes; /* of the largest matrix; there are policy->directions */
    uint64_t staging_bytes;        /* of one staging buffer; there are policy->stagings */
    uint64_t round_staging_bytes;  /* in host memory, for each of these: the part that the host adds */
    uint64_t gather_staging_bytes; /* the same for coded gathers: policy->gather_stagings */
    uint64_t lent_staging_bytes;   /* and for gathers to lent regions: policy->lent_stagings */
    uint64_t message_bytes;
};

struct plan {
    const struct terms *terms;
    const struct model *model;
    const struct policy *policy;
    struct chunk_layout layout;
    struct plan_buffer *buffer;
    uint32_t buffers, capacity;
    uint32_t *fixed; /* [BUFFER_KINDS][fixed_width]: index of a buffer, or NO_BUFFER */
    uint32_t fixed_width;
    /* Index of a buffer, or NO_BUFFER, by position (training, recomputation, evaluation), index of the region in the
     * use, and kind: [position][region][plan_slot_kind]. */
    uint32_t *slot;
    struct hazard_span *span; /* per buffer: its parts of MEMORY_GATHERED, */
    uint32_t parts;           /* which is cut where one of its buffers begins or ends */
    uint64_t *turn_bytes;     /* per region: scratch, while buffers that take turns are planned; and so is */
    uint32_t *turn;           /* which set of memory its unit takes */
    uint64_t row_bytes[MEMORY_ROWS];
    uint64_t row_offset[MEMORY_ROWS]; /* offset in the extent of its tier */
    enum tier_kind row_tier[MEMORY_ROWS];
    uint64_t tier_bytes[TIERS]; /* MEMORY_GATHERED included, wherever it is */
    /* Address space of MEMORY_GATHERED, apart from the tier's extent: each of its buffers is a part of it (DEVICE_PART_BYTES), and not
     * more than the row's bytes are in use at once. 0: its buffers are in the extent. */
    uint64_t space_bytes;
    uint64_t lasting_bytes;     /* part of MEMORY_GATHERED: what one address per gathered buffer costs */
    uint64_t live, live_most;   /* elements gathered at once: now in the dry run, and the maximum */
    uint64_t param_fetch_bytes; /* bytes that the gathers of one step's passes read from the drive */
    uint64_t sum_fetch_bytes, grad_store_bytes; /* bytes that its reductions read from the drive, and write */
};

/* The bytes that one step reads from the drive, and those that it writes. */
static inline uint64_t plan_read_bytes(const struct plan *plan) {
    return plan->layout.step_bytes + plan->layout.again_bytes + plan->layout.grad_bytes +
           plan->param_fetch_bytes + plan->sum_fetch_bytes;
}

static inline uint64_t plan_write_bytes(const struct plan *plan) {
    return plan->layout.step_bytes + plan->grad_store_bytes;
}

/* The additional bytes of a step whose updates are repeated (stages/policy.h). */
static inline uint64_t plan_repeat_read_bytes(const struct plan *plan) {
    const struct chunk_layout *l = &plan->layout;
    return plan->policy->repeats ? l->record_row_bytes + l->again_record_bytes + l->grad_bytes : 0;
}

static inline uint64_t plan_repeat_write_bytes(const struct plan *plan) {
    return plan->policy->repeats ? plan->layout.step_bytes : 0;
}

/* True if a step ends its refresh before it returns: a refresh in memory has nothing to overlap with. A refresh from
 * a drive, or with a discrete device, continues under the next forward. */
static inline bool plan_settles(const struct plan *plan) {
    return !plan->terms->discrete && !plan->tier_bytes[TIER_NVME];
}

/* The bytes of a gathered region, and of its whole gradient, where they take memory by the page: struct region. */
static inline uint64_t plan_room_bytes(uint64_t elements, enum dtype dtype) {
    return round_up(elements * dtype_bytes(dtype), DEVICE_PAGE_BYTES);
}

zero_status plan_make(struct plan *plan, const struct plan_options *options, struct zero_error *error);
void plan_free(struct plan *plan);

/* The buffer of a reference that has a place of its own. NO_BUFFER: the reference is planned by position. */
uint32_t plan_fixed(const struct plan *plan, struct buffer_ref ref);
/* The buffer of the interval that begins at `position` of a pass; NO_BUFFER: none is planned. */
uint32_t plan_slot(const struct plan *plan, bool evaluating, uint32_t position, struct buffer_ref ref);

/* The buffer of the first interval that a pass of training has of `ref`, or its own place. All intervals of a reference
 * have the same offset. NO_BUFFER: none is planned. */
uint32_t plan_any(const struct plan *plan, struct buffer_ref ref);

/* The bytes of a tier that are in its extent. */
uint64_t plan_extent_bytes(const struct plan *plan, enum tier_kind tier);
/* The buffer is a part of the address space, at its offset there. */
bool plan_in_space(const struct plan *plan, uint32_t buffer);

/* The offset of a buffer in the extent of its tier. */
uint64_t plan_place(const struct plan *plan, uint32_t buffer);

/* The bytes of a tier's extent that are needed from step to step, as ranges in ascending order that do not touch each other. `out` has
 * room for plan->buffers of them. Returns their number. */
struct plan_range {
    uint64_t offset, bytes;
};
uint32_t plan_rest(const struct plan *plan, enum tier_kind tier, struct plan_range *out);

/* True if the host updates for a discrete device: the state is in the host's memory or on a drive, and the parameters
 * are on the device. The device updates the state that it has. */
static inline bool plan_host_updates(const struct plan *plan) {
    return plan->terms->discrete && plan->row_tier[MEMORY_STATE0] != TIER_DEVICE;
}
/* True if the host updates state in memory chunk by chunk, because its results pass through staging. Parameters in host
 * memory need no staging, but directions do. */
static inline bool plan_updates_by_chunk(const struct plan *plan) {
    return plan_host_updates(plan) && (plan->terms->param_tier == TIER_DEVICE || plan->policy->directions);
}

const char *memory_row_name(enum memory_row row);
