/* A complete checkpoint, for reading: its manifest, and its pieces, one file open at a time. */
#ifndef ZERO_ENGINE_CHECKPOINT_CHECKPOINT_H
#define ZERO_ENGINE_CHECKPOINT_CHECKPOINT_H

#include "engine/checkpoint/shard.h"

struct checkpoint {
    struct storage *storage;
    char path[STORAGE_PATH_BYTES]; /* the step's directory */
    struct manifest manifest;
};

/* `path`: a step's directory, or the one that holds them, of which `latest` is meant. */
zero_status checkpoint_open(struct storage *storage, const char *path, struct checkpoint *out,
                            struct zero_error *error);
void checkpoint_close(struct checkpoint *checkpoint); /* a zeroed one, too */

/* Visits every piece, file by file; `visit` may shard_read it. The pieces of a tensor come in ascending
 * order and cover it exactly: else ZERO_E_IO names the parameter and what of it is missing or twice there. */
typedef zero_status (*piece_visit)(void *user, struct shard *shard, uint32_t index, struct zero_error *error);
zero_status checkpoint_walk(struct checkpoint *checkpoint, piece_visit visit, void *user,
                            struct zero_error *error);

/* Reads every byte and compares every checksum. `block`: BLOCK_BYTES. */
zero_status checkpoint_verify(struct checkpoint *checkpoint, float *block, struct zero_error *error);

#endif
