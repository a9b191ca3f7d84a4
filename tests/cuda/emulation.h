/* Runs .cu files on the CPU: included before each (cuda_emulated in emulated.bzl), in the place of nvcc's built-ins and of
 * engine/device/cuda/entry.h.
 *
 * One block at a time, in a random order; within it every thread is a fiber that runs until it waits for others, and which one
 * runs next is random too: a missing __syncthreads gives wrong bits with some seed. Threads that wait for one another
 * for ever end the test with a sentence. The fake driver (fake_cuda.h) launches, one kernel at a time; hence plain globals.
 *
 * Offered: threadIdx, blockIdx, blockDim, gridDim, warpSize; __shared__ and DYNAMIC_SHARED; __syncthreads (and _or, _and,
 * _count), __syncwarp, __shfl*_sync, __ballot_sync, __any_sync, __all_sync, __reduce_*_sync; atomics; bit casts, IEEE
 * intrinsics, cached loads and stores. Not offered: blocks that wait for other blocks, textures, tensor cores and asynchronous
 * copies (emulated_mma.h has those). Functions of <math.h> are the host's: exp and its like may differ from a GPU's in the last
 * places. Loads and stores at addresses that are not multiples of their sizes end the test, as do indices outside of arrays
 * (emulated_checks.c). */
#ifndef ZERO_TESTS_CUDA_EMULATION_H
#define ZERO_TESTS_CUDA_EMULATION_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <vector_functions.h>
#include <vector_types.h>

#include "tests/cuda/emulator.h"

#undef __shared__
#undef __launch_bounds__
#undef __grid_constant__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

/* ---- engine/device/cuda/entry.h ---- */

#define ZERO_ENGINE_DEVICE_CUDA_ENTRY_H

#define KERNEL(name, threads_max, type, argument)                                                            \
    static void name(const type &);                                                                          \
    static void name##_start(const void *a) { name(*static_cast<const type *>(a)); }                         \
    static struct emulated_kernel name##_row = {#name, name##_start, sizeof(type), threads_max, 0};          \
    __attribute__((constructor)) static void name##_register() { emulator_register(&name##_row); }           \
    static void name([[maybe_unused]] const type &argument)

#define DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(emulator_here.dynamic_shared)

/* ---- where a thread is ---- */

#define threadIdx (*reinterpret_cast<const uint3 *>(emulator_here.thread))
#define blockIdx (*reinterpret_cast<const uint3 *>(emulator_here.block))
#define blockDim (*reinterpret_cast<const dim3 *>(emulator_here.threads))
#define gridDim (*reinterpret_cast<const dim3 *>(emulator_here.blocks))
#define warpSize 32

/* ---- waiting for others ---- */

static inline void __syncthreads() { emulator_sync_block(0); }
static inline int __syncthreads_count(int x) { return (int)emulator_sync_block(x != 0); }
static inline int __syncthreads_or(int x) { return emulator_sync_block(x != 0) != 0; }
static inline int __syncthreads_and(int x) { return emulator_sync_block(x == 0) == 0; }
static inline void __syncwarp(uint32_t mask = 0xffffffffu) { emulator_sync_warp(mask); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}

namespace emulation {

/* What lane `lane` of this warp holds in `mine`. Every lane of the mask calls it; a lane outside gives its own. */
template <typename T> T exchange(uint32_t mask, T mine, uint32_t lane) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a warp exchanges 8 bytes at most");
    uint64_t bits = 0;
    memcpy(&bits, &mine, sizeof mine);
    bits = emulator_exchange(mask, bits, lane);
    memcpy(&mine, &bits, sizeof mine);
    return mine;
}

static inline uint32_t lane() { return emulator_here.lane; }

/* The lanes' values, added up or otherwise joined in the order of lanes. */
template <typename T, typename Join> T join(uint32_t mask, T mine, Join with) {
    bool first = true;
    T sum = mine;
    for (uint32_t k = 0; k < 32; k++) {
        if (!(mask >> k & 1)) continue;
        T other = exchange(mask, mine, k);
        sum = first ? other : with(sum, other);
        first = false;
    }
    return sum;
}

template <typename To, typename From> To cast_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

} // namespace emulation

template <typename T> T __shfl_sync(uint32_t mask, T x, int from, int width = 32) {
    return emulation::exchange(mask, x,
                               (emulation::lane() & ~(width - 1u)) | ((uint32_t)from & (width - 1u)));
}

template <typename T> T __shfl_xor_sync(uint32_t mask, T x, int by, int width = 32) {
    uint32_t from = emulation::lane() ^ (uint32_t)by, segment = ~((uint32_t)width - 1);
    return emulation::exchange(mask, x,
                               (from & segment) <= (emulation::lane() & segment) ? from : emulation::lane());
}

template <typename T> T __shfl_down_sync(uint32_t mask, T x, uint32_t by, int width = 32) {
    uint32_t within = emulation::lane() & ((uint32_t)width - 1);
    return emulation::exchange(mask, x,
                               within + by < (uint32_t)width ? emulation::lane() + by : emulation::lane());
}

template <typename T> T __shfl_up_sync(uint32_t mask, T x, uint32_t by, int width = 32) {
    uint32_t within = emulation::lane() & ((uint32_t)width - 1);
    return emulation::exchange(mask, x, within >= by ? emulation::lane() - by : emulation::lane());
}

static inline uint32_t __ballot_sync(uint32_t mask, int x) {
    return emulation::join(mask, x ? 1u << emulation::lane() : 0u,
                           [](uint32_t a, uint32_t b) { return a | b; });
}
static inline int __any_sync(uint32_t mask, int x) { return __ballot_sync(mask, x) != 0; }
static inline int __all_sync(uint32_t mask, int x) { return __ballot_sync(mask, x) == mask; }

template <typename T> T __reduce_add_sync(uint32_t mask, T x) {
    return emulation::join(mask, x, [](T a, T b) { return a + b; });
}
template <typename T> T __reduce_max_sync(uint32_t mask, T x) {
    return emulation::join(mask, x, [](T a, T b) { return a > b ? a : b; });
}
template <typename T> T __reduce_min_sync(uint32_t mask, T x) {
    return emulation::join(mask, x, [](T a, T b) { return a < b ? a : b; });
}
template <typename T> T __reduce_or_sync(uint32_t mask, T x) {
    return emulation::join(mask, x, [](T a, T b) { return a | b; });
}

/* ---- atomics: one fiber runs at a time ---- */

template <typename T, typename U> T atomicAdd(T *at, U x) {
    T old = *at;
    *at = (T)(old + (T)x);
    return old;
}
template <typename T, typename U> T atomicMax(T *at, U x) {
    T old = *at;
    if ((T)x > old) *at = (T)x;
    return old;
}
template <typename T, typename U> T atomicMin(T *at, U x) {
    T old = *at;
    if ((T)x < old) *at = (T)x;
    return old;
}
template <typename T, typename U> T atomicOr(T *at, U x) {
    T old = *at;
    *at = old | (T)x;
    return old;
}
template <typename T, typename U> T atomicAnd(T *at, U x) {
    T old = *at;
    *at = old & (T)x;
    return old;
}
template <typename T, typename U> T atomicExch(T *at, U x) {
    T old = *at;
    *at = (T)x;
    return old;
}
template <typename T> T atomicCAS(T *at, T expected, T x) {
    T old = *at;
    if (old == expected) *at = x;
    return old;
}

/* ---- intrinsics ---- */

static inline uint32_t __float_as_uint(float x) { return emulation::cast_bits<uint32_t>(x); }
static inline int32_t __float_as_int(float x) { return emulation::cast_bits<int32_t>(x); }
static inline float __uint_as_float(uint32_t x) { return emulation::cast_bits<float>(x); }
static inline float __int_as_float(int32_t x) { return emulation::cast_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emulation::cast_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emulation::cast_bits<double>(x); }
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline int __clz(uint32_t x) { return x ? __builtin_clz(x) : 32; }
static inline int __ffs(uint32_t x) { return __builtin_ffs((int)x); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
#define __expf expf /* glibc has functions of these names */
#define __logf logf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
template <typename T> T __ldg(const T *at) { return *at; }
template <typename T> T __ldcs(const T *at) { return *at; }
template <typename T> T __ldcg(const T *at) { return *at; }
template <typename T> void __stcs(T *at, T x) { *at = x; }
template <typename T> void __stcg(T *at, T x) { *at = x; }

template <typename T> static inline T min(T a, T b) { return b < a ? b : a; }
template <typename T> static inline T max(T a, T b) { return a < b ? b : a; }

#endif
