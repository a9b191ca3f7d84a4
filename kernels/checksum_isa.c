/* Compiled once per instruction set (BUILD), with its function's name in CHECKSUM: xxhash.h chooses its loops by the instructions that
 * this file may use. */
#define XXH_INLINE_ALL /* no library at run time */
/* Bytes that the loop looks ahead. Chunks are read from main memory: on a Xeon with AVX2, 2 GiB in chunks of 5.6 MB took 9.7 GB/s with
 * xxHash's own 384, 11.5 with 2048; while other work shares the memory 4.9 and 6.8. */
#define XXH_PREFETCH_DIST 2048
#include <xxhash.h>

#include "kernels/checksum.h"

uint64_t CHECKSUM(const void *bytes, size_t count, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, count, seed);
}
