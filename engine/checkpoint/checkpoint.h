/* Reads a complete checkpoint: its manifest, and its pieces. One file is open at a time. */
#pragma once

#include "engine/checkpoint/shard.h"

struct checkpoint {
    struct storage *storage;
    char path[STORAGE_PATH_BYTES]; /* the step's directory */
    struct manifest manifest;
};

/* `path`: the directory of a step, or the root directory; the root means the step that its file `latest` names. */
zero_status checkpoint_open(struct storage *storage, const char *path, struct checkpoint *out,
                            struct zero_error *error);
void checkpoint_close(struct checkpoint *checkpoint); /* a zeroed struct is allowed */

/* Visits every piece, file by file. `visit` may call shard_read for the piece. The pieces of a tensor come in any order,
 * and cover the tensor exactly. If they do not: ZERO_E_IO, with the parameter and the elements that
 * are missing or are there twice. */
typedef zero_status (*piece_visit)(void *user, struct shard *shard, uint32_t index, struct zero_error *error);
zero_status checkpoint_walk(struct checkpoint *checkpoint, piece_visit visit, void *user,
                            struct zero_error *error);

/* The same, file by file: `visit` may call shard_read for all pieces of the file. */
typedef zero_status (*shard_visit)(void *user, struct shard *shard, struct zero_error *error);
zero_status checkpoint_walk_files(struct checkpoint *checkpoint, shard_visit visit, void *user,
                                  struct zero_error *error);

/* Reads every byte and compares every checksum. `block`: scratch of BLOCK_BYTES. */
zero_status checkpoint_verify(struct checkpoint *checkpoint, float *block, struct zero_error *error);
