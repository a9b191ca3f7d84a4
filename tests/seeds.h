/* How much of its work a test does. A plain build does all of it. Under a sanitizer, .bazelrc sets ZERO_TEST_DIVISOR: a test then
 * draws from so many times fewer seeds, and takes one of so many cases of a long list; tools/soak does all of that too. */
#ifndef ZERO_TESTS_SEEDS_H
#define ZERO_TESTS_SEEDS_H

#include <stdint.h>
#include <stdlib.h>

static inline uint64_t seeds_divisor(void) {
    const char *text = getenv("ZERO_TEST_DIVISOR");
    uint64_t divisor = text ? strtoull(text, NULL, 10) : 1;
    return divisor ? divisor : 1;
}

/* Of `all` seeds; at least one. */
static inline uint64_t seeds_count(uint64_t all) {
    uint64_t count = all / seeds_divisor();
    return count ? count : 1;
}

/* Whether case `number` of a long list is one to run. A list whose inner loops have 5 values would give the same value each time:
 * the case that is taken moves on by one with each group of cases. */
static inline int seeds_take(uint64_t number) {
    uint64_t divisor = seeds_divisor();
    return number % divisor == number / divisor % divisor;
}

#endif
