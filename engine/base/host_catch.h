/* The only part of the engine in C++, because only C++ stops an exception. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* False: make(call) has thrown; `said` is the exception's text, if it has one. */
bool host_catch(void (*make)(void *call), void *call, char *said, size_t bytes);

#ifdef __cplusplus
}
#endif
