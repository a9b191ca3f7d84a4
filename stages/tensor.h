/* Norms of whole tensors. */
#ifndef ZERO_STAGES_TENSOR_H
#define ZERO_STAGES_TENSOR_H

#include "stages/policy.h"

/* The first half of an update that needs norms of whole tensors. Taking an update back needs no norms: it only restores
 * the states. */
void tensor_measure(struct policy *policy, uint16_t region, enum outcome outcome, struct operation_list *out);

#endif
