/* Writes that bypass the page cache (O_DIRECT), in a few streams: a write that begins where an earlier one ended continues
 * its stream. The bytes are collected in slots. Full slots go to the drive, several at a time, while the next are filled.
 * Bytes at a stream's ends that do not fill a page go through the page cache. Writes must not overlap.
 *
 * Threads: one at a time. */
#pragma once

#include "engine/checkpoint/storage.h"

struct direct;

/* `file`: the open file, borrowed, for bytes that do not fill a page. `staging`: memory for the slots, borrowed;
 * NULL: 4 MiB are allocated. Returns NULL if the file system refuses O_DIRECT, or if there is no memory. */
struct direct *direct_open(const char *path, int file, const struct storage_staging *staging);
void direct_close(struct direct *direct); /* waits for the transfers in flight; NULL is allowed */

/* Takes all bytes. The failure that it returns may be of an earlier write. 0 or -errno. */
int direct_write(struct direct *direct, const void *from, size_t bytes, uint64_t offset);

/* Ends all streams: all bytes are written, but they are not durable yet. 0, or the first failure as -errno. */
int direct_flush(struct direct *direct);
