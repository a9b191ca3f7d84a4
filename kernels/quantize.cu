/* One warp per block of codes, eight elements per lane. Each format has code of its own: a branch on it for each element would cost more
 * than the element. */
#include "kernels/device_work.h"

#include "engine/device/cuda/entry.h"
#include "kernels/four.cuh"
#include "kernels/quantize.h"
#include "kernels/quantize_element.h"
#include "kernels/rows.cuh"

static constexpr uint32_t EACH = QUANTIZE_BLOCK / 32;

struct eight {
    four half[2];
};

static __device__ eight load_eight(const void *array, uint32_t dtype, uint64_t first, uint64_t count) {
    return {{four_load(array, dtype, first, four_count(first, count)),
             four_load(array, dtype, first + 4, four_count(first + 4, count))}};
}

static __device__ void store_eight(void *array, uint32_t dtype, uint64_t first, uint64_t count,
                                   const eight &e) {
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t n = four_count(first + 4 * h, count);
        if (n) four_store(array, dtype, first + 4 * h, n, e.half[h]);
    }
}

template <typename T> static __device__ bool aligned(const uint8_t *at) {
    return reinterpret_cast<uintptr_t>(at) % sizeof(T) == 0;
}

/* Loads bytes of a code. Aligned bytes are loaded at once or by words; a code need not be aligned. */
template <typename T> static __device__ T load_bytes(const uint8_t *in, uint32_t count) {
    if (count == sizeof(T) && aligned<T>(in)) return *reinterpret_cast<const T *>(in);
    if (count == 8 && aligned<uint32_t>(in)) {
        const uint32_t *word = reinterpret_cast<const uint32_t *>(in);
        return (T)(word[0] | (uint64_t)word[1] << 32);
    }
    T x = 0;
    for (uint32_t k = 0; k < count; k++) x |= (T)in[k] << (8 * k);
    return x;
}

template <typename T> static __device__ void store_bytes(uint8_t *out, uint32_t count, T x) {
    if (count == sizeof(T) && aligned<T>(out)) {
        *reinterpret_cast<T *>(out) = x;
    } else if (count == 8 && aligned<uint32_t>(out)) {
        uint32_t *word = reinterpret_cast<uint32_t *>(out);
        word[0] = (uint32_t)x, word[1] = (uint32_t)((uint64_t)x >> 32);
    } else {
        for (uint32_t k = 0; k < count; k++) out[k] = (uint8_t)(x >> (8 * k));
    }
}

/* The bytes of the codes of eight elements from `first` on, in the code of `count` elements. */
static __device__ uint32_t bytes_of_eight(uint64_t first, uint64_t count, uint32_t format) {
    uint64_t n = first >= count ? 0 : count - first < EACH ? count - first : EACH;
    return (uint32_t)quantize_element_bytes(n, format);
}

/* ---- to codes ---- */

static __device__ uint32_t most_of_warp(const eight &e) {
    uint32_t most = 0;
    for (uint32_t k = 0; k < EACH; k++) most = max(most, magnitude_bits(e.half[k / 4].x[k % 4]));
    for (uint32_t by = 16; by; by /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, by));
    return most;
}

template <uint32_t format> static __device__ uint64_t codes_of(const eight &e, float inverse) {
    constexpr uint32_t bits = format == CODE_INT4 ? 4 : 8;
    uint64_t codes = 0;
    for (uint32_t k = 0; k < EACH && inverse != 0; k++) {
        uint64_t code = (uint8_t)quantize_code_of(e.half[k / 4].x[k % 4], inverse, format);
        codes |= (code & ((1u << bits) - 1)) << (bits * k);
    }
    return codes;
}

static __device__ void clear_end(const struct quantize_codes_argument &a, uint8_t *code) {
    uint64_t end = quantize_code_bytes(a.count, a.format);
    for (uint64_t at = quantize_used_bytes(a.count, a.format) + threadIdx.x % 32; at < end; at += 32)
        code[at] = 0;
}

template <uint32_t format> static __device__ void quantize(const struct quantize_codes_argument &a) {
    const of_row<EACH> at(a.count);
    uint64_t first = at.first, block = first / QUANTIZE_BLOCK;
    if (block >= quantize_blocks_of(a.count)) return; /* the whole warp returns */
    uint8_t *code = static_cast<uint8_t *>(a.code) + at.row * quantize_code_bytes(a.count, format);
    const char *source =
        static_cast<const char *>(a.source) + at.row * a.step * dtype_bytes((enum dtype)a.dtype);
    eight e = load_eight(source, a.dtype, first, a.count);
    struct quantize_scale s = quantize_scale_of(most_of_warp(e), format);
    if (threadIdx.x % 32 == 0)
        store_bytes<uint32_t>(code + block * sizeof s.scale, sizeof s.scale, bits_of(s.scale));
    uint8_t *out = code + quantize_elements_at(a.count) + first * code_bits(format) / 8;
    uint32_t bytes = bytes_of_eight(first, a.count, format);
    uint64_t codes = codes_of<format>(e, s.inverse);
    if (code_bits(format) == 8)
        store_bytes<uint64_t>(out, bytes, codes);
    else
        store_bytes<uint32_t>(out, bytes, (uint32_t)codes);
    if (block + 1 == quantize_blocks_of(a.count)) clear_end(a, code);
}

KERNEL(quantize_codes, QUANTIZE_BLOCK, struct quantize_codes_argument, a) {
    if (a.format == CODE_INT8)
        quantize<CODE_INT8>(a);
    else if (a.format == CODE_INT4)
        quantize<CODE_INT4>(a);
    else
        quantize<CODE_FP8_E4M3>(a);
}

/* ---- from codes ---- */

template <uint32_t format>
static __device__ eight values_of(const uint8_t *code, uint64_t count, uint64_t first) {
    constexpr uint32_t bits = format == CODE_INT4 ? 4 : 8;
    float scale = float_of(load_bytes<uint32_t>(code + first / QUANTIZE_BLOCK * sizeof scale, sizeof scale));
    const uint8_t *in = code + quantize_elements_at(count) + first * bits / 8;
    uint32_t bytes = bytes_of_eight(first, count, format);
    uint64_t codes = bits == 8 ? load_bytes<uint64_t>(in, bytes) : load_bytes<uint32_t>(in, bytes);
    eight e;
    for (uint32_t k = 0; k < EACH; k++) {
        int8_t x =
            bits == 8 ? (int8_t)(codes >> (8 * k)) : quantize_extend((uint32_t)(codes >> (4 * k)) & 15);
        e.half[k / 4].x[k % 4] = quantize_value_of(x, scale, format);
    }
    return e;
}

template <uint32_t format> static __device__ void dequantize(const struct dequantize_codes_argument &a) {
    const of_row<EACH> at(a.count);
    if (at.first >= a.count) return;
    const uint8_t *code =
        static_cast<const uint8_t *>(a.code) + at.row * quantize_code_bytes(a.count, format);
    char *target = static_cast<char *>(a.target) + at.row * a.step * dtype_bytes((enum dtype)a.dtype);
    store_eight(target, a.dtype, at.first, a.count, values_of<format>(code, a.count, at.first));
}

KERNEL(dequantize_codes, QUANTIZE_BLOCK, struct dequantize_codes_argument, a) {
    if (a.format == CODE_INT8)
        dequantize<CODE_INT8>(a);
    else if (a.format == CODE_INT4)
        dequantize<CODE_INT4>(a);
    else
        dequantize<CODE_FP8_E4M3>(a);
}

static __device__ void add_eight(eight &sum, const eight &e) {
    for (uint32_t k = 0; k < EACH; k++)
        sum.half[k / 4].x[k % 4] = canonical(sum.half[k / 4].x[k % 4] + e.half[k / 4].x[k % 4]);
}

template <uint32_t format> static __device__ void sum_members(const struct dequantize_sum_argument &a) {
    uint64_t first = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) * EACH;
    if (first >= a.count) return;
    const uint8_t *codes = static_cast<const uint8_t *>(a.codes);
    uint64_t bytes = quantize_code_bytes(a.count, format);
    uint32_t each = a.node_members ? a.node_members : a.members;
    eight sum = values_of<format>(codes, a.count, first);
    for (uint32_t m = 1; m < each; m++) add_eight(sum, values_of<format>(codes + m * bytes, a.count, first));
    for (uint32_t begin = each; begin < a.members; begin += each) {
        eight node = values_of<format>(codes + begin * bytes, a.count, first);
        for (uint32_t m = begin + 1; m < begin + each; m++)
            add_eight(node, values_of<format>(codes + m * bytes, a.count, first));
        add_eight(sum, node);
    }
    if (a.add) add_eight(sum, load_eight(a.target, a.dtype, first, a.count));
    store_eight(a.target, a.dtype, first, a.count, sum);
}

KERNEL(dequantize_sum, QUANTIZE_BLOCK, struct dequantize_sum_argument, a) {
    if (a.format == CODE_INT8)
        sum_members<CODE_INT8>(a);
    else if (a.format == CODE_INT4)
        sum_members<CODE_INT4>(a);
    else
        sum_members<CODE_FP8_E4M3>(a);
}
