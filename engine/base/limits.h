/* Every fixed size of the engine, with its reason. */
#pragma once

#include <assert.h>

enum {
    ALIGN_BYTES = 64, /* one cache line and one AVX-512 register: every parameter and buffer starts on it */
    CHUNK_ALIGN_BYTES = 4096,   /* a page: chunks of optimizer state start on it */
    NORM_BLOCK_ELEMENTS = 4096, /* norms are sums over such blocks, in order (engine/README.md) */
    /* Of a key of a note, with its final zero. Units and parameters have names of any length. */
    NAME_BYTES_MAX = 128,
    /* A unit's own regions (trainable/frozen x sharded/persistent x run's type/fp32 x optimizer), tied owners' and held units'. */
    USE_REGIONS_MAX = 12,
    RANKS_MAX = 65536,
    GROUP_MAX = 8,               /* parameter groups with their own lr and weight decay */
    SCALARS_MAX = 2 * GROUP_MAX, /* each group once with weight decay, once without (ZERO_NO_DECAY) */
};

static_assert(NORM_BLOCK_ELEMENTS % 16 == 0, "the norm's tree has 16 lanes");
