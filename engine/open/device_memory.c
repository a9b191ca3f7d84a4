#include "engine/open/device_memory.h"

#include <inttypes.h>

enum { MARGIN_BYTES = 256 << 20 };

static const double gib = 1.0 / (1 << 30);

zero_status device_memory_check(struct device *device, uint64_t planned, uint64_t reserved,
                                const struct log *log, struct zero_error *error) {
    uint64_t available, total;
    if (!device->ops->memory) return ZERO_OK;
    zero_status status = device->ops->memory(device, &available, &total, error);
    if (status) return status;
    if (planned > available)
        return error_set(error, ZERO_E_BUDGET,
                         "device memory: this rank's engine needs %.2f GiB, and of GPU %" PRId64
                         "'s %.2f GiB only %.2f GiB are free (the driver's context, other ranks and other "
                         "programs take the "
                         "rest): raise zero_optimization.stage, offload to \"cpu\" or \"nvme\", or stop the "
                         "other programs",
                         (double)planned * gib, device->index, (double)total * gib, (double)available * gib);
    if (planned + reserved + MARGIN_BYTES > available)
        log_line(log, ZERO_LOG_WARN,
                 "GPU %" PRId64 ": the plan takes %.2f GiB and the host program reserves %.2f GiB of %.2f "
                 "GiB that are free: less than "
                 "%.2f GiB may be left for kernels, graphs and communicators; to leave more, set "
                 "memory.device to a smaller budget",
                 device->index, (double)planned * gib, (double)reserved * gib, (double)available * gib,
                 MARGIN_BYTES * gib);
    return ZERO_OK;
}

void device_memory_report(struct device *device, uint64_t planned, uint64_t reserved, const struct log *log) {
    uint64_t available, total;
    struct zero_error error; /* a failed device says so in the next call that needs it */
    error_clear(&error);
    if (!device->ops->memory || device->ops->memory(device, &available, &total, &error)) return;
    uint64_t taken = total - available, ours = planned + reserved;
    bool scarce = available < MARGIN_BYTES;
    log_line(
        log, scarce ? ZERO_LOG_WARN : ZERO_LOG_INFO,
        "GPU %" PRId64
        ": of %.2f GiB the plan takes %.2f GiB, %.2f GiB are taken by the driver's context, kernels, graphs, "
        "communicators and other programs, %.2f GiB are free%s",
        device->index, (double)total * gib, (double)ours * gib,
        taken > ours ? (double)(taken - ours) * gib : 0, (double)available * gib,
        scarce ? ": set memory.device to a smaller budget" : "");
}
