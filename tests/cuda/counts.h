/* The counts of the stand-in driver (fake_cuda.h), if that is the driver. */
#ifndef ZERO_TESTS_CUDA_COUNTS_H
#define ZERO_TESTS_CUDA_COUNTS_H

#include <stdbool.h>

#include "tests/cuda/fake_cuda.h"

bool counts_read(struct fake_cuda_counts *out); /* false, and zeros, with a real driver */

bool counts_read_nccl(struct fake_nccl_counts *out); /* the same of NCCL */

#endif
