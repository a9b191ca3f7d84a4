#include "engine/base/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "engine/base/utf8.h"

void log_line(const struct log *log, zero_log_level level, const char *format, ...) {
    if (!log || !log->write) return;
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    utf8_tame(line);
    log->write(log->user, level, line);
}
