#define XXH_INLINE_ALL /* no library at run time */
#include <xxhash.h>

#include "kernels/checksum.h"

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct checksum_stream), "a stream holds XXH3's state");

void checksum_begin(struct checksum_stream *stream) { XXH3_64bits_reset((XXH3_state_t *)(void *)stream); }

void checksum_add(struct checksum_stream *stream, const void *bytes, size_t count) {
    XXH3_64bits_update((XXH3_state_t *)(void *)stream, bytes, count);
}

uint64_t checksum_end(const struct checksum_stream *stream) {
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)stream);
}
