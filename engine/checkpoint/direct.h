/* Writes past the page cache (O_DIRECT), several in flight: a stream of bytes, each write beginning where the one
 * before ended, is gathered in slots, which go to the drive in order, a few at a time, while the next ones are filled.
 * Threads: one at a time per stream. */
#ifndef ZERO_ENGINE_CHECKPOINT_DIRECT_H
#define ZERO_ENGINE_CHECKPOINT_DIRECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/checkpoint/storage.h"

struct direct;

/* `file`: the open file, borrowed, for what is not a whole page. `staging`: the slots' memory, borrowed; NULL: 4 MiB of its
 * own. NULL: the file system, or memory, refuses. */
struct direct *direct_open(const char *path, int file, const struct storage_staging *staging);
void direct_close(struct direct *direct); /* after what is in flight is done; NULL is allowed */

/* Whether a write there goes on with the stream, or may begin one. */
bool direct_takes(const struct direct *direct, uint64_t offset);

/* Takes all of it; a failure may be that of an earlier write. 0 or -errno. */
int direct_write(struct direct *direct, const void *from, size_t bytes, uint64_t offset);

/* Ends the stream: all that was taken is written, though not durable. 0, or the first failure as -errno. */
int direct_flush(struct direct *direct);

#endif
