/* Replaces tools/gpt/cuda/wgmma.h in the emulation. Products happen as late as they may, at warpgroup_end: sums that are read
 * before, factors that are overwritten before, show up as wrong numbers. An operand in shared memory is found by the 64 bits that
 * describe it, as NVIDIA's PTX ISA has it ("Matrix Descriptor Format", "Strides"; of the swizzles only that of 128 bytes), so that
 * wrong bits give wrong numbers or a message, and so does a number that a thread has copied there without copies_done_for_products:
 * products read memory by a way of their own, which no barrier orders ("Async Proxy"). Not checked: that all four warps of a group make the same calls. */
#ifndef ZERO_TOOLS_GPT_CUDA_WGMMA_H
#define ZERO_TOOLS_GPT_CUDA_WGMMA_H

#include "engine/base/convert.h"
#include "tests/cuda/emulation.h"

namespace emulation {

enum { PRODUCTS_MAX = 64 };

struct late_product {
    float (*d)[4];
    const uint32_t *a;
    uint64_t b;
    bool turned, adds;
};
struct late_products {
    bool begun;
    uint32_t count;
    late_product each[PRODUCTS_MAX];
};
inline late_products late[THREADS_MAX]; /* by thread of the block that runs */

/* Lines of 128 bytes, eight of them in a pattern that begins at a multiple of 1,024 bytes. Bits 0 to 13: where the operand begins, 32
 * to 45: bytes from eight lines to the next, 62 and 63: the swizzle, 1 for 128 bytes; offsets without their last 4 bits. Bits 16 to
 * 29 are for lines that are longer than 64 numbers. */
struct operand {
    enum { LINE = 128, LINES = 8 };
    uint32_t start, stride;
    explicit operand(uint64_t bits) {
        start = (uint32_t)(bits & 0x3fff) << 4;
        stride = (uint32_t)(bits >> 32 & 0x3fff) << 4;
        if (bits >> 62 != 1 || bits & UINT64_C(0x3fffc000c000c000))
            emulator_fail("operand %#llx is not swizzled by 128 bytes, or has bits for something else",
                          (unsigned long long)bits);
        if (start % (LINES * LINE) >= LINE)
            emulator_fail("operand %#llx begins in the middle of eight lines", (unsigned long long)bits);
    }
    /* The number at row k, column n. A line is a column; turned, a row. */
    float at(uint32_t k, uint32_t n, bool turned) const {
        uintptr_t shared = reinterpret_cast<uintptr_t>(emulator_here.dynamic_shared);
        uint32_t line = turned ? k : n, along = turned ? n : k;
        uint32_t address = start + line / LINES * stride + line % LINES * LINE + along * 2;
        address ^= (address / LINE % LINES) << 4;
        uint32_t first = (uint32_t)(shared % EMULATOR_WINDOW);
        if (address < first || address + 2 > first + emulator_here.dynamic_bytes)
            emulator_fail("a product reads byte %u of shared memory, the block has bytes %u to %u", address,
                          first, first + emulator_here.dynamic_bytes);
        const copied &c = last_copy[address / COPIED_BYTES];
        if (fences[c.thread] < c.fences)
            emulator_fail(
                "a product reads byte %u of shared memory, which thread %u copied without a fence for "
                "products",
                address, c.thread);
        return f32_from_bf16(*reinterpret_cast<const uint16_t *>(shared - first + address));
    }
};

static inline void multiply_late(const late_product &p) {
    const shown *warp = show({{p.a[0], p.a[1], p.a[2], p.a[3]}, {}, NULL});
    operand b(p.b);
    float left[2][16], right[2][16];
    rows_of<f32_from_bf16>(left, warp);
    for (uint32_t n = 0; n < 8; n++) {
        for (uint32_t column = 0; column < 2; column++)
            for (uint32_t k = 0; k < 16; k++)
                right[column][k] = b.at(k, n * 8 + 2 * (lane() % 4) + column, p.turned);
        for (uint32_t i = 0; i < 4; i++) {
            float sum = p.adds ? p.d[n][i] : 0;
            for (uint32_t k = 0; k < 16; k++) sum += left[i / 2][k] * right[i % 2][k];
            p.d[n][i] = sum;
        }
    }
    __syncwarp();
}

} // namespace emulation

static inline uint32_t shared_address(const void *at) {
    uintptr_t window = reinterpret_cast<uintptr_t>(emulator_here.dynamic_shared) / EMULATOR_WINDOW;
    if (reinterpret_cast<uintptr_t>(at) / EMULATOR_WINDOW != window)
        emulator_fail("%p is not in dynamic shared memory", at);
    return (uint32_t)(reinterpret_cast<uintptr_t>(at) % EMULATOR_WINDOW);
}

static inline void copies_done_for_products(void) {
    emulation::end_copies();
    emulation::fences[emulation::thread_index()]++;
}

static inline void hold(float (&)[8][4]) {}
static inline void hold(uint32_t (&)[4]) {}

static inline void warpgroup_begin(void) { emulation::late[emulation::thread_index()].begun = true; }

template <bool Turned>
void warpgroup_multiply(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool adds) {
    emulation::late_products &mine = emulation::late[emulation::thread_index()];
    if (!mine.begun) emulator_fail("a product before warpgroup_begin");
    if (mine.count == emulation::PRODUCTS_MAX)
        emulator_fail("more than %d products at once", emulation::PRODUCTS_MAX);
    mine.each[mine.count++] = {d, a, b, Turned, adds};
}

static inline void warpgroup_end(void) {
    emulation::late_products &mine = emulation::late[emulation::thread_index()];
    for (uint32_t i = 0; i < mine.count; i++) emulation::multiply_late(mine.each[i]);
    mine.count = 0, mine.begun = false;
}

#endif
