/* What this rank holds of a region, by element range, wherever it lives: for access, hashes and checkpoints.
 * Between steps, with nothing in flight. Not for others than the engine's files. */
#ifndef ZERO_ENGINE_HELD_H
#define ZERO_ENGINE_HELD_H

#include "engine/part.h"

/* The part of `kind` that this rank holds: elements of the region. */
struct part held_part(const zero_engine *e, uint32_t region, zero_kind kind);

/* Elements [first, first + count) of the region, within held_part. Masters, states and the reduced sum of the
 * gradient are fp32 here, in whatever format they are kept. */
zero_status held_read(zero_engine *e, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                      float *out);
/* All ranks call it, those that hold nothing of the range with a count of 0. */
zero_status held_write(zero_engine *e, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                       const float *in);

/* All optimizer state of this rank is zero. */
zero_status held_clear_state(zero_engine *e);

/* With a shadow, after executor_resume: the parameters of this rank's shard are the masters on the drive again. */
zero_status held_restore(zero_engine *e, uint32_t region);

#endif
