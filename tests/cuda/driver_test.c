/* GPUs and drivers that this build has no kernels for are refused when the device is opened, in one sentence. Of the
 * stand-in alone. */
#include <stdlib.h>

#include "engine/device/device.h"
#include "tests/check.h"

static void refused(const char *variable, const char *value, zero_status status, const char *sentence) {
    struct device *device = NULL;
    struct zero_error error;
    error_clear(&error);
    setenv(variable, value, 1);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &device, &error), status);
    unsetenv(variable);
    CHECK_STRING(error.message, sentence);
    CHECK(!device);
}

int main(void) {
    struct device *device = NULL;
    struct zero_error error;
    error_clear(&error);
    refused("FAKE_CUDA_VERSION", "12090", ZERO_E_CONFIG,
            "device cuda: the NVIDIA driver is one for CUDA 12.9, and this build's kernels are of CUDA 13: "
            "install a "
            "driver for CUDA 13.0 or later, or set device.type to \"cpu\"");
    refused(
        "FAKE_CUDA_CAPABILITY", "7", ZERO_E_CONFIG,
        "device cuda: GPU 0 is of compute capability 7.0, and this build has kernels for 8.0 and later; set "
        "device.type \"cpu\"");
    setenv("FAKE_CUDA_VERSION", "14000", 1), setenv("FAKE_CUDA_CAPABILITY", "12", 1);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &device, &error), ZERO_OK);
    if (device) device->ops->close(device);
    CHECK_STRING(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32"); /* the driver was loaded with it */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
    CHECK_INT(device_table[DEVICE_CUDA]->open(&(struct device_options){0}, &device, &error), ZERO_OK);
    if (device) device->ops->close(device);
    CHECK_STRING(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "4"); /* the user's */
    return check_end();
}
