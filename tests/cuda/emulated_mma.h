/* Replaces tools/gpt/cuda/kernels/mma.h in the emulation: the same product and loads, from the lanes that hold factors and
 * addresses. A copy happens at once or when the program waits for it, by chance: with a missing wait the program reads
 * old data, and with a missing __syncthreads it overwrites data that other threads still read. Addresses must be
 * aligned as the instructions require. */
#ifndef ZERO_TOOLS_GPT_CUDA_KERNELS_MMA_H
#define ZERO_TOOLS_GPT_CUDA_KERNELS_MMA_H

#include "engine/base/numbers/convert.h"
#include "tests/cuda/emulation.h"

namespace emulation {

enum { THREADS_MAX = 1024, COPIES_MAX = 64 };

/* The data that each lane of a warp shows to the others, between two synchronizations of the warp. */
struct shown {
    uint32_t a[4], b[2];
    const void *row;
};
inline shown board[THREADS_MAX];

static inline uint32_t thread_index() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

static inline const shown *show(const shown &mine) {
    board[thread_index()] = mine;
    __syncwarp();
    return &board[thread_index() - lane()];
}

/* For loops over whole arrays of a known size: sanitizers would look at each number, for most of the time of a test. */
#define WHOLE_ARRAYS __attribute__((no_sanitize("address", "null", "pointer-overflow")))

/* f32_from_bf16, which a compiler would not inline there. */
WHOLE_ARRAYS static inline float widen_bf16(uint16_t bf16) {
    uint32_t bits = (uint32_t)bf16 << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* f32_from_f16 of every number: mostly of zeros, and of few others. */
struct half_numbers {
    float wide[1 << 16];
    half_numbers() {
        for (uint32_t i = 0; i < 1 << 16; i++) wide[i] = f32_from_f16((uint16_t)i);
    }
};
inline half_numbers halves;

WHOLE_ARRAYS static inline float widen_f16(uint16_t f16) { return halves.wide[f16]; }

/* Of two neighbours in 32 bits, the first and the second. */
template <float (*Widen)(uint16_t)> WHOLE_ARRAYS void widen(float *to, uint32_t bits) {
    to[0] = Widen((uint16_t)bits), to[1] = Widen((uint16_t)(bits >> 16));
}

/* The two rows of the left factor that this lane multiplies, from the lanes that hold them. */
template <float (*Widen)(uint16_t)> WHOLE_ARRAYS void rows_of(float (&left)[2][16], const shown *warp) {
    const shown *holders = &warp[lane() / 4 * 4];
#pragma GCC unroll 2
    for (uint32_t row = 0; row < 2; row++)
#pragma GCC unroll 8
        for (uint32_t k = 0; k < 16; k += 2)
            widen<Widen>(&left[row][k], holders[k % 8 / 2].a[k / 8 * 2 + row]);
}

/* The two columns of the right factor. */
template <float (*Widen)(uint16_t)> WHOLE_ARRAYS void columns_of(float (&right)[2][16], const shown *warp) {
    const shown *holders = &warp[lane() % 4 * 8];
#pragma GCC unroll 2
    for (uint32_t column = 0; column < 2; column++)
#pragma GCC unroll 8
        for (uint32_t k = 0; k < 16; k += 2)
            widen<Widen>(&right[column][k], holders[column * 4 + k % 8 / 2].b[k / 8]);
}

/* Adds one product after another to each sum; the four sums do not wait for each other. */
WHOLE_ARRAYS static inline void add_products(float (&d)[4], const float (&left)[2][16],
                                             const float (&right)[2][16]) {
    float sum[4] = {d[0], d[1], d[2], d[3]};
#pragma GCC unroll 16
    for (uint32_t k = 0; k < 16; k++)
#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++) sum[i] += left[i / 2][k] * right[i % 2][k];
    for (uint32_t i = 0; i < 4; i++) d[i] = sum[i];
}

template <float (*Widen)(uint16_t)>
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const shown *warp = show({{a[0], a[1], a[2], a[3]}, {b0, b1}, NULL});
    float left[2][16], right[2][16];
    rows_of<Widen>(left, warp);
    columns_of<Widen>(right, warp);
    add_products(d, left, right);
    __syncwarp();
}

static inline void need_aligned(const void *at, uint32_t bytes) {
    if (reinterpret_cast<uintptr_t>(at) % bytes) emulator_fail("address %p is no multiple of %u", at, bytes);
}

template <bool Turned> void load(uint32_t (&to)[4], const void *row) {
    need_aligned(row, 16);
    const shown *warp = show({{}, {}, row});
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t bits[2];
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t line = Turned ? lane() % 4 * 2 + k : lane() / 4,
                     at = Turned ? lane() / 4 : lane() % 4 * 2 + k;
            bits[k] = static_cast<const uint16_t *>(warp[8 * i + line].row)[at];
        }
        to[i] = bits[0] | bits[1] << 16;
    }
    __syncwarp();
}

struct copy {
    void *to;
    const void *from; /* NULL: zeros */
    uint32_t bytes, group;
};

struct copies {
    uint32_t count, group; /* group: that of the next copy */
    copy each[COPIES_MAX];
};
inline copies pending[THREADS_MAX]; /* by thread of the block that runs */

static inline void perform(const copy &c) {
    if (c.from)
        memcpy(c.to, c.from, c.bytes);
    else
        memset(c.to, 0, c.bytes);
}

/* For emulated_wgmma.h: of each 16 bytes of dynamic shared memory, the thread that copied there last, and how many fences for products
 * it must have made before one reads them. */
enum { COPIED_BYTES = 16 };
struct copied {
    uint32_t thread, fences;
};
inline copied last_copy[EMULATOR_WINDOW / COPIED_BYTES];
inline uint32_t fences[THREADS_MAX];

static inline void note_copy(const void *to) {
    uintptr_t at = reinterpret_cast<uintptr_t>(to),
              shared = reinterpret_cast<uintptr_t>(emulator_here.dynamic_shared);
    if (at / EMULATOR_WINDOW != shared / EMULATOR_WINDOW) return;
    uint32_t thread = thread_index();
    last_copy[at % EMULATOR_WINDOW / COPIED_BYTES] = {thread, fences[thread] + 1};
}

/* Products that read it need a fence, as after a copy. */
static inline void store_turned(void *row, const uint32_t (&from)[4]) {
    need_aligned(row, 16);
    const shown *warp = show({{}, {}, row});
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t k = 0; k < 2; k++) {
            void *to = const_cast<void *>(warp[8 * i + lane() % 4 * 2 + k].row);
            static_cast<uint16_t *>(to)[lane() / 4] = (uint16_t)(from[i] >> 16 * k);
            note_copy(to);
        }
    __syncwarp();
}

static inline void begin_copy(void *to, const void *from, bool there, uint32_t bytes) {
    static uint64_t random = 1;
    need_aligned(to, bytes), need_aligned(from, bytes);
    note_copy(to);
    copies &mine = pending[thread_index()];
    copy c = {to, there ? from : NULL, bytes, mine.group};
    if (mine.count == COPIES_MAX || emulator_random(&random) % 2)
        perform(c);
    else
        mine.each[mine.count++] = c;
}

/* Performs the copies before group `end`. */
static inline void end_copies(uint32_t end) {
    copies &mine = pending[thread_index()];
    uint32_t left = 0;
    for (uint32_t i = 0; i < mine.count; i++)
        if ((int32_t)(mine.each[i].group - end) < 0)
            perform(mine.each[i]);
        else
            mine.each[left++] = mine.each[i];
    mine.count = left;
}

} // namespace emulation

static inline void load_matrices(uint32_t (&to)[4], const void *row) { emulation::load<false>(to, row); }
static inline void load_turned(uint32_t (&to)[4], const void *row) { emulation::load<true>(to, row); }
static inline void store_turned(void *row, const uint32_t (&from)[4]) { emulation::store_turned(row, from); }
static inline void copy_16(void *to, const void *from, bool there) {
    emulation::begin_copy(to, from, there, 16);
}
static inline void copy_4(void *to, const void *from, bool there) {
    emulation::begin_copy(to, from, there, 4);
}
static inline void copies_end() { emulation::pending[emulation::thread_index()].group++; }
template <int LATER> static inline void copies_wait() {
    emulation::end_copies(emulation::pending[emulation::thread_index()].group - LATER);
}
static inline void copies_done() {
    copies_end();
    copies_wait<0>();
}
static inline float power_of_two(float x) { return exp2f(x); }

static inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulation::mma<emulation::widen_bf16>(d, a, b0, b1);
}
static inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulation::mma<emulation::widen_f16>(d, a, b0, b1);
}

#include "tests/cuda/emulated_wgmma.h"

#endif
