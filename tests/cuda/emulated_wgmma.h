/* Replaces tools/gpt/cuda/kernels/wgmma.h in the emulation. By chance the products of a group happen as late as they may, at the warpgroup_wait
 * that waits for the group, or at once: sums that are read before the wait, and factors that are not there yet or are overwritten
 * before it, show up as wrong numbers. An operand in shared memory is found by the 64 bits that describe it, as NVIDIA's PTX ISA has it
 * ("Matrix Descriptor Format", "Strides"; of the swizzles only that of 128 bytes), so that wrong bits give wrong numbers or a message,
 * and so does a number that a thread has copied there without copies_done_for_products: products read memory by a way of their own,
 * which no barrier orders ("Async Proxy"). Not checked: that all four warps of a group make the same calls. */
#ifndef ZERO_TOOLS_GPT_CUDA_KERNELS_WGMMA_H
#define ZERO_TOOLS_GPT_CUDA_KERNELS_WGMMA_H

#include "engine/base/numbers/convert.h"
#include "tests/cuda/emulation.h"

namespace emulation {

enum { PRODUCTS_MAX = 64 };

struct late_product {
    float (*d)[4];
    const uint32_t *a; /* NULL: shared_a describes it */
    uint64_t shared_a, b;
    bool turned, adds;
    uint32_t group;
};
struct late_products {
    bool begun;
    uint32_t count, groups; /* products that wait; groups that were committed */
    late_product each[PRODUCTS_MAX];
};
inline late_products late[THREADS_MAX]; /* by thread of the block that runs */

/* Lines of 128 bytes, eight of them in a pattern that begins at a multiple of 1,024 bytes. Bits 0 to 13: where the operand begins, 32
 * to 45: bytes from eight lines to the next, 62 and 63: the swizzle, 1 for 128 bytes; offsets without their last 4 bits. Bits 16 to
 * 29 are for lines that are longer than 64 numbers. */
struct operand {
    enum { LINE = 128, LINES = 8 };
    uint32_t start, stride, first, end; /* the block's shared memory: bytes `first` to `end` of its window */
    uintptr_t window;
    explicit operand(uint64_t bits) {
        start = (uint32_t)(bits & 0x3fff) << 4;
        stride = (uint32_t)(bits >> 32 & 0x3fff) << 4;
        if (bits >> 62 != 1 || bits & UINT64_C(0x3fffc000c000c000))
            emulator_fail("operand %#llx is not swizzled by 128 bytes, or has bits for something else",
                          (unsigned long long)bits);
        if (start % (LINES * LINE) >= LINE)
            emulator_fail("operand %#llx begins in the middle of eight lines", (unsigned long long)bits);
        uintptr_t shared = reinterpret_cast<uintptr_t>(emulator_here.dynamic_shared);
        first = (uint32_t)(shared % EMULATOR_WINDOW), end = first + emulator_here.dynamic_bytes;
        window = shared - first;
    }
    /* Eight numbers of a line, from number `along`, a multiple of 8, to the next: no swizzle takes them apart. */
    WHOLE_ARRAYS const uint16_t *eight(uint32_t line, uint32_t along) const {
        uint32_t address = start + line / LINES * stride + line % LINES * LINE + along * 2;
        address ^= (address / LINE % LINES) << 4;
        if (address < first || address + COPIED_BYTES > end)
            emulator_fail("a product reads byte %u of shared memory, the block has bytes %u to %u", address,
                          first, end);
        const copied &c = last_copy[address / COPIED_BYTES];
        if (fences[c.thread] < c.fences)
            emulator_fail(
                "a product reads byte %u of shared memory, which thread %u copied without a fence for "
                "products",
                address, c.thread);
        return reinterpret_cast<const uint16_t *>(window + address);
    }
    WHOLE_ARRAYS void read(uint32_t line, uint32_t along, float *to) const {
        const uint16_t *from = eight(line, along);
        for (uint32_t i = 0; i < 8; i++) to[i] = widen_bf16(from[i]);
    }
};

/* The rows g and g + 8 of the warp's part of the left operand. */
struct left_rows {
    float at[2][16];
};

static inline left_rows rows_of_registers(const uint32_t *a) {
    const shown *warp = show({{a[0], a[1], a[2], a[3]}, {}, NULL});
    left_rows rows;
    rows_of<widen_bf16>(rows.at, warp);
    __syncwarp();
    return rows;
}

static inline left_rows rows_of_shared(uint64_t a) {
    uint32_t warp = thread_index() / 32 % 4;
    operand left(a);
    left_rows rows;
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 16; k += 8) left.read(warp * 16 + lane() / 4 + i * 8, k, &rows.at[i][k]);
    return rows;
}

/* Two columns of the right operand. A line is a column; turned, a row. */
WHOLE_ARRAYS static inline void read_columns(const operand &b, uint32_t column, bool turned,
                                             float (&right)[2][16]) {
    for (uint32_t n = 0; n < 2 && !turned; n++)
        for (uint32_t k = 0; k < 16; k += 8) b.read(column + n, k, &right[n][k]);
    for (uint32_t k = 0; k < 16 && turned; k++) {
        const uint16_t *two = b.eight(k, column / 8 * 8) + column % 8;
        right[0][k] = widen_bf16(two[0]), right[1][k] = widen_bf16(two[1]);
    }
}

WHOLE_ARRAYS static inline void multiply_late(const late_product &p) {
    left_rows left = p.a ? rows_of_registers(p.a) : rows_of_shared(p.shared_a);
    operand b(p.b);
    float right[2][16];
    for (uint32_t n = 0; n < 8; n++) {
        read_columns(b, n * 8 + 2 * (lane() % 4), p.turned, right);
        for (uint32_t i = 0; i < 4 && !p.adds; i++) p.d[n][i] = 0;
        add_products(p.d[n], left.at, right);
    }
}

/* Makes the products of the groups before `end`, in order. */
static inline void end_late(late_products &mine, uint32_t end) {
    uint32_t done = 0;
    while (done < mine.count && mine.each[done].group < end) multiply_late(mine.each[done++]);
    mine.count -= done;
    memmove(mine.each, mine.each + done, mine.count * sizeof *mine.each);
}

/* The lanes of a warp have made the same calls, so for all of them the group happens at once, or for none. */
static inline bool happens_at_once(uint32_t group) { return group * UINT32_C(0x9e3779b1) >> 31; }

static inline void begin_late(late_product p) {
    late_products &mine = late[thread_index()];
    if (!mine.begun) emulator_fail("a product before warpgroup_begin");
    if (mine.count == PRODUCTS_MAX) emulator_fail("more than %d products at once", PRODUCTS_MAX);
    p.group = mine.groups;
    mine.each[mine.count++] = p;
    if (happens_at_once(p.group)) end_late(mine, p.group + 1);
}

} // namespace emulation

static inline uint32_t shared_address(const void *at) {
    uintptr_t window = reinterpret_cast<uintptr_t>(emulator_here.dynamic_shared) / EMULATOR_WINDOW;
    if (reinterpret_cast<uintptr_t>(at) / EMULATOR_WINDOW != window)
        emulator_fail("%p is not in dynamic shared memory", at);
    return (uint32_t)(reinterpret_cast<uintptr_t>(at) % EMULATOR_WINDOW);
}

static inline void copies_done_for_products(void) {
    copies_done();
    emulation::fences[emulation::thread_index()]++;
}

static inline void hold(float (&)[8][4]) {}
static inline void hold(uint32_t (&)[4]) {}

static inline void warpgroup_begin(void) { emulation::late[emulation::thread_index()].begun = true; }

template <bool Turned>
void warpgroup_multiply(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool adds) {
    emulation::begin_late({d, a, 0, b, Turned, adds, 0});
}
template <bool Turned> void warpgroup_multiply(float (&d)[8][4], uint64_t a, uint64_t b, bool adds) {
    emulation::begin_late({d, NULL, a, b, Turned, adds, 0});
}

static inline void warpgroup_commit(void) {
    emulation::late_products &mine = emulation::late[emulation::thread_index()];
    mine.groups++, mine.begun = false;
}

/* Products that were not committed are not waited for. */
template <int Newest> void warpgroup_wait(void) {
    emulation::late_products &mine = emulation::late[emulation::thread_index()];
    emulation::end_late(mine, mine.groups < Newest ? 0 : mine.groups - Newest);
}

static inline float load_now(const float *at) { return *at; }
static inline void add_now(int32_t *to, int32_t x) { *to = (int32_t)((uint32_t)*to + (uint32_t)x); }

#endif
