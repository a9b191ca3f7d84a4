/* The file of one rank: its pieces of parameters and optimizer state, in safetensors.
 *
 * A piece is the tensor "KIND/PARAM": all elements of a parameter, or a run of them. A run that cuts the parameter into
 * parts has a piece of each part; that of part N > 0 is "KIND#N/PARAM". The metadata entry of a piece has the first
 * element, and a checksum per block of BLOCK_BYTES. So a reader can verify the blocks that it reads without reading
 * the rest. Reading and writing need one block of memory. */
#pragma once

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"

enum { BLOCK_BYTES = 256 * 1024, BLOCK_ELEMENTS = BLOCK_BYTES / 4 };

struct piece {
    const struct manifest_param *param;
    uint32_t kind;         /* manifest_kind */
    uint64_t first, count; /* elements of the parameter; at least one */
    uint32_t part;         /* tells pieces of one parameter and kind apart, in the name; 0: the first, or the only one */
};

/* A source fills `out` with elements [first, first + count) of the piece's parameter and kind. */
typedef zero_status (*piece_source)(void *user, const struct piece *piece, uint64_t first, uint64_t count,
                                    float *out, struct zero_error *error);
typedef zero_status (*piece_sink)(void *user, const struct piece *piece, uint64_t first, uint64_t count,
                                  const float *in, struct zero_error *error);

/* Writes directory/rank_NNNNN.safetensors, run by run: kinds of the same elements may take turns. */
struct shard_writer;

struct shard_source {
    piece_source read;
    void *user;
    float *block; /* scratch of BLOCK_BYTES */
};

/* `staging`: memory for bytes that wait for the drive; NULL: the storage has its own. The writer borrows all arguments. */
zero_status shard_create(struct storage *storage, const char *directory, uint32_t rank,
                         const struct manifest *manifest, const struct piece *pieces, uint32_t count,
                         const struct storage_staging *staging, struct shard_writer **out,
                         struct zero_error *error);
/* Writes elements [first, first + count) of the parameter of piece `index`. The pieces of a kind come in their order, one after
 * the other, and each from its first element to its last. */
zero_status shard_write_run(struct shard_writer *writer, uint32_t index, uint64_t first, uint64_t count,
                            const struct shard_source *source, struct zero_error *error);
/* When all pieces are written: the content is durable, the name is not yet. */
zero_status shard_complete(struct shard_writer *writer, struct manifest_file *out, struct zero_error *error);
void shard_drop(struct shard_writer *writer); /* closes it, complete or not; NULL is allowed */

/* Opens, writes all pieces one after another, finishes and closes. */
zero_status shard_write(struct storage *storage, const char *directory, uint32_t rank,
                        const struct manifest *manifest, const struct piece *pieces, uint32_t count,
                        const struct shard_source *source, struct manifest_file *out,
                        struct zero_error *error);

/* Computes the size of the file. */
zero_status shard_bytes(const struct manifest *manifest, const struct piece *pieces, uint32_t count,
                        uint64_t *out_bytes, struct zero_error *error);

struct shard {
    struct storage_file file;
    struct tensor_table table;
    struct piece *piece; /* parallel to the table's tensors */
    uint32_t count;
};

/* Opens the file of `rank`. Its header must match the manifest, and its pieces must be of the manifest's parameters. */
zero_status shard_open(struct storage *storage, const char *directory, uint32_t rank,
                       const struct manifest *manifest, struct shard *out, struct zero_error *error);
void shard_close(struct shard *shard); /* a zeroed struct is allowed */

/* Reads elements [first, first + count) of the parameter, within piece `index`. Every block that holds some of these
 * elements is read whole and verified before the sink gets the elements. */
zero_status shard_read(struct shard *shard, uint32_t index, uint64_t first, uint64_t count, float *block,
                       piece_sink sink, void *user, struct zero_error *error);
