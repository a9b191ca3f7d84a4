/* The memory of a GPU that is left for a plan. Beside the plan its memory holds the driver's context, the code of kernels, graphs and NCCL's
 * communicators, which no plan can know, and what other programs have taken. Threads: those of the device. */
#ifndef ZERO_ENGINE_OPEN_DEVICE_MEMORY_H
#define ZERO_ENGINE_OPEN_DEVICE_MEMORY_H

#include "engine/base/log.h"
#include "engine/device/device.h"

/* Before the plan's memory is allocated. ZERO_E_BUDGET: the engine's `planned` bytes are more than is free. Logs a warning if less
 * than a margin would be left beside them and the `reserved` bytes, which are the host program's. Always ZERO_OK for a device without
 * memory of its own. */
zero_status device_memory_check(struct device *device, uint64_t planned, uint64_t reserved,
                                const struct log *log, struct zero_error *error);

/* After the first step, when kernels, graphs and communicators are there: logs what the plan takes, what else is taken, and what is
 * free; a warning if that is less than the margin. */
void device_memory_report(struct device *device, uint64_t planned, uint64_t reserved, const struct log *log);

#endif
