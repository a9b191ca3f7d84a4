/* One product of a warp on the tensor cores: d[16][8] += a[16][16] b[16][8], of bf16 or fp16 in fp32. What a lane holds of
 * each is in NVIDIA's PTX ISA, "Matrix Fragments for mma.m16n8k16": with g = lane / 4 and t = lane % 4, two neighbours in 32
 * bits of a at (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), of b at (2t, g), (2t + 8, g), and d at (g, 2t),
 * (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). tests/cuda/emulated_mma.h takes this file's place in the emulation. */
#ifndef ZERO_TOOLS_GPT_CUDA_MMA_H
#define ZERO_TOOLS_GPT_CUDA_MMA_H

#include <stdint.h>

#define MMA_OF(name, type)                                                                                   \
    static __device__ inline void mma_##name(float(&d)[4], const uint32_t(&a)[4], uint32_t b0,               \
                                             uint32_t b1) {                                                  \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                          \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                       \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                        \
    }
MMA_OF(bf16, "bf16")
MMA_OF(f16, "f16")

#endif
