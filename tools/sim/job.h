/* The input of `zero sim`: a configuration, a model and a machine, for any number of ranks. The engine itself makes the
 * plan (engine/inside.h); the simulation runs it. */
#pragma once

#include <stdio.h>

#include "engine/api/inside.h"
#include "tools/plan/machine/machine.h"
#include "tools/plan/shapes.h"
#include "tools/sim/sim.h"

struct job {
    char *config; /* JSON text of a configuration without errors; owned */
    struct machine machine;
    struct shapes shapes; /* the model, if `units` is 0 */
    uint32_t units;       /* not 0: this many equal units replace the model, */
    uint64_t params;      /* with this many parameters in total, */
    uint64_t tokens;      /* and this many tokens in a rank's micro-step */
    uint64_t micro_batch; /* sequences; not 0 */
    uint32_t recompute;   /* blocks of a recomputed segment; 0: no recomputation */
};

struct job_choice {
    const char *config, *model; /* a path; a model's name or path, or NULL: the configuration's model block */
    const char *gpu, *link, *net, *nvme, *hardware; /* struct hardware_choice; NULL: the usual part */
    uint64_t units, params, micro_batch, seq;       /* 0: not given */
};

zero_status job_open(const struct job_choice *choice, struct job *out, struct zero_error *error);
void job_close(struct job *job);

/* A job on a number of ranks, ready for sim_run except for steps, seed and faults. `shards`: the number of ranks that
 * share one copy; other groups of ranks hold further copies. job_release frees it. */
struct job_ranks {
    zero_engine *engine;
    struct sim_model model;
    struct pass_work *work;
    struct sim_setup setup;
    double tokens; /* of a step, all ranks */
    uint64_t parameters;
};
/* `shards`: ranks that share one copy; 0: as the configuration says. */
zero_status job_place(const struct job *job, uint32_t ranks, uint32_t shards, struct job_ranks *out,
                      struct zero_error *error);
void job_release(struct job_ranks *ranks);

/* ---- an engine's plan as a setup: the simulation then plans the same and does the same ---- */

/* The engine's model. `unit_flops`: FLOP of each unit's forward in a micro-step, or NULL. *out points into the
 * blueprint's model. sim_model_free frees it. */
zero_status sim_model_of(const struct blueprint *blueprint, const uint64_t *unit_flops, struct sim_model *out,
                         struct zero_error *error);

/* Everything except model, steps, seed, speeds, faults and the members after them. */
struct sim_setup sim_setup_of(const struct blueprint *blueprint);

/* Prints the result of a simulation for people. */
void report_print(const struct job *job, const struct job_ranks *ranks, const struct sim_result *result,
                  FILE *out);
