/* A run as its directory tells it: what `zero train` wrote to run.json, metrics.jsonl and trace.json. Owns all that it
 * points to. */
#ifndef ZERO_TOOLS_REPORT_RECORD_H
#define ZERO_TOOLS_REPORT_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

enum quantity { /* of a step; NaN: not measured in it */
                LOSS,
                EVAL_LOSS,
                GRAD_NORM,
                LR,
                SECONDS,
                TOKENS_PER_S,
                COMPUTE_S,
                WAIT_S,
                UPDATE_S,
                WIRE_BYTES,
                DRIVE_READ_BYTES,
                DRIVE_WRITE_BYTES,
                SKIPPED,
                QUANTITIES
};

struct memory_line { /* per rank */
    char tier[16], name[64];
    uint64_t planned, measured;
};

struct span { /* of the timeline: an operation */
    uint32_t rank, stream;
    double began_us, took_us;
    char name[96]; /* "GATHER h.0" */
};

struct run_record {
    char title[256];      /* of the model */
    char settings[8][96]; /* "ZeRO stage 3", in the order to show them */
    uint32_t setting_count;
    uint64_t steps_asked, drive_read_planned, drive_write_planned; /* of a step, all ranks together */
    struct memory_line *memory;
    uint32_t memory_count;

    double *step, *value[QUANTITIES]; /* by line of metrics.jsonl */
    uint32_t steps;

    struct span *span;
    uint32_t span_count;
    char stream[16][16]; /* names */
    uint32_t streams, ranks;
    bool has_trace;
};

/* ZERO_E_IO, ZERO_E_CONFIG: `directory` holds no run, or one of its files is not what a run writes; the error names file
 * and line. A run without a trace is one; a last line that was cut short is left out. */
zero_status run_record_read(const char *directory, struct run_record *out, struct zero_error *error);
void run_record_free(struct run_record *record);

#endif
