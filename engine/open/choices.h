/* The log's first lines: what the configuration came to. */
#ifndef ZERO_ENGINE_OPEN_CHOICES_H
#define ZERO_ENGINE_OPEN_CHOICES_H

#include "engine/config/config.h"
#include "engine/model/precision.h"
#include "engine/ranks/ranks.h"

struct choices {
    const struct config *config;
    const struct ranks *ranks;
    const struct lr_schedule_params *schedule;
    struct precision precision;
    uint32_t threads, cpus, sharers; /* as in struct host */
    const struct zero_error *without_gpu;
};

/* Rank 0 logs. */
void choices_log(const struct choices *choices);

#endif
