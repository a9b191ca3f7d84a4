/* Products of a warpgroup (4 warps, 128 threads) on sm_90a. In the emulation, tests/cuda/emulated_wgmma.h replaces this file.
 *
 * d[64][64] += a[64][16] b[16][64], of bf16 in fp32 (NVIDIA's PTX ISA, "wgmma.mma_async"). Warp w of the group holds rows 16 w ...
 * 16 w + 15 of a and d, as a warp of mma.h holds them: d as eight tiles of 8 columns side by side. b stands in shared memory,
 * described by 64 bits ("Matrix Descriptor Format"); turned: its rows lie one after another, else its columns. a may stand there
 * too: its rows lie one after another.
 *
 * The order: warpgroup_begin, products, warpgroup_commit, and warpgroup_wait, before which other products may begin and be committed.
 * Until the wait no thread touches the factors and the sums. All threads of the group make the same calls. */
#ifndef ZERO_TOOLS_GPT_CUDA_KERNELS_WGMMA_H /* a header of tests takes the place of this one */
#define ZERO_TOOLS_GPT_CUDA_KERNELS_WGMMA_H

#include <stdint.h>

static __device__ inline uint32_t shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* After it the products see what this thread has copied (copy_16 of mma.h) to shared memory, once all threads have come to a
 * barrier. */
static __device__ inline void copies_done_for_products(void) {
    asm volatile("cp.async.wait_all;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ inline void warpgroup_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Makes a group of the products since the last commit. */
static __device__ inline void warpgroup_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits for all groups but the `Newest` that were committed last. */
template <int Newest> static __device__ inline void warpgroup_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Newest) : "memory");
}

#define SUMS_OF_8(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define SUMS_OF(d)                                                                                           \
    SUMS_OF_8(d, 0), SUMS_OF_8(d, 1), SUMS_OF_8(d, 2), SUMS_OF_8(d, 3), SUMS_OF_8(d, 4), SUMS_OF_8(d, 5),    \
        SUMS_OF_8(d, 6), SUMS_OF_8(d, 7)

/* The compiler moves no use of the sums, or of the left factor, across it. To be called before warpgroup_begin and after
 * warpgroup_wait. */
static __device__ inline void hold(float (&d)[8][4]) { asm volatile("" : SUMS_OF(d)::"memory"); }
static __device__ inline void hold(uint32_t (&a)[4]) {
    asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

#define SUMS_AS_TEXT                                                                                         \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

/* adds: false: d = a b */
template <bool Turned>
static __device__ inline void warpgroup_multiply(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b,
                                                 bool adds) {
    asm volatile("{\n\t"
                 ".reg .pred adds;\n\t"
                 "setp.ne.b32 adds, %37, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS_AS_TEXT
                 "{%32, %33, %34, %35}, %36, adds, 1, 1, %38;\n\t"
                 "}"
                 : SUMS_OF(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds), "n"(Turned ? 1 : 0)
                 : "memory");
}

/* The same with a in shared memory. */
template <bool Turned>
static __device__ inline void warpgroup_multiply(float (&d)[8][4], uint64_t a, uint64_t b, bool adds) {
    asm volatile("{\n\t"
                 ".reg .pred adds;\n\t"
                 "setp.ne.b32 adds, %34, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS_AS_TEXT
                 "%32, %33, adds, 1, 1, 0, %35;\n\t"
                 "}"
                 : SUMS_OF(d)
                 : "l"(a), "l"(b), "r"((int)adds), "n"(Turned ? 1 : 0)
                 : "memory");
}

/* A load, and an addition in memory without a result, which the compiler leaves where they stand. */
static __device__ inline float load_now(const float *at) {
    float x;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(at));
    return x;
}
static __device__ inline void add_now(int32_t *to, int32_t x) {
    asm volatile("red.relaxed.gpu.global.add.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

#endif
