/* The values of one step, the same on all ranks. metrics.jsonl and the progress show them. */
#ifndef ZERO_TOOLS_COMMAND_RECORD_H
#define ZERO_TOOLS_COMMAND_RECORD_H

#include <stdint.h>

#include "engine/zero.h"

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
    uint64_t bytes[ZERO_TIERS]; /* allocated, per rank */
    uint64_t resident_bytes;    /* sum of the processes' peaks */
    uint64_t wire_bytes;        /* of this step, sum over all ranks; so are the calls and elements */
    uint64_t gather_calls, gather_elements, reduce_calls, reduce_elements;
    uint64_t drive_read_bytes, drive_write_bytes; /* of the nvme tier in this step, sum over all ranks */
    double drive_write_bytes_per_day;             /* at this step's pace */
    double drive_life_days;             /* at this step's pace; NaN: nvme.endurance_tbw is not given */
    double compute_s, wait_s, update_s; /* of this step, mean over ranks */
};

#endif
