/* Steps of whole matrices on a GPU, with the bits of orthogonalize.c: an element of a product is one chain of fused multiply-adds in
 * ascending order of the inner index, whichever thread makes it. */
#include "kernels/device_work.h"

#include "engine/device/cuda/entry.h"
#include "kernels/four.cuh"
#include "kernels/matrix_step.h"

static __device__ const float *floats(const void *array) { return static_cast<const float *>(array); }

KERNEL(matrix_normalize, 256, struct matrix_step, s) {
    uint64_t first = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) * 4;
    uint32_t count = four_count(first, s.rows * s.columns);
    if (!count) return;
    float norm = matrix_norm(*static_cast<const double *>(s.b), s.alpha, s.bf16);
    four f = four_load(s.a, DTYPE_F32, first, count);
    for (uint32_t k = 0; k < 4; k++) f.x[k] = matrix_normal(f.x[k], norm, s.bf16);
    four_store(s.out, DTYPE_F32, first, count, f);
}

KERNEL(matrix_scale, 256, struct matrix_step, s) {
    uint64_t first = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) * 4;
    uint32_t count = four_count(first, s.rows * s.columns);
    if (!count) return;
    four f = four_load(s.a, DTYPE_F32, first, count);
    for (uint32_t k = 0; k < 4; k++) f.x[k] = matrix_scaled(f.x[k], s.alpha);
    four_store(s.out, DTYPE_F32, first, count, f);
}

/* A block of threads per square. One column more than it has keeps its rows and its columns on different banks of memory. */
KERNEL(matrix_transpose, 256, struct matrix_step, s) {
    enum { SIDE = MATRIX_SQUARE_SIDE };
    __shared__ float square[SIDE][SIDE + 1];
    uint64_t across = (s.columns + SIDE - 1) / SIDE, top = blockIdx.x / across * SIDE,
             left = blockIdx.x % across * SIDE;
    for (uint32_t i = threadIdx.x; i < SIDE * SIDE; i += blockDim.x) {
        uint64_t row = top + i / SIDE, column = left + i % SIDE;
        if (row < s.rows && column < s.columns)
            square[i / SIDE][i % SIDE] = matrix_scaled(floats(s.a)[row * s.columns + column], s.alpha);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < SIDE * SIDE; i += blockDim.x) {
        uint64_t column = left + i / SIDE, row = top + i % SIDE;
        if (row < s.rows && column < s.columns)
            static_cast<float *>(s.out)[column * s.rows + row] = square[i % SIDE][i / SIDE];
    }
}

/* A block of threads per tile of the product. A thread makes EACH rows by EACH columns of it; of the columns, half are in each half of the
 * tile, so that neighboring threads read neighboring floats. */
enum { ROWS = MATRIX_TILE_ROWS, COLUMNS = MATRIX_TILE_COLUMNS, INNER = 16, EACH = 8, THREADS = 128, PAD = 4 };
static_assert(ROWS / EACH * (COLUMNS / EACH) == THREADS, "every element of a tile has a thread");

struct product_tile {
    __align__(16) float a[INNER][ROWS + PAD], b[INNER][COLUMNS];
};

/* What is beyond the matrices is not read, and not multiplied: a product with zero may change the sign of a zero. */
static __device__ void fetch(product_tile &t, const struct matrix_step &s, uint64_t top, uint64_t left,
                             uint64_t inner) {
    for (uint32_t i = threadIdx.x; i < ROWS * INNER; i += THREADS) {
        uint64_t row = top + i / INNER, k = inner + i % INNER;
        bool there = row < s.rows && k < s.inner;
        t.a[i % INNER][i / INNER] = there ? floats(s.a)[row * s.inner + k] : 0;
    }
    for (uint32_t i = threadIdx.x; i < COLUMNS * INNER; i += THREADS) {
        uint64_t k = inner + i / COLUMNS, column = left + i % COLUMNS;
        bool there = k < s.inner && column < s.columns;
        t.b[i / COLUMNS][i % COLUMNS] = there ? floats(s.b)[k * s.columns + column] : 0;
    }
}

static __device__ uint32_t column_of(uint32_t thread, uint32_t j) {
    return j / 4 * (COLUMNS / 2) + thread % (COLUMNS / EACH) * 4 + j % 4;
}

static __device__ void multiply(const product_tile &t, uint32_t k, float sum[EACH][EACH]) {
    float a[EACH], b[EACH];
    uint32_t row = threadIdx.x / (COLUMNS / EACH) * EACH;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) a[i] = t.a[k][row + i];
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) b[j] = t.b[k][column_of(threadIdx.x, j)];
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
}

KERNEL(matrix_product, THREADS, struct matrix_step, s) {
    __shared__ product_tile t;
    uint64_t across = (s.columns + COLUMNS - 1) / COLUMNS, top = blockIdx.x / across * ROWS,
             left = blockIdx.x % across * COLUMNS;
    float sum[EACH][EACH] = {};
    for (uint64_t inner = 0; inner < s.inner; inner += INNER) {
        fetch(t, s, top, left, inner);
        __syncthreads();
        if (s.inner - inner >= INNER) {
#pragma unroll
            for (uint32_t k = 0; k < INNER; k++) multiply(t, k, sum);
        } else {
            for (uint32_t k = 0; k < s.inner - inner; k++) multiply(t, k, sum);
        }
        __syncthreads();
    }
    uint64_t first = top + threadIdx.x / (COLUMNS / EACH) * EACH;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            uint64_t row = first + i, column = left + column_of(threadIdx.x, j),
                     at = row * s.columns + column;
            if (row < s.rows && column < s.columns)
                static_cast<float *>(s.out)[at] = matrix_finished(&s, at, sum[i][j]);
        }
}
