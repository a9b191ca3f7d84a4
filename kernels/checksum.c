#include "kernels/checksum.h"

#include "kernels/isa.h"

uint64_t checksum_seeded(const void *bytes, size_t count, uint64_t seed) {
    return kernel_isa() != KERNEL_SCALAR ? checksum_avx2(bytes, count, seed)
                                         : checksum_scalar(bytes, count, seed);
}

uint64_t checksum(const void *bytes, size_t count) { return checksum_seeded(bytes, count, 0); }
