/* Simple arithmetic on fp32 arrays. It always runs in the environment of float_env.h, so every thread gets the same
 * bits. A NaN in a result is the one NaN 0x7fc00000. */
#pragma once

#include <stdint.h>

void span_scale(float *span, float factor, uint64_t count);
void span_add(float *span, const float *other, uint64_t count); /* span = other + span */
