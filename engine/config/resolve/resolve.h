/* The parts of config_resolve. */
#pragma once

#include "engine/config/config.h"

/* ---- given.c: whether a key was written, and how to record a resolved value ---- */
bool config_written(const struct config *config, const char *path); /* a value, not "auto" */
bool config_automatic(const struct config *config, const char *path);

/* The key has no value; its field is 0. */
struct config_key;
zero_status config_leave_out(struct config *config, const struct config_key *key, struct zero_error *error);

/* A key asks for recomputation and decides its interval. */
bool config_asks_recompute(const struct config *config);

/* Refuses activation checkpoints on a drive if their paths differ from `offload`, the paths that an offload to a
 * drive uses or may use. */
zero_status config_check_scratch(const struct config *config, const struct config_paths *offload,
                                 struct zero_error *error);

/* Refuses state and parameters whose paths differ, where both are or may be on a drive. */
zero_status config_check_offload(const struct config *config, struct zero_error *error);

/* Records a resolved value in the key's entry; the entry's source still shows "auto". config_derived_int changes
 * nothing if the key was written. */
zero_status config_derived(struct config *config, const char *path, const char *text,
                           struct zero_error *error);
zero_status config_derived_int(struct config *config, const char *path, uint64_t number,
                               struct zero_error *error);

/* ---- batch.c: how ranks and micro-steps share the batch of a step ---- */
/* Sets train_batch, micro_batch and accumulation_steps. */
zero_status config_resolve_batch(struct config *config, uint32_t ranks, struct zero_error *error);

/* ---- mesh.c: how the ranks share parameters, gradients and states ---- */
/* Sets shard_ranks and reshard. */
zero_status config_resolve_mesh(struct config *config, uint32_t ranks, struct zero_error *error);

/* ---- tiers.c: where state, parameters and gradients are, and the directories of the drive ---- */
/* Sets the tiers of the optimizer state, of parameters and of gradients, and the device's share. */
zero_status config_resolve_offload(struct config *config, struct zero_error *error);

bool config_same_paths(const struct config_paths *a, const struct config_paths *b);

/* Refuses a directory that stands twice. `path`: the block of nvme_path. */
zero_status config_check_distinct(const char *path, const struct config_paths *paths,
                                  struct zero_error *error);

/* ---- scheduler.c: the defaults of the scheduler block, "auto", and the parameters of each schedule. After the optimizer is resolved. ---- */
zero_status config_resolve_scheduler(struct config *config, struct zero_error *error);
