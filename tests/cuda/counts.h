/* What the stand-in driver counted (fake_cuda.h), where it is the driver. */
#ifndef ZERO_TESTS_CUDA_COUNTS_H
#define ZERO_TESTS_CUDA_COUNTS_H

#include <stdbool.h>

#include "tests/cuda/fake_cuda.h"

bool counts_read(struct fake_cuda_counts *out); /* false, and zeros: it is a real one */

#endif
