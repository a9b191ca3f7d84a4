#include "engine/base/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "engine/base/host_call.h"
#include "engine/base/utf8.h"

struct line {
    const struct log *log;
    zero_log_level level;
    char text[1024];
};

static void write_line(void *call) {
    const struct line *line = call;
    line->log->write(line->log->user, line->level, line->text);
}

void log_line(const struct log *log, zero_log_level level, const char *format, ...) {
    if (!log || !log->write) return;
    struct line line = {log, level, ""};
    va_list args;
    va_start(args, format);
    vsnprintf(line.text, sizeof line.text, format, args);
    va_end(args);
    utf8_tame(line.text);
    host_call(NULL, "zero_runtime.log", write_line, &line);
}
