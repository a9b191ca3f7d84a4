/* Runs .cu files on the CPU. The build includes this header before each file (cuda_emulated in emulated.bzl); it
 * replaces nvcc's built-ins and engine/device/cuda/entry.h.
 *
 * One block runs at a time, in a random order. In a block every thread is a fiber that runs until it waits for others;
 * the next fiber is random, too. A missing __syncthreads therefore gives wrong bits with some seed. Threads that wait
 * for each other forever, or at different places, end the test with a message. The fake driver (fake_cuda.h) launches
 * one kernel at a time; the emulation therefore uses plain globals.
 *
 * Available: threadIdx, blockIdx, blockDim, gridDim, warpSize; __shared__ and DYNAMIC_SHARED; __syncthreads (and _or,
 * _and, _count), __syncwarp, __shfl*_sync, __ballot_sync, __any_sync, __all_sync, __reduce_*_sync; atomics; bit casts,
 * IEEE intrinsics, cached loads and stores. Not available: blocks that wait for other blocks, textures, tensor cores
 * and asynchronous copies (emulated_mma.h and emulated_wgmma.h have the last two). Functions of <math.h> are the host's: exp and similar
 * functions may differ from a GPU's in the last places. A load or store at an address that is not a multiple of its
 * size ends the test, and so does an index outside an array (emulated_checks.c). */
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

#define EMULATION_HERE (emulator_place{__FILE__, __LINE__})

#define __syncthreads() ((void)emulator_sync_block(EMULATION_HERE, 0))
#define __syncthreads_count(x) ((int)emulator_sync_block(EMULATION_HERE, (x) != 0))
#define __syncthreads_or(x) (emulator_sync_block(EMULATION_HERE, (x) != 0) != 0)
#define __syncthreads_and(x) (emulator_sync_block(EMULATION_HERE, (x) == 0) == 0)
#define __syncwarp (emulation::warp_sync{EMULATION_HERE})
static inline void __threadfence() {}
static inline void __threadfence_block() {}

namespace emulation {

struct warp_sync {
    emulator_place place;
    void operator()(uint32_t mask = 0xffffffffu) const { emulator_sync_warp(place, mask); }
};

/* Returns lane `lane`'s `mine`. Every lane of the mask calls it; for a lane outside the warp it returns the caller's
 * own. */
template <typename T> T exchange(emulator_place place, uint32_t mask, T mine, uint32_t lane) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a warp exchanges 8 bytes at most");
    uint64_t bits = 0;
    memcpy(&bits, &mine, sizeof mine);
    bits = emulator_exchange(place, mask, bits, lane);
    memcpy(&mine, &bits, sizeof mine);
    return mine;
}

static inline uint32_t lane() { return emulator_here.lane; }

/* Adds the lanes' values, or joins them in another way, in lane order. */
template <typename T, typename Join> T join(emulator_place place, uint32_t mask, T mine, Join with) {
    bool first = true;
    T sum = mine;
    for (uint32_t k = 0; k < 32; k++) {
        if (!(mask >> k & 1)) continue;
        T other = exchange(place, mask, mine, k);
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

template <typename T> T shfl(emulator_place place, uint32_t mask, T x, int from, int width = 32) {
    return exchange(place, mask, x, (lane() & ~(width - 1u)) | ((uint32_t)from & (width - 1u)));
}

template <typename T> T shfl_xor(emulator_place place, uint32_t mask, T x, int by, int width = 32) {
    uint32_t from = lane() ^ (uint32_t)by, segment = ~((uint32_t)width - 1);
    return exchange(place, mask, x, (from & segment) <= (lane() & segment) ? from : lane());
}

template <typename T> T shfl_down(emulator_place place, uint32_t mask, T x, uint32_t by, int width = 32) {
    uint32_t within = lane() & ((uint32_t)width - 1);
    return exchange(place, mask, x, within + by < (uint32_t)width ? lane() + by : lane());
}

template <typename T> T shfl_up(emulator_place place, uint32_t mask, T x, uint32_t by, int width = 32) {
    uint32_t within = lane() & ((uint32_t)width - 1);
    return exchange(place, mask, x, within >= by ? lane() - by : lane());
}

static inline uint32_t ballot(emulator_place place, uint32_t mask, int x) {
    return join(place, mask, x ? 1u << lane() : 0u, [](uint32_t a, uint32_t b) { return a | b; });
}

template <typename T> T reduce_add(emulator_place place, uint32_t mask, T x) {
    return join(place, mask, x, [](T a, T b) { return a + b; });
}
template <typename T> T reduce_max(emulator_place place, uint32_t mask, T x) {
    return join(place, mask, x, [](T a, T b) { return a > b ? a : b; });
}
template <typename T> T reduce_min(emulator_place place, uint32_t mask, T x) {
    return join(place, mask, x, [](T a, T b) { return a < b ? a : b; });
}
template <typename T> T reduce_or(emulator_place place, uint32_t mask, T x) {
    return join(place, mask, x, [](T a, T b) { return a | b; });
}

} // namespace emulation

#define __shfl_sync(...) emulation::shfl(EMULATION_HERE, __VA_ARGS__)
#define __shfl_xor_sync(...) emulation::shfl_xor(EMULATION_HERE, __VA_ARGS__)
#define __shfl_down_sync(...) emulation::shfl_down(EMULATION_HERE, __VA_ARGS__)
#define __shfl_up_sync(...) emulation::shfl_up(EMULATION_HERE, __VA_ARGS__)
#define __ballot_sync(...) emulation::ballot(EMULATION_HERE, __VA_ARGS__)
#define __any_sync(mask, x) (__ballot_sync(mask, x) != 0)
#define __all_sync(mask, x) (__ballot_sync(mask, x) == (mask))
#define __reduce_add_sync(...) emulation::reduce_add(EMULATION_HERE, __VA_ARGS__)
#define __reduce_max_sync(...) emulation::reduce_max(EMULATION_HERE, __VA_ARGS__)
#define __reduce_min_sync(...) emulation::reduce_min(EMULATION_HERE, __VA_ARGS__)
#define __reduce_or_sync(...) emulation::reduce_or(EMULATION_HERE, __VA_ARGS__)

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
static inline int __float2int_rn(float x) {
    return x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (int)nearbyintf(x);
}
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
