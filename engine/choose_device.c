/* Which device an engine's memory is on. */
#include <stdlib.h>

#include "engine/engine_internal.h"

/* This rank's number on its node, as launchers say it. */
static uint32_t local_rank(const zero_runtime *runtime) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID",
                                        "MPI_LOCALRANKID"};
    if (runtime->local) return runtime->local_rank;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return (uint32_t)strtoul(getenv(names[i]), NULL, 10);
    return 0;
}

static zero_status open_row(zero_engine *e, enum device_kind kind, const zero_runtime *runtime,
                            struct zero_error *error) {
    struct device_options options = {.index = e->config.device_index,
                                     .local_rank = local_rank(runtime),
                                     .host_stream = runtime->cuda_stream};
    return device_table[kind]->open(&options, &e->device, error);
}

/* A GPU that is not there is no failure. */
static zero_status open_auto(zero_engine *e, const zero_runtime *runtime, struct zero_error *error) {
    struct zero_error why;
    error_clear(&why);
    zero_status status = runtime->cuda ? open_row(e, DEVICE_CUDA, runtime, &why) : ZERO_E_UNSUPPORTED;
    if (status == ZERO_E_UNSUPPORTED) return open_row(e, DEVICE_HOST, runtime, error);
    return status ? error_pass(error, &why) : ZERO_OK;
}

/* Of ranks that are not there. */
static bool plans_for_gpu(const zero_engine *e, const zero_runtime *runtime) {
    return e->config.device_type == CONFIG_DEVICE_CUDA ||
           (e->config.device_type == CONFIG_DEVICE_AUTO && runtime->cuda);
}

zero_status engine_open_device(zero_engine *e, const zero_runtime *runtime, struct zero_error *error) {
    bool plans = runtime->plan_ranks;
    int type = plans ? CONFIG_DEVICE_CPU : e->config.device_type;
    zero_status status = ZERO_OK;
    if (!e->device && type == CONFIG_DEVICE_AUTO)
        status = open_auto(e, runtime, error);
    else if (!e->device)
        status = open_row(e, type == CONFIG_DEVICE_CPU ? DEVICE_HOST : DEVICE_CUDA, runtime, error);
    if (!status) e->separate = plans ? plans_for_gpu(e, runtime) : e->device->separate;
    return status;
}

int zero_engine_cuda(const zero_engine *e, void **out_stream) {
    if (out_stream) *out_stream = e->device->stream[DEVICE_COMPUTE];
    return (int)e->device->index;
}
