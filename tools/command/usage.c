#include <stdarg.h>
#include <stdio.h>

#include "tools/command/command.h"

int command_usage_error(const char *name, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "zero %s: ", name);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nzero %s: see `zero help %s`\n", name, name);
    va_end(args);
    return EXIT_USAGE;
}
