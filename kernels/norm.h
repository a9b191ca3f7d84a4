/* Sums of squares in one fixed order of additions, so that a norm has the same bits at every stage and tier. */
#pragma once

#include "engine/base/numbers/dtype.h"
#include "kernels/isa.h"

/* The sum of squares of one block, on the best instruction set. `count` is at most NORM_BLOCK_ELEMENTS; `dtype` is
 * fp32, bf16 or fp16. */
double norm_block(const void *elements, enum dtype dtype, uint64_t count);
/* For tests: the same on one instruction set. */
double norm_block_isa(enum kernel_isa isa, const void *elements, enum dtype dtype, uint64_t count);

/* The sum over the blocks of an array, in order, on the calling thread. `sum` is that of the blocks before: an array in parts of
 * whole blocks has the bits of the array. */
double norm_more(double sum, const void *elements, enum dtype dtype, uint64_t count);
