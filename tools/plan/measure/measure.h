/* Measures this machine and writes a hardware description: the share of cores, memory, links and drive that each rank
 * gets while all ranks do the same. Takes about half a minute, or some seconds. */
#pragma once

#include <stdio.h>

#include "tools/gpt/gpt.h"
#include "tools/plan/machine/hardware.h"

struct comm;

struct measured_link {
    double per_s, reduce_per_s, latency_s; /* per_s 0: not measured */
};

struct measure_options {
    uint32_t ranks, threads; /* as in a training; threads: per rank */
    struct gpt_config model; /* the shapes of its blocks are used */
    uint32_t batch;
    const char *drive;                 /* a directory on the drive; NULL: no drive is measured */
    uint64_t drive_block, drive_depth; /* as in aio */
    const char *program; /* this program, which mpirun starts; NULL: measure only ranks as threads */
    uint64_t bytes;      /* the approximate size of a collective: a unit's parameters */
    /* Measure for some seconds instead of half a minute, and print no progress: only fp32 and this type, in fewer
     * rounds. */
    bool brief;
    zero_dtype dtype;
    /* The link of ranks that are processes, measured before; NULL: ranks are threads. */
    const struct measured_link *link;
};

struct measured {
    /* memory_bytes: of a rank; memory_per_s: of a rank while all ranks work */
    double memory_bytes, memory_per_s;
    double flops[HARDWARE_TYPES]; /* of a rank; 0: this processor does not multiply the type */
    struct measured_link local, mpi;
    struct hardware_drive drive;
};

zero_status measure(const struct measure_options *options, struct measured *out, struct zero_error *error);

/* Writes a file for hardware_read: a device "here" with the links "local" (ranks are threads) and "mpi". */
void measure_print(const struct measure_options *options, const struct measured *measured, FILE *out);

/* ---- the parts of a measurement ---- */

/* Runs `work` on `ranks` threads. The threads continue together once each has called measure_together. */
struct measure_team;
typedef void (*measure_fn)(struct measure_team *team, uint32_t rank, void *user);
zero_status measure_run(uint32_t ranks, measure_fn work, void *user, struct zero_error *error);

double measure_median(double *values, uint32_t count); /* sorts them */
void measure_together(struct measure_team *team);

/* FLOP per second of a rank in the forward and backward of a GPT with the model's blocks, by gpt_flops_per_token. The
 * time includes the work around the products. 0: the processor does not multiply this type. */
zero_status measure_compute(const struct measure_options *options, zero_dtype dtype, double *out_flops,
                            struct zero_error *error);

/* Bytes per second of a rank that reads and writes as an update does. */
zero_status measure_memory(const struct measure_options *options, double *out_per_s,
                           struct zero_error *error);

/* Measures ranks as threads, or as processes. With processes every rank calls it, and *out belongs to rank 0. */
zero_status measure_local(const struct measure_options *options, struct measured_link *out,
                          struct zero_error *error);
zero_status measure_drive(const struct measure_options *options, struct hardware_drive *out,
                          struct zero_error *error);
zero_status measure_mpi(uint64_t bytes, struct measured_link *out, struct zero_error *error);

/* Measures the collectives of all ranks of a communicator, which all call it. ZERO_E_MEMORY is the only error that is not the
 * communicator's. */
zero_status measure_comm(struct comm *comm, uint64_t bytes, struct measured_link *out,
                         struct zero_error *error);
