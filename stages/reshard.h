/* The place of parameters between a forward and its backward: a choice of the configuration, and a part of a stage's row. */
#ifndef ZERO_STAGES_RESHARD_H
#define ZERO_STAGES_RESHARD_H

/* Where parameters are between a forward and its backward (comm.reshard_after_forward, zero_hpz_partition_size). */
enum reshard {
    RESHARD_ALL,  /* sharded again, as at rest */
    RESHARD_NONE, /* whole */
    RESHARD_GROUP /* cut over the shard axis only: a second shard inside a group of ranks */
};

#endif
