/* Shared by all kernels of this folder: the three number types, groups of 16 bytes, and sums over a warp. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "engine/device/cuda/entry.h"
#include "tools/gpt/cuda/kernels/kernels.h"

constexpr float LOG2_E = 1.4426950408889634f;

__device__ inline float wide(float x) { return x; }
__device__ inline float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float wide(__half x) { return __half2float(x); }

__device__ inline void narrow(float *to, float x) { *to = x; }
__device__ inline void narrow(__nv_bfloat16 *to, float x) { *to = __float2bfloat16_rn(x); }
__device__ inline void narrow(__half *to, float x) { *to = __float2half_rn(x); }

/* N numbers that one access reads or writes. */
template <typename T, int N> struct alignas(sizeof(T) * N) group { T number[N]; };

template <int N, typename T> __device__ inline group<T, N> group_at(const T *from) {
    return *(const group<T, N> *)from;
}

template <int N, typename T> __device__ inline void load(float (&to)[N], const T *from) {
    group<T, N> g = group_at<N>(from);
    for (int i = 0; i < N; i++) to[i] = wide(g.number[i]);
}

template <int N, typename T> __device__ inline void store(T *to, const float (&from)[N]) {
    group<T, N> g;
    for (int i = 0; i < N; i++) narrow(&g.number[i], from[i]);
    *(group<T, N> *)to = g;
}

/* The same in whole registers, for a thread that keeps many: the compiler gives every 16-bit number of a group its own. */
template <typename T, int N> struct packed {
    uint32_t word[(sizeof(T) * N + 3) / 4];

    __device__ float at(int i) const {
        if constexpr (sizeof(T) == 4) return __uint_as_float(word[i]);
        uint16_t bits = (uint16_t)(word[i / 2] >> i % 2 * 16);
        T x;
        memcpy((void *)&x, &bits, sizeof x);
        return wide(x);
    }
};
template <int N, typename T> __device__ inline packed<T, N> packed_at(const T *from) {
    if constexpr (sizeof(T) * N >= 4) {
        struct alignas(sizeof(T) * N) words {
            uint32_t word[sizeof(T) * N / 4];
        };
        words w = *(const words *)from;
        packed<T, N> p;
        memcpy(&p, &w, sizeof p);
        return p;
    } else {
        return {{*(const uint16_t *)from}};
    }
}

/* How many numbers fit in 16 bytes. */
template <typename T> constexpr int WIDEST = 16 / sizeof(T);

__device__ inline float warp_sum(float x) {
    for (int other = WARP / 2; other; other /= 2) x += __shfl_xor_sync(0xffffffffu, x, other);
    return x;
}

__device__ inline float warp_maximum(float x) {
    for (int other = WARP / 2; other; other /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, other));
    return x;
}

/* Defines NAME_f32, NAME_bf16 and NAME_f16 as FUNCTION<type>(argument). */
#define KERNELS_OF(name, threads, function)                                                                  \
    KERNEL(name##_f32, threads, name##_argument, a) { function<float>(a); }                                  \
    KERNEL(name##_bf16, threads, name##_argument, a) { function<__nv_bfloat16>(a); }                         \
    KERNEL(name##_f16, threads, name##_argument, a) { function<__half>(a); }

/* The same, of FUNCTION<type, N>: N numbers at once fill 16 bytes if `length` is a multiple of that, else N is 1. */
#define KERNELS_BY_GROUPS(name, threads, function, length)                                                   \
    template <typename T> static __device__ void name##_by_groups(const name##_argument &a) {                \
        if ((length) % WIDEST<T> == 0)                                                                       \
            function<T, WIDEST<T>>(a);                                                                       \
        else                                                                                                 \
            function<T, 1>(a);                                                                               \
    }                                                                                                        \
    KERNELS_OF(name, threads, name##_by_groups)
