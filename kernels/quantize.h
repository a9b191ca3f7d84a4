/* Blockwise quantization (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", section 2.1; Wang et
 * al. 2023, "ZeRO++", sections 3.1 and 3.3).
 *
 * QUANTIZE_BLOCK elements share a scale: the largest magnitude of the block, divided by the largest code (127 or 7).
 * Codes are symmetric and rounded to nearest even. Coding loses bits: the error of an element is at most half the
 * scale of its block. A block with an inf or a NaN decodes to NaN throughout. A block whose magnitudes are all below
 * 2^-120 decodes to zero.
 *
 * The code of `count` elements has: one fp32 scale per block; then the elements, one byte each with 8 bits, two per
 * byte with 4 bits (the first in the lower half); then zeros up to a cache line. It needs no alignment. All
 * instruction sets give the same bits. */
#ifndef ZERO_KERNELS_QUANTIZE_H
#define ZERO_KERNELS_QUANTIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/dtype.h"
#include "kernels/isa.h"

enum { QUANTIZE_BLOCK = 256 };

/* The size of the code of `count` elements; `bits` is 4 or 8. */
uint64_t quantize_bytes(uint64_t count, uint32_t bits);

/* `dtype` is fp32, bf16 or fp16. */
void quantize(void *code, const void *source, enum dtype dtype, uint64_t count, uint32_t bits);
void dequantize(void *target, enum dtype dtype, const void *code, uint64_t count, uint32_t bits);

/* Decodes elements [first, first + n) of a code of `count` elements to fp32; `first` is a multiple of QUANTIZE_BLOCK.
 * `add`: adds them to `target`. */
void dequantize_part(float *target, const void *code, uint64_t count, uint32_t bits, uint64_t first,
                     uint64_t n, bool add);

/* The same for fp32, on one instruction set and in the caller's floating-point environment: for tests. */
void quantize_isa(enum kernel_isa isa, void *code, const float *source, uint64_t count, uint32_t bits);
void dequantize_isa(enum kernel_isa isa, float *target, const void *code, uint64_t count, uint32_t bits);

#endif
