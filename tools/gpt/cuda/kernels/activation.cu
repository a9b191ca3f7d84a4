/* The MLP's activation and rotary positions: element by element. gelu(x) = x s(2u), where u = sqrt(2/pi) (x + 0.044715
 * x^3) and s(z) = 1 / (1 + e^-z). A thread handles as many neighbouring elements as 16 bytes hold, if that number
 * divides the length of a row. */
#include "tools/gpt/cuda/kernels/mma.h"
#include "tools/gpt/cuda/kernels/number.h"

static constexpr float GELU_A = 1.5957691216057308f; /* 2 sqrt(2/pi) */
static constexpr float GELU_B = 0.044715f;

/* Exact divisions and exponentials would take longer than memory. */
static __device__ float sigmoid(float x) { return __fdividef(1, 1 + power_of_two(x * -LOG2_E)); }
static __device__ float gelu_gate(float x) { return sigmoid(x * (x * x * (GELU_A * GELU_B) + GELU_A)); }

static __device__ float gelu(float x) { return x * gelu_gate(x); }

static __device__ float gelu_slope(float x) {
    float s = gelu_gate(x);
    return s + x * s * (1 - s) * (x * x * (3 * GELU_A * GELU_B) + GELU_A);
}

static __device__ uint64_t thread_index(void) { return (uint64_t)blockIdx.x * FLAT_THREADS + threadIdx.x; }

template <typename T, int N> static __device__ void gelu_group(const gelu_forward_argument &a) {
    uint64_t at = thread_index() * N;
    if (at >= a.count) return;
    float x[N];
    load(x, (const T *)a.x + at);
    for (int i = 0; i < N; i++) x[i] = gelu(x[i]);
    store((T *)a.y + at, x);
}

template <typename T, int N> static __device__ void gelu_backward_group(const gelu_backward_argument &a) {
    uint64_t at = thread_index() * N;
    if (at >= a.count) return;
    float x[N], d[N];
    load(x, (const T *)a.x + at), load(d, (const T *)a.dy + at);
    for (int i = 0; i < N; i++) d[i] *= gelu_slope(x[i]);
    store((T *)a.dx + at, d);
}

/* The index of the gate of element `at`. Uses a 32-bit division where possible: a 64-bit one takes longer than the
 * rest. */
static __device__ uint64_t gate_at(uint64_t at, uint32_t columns) {
    uint64_t row = at >> 32 ? at / columns : (uint32_t)at / columns;
    return row * columns + at;
}

template <typename T, int N> static __device__ void swiglu_group(const swiglu_forward_argument &a) {
    uint64_t at = thread_index() * N;
    if (at >= a.count) return;
    const T *x = (const T *)a.x + gate_at(at, a.columns);
    float gate[N], value[N];
    load(gate, x), load(value, x + a.columns);
    for (int i = 0; i < N; i++) value[i] *= gate[i] * sigmoid(gate[i]);
    store((T *)a.y + at, value);
}

template <typename T, int N> static __device__ void swiglu_backward_group(const swiglu_backward_argument &a) {
    uint64_t at = thread_index() * N;
    if (at >= a.count) return;
    uint64_t from = gate_at(at, a.columns);
    float gate[N], value[N], d[N];
    load(gate, (const T *)a.x + from), load(value, (const T *)a.x + from + a.columns);
    load(d, (const T *)a.dy + at);
    for (int i = 0; i < N; i++) {
        float s = sigmoid(gate[i]), gated = gate[i] * s;
        gate[i] = d[i] * value[i] * (s + gated * (1 - s));
        value[i] = d[i] * gated;
    }
    store((T *)a.dx + from, gate), store((T *)a.dx + from + a.columns, value);
}

/* Rotates the pairs of a row, N neighbouring pairs at once: in each half of a head their numbers are contiguous. */
template <typename T, int N> static __device__ void turn_row(const rotary_argument &a) {
    uint32_t row = blockIdx.x, groups = a.half / N;
    uint64_t angles = (uint64_t)(a.position ? a.position[row] : row % a.length) * a.half;
    for (uint32_t i = threadIdx.x; i < a.heads * groups; i += FLAT_THREADS) {
        uint32_t head = i / groups, pair = i % groups * N;
        T *p = (T *)a.x + (uint64_t)row * a.stride + head * 2 * a.half + pair, *q = p + a.half;
        float x[N], y[N], cosine[N], sine[N];
        load(x, p), load(y, q), load(cosine, a.cosine + angles + pair), load(sine, a.sine + angles + pair);
        for (int k = 0; k < N; k++) {
            float s = sine[k] * a.sign, turned = x[k] * cosine[k] - y[k] * s;
            y[k] = y[k] * cosine[k] + x[k] * s;
            x[k] = turned;
        }
        store(p, x), store(q, y);
    }
}

KERNELS_BY_GROUPS(gelu_forward, FLAT_THREADS, gelu_group, a.count)
KERNELS_BY_GROUPS(gelu_backward, FLAT_THREADS, gelu_backward_group, a.count)
KERNELS_BY_GROUPS(swiglu_forward, FLAT_THREADS, swiglu_group, a.columns)
KERNELS_BY_GROUPS(swiglu_backward, FLAT_THREADS, swiglu_backward_group, a.columns)
KERNELS_BY_GROUPS(rotary, FLAT_THREADS, turn_row, a.half | a.stride)
