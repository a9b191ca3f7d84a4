/* In a build without CUDA: an engine on a GPU cannot be there, so nothing but `problem` is called. */
#include "tools/gpt/backend.h"

static const char *problem(zero_dtype dtype) {
    return "this build has no CUDA: build it where the CUDA toolkit is, or set device.type to \"cpu\"";
}

const struct backend cuda_backend = {.problem = problem};
