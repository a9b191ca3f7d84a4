/* Kernels on several rows of elements: each row has as many blocks of threads as one alone. */
#ifndef ZERO_KERNELS_ROWS_CUH
#define ZERO_KERNELS_ROWS_CUH

#include <stdint.h>

/* This block's row, and the first of the thread's EACH elements there. */
template <uint32_t EACH> struct of_row {
    uint32_t row;
    uint64_t first;
    __device__ explicit of_row(uint64_t count) {
        uint32_t block = blockDim.x * EACH, blocks = (uint32_t)((count + block - 1) / block);
        row = blockIdx.x / blocks;
        first = (uint64_t)(blockIdx.x - row * blocks) * block + threadIdx.x * EACH;
    }
};

#endif
