/* Directions of whole matrices. */
#ifndef ZERO_STAGES_MATRIX_H
#define ZERO_STAGES_MATRIX_H

#include "stages/policy.h"

/* Makes the directions of a region. Returns the buffer that has them. Taking an update back needs no directions: it only
 * restores the states. */
struct buffer_ref matrix_direct(struct policy *policy, uint16_t region, enum outcome outcome,
                                struct operation_list *out);

#endif
