/* Formats that keep optimizer state in fewer bytes than fp32.
 *
 * Split masters, exact. The weight w that computes is the master u rounded to bf16 (to nearest, half to even), and the
 * master is that weight plus 16 bits: low = (int16)(u - (w << 16)). This takes 2 bytes per parameter in place of 4. An
 * even weight has 65,537 masters, one too many: of them, the halfway number of the larger magnitude is not kept
 * (master_keep). Weight and low restore every other number, and the one NaN that optimizers produce. Masters in fp32
 * beside bf16 weights keep to the same numbers, so that both formats train alike.
 *
 * bf16 moments, inexact. A moment is rounded up or down at random (stochastic rounding). The probability of each of
 * the two bf16 neighbors is the distance to the other neighbor. So a change that is too small for a bf16 moment still
 * moves the moment now and then. The random bits are a function of key and element only: they are the same at every
 * cut, stage, rank count and instruction set. */
#pragma once

#include <stdint.h>

#include "kernels/isa.h"

/* Moves each master that cannot be split by one unit of fp32 towards zero: one in 131,072. */
void master_keep_isa(enum kernel_isa isa, float *master, uint64_t count);

/* Join: masters from bf16 weights and their lower halves. Split: the reverse, which also does what master_keep does. No array may overlap another. */
void master_join_isa(enum kernel_isa isa, float *master, const uint16_t *weight, const uint16_t *low,
                     uint64_t count);
void master_split_isa(enum kernel_isa isa, uint16_t *weight, uint16_t *low, const float *master,
                      uint64_t count);

/* Split of any numbers, without a loss: a number halfway between two bf16 numbers rounds to that of the larger magnitude, so that
 * each number has a weight and a low of its own, and master_join restores it. For masters the same as
 * master_split. `low` NULL: the weights alone. */
void master_divide(uint16_t *weight, uint16_t *low, const float *any, uint64_t count);

/* fp32 -> bf16 with stochastic rounding; element i uses the random bits of index `first` + i. inf stays inf, NaN
 * stays NaN, and a finite number becomes inf only if bf16 cannot hold it. */
void bf16_stochastic_isa(enum kernel_isa isa, uint16_t *target, const float *source, uint64_t count,
                         uint64_t key, uint64_t first);

/* The same on the best instruction set. */
void master_keep(float *master, uint64_t count);
void master_join(float *master, const uint16_t *weight, const uint16_t *low, uint64_t count);
void master_split(uint16_t *weight, uint16_t *low, const float *master, uint64_t count);
