/* Random numbers that depend only on a key: a draw does not depend on the number of other draws. Pure. */
#pragma once

#include "engine/base/hash.h"

/* The purpose of a draw; draws for different purposes are independent. */
enum random_use {
    RANDOM_ORDER, /* of events at the same time */
    RANDOM_FAULTS,
    RANDOM_NETWORK,
    RANDOM_DEVICE,
    RANDOM_DRIVE,
    RANDOM_HOST,
    RANDOM_CASE,
    RANDOM_GRADIENT,
    RANDOM_WEIGHT
};

/* One step of splitmix64. */
static inline uint64_t random_mix(uint64_t x) { return hash_mix(x + HASH_STEP); }

static inline uint64_t random_draw(uint64_t seed, enum random_use use, uint64_t a, uint64_t b) {
    return random_mix(random_mix(random_mix(seed * 16 + (uint64_t)use) ^ a) ^ b);
}

/* 0 .. end - 1; 0 for an end of 0. */
static inline uint64_t random_below(uint64_t draw, uint64_t end) { return end ? (draw >> 16) % end : 0; }
