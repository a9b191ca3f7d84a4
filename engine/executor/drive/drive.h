/* The drive: chunks that operations move, and those that the host reads and writes. */
#pragma once

#include "engine/executor/executor_internal.h"

/* ---- transfer.c: chunks to and from the drive ---- */
zero_status fetch_chunk(struct executor *e, struct item *item);
zero_status sum_fetched(struct executor *e, struct item *item);
zero_status check_fetched(struct executor *e, struct item *item);
zero_status cross_held(struct executor *e, struct item *item);
zero_status sum_stored(struct executor *e, struct item *item);
zero_status store_chunk(struct executor *e, struct item *item);

/* Start transfers of the item: one request to the drive, or all of a chunk between its places on the drive and a
 * slot. */
zero_status transfer_post(struct executor *e, struct item *item, bool write, uint64_t place, uint64_t bytes,
                          void *memory);
zero_status transfer_read(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                          uint8_t *slot);
/* Before a write: the item has the chunk's checksums. */
void transfer_sum(const struct executor *e, struct item *item, const struct chunk *c, const uint8_t *slot);
zero_status transfer_write(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                           uint8_t *slot);
zero_status transfer_done(struct executor *e, struct item *item, bool *out_done);
/* Compares the chunk in the slot with the tag and checksum of the last store; ZERO_E_IO if they differ. */
zero_status transfer_check(struct executor *e, uint32_t region, const struct chunk *c, const uint8_t *slot);

/* ---- chunk_access.c: the host's access to chunks on the drive. Its calls are in executor.h. ---- */
/* Writes changed chunks to the drive, and waits. */
zero_status access_flush(struct executor *e);
