#include "kernels/stream_copy.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* AHEAD_BYTES: the distance at which the source is asked for. The processor's own prefetcher stops at each page. */
enum { LINE_BYTES = 64, ROUND_BYTES = 4 * LINE_BYTES, AHEAD_BYTES = 4096 };

/* Copies whole rounds to a target on a line of the cache. */
typedef void copy_rounds(uint8_t *restrict target, const uint8_t *restrict source, uint64_t bytes);

static void rounds_scalar(uint8_t *restrict target, const uint8_t *restrict source, uint64_t bytes) {
    memcpy(target, source, bytes);
}

#if defined(__x86_64__)
ISA_TARGET_AVX2 static void rounds_avx2(uint8_t *restrict target, const uint8_t *restrict source,
                                        uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i += LINE_BYTES) {
        _mm_prefetch((const char *)source + i + AHEAD_BYTES, _MM_HINT_T0);
        __m256i low = _mm256_loadu_si256((const void *)(source + i)),
                high = _mm256_loadu_si256((const void *)(source + i + LINE_BYTES / 2));
        _mm256_stream_si256((void *)(target + i), low);
        _mm256_stream_si256((void *)(target + i + LINE_BYTES / 2), high);
    }
    _mm_sfence();
}

ISA_TARGET_AVX512 static void rounds_avx512(uint8_t *restrict target, const uint8_t *restrict source,
                                            uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i += LINE_BYTES) {
        _mm_prefetch((const char *)source + i + AHEAD_BYTES, _MM_HINT_T0);
        _mm512_stream_si512((void *)(target + i), _mm512_loadu_si512(source + i));
    }
    _mm_sfence();
}
#elif defined(__aarch64__)
static void rounds_neon(uint8_t *restrict target, const uint8_t *restrict source, uint64_t bytes) {
    memcpy(target, source, bytes);
}
#endif

static copy_rounds *const rounds_by_isa[KERNEL_ISAS] = ISA_TABLE(rounds);

void stream_copy_isa(enum kernel_isa isa, void *target, const void *source, uint64_t bytes) {
    uint8_t *to = target;
    const uint8_t *from = source;
    uint64_t head = (LINE_BYTES - (uintptr_t)to % LINE_BYTES) % LINE_BYTES;
    if (head > bytes) head = bytes;
    uint64_t rounds = (bytes - head) / ROUND_BYTES * ROUND_BYTES, tail = bytes - head - rounds;
    if (head) memcpy(to, from, head);
    if (rounds) rounds_by_isa[isa](to + head, from + head, rounds);
    if (tail) memcpy(to + head + rounds, from + head + rounds, tail);
}

void stream_copy(void *target, const void *source, uint64_t bytes) {
    stream_copy_isa(kernel_isa(), target, source, bytes);
}
