/* How optimizer state may be kept in fewer bytes than fp32.
 *
 * Split masters, exact: where the weight that computes is the master rounded to bf16, half away from zero, the
 * master is that weight and 16 bits more, low = (int16)(u - (w << 16)). Together they are the master again, for
 * every number and the one NaN that optimizers produce. 2 bytes per parameter in place of 4.
 *
 * bf16 moments, inexact: rounded up or down with a probability that is the distance to the other neighbour
 * (stochastic rounding), so that what is too small to move a bf16 moment moves it now and then. The random bits
 * are a function of key and element alone: the same at every cut, stage, rank count and instruction set. */
#ifndef ZERO_KERNELS_STATE_FORMAT_H
#define ZERO_KERNELS_STATE_FORMAT_H

#include <stdint.h>

#include "kernels/isa.h"

/* Masters from weights (bf16) and their lower halves, and back. No array overlaps another. */
void master_join_isa(enum kernel_isa isa, float *master, const uint16_t *weight, const uint16_t *low,
                     uint64_t count);
void master_split_isa(enum kernel_isa isa, uint16_t *weight, uint16_t *low, const float *master,
                      uint64_t count);

/* fp32 -> bf16, stochastically; element i uses the random bits of `first` + i. inf stays inf, NaN stays NaN, and no
 * finite number becomes inf unless bf16 cannot hold it. */
void bf16_stochastic_isa(enum kernel_isa isa, uint16_t *target, const float *source, uint64_t count,
                         uint64_t key, uint64_t first);

/* The same on the best instruction set. */
void master_join(float *master, const uint16_t *weight, const uint16_t *low, uint64_t count);
void master_split(uint16_t *weight, uint16_t *low, const float *master, uint64_t count);
void bf16_stochastic(uint16_t *target, const float *source, uint64_t count, uint64_t key, uint64_t first);

#endif
