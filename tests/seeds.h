/* How much of its work a test does. In a short run .bazelrc sets ZERO_TEST_DIVISOR: a test then draws that many times fewer
 * seeds, and takes one of that many cases of a long list. In a full run (--config=full, or a test that is started without
 * Bazel) it does all of its work: .ci/run makes one of the plain build, tools/soak of those with sanitizers, too. */
#ifndef ZERO_TESTS_SEEDS_H
#define ZERO_TESTS_SEEDS_H

#include <stdint.h>
#include <stdlib.h>

static inline uint64_t seeds_divisor(void) {
    const char *text = getenv("ZERO_TEST_DIVISOR");
    uint64_t divisor = text ? strtoull(text, NULL, 10) : 1;
    return divisor ? divisor : 1;
}

/* The number of seeds to use out of `all`; at least one. */
static inline uint64_t seeds_count(uint64_t all) {
    uint64_t count = all / seeds_divisor();
    return count ? count : 1;
}

/* True if case `number` of a long list must run. With a fixed step, a list whose inner loops have 5 values would always
 * take the same value; the chosen case therefore moves on by one with each group of cases. */
static inline int seeds_take(uint64_t number) {
    uint64_t divisor = seeds_divisor();
    return number % divisor == number / divisor % divisor;
}

#endif
