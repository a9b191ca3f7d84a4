/* Compiled once per instruction set (BUILD), with its function's name in CHECKSUM: xxhash.h chooses its loops by the instructions that
 * this file may use. */
#define XXH_INLINE_ALL /* no library at run time */
#include <xxhash.h>

#include "kernels/checksum.h"

uint64_t CHECKSUM(const void *bytes, size_t count, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, count, seed);
}
