/* Assertions for tests. A failed check prints both operands and is counted, and the test goes on; main returns
 * check_end().
 * All files of a test share one count (weak: the linker keeps one).
 * Seeds: check_seed() sets the seed that every later failure prints. */
#ifndef ZERO_TESTS_CHECK_H
#define ZERO_TESTS_CHECK_H

#include <inttypes.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

__attribute__((weak)) atomic_int check_failures;
__attribute__((weak)) _Thread_local uint64_t check_seed_value;
__attribute__((weak)) _Thread_local int check_seeded;

static inline void check_seed(uint64_t seed) { check_seed_value = seed, check_seeded = 1; }

static inline int check_fail(const char *file, int line) {
    atomic_fetch_add(&check_failures, 1);
    fprintf(stderr, "%s:%d: ", file, line);
    if (check_seeded) fprintf(stderr, "seed %" PRIu64 ": ", check_seed_value);
    return 0;
}

/* Each is an expression: true when the check held. */
#define CHECK(condition)                                                                                     \
    ((condition) ? 1 : (check_fail(__FILE__, __LINE__), fprintf(stderr, "not true: %s\n", #condition), 0))

#define CHECK_INT(actual, expected)                                                                          \
    check_int((int64_t)(actual), (int64_t)(expected), #actual, __FILE__, __LINE__)
#define CHECK_DOUBLE(actual, expected, tolerance)                                                            \
    check_double(actual, expected, tolerance, #actual, __FILE__, __LINE__)
#define CHECK_STRING(actual, expected) check_string(actual, expected, #actual, __FILE__, __LINE__)
#define CHECK_CONTAINS(actual, part) check_contains(actual, part, #actual, __FILE__, __LINE__)
#define CHECK_BYTES(actual, expected, bytes) check_bytes(actual, expected, bytes, #actual, __FILE__, __LINE__)

static inline int check_int(int64_t actual, int64_t expected, const char *text, const char *file, int line) {
    if (actual == expected) return 1;
    check_fail(file, line);
    fprintf(stderr, "%s is %" PRId64 ", expected %" PRId64 "\n", text, actual, expected);
    return 0;
}

/* Within tolerance, relative to the larger of 1 and |expected|. An infinite number equals only itself; NaN equals
 * NaN. */
static inline int check_double(double actual, double expected, double tolerance, const char *text,
                               const char *file, int line) {
    double scale = expected < 0 ? -expected : expected, off = actual - expected;
    int finite = scale - scale == 0; /* an infinite scale would allow any distance */
    if (scale < 1) scale = 1;
    if (finite && (off < 0 ? -off : off) <= tolerance * scale) return 1;
    if (actual == expected || (actual != actual && expected != expected)) return 1;
    check_fail(file, line);
    fprintf(stderr, "%s is %.17g, expected %.17g within %g\n", text, actual, expected, tolerance);
    return 0;
}

static inline int check_string(const char *actual, const char *expected, const char *text, const char *file,
                               int line) {
    if (actual && expected && strcmp(actual, expected) == 0) return 1;
    check_fail(file, line);
    fprintf(stderr, "%s is \"%s\", expected \"%s\"\n", text, actual ? actual : "(null)", expected);
    return 0;
}

static inline int check_contains(const char *actual, const char *part, const char *text, const char *file,
                                 int line) {
    if (actual && strstr(actual, part)) return 1;
    check_fail(file, line);
    fprintf(stderr, "%s is \"%s\", which lacks \"%s\"\n", text, actual ? actual : "(null)", part);
    return 0;
}

static inline int check_bytes(const void *actual, const void *expected, size_t bytes, const char *text,
                              const char *file, int line) {
    const unsigned char *a = (const unsigned char *)actual, *e = (const unsigned char *)expected;
    if (!bytes || !memcmp(a, e, bytes)) return 1;
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] == e[i]) continue;
        check_fail(file, line);
        fprintf(stderr, "%s: byte %zu of %zu is 0x%02x, expected 0x%02x\n", text, i, bytes, a[i], e[i]);
        return 0;
    }
    return 1;
}

static inline int check_end(void) {
    int failures = atomic_load(&check_failures);
    if (failures) fprintf(stderr, "%d checks failed\n", failures);
    return failures != 0;
}

#endif
