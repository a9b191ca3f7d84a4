/* Casts, scaled or not, and the program's gradients: four elements per thread. */
#include "kernels/device_work.h"

#include "engine/device/cuda/entry.h"
#include "kernels/four.cuh"
#include "kernels/rows.cuh"

template <typename T>
static __device__ void copy_elements(void *target, const void *source, uint64_t first, uint32_t count) {
    for (uint32_t k = 0; k < count; k++)
        static_cast<T *>(target)[first + k] = static_cast<const T *>(source)[first + k];
}

/* Copies every bit, also of NaNs. */
static __device__ void copy_four(void *target, const void *source, uint32_t bytes, uint64_t first,
                                 uint32_t count) {
    if (bytes == 4)
        copy_elements<uint32_t>(target, source, first, count);
    else if (bytes == 2)
        copy_elements<uint16_t>(target, source, first, count);
    else
        copy_elements<uint8_t>(target, source, first, count);
}

KERNEL(cast_scaled, 256, struct cast_scaled_argument, a) {
    const of_row<4> at(a.count);
    uint32_t count = four_count(at.first, a.count);
    const char *source =
        static_cast<const char *>(a.source) + at.row * a.step * dtype_bytes((enum dtype)a.source_dtype);
    char *target = static_cast<char *>(a.target) + at.row * (a.target_step ? a.target_step : a.count) *
                                                       dtype_bytes((enum dtype)a.target_dtype);
    if (!count) return;
    if (a.factor == 0 && a.target_dtype == a.source_dtype) {
        copy_four(target, source, dtype_bytes((enum dtype)a.target_dtype), at.first, count);
        return;
    }
    four f = four_load(source, a.source_dtype, at.first, count);
    for (uint32_t k = 0; k < 4 && a.factor != 0; k++) f.x[k] = canonical(f.x[k] * a.factor);
    four_store(target, a.target_dtype, at.first, count, f);
}

KERNEL(gradient_take, 256, struct gradient_take_argument, a) {
    uint64_t first = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) * 4;
    uint32_t count = four_count(first, a.count);
    if (!count) return;
    four_bits gradient = four_fetch(a.gradient, a.dtype, first, count), before = {};
    if (a.add) before = four_fetch(a.sum, a.dtype, first, count);
    four f = four_widened(gradient, a.dtype);
    if (a.add) {
        four sum = four_widened(before, a.dtype);
        for (uint32_t k = 0; k < 4; k++) f.x[k] = canonical(sum.x[k] + f.x[k]);
    }
    four_store(a.sum, a.dtype, first, count, f);
}
