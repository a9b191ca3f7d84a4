/* A stream of writes that bypass the page cache (O_DIRECT). Each write begins where the write before ended. The bytes
 * are collected in slots. Full slots go to the drive in order, several at a time, while the next slots are filled.
 *
 * Threads: one at a time per stream. */
#ifndef ZERO_ENGINE_CHECKPOINT_DIRECT_H
#define ZERO_ENGINE_CHECKPOINT_DIRECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/checkpoint/storage.h"

struct direct;

/* `file`: the open file, borrowed, for bytes that do not fill a page. `staging`: memory for the slots, borrowed;
 * NULL: the stream allocates 4 MiB. Returns NULL if the file system refuses O_DIRECT, or if there is no memory. */
struct direct *direct_open(const char *path, int file, const struct storage_staging *staging);
void direct_close(struct direct *direct); /* waits for the transfers in flight; NULL is allowed */

/* True if a write at `offset` continues the stream, or may begin a stream. */
bool direct_takes(const struct direct *direct, uint64_t offset);

/* Takes all bytes. The failure that it returns may be of an earlier write. 0 or -errno. */
int direct_write(struct direct *direct, const void *from, size_t bytes, uint64_t offset);

/* Ends the stream: all bytes are written, but they are not durable yet. 0, or the first failure as -errno. */
int direct_flush(struct direct *direct);

#endif
