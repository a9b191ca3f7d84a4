/* Blockwise quantisation (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", section 2.1; Wang et
 * al. 2023, "ZeRO++", sections 3.1 and 3.3): QUANTIZE_BLOCK elements share a scale, their largest magnitude over the
 * largest code, 127 or 7. Symmetric, rounded to nearest even; lossy: an element is off by at most half its block's
 * scale. A block with an inf or a NaN comes back as NaN throughout; one below 2^-120 as zero.
 *
 * The code of `count` elements: a scale per block, fp32, then the elements, a byte each at 8 bits, two in a byte at 4
 * (the first in the lower half); then zeros, to a cache line. Nothing need be aligned. The same bits on every
 * instruction set. */
#ifndef ZERO_KERNELS_QUANTIZE_H
#define ZERO_KERNELS_QUANTIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/dtype.h"
#include "kernels/isa.h"

enum { QUANTIZE_BLOCK = 256 };

/* Of the code; bits: 4 or 8. */
uint64_t quantize_bytes(uint64_t count, uint32_t bits);

/* dtype: fp32, bf16, fp16. */
void quantize(void *code, const void *source, enum dtype dtype, uint64_t count, uint32_t bits);
void dequantize(void *target, enum dtype dtype, const void *code, uint64_t count, uint32_t bits);

/* Elements [first, first + n) of a code of `count`, as fp32; first: a multiple of QUANTIZE_BLOCK. `add`: onto what
 * `target` holds. */
void dequantize_part(float *target, const void *code, uint64_t count, uint32_t bits, uint64_t first,
                     uint64_t n, bool add);

/* The same on one instruction set, in the caller's floating-point environment, of fp32: for tests. */
void quantize_isa(enum kernel_isa isa, void *code, const float *source, uint64_t count, uint32_t bits);
void dequantize_isa(enum kernel_isa isa, float *target, const void *code, uint64_t count, uint32_t bits);

#endif
