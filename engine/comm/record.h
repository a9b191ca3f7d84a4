/* A record of one posted call, small enough for a control message: the call's fingerprint, and the fields that
 * record_text needs to name the call in a message. */
#pragma once

#include <stddef.h>

#include "engine/comm/comm.h"

enum {
    /* Keeps a message with COMM_CALLS_MAX records below the 4 KiB that MPI sends eagerly. */
    RECORD_WHAT_BYTES = 48,
    RECORD_TEXT_BYTES = 320,
};

struct comm_record {
    uint64_t sequence; /* of the call in its group, from 0 */
    /* Of this call and all earlier calls of its group: if members differ here, they diverged. */
    uint64_t hash;
    uint64_t count;
    uint32_t tag, root;
    uint8_t kind, dtype, target_dtype, native, code;
    char what[RECORD_WHAT_BYTES];
};

uint64_t hash_add(uint64_t hash, uint64_t value);
uint64_t hash_text(uint64_t hash, const char *text); /* NULL counts as "" */

void record_make(const struct comm_call *call, uint64_t sequence, uint64_t hash_before,
                 struct comm_record *out_record);

/* Checks a record from another rank: its kind and its dtypes exist, and its text ends inside the record. */
bool record_readable(const struct comm_record *record);

/* "reduce-scatter of h.3 (4096 x bf16 into fp32, tag 7), call 17 of group 0"; returns `text`. */
const char *record_text(const struct comm_record *record, uint32_t group_ordinal,
                        char text[RECORD_TEXT_BYTES]);
