/* Ranks over TCP that zero_runtime numbers, with nothing of a launcher in the environment. */
#ifndef ZERO_TESTS_ENGINE_TCP_RANKS_H
#define ZERO_TESTS_ENGINE_TCP_RANKS_H

#include "engine/zero.h"

/* A port of this host that is free now. */
uint32_t tcp_free_port(void);

zero_runtime tcp_runtime(uint32_t rank, uint32_t size, uint32_t port);

/* Runs `body` in a process of each rank. A rank that needs more than `most_s` is killed. Checks that all of them end well. */
void tcp_processes(uint32_t size, uint32_t most_s, void (*body)(const zero_runtime *runtime, void *user),
                   void *user);

#endif
