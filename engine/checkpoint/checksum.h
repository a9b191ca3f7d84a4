/* XXH3 of 64 bits (Collet, xxHash 0.8). It detects damage, but no deliberate change. Files hold it as 16 hexadecimal
 * digits. */
#ifndef ZERO_ENGINE_CHECKPOINT_CHECKSUM_H
#define ZERO_ENGINE_CHECKPOINT_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHECKSUM_DIGITS = 16 };

uint64_t checksum(const void *bytes, size_t count);

void checksum_print(uint64_t value, char out[CHECKSUM_DIGITS + 1]); /* lower case */
bool checksum_parse(const char *text, uint64_t *out);               /* reads exactly 16 digits */

#endif
