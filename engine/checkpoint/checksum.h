/* A checksum (kernels/checksum.h) as text: 16 hexadecimal digits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { CHECKSUM_DIGITS = 16 };

void checksum_print(uint64_t value, char out[CHECKSUM_DIGITS + 1]); /* lower case */
bool checksum_parse(const char *text, uint64_t *out);               /* reads exactly 16 digits */
