/* A hardware description of this machine: what its ranks, alike and at the same time, get of its cores, memory, links
 * and drive. Takes about half a minute. */
#ifndef ZERO_TOOLS_PLAN_MEASURE_H
#define ZERO_TOOLS_PLAN_MEASURE_H

#include <stdio.h>

#include "tools/gpt/gpt.h"
#include "tools/plan/hardware.h"

struct measure_options {
    uint32_t ranks, threads; /* as a training would have them: threads of each rank */
    struct gpt_config model; /* its blocks' shapes */
    uint32_t batch;
    const char *drive;                 /* a directory on it; NULL: none is measured */
    uint64_t drive_block, drive_depth; /* as aio says */
    const char *program;               /* this one, to be started by mpirun; NULL: ranks as threads alone */
    uint64_t bytes;                    /* about that many does a collective move: a unit's parameters */
};

struct measured_link {
    double per_s, reduce_per_s, latency_s; /* per_s 0: not measured */
};

struct measured {
    double memory_bytes, memory_per_s; /* of a rank, of all ranks' that work at once */
    double flops[HARDWARE_TYPES];      /* of a rank; 0: this processor does not multiply the type */
    struct measured_link local, mpi;
    struct hardware_drive drive;
};

zero_status measure(const struct measure_options *options, struct measured *out, struct zero_error *error);

/* A file for hardware_read: a device "here", whose links are "local" (ranks are threads) and "mpi". */
void measure_print(const struct measure_options *options, const struct measured *measured, FILE *out);

/* ---- its parts ---- */

/* Runs `work` on `ranks` threads at once; they begin together when each has called measure_together. */
struct measure_team;
typedef void (*measure_fn)(struct measure_team *team, uint32_t rank, void *user);
zero_status measure_run(uint32_t ranks, measure_fn work, void *user, struct zero_error *error);
void measure_together(struct measure_team *team);

/* FLOP per second of a rank in the forward and backward of a GPT of the model's blocks, by gpt_flops_per_token: what
 * surrounds the products is in it. 0: not in this type. */
zero_status measure_compute(const struct measure_options *options, zero_dtype dtype, double *out_flops,
                            struct zero_error *error);

/* Bytes per second of a rank that reads and writes as an update does. */
zero_status measure_memory(const struct measure_options *options, double *out_per_s,
                           struct zero_error *error);

/* Ranks are threads; or processes, of which this is one: then every rank calls it, and *out is rank 0's. */
zero_status measure_local(const struct measure_options *options, struct measured_link *out,
                          struct zero_error *error);
zero_status measure_drive(const struct measure_options *options, struct hardware_drive *out,
                          struct zero_error *error);
zero_status measure_mpi(uint64_t bytes, struct measured_link *out, struct zero_error *error);

#endif
