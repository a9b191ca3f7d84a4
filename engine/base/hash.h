/* FNV-1a over bytes (Fowler, Noll, Vo): for identities and comparisons, not against an adversary. And a mixer of words. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HASH_START 0xcbf29ce484222325u
#define HASH_STEP 0x9e3779b97f4a7c15u /* of splitmix64 from one word to the next */

static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count) {
    for (const uint8_t *b = (const uint8_t *)bytes; count--; b++) hash = (hash ^ *b) * 0x100000001b3u;
    return hash;
}

static inline uint64_t hash_string(uint64_t hash, const char *text) {
    return hash_bytes(hash, text, strlen(text) + 1);
}

/* The finalizer of splitmix64 (Steele, Lea and Flood 2014): every bit of the word reaches every bit of the result. */
static inline uint64_t hash_mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
