/* The memory of a GPU that is left for a plan. Beside the plan its memory holds the driver's context, the code of kernels, graphs and NCCL's
 * communicators, which no plan can know, and what other programs have taken. So a margin stays free. Threads: those of the device. */
#pragma once

#include "engine/base/log.h"
#include "engine/device/device.h"

/* What an engine found on its GPU, in bytes. All zero for a device without memory of its own. */
struct device_room {
    uint64_t total;
    uint64_t at_open;   /* free when the engine opened */
    uint64_t at_commit; /* when its commit began: the host program has taken the difference */
    uint64_t available; /* with the engine's communicators, and without its plan */
    uint64_t reserved;  /* by the host program, in zero_engine_reserve */
    uint64_t spare;     /* granted to it beyond that (zero_engine_reserve_spare), and not taken yet */
    uint64_t margin;    /* memory.device_margin */
};

/* *out is the free memory; 0 for a device without memory of its own. */
zero_status device_memory_free(struct device *device, uint64_t *out, struct zero_error *error);

/* Measures `available` and `total`. */
zero_status device_memory_measure(struct device_room *memory, struct device *device,
                                  struct zero_error *error);

/* The budget of a plan and its reservations, where memory.device gives none; 0: there is no bound. */
uint64_t device_memory_budget(const struct device_room *memory);

/* The most bytes of a plan and its reservations that need not be there, where `sharers` ranks divide what is free. No plan knows what
 * kernels, graphs and communicators take once they work, so more than the margin stays free: a twentieth of the GPU, if that is
 * more. UINT64_MAX: there is no bound. */
uint64_t device_memory_room(const struct device_room *memory, uint32_t sharers);

/* What `planned` bytes of the engine and the reservations leave of that for spare memory. UINT64_MAX: there is no bound. */
uint64_t device_memory_spare(const struct device_room *memory, uint64_t planned, uint32_t sharers);

/* Call it before the plan's memory is allocated. ZERO_E_BUDGET: the engine's `planned` bytes, the host program's reservations that
 * it has not allocated yet, and the margin exceed the free memory. Logs the sizes that it found. */
zero_status device_memory_check(const struct device_room *memory, const struct device *device,
                                uint64_t planned, const struct log *log, struct zero_error *error);

/* Call it after the first step, when kernels, graphs and communicators have taken their memory. Logs the bytes that the plan takes,
 * the other bytes that are taken, and the free bytes; a warning if these are less than an eighth of the margin. */
void device_memory_report(const struct device_room *memory, struct device *device, uint64_t planned,
                          const struct log *log);
