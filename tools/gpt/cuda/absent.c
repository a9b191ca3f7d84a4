/* Replaces the backend in a build without CUDA. No engine is on a GPU then, so only `problem` is called. */
#include "tools/gpt/backend.h"

static const char *problem(zero_dtype dtype) {
    return "this build has no CUDA: build it where the CUDA toolkit is, or set device.type to \"cpu\"";
}

const struct backend cuda_backend = {.problem = problem};
