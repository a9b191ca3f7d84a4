/* From a blueprint to memory and an executor over it. */
#pragma once

#include "engine/blueprint/blueprint.h"
#include "engine/open/host.h"
#include "engine/run/run.h"
#include "engine/state/scratch.h"

struct start_options {
    const struct host *host;
    const struct blueprint *blueprint;
    const struct executor_watch *watch; /* or NULL */
};

/* The groups that the mesh needs: gathers and reductions have groups of their own, so that neither waits for the other. */
zero_status start_groups(struct ranks *ranks, const struct terms *terms,
                         struct comm_group *group[AXES_BOTH + 1][STREAMS], struct zero_error *error);

/* Opens the tiers, the drive and the executor, loads a GPU's kernels, and gives ranks and run their memory. */
zero_status start_run(struct running *run, const struct start_options *options, struct zero_error *error);

/* Opens the drive of the host program's scratches, if there are any. */
zero_status start_scratches(struct scratches *scratches, const struct running *run,
                            const struct start_options *options, struct zero_error *error);

/* What all drives of an engine have in common. */
struct tier_options start_drive_options(const struct running *run, const struct config *config,
                                        const struct config_paths *paths);

/* Opens a tier in memory, as planned. */
zero_status start_memory(struct running *run, const struct blueprint *blueprint, enum tier_kind kind,
                         struct tier **out, struct zero_error *error);

/* Gives the executor the memory of the tiers of `run`, and the ranks the row of messages. */
void start_place(struct running *run, const struct blueprint *blueprint, uint8_t *messages);

/* The address of a row of the plan. */
uint8_t *start_row(const struct running *run, const struct plan *plan, enum memory_row row);
