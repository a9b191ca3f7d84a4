/* Choices of the configuration that the policy follows. */
#pragma once

/* Where parameters are between a forward and its backward (comm.reshard_after_forward, zero_hpz_partition_size). */
enum reshard {
    RESHARD_ALL,  /* sharded again, as at rest */
    RESHARD_NONE, /* whole */
    RESHARD_GROUP /* cut over the shard axis only: a second shard inside a group of ranks */
};

/* When gradients are reduced, if a step has several micro-steps. */
enum accumulation {
    ACCUMULATE_LAST,  /* in the last micro-step: gradients stay PARTIAL until then (FSDP's no_sync) */
    ACCUMULATE_EVERY, /* in every micro-step: reduced shards add up */
    ACCUMULATIONS
};

/* Names in the configuration (gradient_accumulation_mode) and in sentences. Index: enum accumulation. */
struct accumulation_name {
    const char *name, *when;
};
extern const struct accumulation_name accumulations[ACCUMULATIONS];
