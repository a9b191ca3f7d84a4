/* Newton-Schulz: brings a matrix near to the orthogonal one that is next to it, as torch.optim.Muon does:
 *   X = M / max(|M|, eps), of rows > columns its transpose;  steps times: A = X X^T, X = a X + (b A + c A A) X.
 *
 * An element of a product is one chain of fused multiply-adds in fp32, in ascending order of the inner index. So the bits depend neither on
 * the number of threads, nor on the instruction set, nor on how the loops are cut. With bf16, the matrix, its norm and
 * each product are rounded to bf16, as PyTorch keeps them.
 *
 * Threads: a pure function; one call uses `threads` OpenMP threads. */
#pragma once

#include <stdint.h>

#include "kernels/isa.h"

struct matrix_step;

struct orthogonalize_options {
    uint32_t steps;
    float eps, scale; /* scale: of the result */
    bool bf16;
};

/* The floats of scratch memory. It begins on a cache line. */
uint64_t orthogonalize_scratch(uint64_t rows, uint64_t columns);

/* In place, row by row. */
void orthogonalize(float *matrix, uint64_t rows, uint64_t columns,
                   const struct orthogonalize_options *options, float *scratch, uint32_t threads);
void orthogonalize_isa(enum kernel_isa isa, float *matrix, uint64_t rows, uint64_t columns,
                       const struct orthogonalize_options *options, float *scratch, uint32_t threads);

/* Its steps, one after another from 0, so that a device can do them (matrix_step.h). False: there are no more. */
bool orthogonalize_step(uint32_t at, float *matrix, uint64_t rows, uint64_t columns,
                        const struct orthogonalize_options *options, float *scratch, struct matrix_step *out);
void matrix_step_run(const struct matrix_step *step, uint32_t threads);

/* The floating-point operations of one step of the iteration. */
double orthogonalize_flops(uint64_t rows, uint64_t columns);
