/* The rows of the device table. Only files in this folder include it. */
#pragma once

#include "engine/device/device.h"

extern const struct device_ops device_host, device_sim, device_cuda;

/* A ticket is its number among those of its stream, from 1 on, times TICKET_STREAMS, plus the stream. 0: done. */
enum { TICKET_STREAMS = 16 };
_Static_assert((int)DEVICE_STREAMS <= (int)TICKET_STREAMS, "a ticket says its stream");

/* Shared by implementations that allocate host memory. */
void *host_allocate(struct device *device, uint64_t bytes, enum device_memory kind);
void host_release(struct device *device, void *memory, uint64_t bytes, enum device_memory kind);
void *host_reserve(struct device *device, uint64_t space, uint64_t bytes);
void host_unreserve(struct device *device, void *memory, uint64_t space, uint64_t bytes);
void host_empty(struct device *device, void *part, uint64_t bytes);
uint64_t page_bytes(uint64_t bytes); /* rounded up to whole pages */
