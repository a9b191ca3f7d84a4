/* Patterns of parameter names: * is any text, also none and with dots in it; ? is one character. */
#ifndef ZERO_ENGINE_MODEL_GLOB_H
#define ZERO_ENGINE_MODEL_GLOB_H

#include <stdbool.h>
#include <stdint.h>

bool glob_matches(const char *pattern, const char *name);

/* The number of characters to change, insert or delete until the name matches the pattern; 0: it matches. Only the
 * first 127 bytes of each count. */
uint32_t glob_distance(const char *pattern, const char *name);

#endif
