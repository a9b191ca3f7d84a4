/* A checksum is XXH3's, and the same with every instruction set. */
#include "kernels/checksum.h"

#include "kernels/isa.h"
#include "tests/check.h"

int main(void) {
    enum { BYTES = (1 << 17) + 300 };
    uint8_t bytes[BYTES];
    for (uint32_t i = 0; i < BYTES; i++) bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    CHECK_INT(checksum(bytes, 0), 0x2d06800538d394c2); /* xxHash's own test of the empty input */
    static const uint64_t seeds[] = {0, 1, UINT64_MAX};
    for (int s = 0; s < 3; s++)
        for (size_t count = 0; count <= BYTES; count += count < 2048 ? 1 : 997) {
            uint64_t expected = checksum_scalar(bytes + count % 64, BYTES - 64 < count ? 0 : count, seeds[s]);
            size_t length = BYTES - 64 < count ? 0 : count;
            CHECK_INT(checksum_seeded(bytes + count % 64, length, seeds[s]), expected);
            if (kernel_isa_present(KERNEL_AVX2))
                CHECK_INT(checksum_avx2(bytes + count % 64, length, seeds[s]), expected);
            if (s == 0) CHECK_INT(checksum(bytes + count % 64, length), expected);
        }
    uint64_t whole = checksum(bytes, BYTES);
    for (size_t piece = 1; piece < BYTES; piece = piece * 5 + 3) {
        struct checksum_stream stream;
        checksum_begin(&stream);
        for (size_t at = 0; at < BYTES; at += piece)
            checksum_add(&stream, bytes + at, BYTES - at < piece ? BYTES - at : piece);
        CHECK_INT(checksum_end(&stream), whole);
    }
    bytes[BYTES / 2] ^= 1;
    CHECK(checksum(bytes, BYTES) != whole);
    return check_end();
}
