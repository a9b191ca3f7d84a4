/* Copies large arrays past the caches: a store then does not read its line first, and drives no other data out of the cache. For bytes
 * that are read much later, as those of a unit that is gathered ahead. */
#pragma once

#include <stdint.h>

#include "kernels/isa.h"

/* Source and target must not overlap, and need no alignment. */
void stream_copy(void *target, const void *source, uint64_t bytes);

/* The same on one instruction set: for tests. */
void stream_copy_isa(enum kernel_isa isa, void *target, const void *source, uint64_t bytes);
