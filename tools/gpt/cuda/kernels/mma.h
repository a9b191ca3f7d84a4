/* The operands of the tensor cores, and how they get there. In the emulation, tests/cuda/emulated_mma.h replaces this
 * file.
 *
 * One product of a warp: d[16][8] += a[16][16] b[16][8], of bf16 or fp16 in fp32. NVIDIA's PTX ISA, "Matrix Fragments
 * for mma.m16n8k16", says which elements a lane holds. With g = lane / 4 and t = lane % 4, a lane holds:
 *   a two neighbours in 32 bits, at (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
 *   b two neighbours in 32 bits, at (2t, g), (2t + 8, g)
 *   d single numbers, at (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1) */
#ifndef ZERO_TOOLS_GPT_CUDA_KERNELS_MMA_H /* a header of tests takes the place of this one */
#define ZERO_TOOLS_GPT_CUDA_KERNELS_MMA_H

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

/* Loads four matrices of 8 rows of 16 bytes (16-bit numbers) from shared memory: lane 8 i + k gives the address of row
 * k of matrix i. to[i]: row g of matrix i, at 2t and 2t + 1; turned: column g, at rows 2t and 2t + 1. */
#define LOAD_OF(name, form)                                                                                  \
    static __device__ inline void name(uint32_t(&to)[4], const void *row) {                                  \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" form ".shared.b16 {%0, %1, %2, %3}, [%4];"              \
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])                                    \
                     : "r"((uint32_t)__cvta_generic_to_shared(row))                                          \
                     : "memory");                                                                            \
    }
LOAD_OF(load_matrices, "")
LOAD_OF(load_turned, ".trans")

/* Stores four matrices of 8 rows of 16 bytes, turned: lane 8 i + k gives the address of row k of matrix i; from[i]: column g of
 * matrix i, at rows 2t and 2t + 1. */
static __device__ inline void store_turned(void *row, const uint32_t (&from)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(row)),
                 "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
#endif
}

/* Copies 16 or 4 aligned bytes from global to shared memory, or writes zeros. The data is there after this thread has
 * called copies_done. */
static __device__ inline void copy_16(void *to, const void *from, bool there) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from), "r"(there ? 16 : 0)
        : "memory");
}
static __device__ inline void copy_4(void *to, const void *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 4 : 0)
                 : "memory");
}
static __device__ inline void copies_done(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* Ends a group of copies, which may be empty. All groups but this thread's last LATER ones have arrived after copies_wait. */
static __device__ inline void copies_end(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> static __device__ inline void copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

/* 2^x, with a relative error of about 2^-22; results below 2^-126 are 0. */
static __device__ inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
