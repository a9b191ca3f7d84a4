/* The first part of the update of an optimizer of scope TENSOR: new states, and the norms of weights and direction.
 *
 * A norm is a double sum over blocks, as a gradient's (norm.h). The blocks are those of NORM_BLOCK_ELEMENTS from the beginning of a
 * shard on. A block that begins or ends inside the tensor counts with what it has of the tensor. So the bits depend neither on the
 * number of threads, nor on how a shard is cut into calls: a block that calls cut waits for its other elements.
 *
 * Threads: a pure function; one call uses `threads` OpenMP threads. */
#pragma once

#include "engine/base/limits.h"
#include "kernels/optimizer.h"

/* What calls have of a block that ends in a later one. It begins with a count of 0. */
struct tensor_cut {
    uint64_t count;
    float weights[NORM_BLOCK_ELEMENTS], direction[NORM_BLOCK_ELEMENTS];
};

/* Elements of one tensor, `first` elements behind the beginning of the shard. `ends`: the shard has no more of the tensor; else the next
 * call has them. The weights (args->master, or args->out with args->master_low) stay as they are. Adds to *norms. */
void tensor_norms_measure(const struct optimizer *optimizer, const struct optimizer_args *args,
                          uint64_t first, bool ends, struct tensor_cut *cut, struct tensor_norms *norms);

/* For a device: how many blocks so many elements are in, the first `skip` elements behind the beginning of a block. */
static inline uint64_t tensor_norms_blocks(uint64_t skip, uint64_t count) {
    return (skip + count + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS;
}

/* The same as tensor_norms_measure, but for the last sum: puts the norms of the blocks in `sums`, those of the weights, then those of the
 * directions. `begins`: has `held` elements of the first block, which calls before had; or NULL. `ends`: takes the elements of the last
 * block, which a later call continues, behind `held` if it is `begins`; or NULL. They are the same only if there is no other block. Leaves
 * their counts. */
void tensor_norms_measure_blocks(const struct optimizer *optimizer, const struct optimizer_args *args,
                                 uint64_t skip, const struct tensor_cut *begins, uint64_t held,
                                 struct tensor_cut *ends, double *sums);

/* Adds parts of a tensor in their order. `step`: from one part to the next. */
struct tensor_norms tensor_norms_total(const struct tensor_norms *part, uint32_t parts, uint64_t step);
