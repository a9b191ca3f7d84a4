/* Who owns the memory of a plan: rows by unit, and reservations. */
#ifndef ZERO_ENGINE_BLUEPRINT_MEMORY_OWNERS_H
#define ZERO_ENGINE_BLUEPRINT_MEMORY_OWNERS_H

#include "engine/blueprint/blueprint.h"

/* All owners, the largest first; *out_list is the caller's to free, NULL where there is no memory. Returns their number. */
uint32_t memory_owners(const struct blueprint *blueprint, zero_memory_owner **out_list);

#endif
