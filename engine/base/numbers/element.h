/* KERNEL_INLINE: the qualifiers of functions on one element, which are compiled for CPUs and for CUDA. */
#pragma once

#if defined(__CUDACC__)
#define KERNEL_INLINE static __host__ __device__ __forceinline__
#else
#define KERNEL_INLINE static inline
#endif
