#include "tests/cuda/misuse.h"

#include "engine/device/cuda/entry.h"
#include "tools/gpt/cuda/kernels/mma.h"
#include "tools/gpt/cuda/kernels/wgmma.h"

static __device__ void wait_apart(void) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

static __device__ void wait_apart_in_warps(void) {
    if (threadIdx.x % 32 < 16)
        __syncwarp();
    else
        __syncwarp();
}

static __device__ uint32_t address(const uint32_t *words) {
    uint2 two = *reinterpret_cast<const uint2 *>(words);
    return two.x + two.y;
}

static __device__ uint32_t matrix(const uint32_t *words) {
    uint32_t to[4];
    load_matrices(to, words);
    return to[0];
}

static __device__ uint32_t product(bool begins, uint32_t address) {
    float sums[8][4] = {};
    uint32_t left[4] = {};
    if (begins) warpgroup_begin();
    warpgroup_multiply<false>(sums, left, UINT64_C(1) << 62 | address >> 4, true);
    warpgroup_commit();
    warpgroup_wait<0>();
    return (uint32_t)sums[0][0];
}

static __device__ uint32_t two_products(void) {
    float sums[8][4] = {};
    uint32_t left[4] = {};
    warpgroup_begin();
    warpgroup_commit();
    warpgroup_multiply<false>(sums, left, UINT64_C(1) << 62, true);
    return (uint32_t)sums[0][0];
}

static __device__ uint32_t product_of_two(uint32_t left, uint32_t right) {
    float sums[8][4] = {};
    uint64_t swizzled = UINT64_C(1) << 62;
    warpgroup_begin();
    warpgroup_multiply<false>(sums, swizzled | left >> 4, swizzled | right >> 4, true);
    warpgroup_commit();
    warpgroup_wait<0>();
    return (uint32_t)sums[0][0];
}

/* Eight lines, which a product takes for all that it reads. */
static __device__ uint32_t product_of_copies(const uint32_t *from) {
    DYNAMIC_SHARED(unsigned char, memory);
    uint32_t first = 1024 - shared_address(memory) % 1024;
    copy_16(memory + first + threadIdx.x * 16, from, true);
    copies_done();
    __syncthreads();
    return product(true, shared_address(memory + first));
}

KERNEL(misuse, 64, struct misuse_argument, a) {
    alignas(16) __shared__ uint32_t words[64];
    uint32_t x = threadIdx.x;
    words[x] = x;
    __syncthreads();
    if (a.misuse == MISUSE_BARRIERS) wait_apart();
    if (a.misuse == MISUSE_WARPS) wait_apart_in_warps();
    if (a.misuse == MISUSE_EXIT && x == 40) return;
    __syncwarp();
    if (a.misuse == MISUSE_ADDRESS) x = address(words + a.one);
    if (a.misuse == MISUSE_INDEX) x = words[x + a.one];
    if (a.misuse == MISUSE_SHIFT) x = x << (31 + a.one);
    if (a.misuse == MISUSE_CAST) x = (uint32_t)a.large;
    if (a.misuse == MISUSE_COPY) copy_16(words + a.one, a.out, true);
    if (a.misuse == MISUSE_MATRIX) x = matrix(words + a.one);
    if (a.misuse == MISUSE_PRODUCT || a.misuse == MISUSE_OPERAND) x = product(a.misuse == MISUSE_OPERAND, 0);
    if (a.misuse == MISUSE_GROUP) x = two_products();
    if (a.misuse == MISUSE_LEFT) x = product_of_two(LEFT_OUTSIDE, 0);
    if (a.misuse == MISUSE_FENCE) x = product_of_copies(a.out);
    a.out[threadIdx.x] = x;
}
