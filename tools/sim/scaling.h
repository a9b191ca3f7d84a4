/* Weak scaling: every rank has the same work, on 8 ranks, 16, and so on. Two meshes: fully sharded, and hybrid (sharded
 * inside a node, replicated between nodes; HSDP: Zhao et al. 2023, "PyTorch FSDP", section 3.2.2). */
#pragma once

#include <stdio.h>

#include "tools/sim/job.h"

enum scaling_mesh { SCALING_FULL, SCALING_HYBRID, SCALING_MESHES };

struct scaling_point {
    uint32_t ranks;
    struct sim_result result[SCALING_MESHES];
    double tokens; /* of a step */
};

enum { SCALING_POINTS_MAX = 16 };

struct scaling {
    struct scaling_point point[SCALING_POINTS_MAX];
    uint32_t points;
};

/* Simulates from 8 ranks up to `most`; fewer points if `most` is small. Reports progress on `progress`, which may be
 * NULL. */
zero_status scaling_run(const struct job *job, uint32_t most, uint32_t steps, uint64_t seed, FILE *progress,
                        struct scaling *out, struct zero_error *error);
void scaling_csv(const struct scaling *scaling, FILE *file);
void scaling_svg(const struct scaling *scaling, const struct job *job, FILE *file);
