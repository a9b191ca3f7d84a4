/* Copies past the caches: every byte, and no byte beside them, at every alignment and on all instruction sets. */
#include "kernels/stream_copy.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

enum { BYTES = 3000, MARGIN = 128, ALIGNMENTS = 65 };

static uint8_t source[BYTES + 2 * MARGIN], target[BYTES + 2 * MARGIN], expected[BYTES + 2 * MARGIN];

static void copies(enum kernel_isa isa, uint32_t from, uint32_t to, uint64_t bytes) {
    memset(target, 0xee, sizeof target);
    memset(expected, 0xee, sizeof expected);
    memcpy(expected + to, source + from, bytes);
    stream_copy_isa(isa, target + to, source + from, bytes);
    if (!CHECK_BYTES(target, expected, sizeof target))
        fprintf(stderr, "on %s, from %u to %u, %u bytes\n", kernel_isa_name(isa), from, to, (unsigned)bytes);
}

int main(void) {
    static const uint64_t lengths[] = {0, 1, 63, 64, 65, 255, 256, 257, 1000, BYTES};
    for (size_t i = 0; i < sizeof source; i++) source[i] = (uint8_t)(i * 7 + i / 251);
    for (int isa = 0; isa < KERNEL_ISAS; isa++)
        for (uint32_t at = 0; at < ALIGNMENTS && kernel_isa_present((enum kernel_isa)isa); at++)
            for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
                copies((enum kernel_isa)isa, at, MARGIN, lengths[k]);
                copies((enum kernel_isa)isa, MARGIN, at, lengths[k]);
            }
    memset(target, 0, sizeof target);
    stream_copy(target, source, BYTES);
    CHECK_BYTES(target, source, BYTES);
    return check_end();
}
