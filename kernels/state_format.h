/* Formats that keep optimizer state in fewer bytes than fp32.
 *
 * Split masters, exact. If the weight that computes is the master rounded to bf16 (half away from zero), the master
 * is that weight plus 16 bits: low = (int16)(u - (w << 16)). Weight and low restore the master, for every number and
 * for the one NaN that optimizers produce. This takes 2 bytes per parameter in place of 4.
 *
 * bf16 moments, inexact. A moment is rounded up or down at random (stochastic rounding). The probability of each of
 * the two bf16 neighbors is the distance to the other neighbor. So a change that is too small for a bf16 moment still
 * moves the moment now and then. The random bits are a function of key and element only: they are the same at every
 * cut, stage, rank count and instruction set. */
#ifndef ZERO_KERNELS_STATE_FORMAT_H
#define ZERO_KERNELS_STATE_FORMAT_H

#include <stdint.h>

#include "kernels/isa.h"

/* Join: masters from bf16 weights and their lower halves. Split: the reverse. No array may overlap another. */
void master_join_isa(enum kernel_isa isa, float *master, const uint16_t *weight, const uint16_t *low,
                     uint64_t count);
void master_split_isa(enum kernel_isa isa, uint16_t *weight, uint16_t *low, const float *master,
                      uint64_t count);

/* fp32 -> bf16 with stochastic rounding; element i uses the random bits of index `first` + i. inf stays inf, NaN
 * stays NaN, and a finite number becomes inf only if bf16 cannot hold it. */
void bf16_stochastic_isa(enum kernel_isa isa, uint16_t *target, const float *source, uint64_t count,
                         uint64_t key, uint64_t first);

/* The same on the best instruction set. */
void master_join(float *master, const uint16_t *weight, const uint16_t *low, uint64_t count);
void master_split(uint16_t *weight, uint16_t *low, const float *master, uint64_t count);
void bf16_stochastic(uint16_t *target, const float *source, uint64_t count, uint64_t key, uint64_t first);

#endif
