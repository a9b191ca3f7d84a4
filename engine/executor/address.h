/* From symbolic buffers to planned ones, and to addresses. More addresses are in executor.h. */
#ifndef ZERO_ENGINE_EXECUTOR_ADDRESS_H
#define ZERO_ENGINE_EXECUTOR_ADDRESS_H

#include "engine/executor/executor_internal.h"

/* The planned buffer that a reference means now (NO_BUFFER: it is not in memory), and the variable that holds it. */
uint32_t bound_buffer(const struct executor *e, struct buffer_ref ref);
uint32_t *buffer_binding(const struct executor *e, struct buffer_ref ref);
void *buffer_address(const struct executor *e, uint32_t buffer);
/* The address of a buffer for an item: the item's own slot if the buffer is a ring, else the start of the buffer. */
void *item_address(const struct executor *e, const struct item *item, struct buffer_ref ref, uint32_t buffer);
/* A slot of the staging ring for chunks, and the slot after the ring. */
uint8_t *slot_address(const struct executor *e, uint64_t slot);
uint8_t *access_slot(const struct executor *e);
/* The address of this rank's part under `placement`, in a buffer that holds either that part alone or the whole
 * region. */
void *own_part_address(const struct executor *e, struct buffer_ref ref, uint32_t buffer,
                       struct placement placement, enum dtype dtype);
/* The directions of this rank's part of a region, in a buffer that has those of the whole region. */
float *part_of_directions(const struct executor *e, uint32_t region, uint32_t buffer,
                          struct placement placement);
/* True if the device is discrete and the address is in the host's memory. */
bool crosses(const struct executor *e, const void *address);
/* The memory that a part of the address space takes. */
uint64_t part_bytes(const struct executor *e, uint32_t buffer);

#endif
