/* The faults of a run and the ranks that they hit, drawn from the seed. Plain data. */
#pragma once

#include <stdbool.h>

#include "engine/base/error.h"

#define FAULT_KINDS(X)                                                                                       \
    X(STRAGGLER, "straggler", "a rank computes at a half to a fifth of the others' speed")                   \
    X(LOST, "lost", "a rank stops, in the middle of a step")                                                 \
    X(SLOW, "slow", "a rank's link has a half to a tenth of the others' speed")                              \
    X(DELAY, "delay", "one in eight completions comes up to twice as late")                                  \
    X(REORDER, "reorder", "completions come in another order on each rank")                                  \
    X(DRIVE, "drive", "a drive refuses a request")                                                           \
    X(STUCK, "stuck", "a rank beats, but does not go on, from the middle of a step")                         \
    X(NODE, "node", "all ranks of a node stop, in the middle of a step of one of them")

enum sim_fault {
#define FAULT_ENUM(name, word, text) SIM_##name,
    FAULT_KINDS(FAULT_ENUM)
#undef FAULT_ENUM
        SIM_FAULT_KINDS
};

/* Those that end ranks with errors. */
enum { SIM_FAULTS_END = 1 << SIM_LOST | 1 << SIM_DRIVE | 1 << SIM_STUCK | 1 << SIM_NODE };

struct sim_faults {
    uint32_t mask;                                        /* bit f: enum sim_fault f happens */
    uint32_t rank[SIM_FAULT_KINDS];                       /* that it hits; NODE: one of the ranks */
    uint32_t step[SIM_FAULT_KINDS], use[SIM_FAULT_KINDS]; /* where its host stops */
    uint32_t straggler_percent, slow_percent;             /* of the time that other ranks take */
    uint32_t drive_request;                               /* the number of the rank's request that fails */
};

static inline bool sim_fault_on(const struct sim_faults *faults, enum sim_fault fault) {
    return faults->mask >> fault & 1;
}

const char *sim_fault_word(enum sim_fault fault); /* "straggler" */
const char *sim_fault_text(enum sim_fault fault);

/* Turns "straggler,lost" into a mask. */
zero_status sim_faults_parse(const char *words, uint32_t *out_mask, struct zero_error *error);

/* `uses`: the uses of a pass. */
struct sim_faults sim_faults_draw(uint32_t mask, uint64_t seed, uint32_t ranks, uint32_t steps,
                                  uint32_t uses);
