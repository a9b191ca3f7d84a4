/* Four elements a thread, in one load and one store where the span is aligned. */
#include "kernels/span_scale.h"

#include "engine/device/cuda/entry.h"

KERNEL(span_scale, 256, struct span_scale_argument, a) {
    uint64_t i = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) * 4;
    if (reinterpret_cast<uintptr_t>(a.span) % sizeof(float4) == 0 && i + 4 <= a.count) {
        float4 x = *reinterpret_cast<const float4 *>(a.span + i);
        *reinterpret_cast<float4 *>(a.span + i) =
            make_float4(x.x * a.factor, x.y * a.factor, x.z * a.factor, x.w * a.factor);
    } else {
        for (uint64_t k = i; k < i + 4 && k < a.count; k++) a.span[k] *= a.factor;
    }
}
