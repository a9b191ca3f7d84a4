/* XXH3 of 64 bits (Collet, xxHash 0.8): finds damage, not an adversary; as 16 hexadecimal digits in files. */
#ifndef ZERO_ENGINE_CHECKPOINT_CHECKSUM_H
#define ZERO_ENGINE_CHECKPOINT_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHECKSUM_DIGITS = 16 };

uint64_t checksum(const void *bytes, size_t count);

void checksum_print(uint64_t value, char out[CHECKSUM_DIGITS + 1]); /* lower case */
bool checksum_parse(const char *text, uint64_t *out);               /* exactly its 16 digits are looked at */

#endif
