/* Each check of check.h can fail: it holds for what is equal, and it fails, prints and counts for what is not. */
#include <math.h>
#include <stdbool.h>

#include "tests/check.h"

static int wrong;

/* `got` is the result of a check; the check counts one failure more exactly when it fails. */
static void expect(const char *what, bool holds, int got) {
    static int counted;
    int now = atomic_load(&check_failures);
    bool counts = now == counted + !holds;
    counted = now;
    if (!!got == holds && counts) return;
    wrong++;
    fprintf(stderr, "%s: gave %d, expected %d; the count of failures %s\n", what, got, holds,
            counts ? "is right" : "is wrong");
}

#define HOLDS(check) expect(#check, true, check)
#define FAILS(check) expect(#check, false, check)

static void doubles(void) {
    const double infinity = INFINITY, nan = NAN;
    HOLDS(CHECK_DOUBLE(1.0 + 1e-9, 1.0, 1e-8));
    FAILS(CHECK_DOUBLE(1.0 + 1e-7, 1.0, 1e-8));
    HOLDS(CHECK_DOUBLE(-2e9 - 1, -2e9, 1e-9));
    FAILS(CHECK_DOUBLE(2e9, -2e9, 1e-9));
    HOLDS(CHECK_DOUBLE(3.0, 3.0, 0));
    FAILS(CHECK_DOUBLE(nextafter(3.0, 4.0), 3.0, 0));

    /* No finite number is near an infinite one. */
    HOLDS(CHECK_DOUBLE(infinity, infinity, 0));
    HOLDS(CHECK_DOUBLE(-infinity, -infinity, 1e-6));
    FAILS(CHECK_DOUBLE(1.0, infinity, 1e-6));
    FAILS(CHECK_DOUBLE(1.0, infinity, 0));
    FAILS(CHECK_DOUBLE(1.0, -infinity, 1e-6));
    FAILS(CHECK_DOUBLE(-infinity, infinity, 1e-6));
    FAILS(CHECK_DOUBLE(infinity, 1.0, 1e-6));
    FAILS(CHECK_DOUBLE(nan, infinity, 1e-6));

    HOLDS(CHECK_DOUBLE(nan, nan, 0));
    FAILS(CHECK_DOUBLE(1.0, nan, 1e-6));
    FAILS(CHECK_DOUBLE(nan, 1.0, 1e-6));
}

int main(void) {
    HOLDS(CHECK(wrong == 0));
    FAILS(CHECK(wrong != 0));
    HOLDS(CHECK_INT(-7, -7));
    FAILS(CHECK_INT(7, -7));
    HOLDS(CHECK_STRING("a", "a"));
    FAILS(CHECK_STRING("a", "b"));
    FAILS(CHECK_STRING(NULL, "b"));
    HOLDS(CHECK_CONTAINS("abc", "bc"));
    FAILS(CHECK_CONTAINS("abc", "cb"));
    FAILS(CHECK_CONTAINS(NULL, "b"));
    HOLDS(CHECK_BYTES("abc", "abd", 2));
    FAILS(CHECK_BYTES("abc", "abd", 3));
    doubles();

    if (!check_end()) wrong++;
    atomic_store(&check_failures, 0);
    if (check_end()) wrong++;
    return wrong != 0;
}
