#include "engine/model/glob.h"

#include <stddef.h>
#include <string.h>

#include "engine/base/limits.h"

/* On a mismatch the last star takes one character more. */
bool glob_matches(const char *pattern, const char *name) {
    const char *star = NULL, *taken = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++, taken = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++, name++;
        } else if (star) {
            pattern = star + 1, name = ++taken;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Wagner and Fischer 1974, with a star that takes characters for nothing. */
uint32_t glob_distance(const char *pattern, const char *name) {
    size_t n = strnlen(pattern, NAME_BYTES_MAX - 1), m = strnlen(name, NAME_BYTES_MAX - 1);
    uint32_t rows[2][NAME_BYTES_MAX];
    for (size_t j = 0; j <= m; j++) rows[0][j] = (uint32_t)j;
    for (size_t i = 1; i <= n; i++) {
        const uint32_t *above = rows[(i - 1) % 2];
        uint32_t *row = rows[i % 2];
        char c = pattern[i - 1];
        bool star = c == '*';
        row[0] = above[0] + !star;
        for (size_t j = 1; j <= m; j++) {
            uint32_t changed = above[j - 1] + (c != '?' && c != name[j - 1]);
            row[j] = star ? least(above[j], row[j - 1]) : least(changed, least(above[j], row[j - 1]) + 1);
        }
    }
    return rows[n % 2][m];
}
