#include "engine/device/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>

static const char library_name[] = "libcuda.so.1";

/* Stringified after cuda.h's macros have put the version in. */
#define NAME_OF(name) STRING_OF(name)
#define STRING_OF(name) #name

static zero_status look_up(struct cuda_driver *driver, struct zero_error *error) {
    const char *missing = NULL;
    void *function;
#define LOOK_UP(name)                                                                                        \
    function = dlsym(driver->library, NAME_OF(name));                                                        \
    if (!function && !missing) missing = NAME_OF(name);                                                      \
    driver->name = (__typeof__(driver->name))function;
    CUDA_DRIVER_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    if (!missing) return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "device cuda: %s lacks %s: install an NVIDIA driver for CUDA %d.%d or later",
                     library_name, missing, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
}

static zero_status initialise(const struct cuda_driver *driver, struct zero_error *error) {
    CUresult result = driver->cuInit(0);
    if (result == CUDA_SUCCESS) return ZERO_OK;
    const char *reason = NULL;
    driver->cuGetErrorString(result, &reason);
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "device cuda: the NVIDIA driver does not start (%s): look at nvidia-smi, or set "
                     "device.type to \"cpu\"",
                     reason ? reason : "no reason given");
}

/* Never unloaded: the driver has threads and exit handlers of its own. */
zero_status cuda_driver_open(struct cuda_driver *out_driver, struct zero_error *error) {
    struct cuda_driver driver = {.library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)};
    if (!driver.library)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "device cuda: %s cannot be loaded (%s): install the NVIDIA driver, or set "
                         "device.type to \"cpu\"",
                         library_name, dlerror());
    zero_status status = look_up(&driver, error);
    if (!status) status = initialise(&driver, error);
    if (status)
        cuda_driver_close(&driver);
    else
        *out_driver = driver;
    return status;
}

void cuda_driver_close(struct cuda_driver *driver) {
    dlclose(driver->library);
    driver->library = NULL;
}

zero_status cuda_check(const struct cuda_driver *driver, CUresult result, struct zero_error *error,
                       const char *format, ...) {
    if (result == CUDA_SUCCESS) return ZERO_OK;
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const char *reason = NULL;
    driver->cuGetErrorString(result, &reason);
    return error_set(error, result == CUDA_ERROR_OUT_OF_MEMORY ? ZERO_E_MEMORY : ZERO_E_INTERNAL,
                     "%s: %s (CUDA error %d)", what, reason ? reason : "an unknown reason", (int)result);
}
