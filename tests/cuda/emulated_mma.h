/* Stands in for tools/gpt/cuda/mma.h: the same product, its factors fetched from the lanes that hold them. */
#ifndef ZERO_TOOLS_GPT_CUDA_MMA_H
#define ZERO_TOOLS_GPT_CUDA_MMA_H

#include "engine/base/convert.h"
#include "tests/cuda/emulation.h"

namespace emulation {

/* Of two neighbours in 32 bits, the first or the second. */
template <float (*Widen)(uint16_t)> float half_of(uint32_t bits, uint32_t index) {
    return Widen((uint16_t)(bits >> (index * 16)));
}

template <float (*Widen)(uint16_t)>
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    uint32_t g = lane() / 4, t = lane() % 4;
    float left[2][16], right[2][16]; /* rows g and g + 8; columns 2t and 2t + 1 */
    for (uint32_t from = 0; from < 4; from++)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t bits = exchange(~0u, a[i], g * 4 + from), k = i / 2 * 8 + from * 2;
            for (uint32_t half = 0; half < 2; half++) left[i % 2][k + half] = half_of<Widen>(bits, half);
        }
    for (uint32_t from = 0; from < 4; from++)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t bits = exchange(~0u, i / 2 ? b1 : b0, (2 * t + i % 2) * 4 + from);
            for (uint32_t half = 0; half < 2; half++)
                right[i % 2][i / 2 * 8 + from * 2 + half] = half_of<Widen>(bits, half);
        }
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t k = 0; k < 16; k++) d[i] += left[i / 2][k] * right[i % 2][k];
}

} // namespace emulation

static inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulation::mma<f32_from_bf16>(d, a, b0, b1);
}
static inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulation::mma<f32_from_f16>(d, a, b0, b1);
}

#endif
