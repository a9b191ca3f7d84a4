/* Small arithmetic on fp32 spans, in the environment of float_env.h whatever the caller's: the same bits in every
 * thread. A NaN that comes out is the one NaN 0x7fc00000. */
#ifndef ZERO_KERNELS_SPAN_H
#define ZERO_KERNELS_SPAN_H

#include <stdint.h>

void span_scale(float *span, float factor, uint64_t count);
void span_add(float *span, const float *other, uint64_t count); /* other + span */

#endif
