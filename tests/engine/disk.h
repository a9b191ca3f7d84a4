/* A file system in memory that remembers every call, for tests that crash it. disk_crash makes a state that a drive may
 * have if the power fails after the first `calls` calls. Data that no fsync made durable may be there or not: each
 * directory entry and each 4 KiB block of a file on its own, a block also in part, and a file's new size also without
 * its bytes. The calls are those of the storage table; threads: any, one call at a time. */
#ifndef ZERO_TESTS_ENGINE_DISK_H
#define ZERO_TESTS_ENGINE_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/checkpoint/storage.h"

struct disk;

struct disk *disk_create(void); /* an empty root: paths begin with "/" */
void disk_free(struct disk *disk);
struct storage *disk_storage(struct disk *disk);

void disk_forbid_exchange(struct disk *disk);         /* it then has no such call */
void disk_set_free(struct disk *disk, int64_t bytes); /* the free bytes that it reports; at first unlimited */

/* Makes the current state the durable state, and counts calls from here. */
void disk_settle(struct disk *disk);
uint32_t disk_calls(const struct disk *disk); /* that change something, since disk_settle */

struct crash {
    uint32_t calls;
    uint64_t seed;
    uint32_t lost;   /* of 100 things that are not durable, how many are lost */
    bool fsync_lies; /* nothing since disk_settle is durable */
};
struct disk *disk_crash(const struct disk *disk, const struct crash *crash);

uint64_t disk_hash(const struct disk *disk); /* of all that can be reached */

/* Files that can be reached, for damage: index 0, 1, ...; false past the last. */
bool disk_file(struct disk *disk, uint32_t index, const char **out_name, uint8_t **out_bytes,
               uint64_t *out_count);

#endif
