/* Runs one function on every rank of a world of threads; each rank has its own engine. */
#ifndef ZERO_TESTS_ENGINE_RANKS_H
#define ZERO_TESTS_ENGINE_RANKS_H

#include "engine/zero.h"

/* `engine` is NULL if opening failed; zero_last_error() gives the reason. The engine is destroyed when the function
 * returns. */
typedef void (*ranks_fn)(zero_engine *engine, uint32_t rank, void *user);

/* All ranks with the same configuration, or rank r with json[r]. */
void ranks_run(uint32_t ranks, const char *json, ranks_fn body, void *user);
/* Each on a device whose memory the host cannot touch. */
void ranks_run_discrete(uint32_t ranks, const char *json, ranks_fn body, void *user);
void ranks_run_each(uint32_t ranks, const char *const *json, ranks_fn body, void *user);

#endif
