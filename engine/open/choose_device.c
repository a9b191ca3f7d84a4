/* Which device an engine's memory is on. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/open/join.h"

static zero_status open_row(struct joining *j, enum device_kind kind, const zero_runtime *runtime,
                            uint32_t local_rank, bool *out_broken, struct zero_error *error) {
    struct device_options options = {.index = j->config->device_index,
                                     .local_rank = local_rank,
                                     .host_stream = runtime->cuda_stream,
                                     .default_stream = runtime->cuda_default_stream != 0,
                                     .out_broken = out_broken};
    return device_table[kind]->open(&options, &j->run->device, error);
}

/* Whether NVIDIA's kernel driver is on this machine, or Windows below it has one, and nobody hides the GPUs by a list of none: "",
 * "-1", Slurm's "NoDevFiles". A container sees /proc/driver also without a GPU. */
static bool gpu_expected(void) {
    static const char *const signs[] = {"/dev/nvidiactl", "/proc/driver/nvidia/version",
                                        "/usr/lib/wsl/lib/libcuda.so.1"};
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible && (!*visible || !strchr("0123456789GM", *visible))) return false; /* GPU-..., MIG-... */
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (access(signs[i], F_OK) == 0) return true;
    return false;
}

/* It is no failure if there is no GPU, unless the host computes on one. Where there seems to be one, the log says why the CPU takes its
 * place. */
static zero_status open_auto(struct joining *j, const zero_runtime *runtime, uint32_t local_rank,
                             struct zero_error *error) {
    struct zero_error why = ERROR_NONE;
    bool broken = false;
    zero_status status =
        runtime->cuda ? open_row(j, DEVICE_CUDA, runtime, local_rank, &broken, &why) : ZERO_E_UNSUPPORTED;
    if (runtime->cuda > 1 || (status != ZERO_E_UNSUPPORTED && !broken))
        return status ? error_pass(error, &why) : ZERO_OK;
    if (broken || (runtime->cuda && gpu_expected())) j->host->without_gpu = why;
    return open_row(j, DEVICE_HOST, runtime, local_rank, NULL, error);
}

/* The device of ranks that exist only in a plan. */
static bool plans_for_gpu(const struct joining *j, const zero_runtime *runtime) {
    return j->config->device_type == CONFIG_DEVICE_CUDA ||
           (j->config->device_type == CONFIG_DEVICE_AUTO && runtime->cuda);
}

static zero_status check_stream(const zero_runtime *runtime, struct zero_error *error) {
    if (!runtime->cuda_stream || !runtime->cuda_default_stream) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "zero_runtime.cuda_stream and cuda_default_stream are both set: give one of them");
}

zero_status join_device(struct joining *j, const zero_runtime *runtime, uint32_t local_rank,
                        struct zero_error *error) {
    bool plans = runtime->plan_ranks;
    int type = plans ? CONFIG_DEVICE_CPU : j->config->device_type;
    zero_status status = check_stream(runtime, error);
    if (status) return status;
    if (!j->run->device && type == CONFIG_DEVICE_AUTO)
        status = open_auto(j, runtime, local_rank, error);
    else if (!j->run->device)
        status = open_row(j, type == CONFIG_DEVICE_CPU ? DEVICE_HOST : DEVICE_CUDA, runtime, local_rank, NULL,
                          error);
    if (!status && !plans) status = device_memory_free(j->run->device, &j->host->device.at_open, error);
    if (!status) j->run->discrete = plans ? plans_for_gpu(j, runtime) : j->run->device->discrete;
    return status;
}
