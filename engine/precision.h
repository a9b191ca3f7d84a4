/* Which element type is where. Masters and optimizer states are fp32; what is narrower keeps masters of its
 * own (Micikevicius et al. 2018, "Mixed Precision Training", section 3.1). All zero: everything is fp32. */
#ifndef ZERO_ENGINE_PRECISION_H
#define ZERO_ENGINE_PRECISION_H

#include <stdbool.h>

#include "engine/base/dtype.h"

struct precision {
    enum dtype compute; /* parameters, and the gradients that a backward writes */
    enum dtype message; /* gradients on the wire */
    enum dtype reduced; /* reduced gradients, in every tier */
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

/* The master weights are a buffer of their own, and not the parameters themselves. */
static inline bool precision_keeps_masters(const struct precision *p) { return p->compute != DTYPE_F32; }

/* A reduced gradient does not fit where the backward wrote it. */
static inline bool precision_widens(const struct precision *p) {
    return dtype_bytes(p->reduced) > dtype_bytes(p->compute);
}

#endif
