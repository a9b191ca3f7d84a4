/* Steps of an axis in round numbers. */
#ifndef ZERO_TOOLS_REPORT_TICK_H
#define ZERO_TOOLS_REPORT_TICK_H

#include <math.h>

/* 1, 2 or 5 times a power of ten, so that `span`, which is above 0, has about `about` steps. */
static inline double tick_of(double span, int about) {
    double power = pow(10, floor(log10(span / about))), ratio = span / about / power;
    return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

#endif
