#include "engine/device/cuda/driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static const char library_name[] = "libcuda.so.1";

/* Makes a string of the name after cuda.h's macros have added the version. */
#define NAME_OF(name) STRING_OF(name)
#define STRING_OF(name) #name

/* Looks up all functions. Returns the first missing name, or NULL. */
static const char *look_up(struct cuda_driver *driver) {
    const char *missing = NULL;
    void *function;
#define LOOK_UP(name)                                                                                        \
    function = dlsym(driver->library, NAME_OF(name));                                                        \
    if (!function && !missing) missing = NAME_OF(name);                                                      \
    driver->name = (__typeof__(driver->name))function;
    CUDA_DRIVER_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    return missing;
}

static zero_status lacks(const char *missing, struct zero_error *error) {
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "device cuda: %s lacks %s: install an NVIDIA driver for CUDA %d.0 or later",
                     library_name, missing, CUDA_VERSION / 1000);
}

static zero_status initialise(const struct cuda_driver *driver, struct zero_error *error) {
    CUresult result = driver->cuInit(0);
    if (result == CUDA_SUCCESS) return ZERO_OK;
    const char *reason = NULL;
    driver->cuGetErrorString(result, &reason);
    return error_set(error, result == CUDA_ERROR_NO_DEVICE ? ZERO_E_UNSUPPORTED : ZERO_E_INTERNAL,
                     "device cuda: the NVIDIA driver does not start (%s): look at nvidia-smi, or set "
                     "device.type to \"cpu\"",
                     reason ? reason : "no reason given");
}

/* A toolkit's kernels load only into drivers of the same or a later major version. The same holds for CUDA's
 * libraries. */
static zero_status check_version(const struct cuda_driver *driver, struct zero_error *error) {
    int version = 0;
    zero_status status = cuda_check(driver, driver->cuDriverGetVersion(&version), error,
                                    "device cuda: asking for the driver's version");
    if (status || version / 1000 >= CUDA_VERSION / 1000) return status;
    return error_set(error, ZERO_E_CONFIG,
                     "device cuda: the NVIDIA driver is one for CUDA %d.%d, and this build's kernels are of "
                     "CUDA %d: install a driver for CUDA %d.0 or later, or set device.type to \"cpu\"",
                     version / 1000, version % 1000 / 10, CUDA_VERSION / 1000, CUDA_VERSION / 1000);
}

/* The driver spreads streams over this number of hardware queues of the GPU, by default 8. Two streams that share one wait for
 * each other, and a rank has more than 8: its own six, those of NCCL, and the program's. */
static void set_connections(void) { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", false); }

/* The library is never unloaded, because the driver has its own threads and exit handlers. */
zero_status cuda_driver_open(struct cuda_driver *out_driver, struct zero_error *error) {
    set_connections();
    struct cuda_driver driver = {.library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)};
    if (!driver.library)
        return error_set(
            error, ZERO_E_UNSUPPORTED,
            "device cuda: %s cannot be loaded (%s): install the NVIDIA driver, or set device.type to \"cpu\"",
            library_name, dlerror());
    const char *missing = look_up(&driver);
    bool starts = driver.cuInit && driver.cuDriverGetVersion && driver.cuGetErrorString;
    zero_status status = missing && !starts ? lacks(missing, error) : initialise(&driver, error);
    if (!status) status = check_version(&driver, error);
    if (!status && missing) status = lacks(missing, error);
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
