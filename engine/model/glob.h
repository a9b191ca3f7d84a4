/* Patterns of parameter names: * is any text, also none and with dots in it; ? is one character. */
#ifndef ZERO_ENGINE_MODEL_GLOB_H
#define ZERO_ENGINE_MODEL_GLOB_H

#include <stdbool.h>
#include <stdint.h>

bool glob_matches(const char *pattern, const char *name);

/* Characters that must change, come or go until it matches; 0: it does. Of each, the first 127 bytes count. */
uint32_t glob_distance(const char *pattern, const char *name);

#endif
