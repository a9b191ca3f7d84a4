/* The embeddings of tokens and of positions: a block per row, or per row of a table; threads go along the columns. */
#include "tools/gpt/cuda/number.h"

template <typename T> static __device__ void forward(const embedding_forward_argument &a) {
    uint64_t row = blockIdx.x, width = a.width;
    const T *token = (const T *)a.table + (uint64_t)a.tokens[row] * width;
    const T *position = a.positions ? (const T *)a.positions + row % a.length * width : NULL;
    for (uint32_t c = threadIdx.x; c < width; c += FLAT_THREADS)
        narrow((T *)a.y + row * width + c, wide(token[c]) + (position ? wide(position[c]) : 0.f));
}

template <typename T> static __device__ void backward(const embedding_backward_argument &a) {
    uint32_t index = blockIdx.x;
    if (index >= *a.groups) return;
    T *to = (T *)a.table + (uint64_t)a.token[index] * a.width;
    for (uint32_t c = threadIdx.x; c < a.width; c += FLAT_THREADS) {
        float sum = 0;
        for (uint32_t i = a.first[index]; i < a.first[index + 1]; i++)
            sum += wide(((const T *)a.dy)[(uint64_t)a.order[i] * a.width + c]);
        narrow(to + c, a.add ? wide(to[c]) + sum : sum);
    }
}

template <typename T> static __device__ void positions_backward(const position_backward_argument &a) {
    uint32_t position = blockIdx.x;
    T *to = (T *)a.table + (uint64_t)position * a.width;
    for (uint32_t c = threadIdx.x; c < a.width; c += FLAT_THREADS) {
        float sum = 0;
        for (uint32_t i = 0; i < a.batch && position < a.length; i++)
            sum += wide(((const T *)a.dy)[((uint64_t)i * a.length + position) * a.width + c]);
        narrow(to + c, a.add ? wide(to[c]) + sum : sum);
    }
}

KERNELS_OF(embedding_forward, FLAT_THREADS, forward)
KERNELS_OF(embedding_backward, FLAT_THREADS, backward)
KERNELS_OF(position_backward, FLAT_THREADS, positions_backward)
