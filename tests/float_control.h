/* The floating-point control register, which a host program may have changed (engine/base/numbers/float_env.h). */
#ifndef ZERO_TESTS_FLOAT_CONTROL_H
#define ZERO_TESTS_FLOAT_CONTROL_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { FLOAT_CONTROL_FLUSHES = 0x8040 }; /* results and operands that are denormals to zero */

static inline uint64_t float_control(void) { return _mm_getcsr() & 0xffc0; } /* without the exception flags */
static inline void float_control_set(uint64_t control) { _mm_setcsr((unsigned int)control); }

#elif defined(__aarch64__)
enum { FLOAT_CONTROL_FLUSHES = 3 << 24 }; /* denormals to zero (FZ); each NaN to the default one (DN) */

static inline uint64_t float_control(void) {
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control)::"memory");
    return control;
}

static inline void float_control_set(uint64_t control) {
    __asm__ volatile("msr fpcr, %0" ::"r"(control) : "memory");
}

#else
enum { FLOAT_CONTROL_FLUSHES = 0 };

static inline uint64_t float_control(void) { return 0; }
static inline void float_control_set(uint64_t control) { (void)control; }
#endif

#endif
