/* The loop over the element function of an optimizer, once per instruction set. The compiler inlines the element
 * function and vectorizes the loop; restrict, -fno-math-errno and branchless element functions make this possible. */
#pragma once

#include "kernels/optimizer.h"

#define ELEMENT_LOOP(isa, attribute, element, states)                                                        \
    attribute static void element##_##isa(float *restrict master, float *restrict state0,                    \
                                          float *restrict state1, const float *restrict gradient,            \
                                          float gradient_scale, const struct optimizer_scalars *scalars,     \
                                          uint64_t count) {                                                  \
        const struct optimizer_scalars s = *scalars; /* a copy, which no store through master can change */  \
        for (uint64_t i = 0; i < count; i++) {                                                               \
            float weight = master[i], first = (states) > 0 ? state0[i] : 0,                                  \
                  second = (states) > 1 ? state1[i] : 0;                                                     \
            element(&weight, &first, &second, gradient[i] * gradient_scale, s.value);                        \
            master[i] = weight;                                                                              \
            if ((states) > 0) state0[i] = first;                                                             \
            if ((states) > 1) state1[i] = second;                                                            \
        }                                                                                                    \
    }

#define ELEMENT_LOOPS(element, states) ISA_EACH(ELEMENT_LOOP, element, states)
