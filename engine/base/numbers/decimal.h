/* Numbers as text, the same in every locale. */
#pragma once

#include <string.h>

/* `text`: a number that printf has written. The locale's separator, which may be several bytes, becomes a point. */
static inline void decimal_point(char *text) {
    char *separator = text + strspn(text, "-0123456789");
    size_t bytes = strcspn(separator, "0123456789e");
    if (!bytes || !separator[bytes]) return; /* an integer, inf, nan */
    *separator = '.';
    memmove(separator + 1, separator + bytes, strlen(separator + bytes) + 1);
}
