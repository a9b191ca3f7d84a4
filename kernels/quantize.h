/* Blockwise quantization (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", section 2.1; Wang et
 * al. 2023, "ZeRO++", sections 3.1 and 3.3).
 *
 * QUANTIZE_BLOCK elements share a scale: the largest magnitude of the block, divided by the largest code of the format (7, 127 or
 * 448). A code is the element over the scale, rounded to nearest, half to even. Coding loses bits. With integers the error of an
 * element is at most half the scale of its block. With fp8 it is at most 1/16 of the element, or 2^-10 of the scale if that is more.
 * A block with an inf or a NaN decodes to NaN throughout. A block whose magnitudes are all below 2^-119 decodes to zero.
 *
 * fp8 is E4M3: 4 bits of exponent (bias 7), 3 of mantissa, no infinity, NaN only as 0x7f and 0xff, the largest number 448 (Open
 * Compute Project, "OCP 8-bit Floating Point Specification (OFP8)", revision 1.0; Micikevicius et al. 2022, "FP8 Formats for Deep
 * Learning", arXiv 2209.05433, section 3).
 *
 * The code of `count` elements has: one fp32 scale per block; then the elements, one byte each with 8 bits, two per
 * byte with 4 bits (the first in the lower half); then zeros up to a cache line. It needs no alignment. All
 * instruction sets give the same bits. */
#pragma once

#include "engine/base/numbers/dtype.h"
#include "kernels/isa.h"

enum { QUANTIZE_BLOCK = 256 };

enum code_format { CODE_NONE, CODE_INT4, CODE_INT8, CODE_FP8_E4M3, CODE_FORMATS };

const char *code_format_name(enum code_format format); /* "int8" */

/* The size of the code of `count` elements. */
uint64_t quantize_bytes(uint64_t count, enum code_format format);

/* `dtype` is fp32, bf16 or fp16. */
void quantize(void *code, const void *source, enum dtype dtype, uint64_t count, enum code_format format);
void dequantize(void *target, enum dtype dtype, const void *code, uint64_t count, enum code_format format);

/* Decodes elements [first, first + n) of a code of `count` elements to fp32; `first` is a multiple of QUANTIZE_BLOCK.
 * `add`: adds them to `target`. */
void dequantize_part(float *target, const void *code, uint64_t count, enum code_format format, uint64_t first,
                     uint64_t n, bool add);

/* The same for fp32, on one instruction set and in the caller's floating-point environment: for tests. */
void quantize_isa(enum kernel_isa isa, void *code, const float *source, uint64_t count,
                  enum code_format format);
void dequantize_isa(enum kernel_isa isa, float *target, const void *code, uint64_t count,
                    enum code_format format);
