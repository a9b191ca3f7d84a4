/* The loss scale of fp16: the factor of the loss, so that small gradients do not become zero; and the rules by which
 * it changes. The rules and names are DeepSpeed's (runtime/fp16/loss_scaler.py):
 *
 *   overflow    while more than one overflow is allowed, one less is; else the scale is halved, not below the
 *               minimum. An overflow at the minimum is an error.
 *   no overflow after `window` + 1 steps without one, and then every `window` steps, the scale is doubled.
 *
 * Allowed overflows (`hysteresis`) are restored when the scale is doubled, or, if `consecutive`, by every
 * step without overflow. Pure: the same on all ranks, since overflow is agreed.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct loss_scale {
    double value; /* now */

    bool dynamic; /* false: the value never changes */
    double min;
    uint64_t window, hysteresis;
    bool consecutive;

    uint64_t allowed; /* overflows before the scale is halved, that one included */
    uint64_t stable;  /* steps since the last overflow, or the start */
};

/* One step is over. False: there was an overflow at the minimum, and nothing can be lowered any more. */
bool loss_scale_update(struct loss_scale *scale, bool overflow);

/* Continues from the state of an earlier run by the rules of this run: a static scale stays as it is. */
void loss_scale_resume(struct loss_scale *scale, double value, uint64_t allowed, uint64_t stable);
