/* The row of a build that found no CUDA toolkit. */
#include "engine/device/implementations.h"

static zero_status open_cuda(const struct device_options *options, struct device **out_device,
                             struct zero_error *error) {
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "device cuda: this build has no CUDA: build zero where the CUDA toolkit is (CUDA_HOME, "
                     "or nvcc on PATH), or set device.type to \"cpu\"");
}

const struct device_ops device_cuda = {.name = "cuda", .open = open_cuda};
