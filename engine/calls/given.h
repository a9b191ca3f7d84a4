/* Structs that cross the public interface. The host's header may be older or newer than this library: struct_size says how much of
 * a struct the host knows, as in openat2(2). */
#ifndef ZERO_ENGINE_CALLS_GIVEN_H
#define ZERO_ENGINE_CALLS_GIVEN_H

#include <stddef.h>

#include "engine/base/status.h"

/* Copies a struct that the host gives. `to`, zeroed, of `known` bytes, takes what both know. ZERO_E_ARGUMENT where `size` is 0, or where the
 * struct is larger than known and asks for something in its tail. `what`: "zero_runtime", for the sentence. */
zero_status given_take(void *to, size_t known, const void *from, size_t size, const char *what);

/* Copies a struct to the host: `size` bytes at `to`, whose struct_size stays as it is. */
void given_fill(void *to, size_t size, const void *from, size_t known);

/* ZERO_E_ARGUMENT where the size of a struct that the host wants filled is 0. */
zero_status given_check(size_t size, const char *what);

#endif
