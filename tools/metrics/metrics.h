/* What a run writes of each step. Only rank 0 writes. */
#pragma once

#include <stdio.h>

#include "engine/base/error.h"
#include "engine/config/config.h"
#include "engine/zero.h"

/* The values of one step, the same on all ranks. metrics.jsonl and the progress show them. */
struct record {
    uint64_t step;        /* 1, 2, ... of this run */
    double loss;          /* mean over the global batch, in nats per token */
    double eval_loss;     /* of the held-out samples; NaN: not measured at this step */
    double eval_loss_ema; /* the same with the averaged weights; NaN: not measured */
    double grad_norm, lr;
    double beta1;    /* NaN: no schedule changes it */
    uint32_t groups; /* of parameters; lr is the first one's */
    double group_lr[ZERO_GROUPS_MAX];
    uint64_t skipped; /* 1: no rank updated anything */
    uint64_t skipped_total;
    uint64_t repeated; /* 1: its updates were made again, clipped (update_in_backward) */
    uint64_t repeated_total;
    uint64_t tokens; /* of the global batch */
    double seconds;  /* of the step, without the time of the held-out loss */
    double tokens_per_s;
    double mfu; /* model FLOP of the step per second, as a share of the devices' peak; NaN: unknown */
    uint64_t bytes[ZERO_TIERS]; /* allocated, per rank */
    uint64_t memory_bytes;      /* of them, those in memory: of device and host together */
    uint64_t resident_bytes;    /* sum of the processes' peaks */
    uint64_t wire_bytes;        /* of this step, sum over all ranks; so are the calls and elements */
    uint64_t gather_calls, gather_elements, reduce_calls, reduce_elements;
    uint64_t drive_read_bytes, drive_write_bytes; /* of the nvme tier in this step, sum over all ranks */
    double drive_write_bytes_per_day;             /* at this step's pace */
    double drive_life_days;             /* at this step's pace; NaN: nvme.endurance_tbw is not given */
    double compute_s, wait_s, update_s; /* of this step, mean over ranks */
};

/* ---- metrics.c: metrics.jsonl in the run's directory: one JSON object per step ---- */
struct metrics {
    int file; /* its descriptor while `is_open`; below 0: a pipe without a reader */
    bool is_open;
    int64_t end;   /* after the last whole line; below 0: unknown, as for a pipe */
    uint64_t lost; /* lines that could not be written */
    int failure;   /* errno of the first lost line */
    char path[4096 + 32];
};

/* Opens metrics.jsonl in the directory. In the file of an earlier run the lines of the first `steps_kept` steps stay.
 * A device or a pipe is neither read nor cut, and the open does not wait for a reader. */
zero_status metrics_open(struct metrics *metrics, const char *directory, uint64_t steps_kept,
                         struct zero_error *error);

/* Writes each line at once, so that a reader can follow the run, and a killed run loses no line. If a line cannot be
 * written, no part of it stays in the file, and `lost` counts it. */
void metrics_write(struct metrics *metrics, const struct record *record);

void metrics_close(struct metrics *metrics);

/* ---- progress.c: one live line on a terminal, a plain line every few steps in a pipe ---- */
struct progress {
    bool quiet, live;
    uint64_t steps, every;    /* plain lines: at step 1, every `every` steps, and at the last */
    double seconds_per_step;  /* a moving average */
    double seconds;           /* of all steps so far */
    uint64_t trained, tokens; /* steps that were counted, and their tokens */
    struct record last;       /* the step that was counted last */
};

void progress_open(struct progress *progress, bool quiet, bool live, uint64_t steps, uint64_t every);
void progress_step(struct progress *progress, const struct record *record);

/* Ends the live line and prints a summary of the run. */
void progress_close(struct progress *progress);

/* ---- monitor.c: the files of DeepSpeed's blocks tensorboard and csv_monitor: scalars of each step, by the number of samples trained.
 * Tags, files and columns are DeepSpeed's (deepspeed/monitor). ---- */
enum { MONITORS = 2 };

struct monitor {
    char directory[4096];   /* ends with a slash; empty: not enabled, or ended by a failure */
    char events[4096 + 64]; /* TensorBoard's file */
};

/* Makes the directories: those of the configuration, or tensorboard/ and csv_monitor/ in `run`. `anew`: the run begins, so that files
 * of an earlier one in `run` are replaced. A directory of the configuration may have another run's files: they are replaced only if the
 * run also `overwrites`; else it appends to them. */
zero_status monitor_open(const struct config *config, const char *run, bool anew, bool overwrites,
                         struct zero_error *error, struct monitor out[MONITORS]);

/* Appends a step's scalars. A failure is reported once on standard error; then the monitor is not used any more, and
 * training goes on. */
void monitor_write(struct monitor monitor[MONITORS], const struct record *record, uint64_t samples);

/* ---- events.c: event files of TensorBoard: records of a length, its checksum, an Event message (tensorflow/core/util/event.proto) and
 * its checksum. The checksums are CRC-32C, masked (tensorflow/core/lib/io/record_writer.h). ---- */
struct scalar {
    const char *tag;
    double value;
};

/* Writes the record with which a file begins. */
void events_begin(FILE *out, double wall_s);

/* Writes one record with `count` scalars of at most 16. */
void events_write(FILE *out, double wall_s, uint64_t step, const struct scalar *scalar, size_t count);
