/* The faults of a run and the ranks that they hit, drawn from the seed. Plain data. */
#ifndef ZERO_TOOLS_SIM_FAULTS_H
#define ZERO_TOOLS_SIM_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

#define FAULT_KINDS(X)                                                                                       \
    X(STRAGGLER, "straggler", "a rank computes at a half to a fifth of the others' speed")                   \
    X(LOST, "lost", "a rank stops, in the middle of a step")                                                 \
    X(SLOW, "slow", "a rank's link has a half to a tenth of the others' speed")                              \
    X(DELAY, "delay", "one in eight completions comes up to twice as late")                                  \
    X(REORDER, "reorder", "completions come in another order on each rank")                                  \
    X(DRIVE, "drive", "a drive refuses a request")                                                           \
    X(STUCK, "stuck", "a rank beats, but does not go on, from the middle of a step")

enum sim_fault {
#define FAULT_ENUM(name, word, text) SIM_##name,
    FAULT_KINDS(FAULT_ENUM)
#undef FAULT_ENUM
        SIM_FAULT_KINDS
};

struct sim_faults {
    uint32_t mask;                                /* bit f: enum sim_fault f happens */
    uint32_t straggler, lost, slow, drive, stuck; /* ranks */
    uint32_t straggler_percent, slow_percent;     /* of the time that other ranks take */
    uint32_t lost_step, lost_use;                 /* where the lost rank's host stops */
    uint32_t stuck_step, stuck_use;
    uint32_t drive_request; /* the number of the rank's request that fails */
};

static inline bool sim_fault_on(const struct sim_faults *faults, enum sim_fault fault) {
    return faults->mask >> fault & 1;
}

/* True if these faults end ranks with errors. */
static inline bool sim_faults_end(const struct sim_faults *faults) {
    return sim_fault_on(faults, SIM_LOST) || sim_fault_on(faults, SIM_DRIVE) ||
           sim_fault_on(faults, SIM_STUCK);
}

const char *sim_fault_word(enum sim_fault fault); /* "straggler" */
const char *sim_fault_text(enum sim_fault fault);

/* Turns "straggler,lost" into a mask. */
zero_status sim_faults_parse(const char *words, uint32_t *out_mask, struct zero_error *error);

/* `uses`: the uses of a pass. */
struct sim_faults sim_faults_draw(uint32_t mask, uint64_t seed, uint32_t ranks, uint32_t steps,
                                  uint32_t uses);

#endif
