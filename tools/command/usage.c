#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "tools/command/command.h"
#include "tools/text/format.h"

int command_usage_error(const char *name, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "zero %s: ", name);
    format_line_v(stderr, format, args);
    fprintf(stderr, "zero %s: see `zero help %s`\n", name, name);
    va_end(args);
    return EXIT_USAGE;
}

int command_failed(const char *name, const char *message) {
    fprintf(stderr, "zero %s: %s\n", name, message);
    return EXIT_FAILED;
}

int command_leave_silently(void) {
    sleep(1);
    return EXIT_USAGE;
}
