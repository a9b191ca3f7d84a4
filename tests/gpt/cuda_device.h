/* A GPU for the fake engine: the driver that libcuda.so.1 gives, its first device, one stream. */
#ifndef ZERO_TESTS_GPT_CUDA_DEVICE_H
#define ZERO_TESTS_GPT_CUDA_DEVICE_H

#include "engine/device/cuda/driver.h"
#include "tests/gpt/fake_engine.h"

struct cuda_device {
    struct cuda_driver driver;
    CUdevice device;
    CUstream stream;
};

void cuda_device_open(struct cuda_device *out); /* what fails ends the program */
void cuda_device_close(struct cuda_device *device);

struct fake_device cuda_device_of(struct cuda_device *device); /* borrows it */

#endif
