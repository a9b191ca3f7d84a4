/* span_scale (span.h) as a kernel. */
#ifndef ZERO_KERNELS_SPAN_SCALE_H
#define ZERO_KERNELS_SPAN_SCALE_H

#include <stdint.h>

struct span_scale_argument {
    float *span;
    uint64_t count;
    float factor;
};

extern const struct kernel kernel_span_scale;

#endif
