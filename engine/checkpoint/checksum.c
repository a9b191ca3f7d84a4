#include "engine/checkpoint/checksum.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void checksum_print(uint64_t value, char out[CHECKSUM_DIGITS + 1]) {
    snprintf(out, CHECKSUM_DIGITS + 1, "%016" PRIx64, value);
}

bool checksum_parse(const char *text, uint64_t *out) {
    uint64_t value = 0;
    for (int i = 0; i < CHECKSUM_DIGITS; i++) {
        const char *digits = "0123456789abcdef", *at = text[i] ? strchr(digits, text[i]) : NULL;
        if (!at) return false;
        value = value << 4 | (uint64_t)(at - digits);
    }
    *out = value;
    return true;
}
