/* Lines for people: they go to the host program's callback. */
#pragma once

#include "engine/base/log_level.h"

struct log {           /* of one engine */
    zero_log_fn write; /* NULL: lines are dropped */
    void *user;
};

void log_line(const struct log *log, zero_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
