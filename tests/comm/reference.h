/* What calls must give: elements of each rank, and their sums, by scalar code that is independent of engine/comm. */
#ifndef ZERO_TESTS_COMM_REFERENCE_H
#define ZERO_TESTS_COMM_REFERENCE_H

#include "engine/comm/comm.h"

/* A hash of a number. */
static inline uint64_t reference_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* An element's bits, and the number that they are. */
uint32_t reference_get(const void *buffer, enum dtype dtype, uint64_t i);
float reference_widen(enum dtype dtype, uint32_t bits);

/* A buffer whose content is no result; the caller frees it. */
void *reference_make(uint64_t count, enum dtype dtype);

/* Elements of `rank`, from number `first` on. */
void reference_fill(void *buffer, enum dtype dtype, uint32_t rank, uint64_t first, uint64_t count);

/* What a reduction gives the member `me`: sums over the members of each node in their order, of the nodes in theirs, and its own
 * elements before, if call->add. */
void reference_sum(void *expected, const struct comm_call *call, const struct comm_group *group,
                   uint64_t first, uint64_t count);

#endif
