/* The element type of each buffer. Masters are fp32; parameters of a narrower type have separate masters
 * (Micikevicius et al. 2018, "Mixed Precision Training", section 3.1). All zero: everything is fp32. */
#pragma once

#include <stdbool.h>

#include "engine/base/numbers/dtype.h"

/* The values that are kept of an element: the optimizer's states, the averaged weight, and the master where the parameter is not the
 * master. */
enum { PRECISION_STATES_MAX = 3, PRECISION_ARRAYS_MAX = PRECISION_STATES_MAX + 1 };

struct precision {
    enum dtype compute; /* parameters, and the gradients that a backward writes */
    enum dtype message; /* gradients on the wire */
    enum dtype reduced; /* reduced gradients, in every tier */
    enum dtype state;   /* the optimizer's states, in every tier; bf16: rounded stochastically */
    bool copies;        /* records have masters also where the parameters are the masters: nvme.shadow */
    bool average;       /* the last of the states is the averaged weight, in fp32 in every run */
    bool split;         /* a master is its parameter (bf16) and 16 bits more (kernels/state_format.h) */
};

/* `communication`: in which reductions round. Sums are made in fp32: an fp32 communication of narrower
 * gradients sends them as they are, which gives the same sum as widening them first, and rounds nothing.
 * Shards that accumulate are fp32. */
static inline struct precision precision_make(enum dtype compute, enum dtype communication,
                                              bool shards_accumulate) {
    return (struct precision){.compute = compute,
                              .message = communication == DTYPE_F32 ? compute : communication,
                              .reduced = shards_accumulate ? DTYPE_F32 : communication};
}

/* Of parameters that stay fp32 in a narrower run: all is as in an fp32 run. */
static inline struct precision precision_kept_fp32(const struct precision *run) {
    struct precision precision = precision_make(DTYPE_F32, DTYPE_F32, false);
    precision.copies = run->copies, precision.average = run->average;
    return precision;
}

/* The master weights are a buffer of their own, and not the parameters themselves. */
static inline bool precision_keeps_masters(const struct precision *p) { return p->compute != DTYPE_F32; }

/* A record has a copy of the parameters, which are the masters. */
static inline bool precision_copies_masters(const struct precision *p) {
    return p->copies && !precision_keeps_masters(p);
}

static inline uint32_t precision_master_bytes(const struct precision *p) {
    return !precision_keeps_masters(p) ? 0 : p->split ? 2 : 4;
}

/* State k of `states`, the averaged weights included, is the averaged weights. */
static inline bool precision_averages(const struct precision *p, uint32_t k, uint32_t states) {
    return p->average && k + 1 == states;
}

static inline enum dtype precision_state(const struct precision *p, uint32_t k, uint32_t states) {
    return precision_averages(p, k, states) ? DTYPE_F32 : p->state;
}

/* Bytes of an element in each array, states first, then masters if there are any. Returns their number. */
static inline uint32_t precision_arrays(const struct precision *p, uint32_t states,
                                        uint32_t bytes[PRECISION_ARRAYS_MAX]) {
    for (uint32_t k = 0; k < states; k++) bytes[k] = dtype_bytes(precision_state(p, k, states));
    if (precision_keeps_masters(p)) bytes[states++] = precision_master_bytes(p);
    if (precision_copies_masters(p)) bytes[states++] = sizeof(float);
    return states;
}

/* True if a reduced gradient does not fit into the memory of the backward's gradient. */
static inline bool precision_widens(const struct precision *p) {
    return dtype_bytes(p->reduced) > dtype_bytes(p->compute);
}
