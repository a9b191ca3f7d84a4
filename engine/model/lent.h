/* Regions that rest in the host program's memory: its spans take the place of the flat buffer. The region keeps its layout: element
 * `at` of the region is in one of the pieces, or in a gap between parameters, which counts as zero.
 *
 * A model lists the pieces of all regions that can be lent; struct region (stages/policy.h) says which ones are. Element types are
 * the caller's. */
#pragma once

#include "engine/model/model.h"

enum lent_array { LENT_PARAMS, LENT_GRADS };

struct lent_piece {
    uint64_t first, count; /* elements of the region */
    void *array[LENT_GRADS + 1];
};

/* Lists the pieces of each region whose parameters all have spans. A parameter that has a slot too, or a tied one with a slot alone,
 * needs one address: there must be one span. Gradients can be lent where the uses of a tied parameter add up in one array, and where no
 * gradients of another unit are in it. ZERO_E_ARGUMENT: spans overlap. */
zero_status lent_list(struct model *model, struct zero_error *error);

/* The gradient of the parameter at offset `at` of a region whose host gives them. NULL: zeros. */
void lent_give(struct model_region *region, uint64_t at, const void *gradient);

/* The address of element `at`, of `bytes`; NULL: zeros, as in a gap. *out_count: elements from there to the end of the piece or the gap. */
void *lent_at(const struct model_region *region, enum lent_array array, uint64_t bytes, uint64_t at,
              uint64_t *out_count);

/* Copies of elements [first, first + count): from the pieces, with zeros for gaps; and back to them. */
void lent_read(const struct model_region *region, enum lent_array array, uint64_t bytes, uint64_t first,
               uint64_t count, void *out);
void lent_write(const struct model_region *region, enum lent_array array, uint64_t bytes, uint64_t first,
                uint64_t count, const void *in);
void lent_clear(const struct model_region *region, enum lent_array array, uint64_t bytes);
