/* What `zero sim` simulates: a configuration, a model and a machine, for any number of ranks. The engine itself plans
 * it (engine/inside.h); the simulation does what is planned. */
#ifndef ZERO_TOOLS_SIM_JOB_H
#define ZERO_TOOLS_SIM_JOB_H

#include "tools/plan/machine.h"
#include "tools/plan/shapes.h"
#include "tools/sim/sim.h"

struct job {
    char *config; /* JSON text of a configuration that was read; owned */
    struct machine machine;
    struct shapes shapes; /* the model; without units */
    uint32_t units;       /* not 0: so many units alike in its place, */
    uint64_t params;      /* of so many parameters in all, */
    uint64_t tokens;      /* and so many tokens in a micro-step of a rank */
    uint64_t micro_batch; /* sequences; not 0 */
    uint32_t recompute;   /* blocks that are computed again together; 0: none */
};

struct job_choice {
    const char *config, *model; /* a path; a model's name or path, or NULL: the configuration's model block */
    const char *gpu, *link, *net, *nvme, *hardware; /* struct hardware_choice; NULL: what is usual */
    uint64_t units, params, micro_batch, seq;       /* 0: not given */
};

zero_status job_open(const struct job_choice *choice, struct job *out, struct zero_error *error);
void job_close(struct job *job);

/* A job on so many ranks, ready for sim_run but for steps, seed and faults. `shards`: ranks that cut one copy between
 * them; the others hold copies. job_release frees it. */
struct job_ranks {
    zero_engine *engine;
    struct sim_model model;
    struct pass_work *work;
    struct sim_setup setup;
    double tokens; /* of a step, all ranks */
    uint64_t parameters;
};
/* `shards`: ranks that cut one copy; 0: as the configuration says. */
zero_status job_place(const struct job *job, uint32_t ranks, uint32_t shards, struct job_ranks *out,
                      struct zero_error *error);
void job_release(struct job_ranks *ranks);

#endif
