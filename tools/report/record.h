/* The files of a run's directory: run.json, metrics.jsonl and trace.json, which `zero train` wrote. Owns all memory
 * that it points to. */
#pragma once

#include <stdbool.h>

#include "engine/base/error.h"

enum quantity { /* of a step; NaN: not measured in this step */
                LOSS,
                EVAL_LOSS,
                GRAD_NORM,
                LR,
                SECONDS,
                TOKENS_PER_S,
                MFU,
                COMPUTE_S,
                WAIT_S,
                UPDATE_S,
                WIRE_BYTES,
                DRIVE_READ_BYTES,
                DRIVE_WRITE_BYTES,
                SKIPPED,
                REPEATED,
                QUANTITIES
};

struct memory_line { /* per rank */
    char tier[16], name[64];
    uint64_t planned, measured;
};

struct span { /* an operation of the timeline */
    uint32_t rank, stream;
    double began_us, took_us;
    char name[96]; /* "GATHER h.0" */
};

struct run_record {
    char title[256];      /* of the model */
    char settings[8][96]; /* "ZeRO stage 3", in the order to show them */
    uint32_t setting_count;
    /* *_planned: of a step, sum over all ranks */
    char peak[160]; /* of what MFU is the share; "": unknown */
    uint64_t steps_asked, wire_planned, drive_read_planned, drive_write_planned;
    struct memory_line *memory;
    uint32_t memory_count;

    double *step, *value[QUANTITIES]; /* index: line of metrics.jsonl */
    uint32_t steps;

    struct span *span;
    uint32_t span_count;
    char stream[16][16]; /* names */
    uint32_t streams, ranks;
    bool has_trace;
};

/* ZERO_E_IO, ZERO_E_CONFIG: `directory` holds no run, or a file that no run writes; the error names file and line. The
 * trace may be missing. An incomplete last line is left out. */
zero_status run_record_read(const char *directory, struct run_record *out, struct zero_error *error);
void run_record_free(struct run_record *record);
