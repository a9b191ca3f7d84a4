/* clang-format off */
/* How a .cu file declares an entry, the same for nvcc and for the emulation in tests/cuda/ (which replaces this file by
 * its own):
 *
 *   KERNEL(span_scale, 256, struct span_scale_argument, a) {   // the name in the fatbin, the most threads of a block
 *       uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
 *       if (i < a.count) a.span[i] *= a.factor;
 *   }
 *
 * DYNAMIC_SHARED(float, tile) declares `float *tile`, the launch's dynamic shared memory, 16-byte aligned. */
/* clang-format on */
#ifndef ZERO_ENGINE_DEVICE_CUDA_ENTRY_H /* a header of tests takes the place of this one */
#define ZERO_ENGINE_DEVICE_CUDA_ENTRY_H

#define KERNEL(name, threads_max, type, argument)                                                            \
    extern "C" __global__ void __launch_bounds__(threads_max) name(const __grid_constant__ type argument)

#define DYNAMIC_SHARED(type, name)                                                                           \
    extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];                                    \
    type *name = reinterpret_cast<type *>(dynamic_shared_bytes)

#endif
