#include "kernels/checksum.h"

#include "kernels/isa.h"

uint64_t checksum_seeded(const void *bytes, size_t count, uint64_t seed) {
    static uint64_t (*const checksums[KERNEL_ISAS])(const void *, size_t, uint64_t) = {
        [KERNEL_SCALAR] = checksum_scalar, [KERNEL_AVX2] = checksum_avx2, [KERNEL_AVX512] = checksum_avx512};
    return checksums[kernel_isa()](bytes, count, seed);
}

uint64_t checksum(const void *bytes, size_t count) { return checksum_seeded(bytes, count, 0); }
