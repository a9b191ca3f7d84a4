/* The floating-point environment of all arithmetic on elements, in kernels and in collectives: round to nearest,
 * keep denormals, mask exceptions. Host programs change the environment of their threads (PyTorch's
 * set_flush_denormal, -ffast-math's start-up code), and any of these threads may perform the engine's work. A kernel
 * enters the environment before its arithmetic and leaves it afterwards. The code in between must be a call through a
 * function pointer; otherwise the compiler may move arithmetic out of it. */
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>

typedef unsigned int float_env;

enum { FLOAT_ENV_DEFAULT = 0x1f80 };

static inline float_env float_env_enter(void) {
    float_env saved = _mm_getcsr();
    if (saved != FLOAT_ENV_DEFAULT) _mm_setcsr(FLOAT_ENV_DEFAULT);
    return saved;
}

/* Drops the exception flags that the kernel raised. */
static inline void float_env_leave(float_env saved) { _mm_setcsr(saved); }

#elif defined(__aarch64__)
#include <stdint.h>

typedef struct {
    uint64_t control, flags; /* the registers FPCR and FPSR */
} float_env;

/* FPCR 0: round to nearest, keep denormals, propagate NaNs, no traps. */
static inline float_env float_env_enter(void) {
    float_env saved;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(saved.control), "=r"(saved.flags)::"memory");
    if (saved.control) __asm__ volatile("msr fpcr, xzr" ::: "memory");
    return saved;
}

/* Drops the exception flags that the kernel raised. */
static inline void float_env_leave(float_env saved) {
    if (saved.control) __asm__ volatile("msr fpcr, %0" ::"r"(saved.control) : "memory");
    __asm__ volatile("msr fpsr, %0" ::"r"(saved.flags) : "memory");
}

#else
#include <fenv.h>

typedef fenv_t float_env;

static inline float_env float_env_enter(void) {
    float_env saved;
    fegetenv(&saved);
    fesetenv(FE_DFL_ENV);
    return saved;
}

static inline void float_env_leave(float_env saved) { fesetenv(&saved); }
#endif
