/* base^exponent by squaring. Unlike pow(), it gives the same bits with every C library. The error is some units of
 * the last place. */
#ifndef ZERO_KERNELS_POWER_H
#define ZERO_KERNELS_POWER_H

#include <stdint.h>

static inline double power(double base, uint64_t exponent) {
    double result = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

#endif
