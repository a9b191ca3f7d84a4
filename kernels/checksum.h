/* XXH3 of 64 bits (Collet, xxHash 0.8), with the best instruction set that this CPU has. It detects damage, but no deliberate
 * change. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t checksum(const void *bytes, size_t count);
uint64_t checksum_seeded(const void *bytes, size_t count, uint64_t seed); /* seed 0: checksum() */

/* The checksum of bytes that come piece by piece; begin, add, end. Slower than checksum(). */
struct checksum_stream {
    _Alignas(64) uint8_t state[576]; /* of XXH3 */
};

void checksum_begin(struct checksum_stream *stream);
void checksum_add(struct checksum_stream *stream, const void *bytes, size_t count);
uint64_t checksum_end(const struct checksum_stream *stream);

/* The same in one instruction set, whatever the CPU has. For checksum.c and tests. */
uint64_t checksum_scalar(const void *bytes, size_t count, uint64_t seed);
uint64_t checksum_avx2(const void *bytes, size_t count, uint64_t seed);
