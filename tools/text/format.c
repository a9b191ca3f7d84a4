#include "tools/text/format.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

/* Prints at most three digits before the unit. */
static struct text scaled(double value, double factor, const char *const *units) {
    struct text out;
    int unit = 0;
    while (value >= 999.5 && units[unit + 1]) value /= factor, unit++;
    snprintf(out.chars, sizeof out.chars, unit && value < 99.95 ? "%.1f%s%s" : "%.0f%s%s", value,
             *units[unit] ? " " : "", units[unit]);
    return out;
}

struct text format_bytes(uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", NULL};
    return scaled((double)bytes, 1024, units);
}

struct text format_count(double count) {
    static const char *const units[] = {"", "k", "M", "G", "T", NULL};
    return scaled(count, 1000, units);
}

struct text format_grouped(uint64_t count) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count), at = 0;
    struct text out;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) out.chars[at++] = ',';
        out.chars[at++] = digits[i];
    }
    out.chars[at] = 0;
    return out;
}

struct text format_duration(double seconds) {
    struct text out;
    uint64_t s = seconds > 0 ? (uint64_t)(seconds + 0.5) : 0;
    if (s >= 3600)
        snprintf(out.chars, sizeof out.chars, "%" PRIu64 "h%02" PRIu64 "m", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(out.chars, sizeof out.chars, "%" PRIu64 "m%02" PRIu64 "s", s / 60, s % 60);
    else
        snprintf(out.chars, sizeof out.chars, "%" PRIu64 "s", s);
    return out;
}

struct shown format_name(const char *name) {
    struct shown shown;
    utf8_copy(shown.chars, sizeof shown.chars, name);
    utf8_tame(shown.chars);
    return shown;
}

void format_tame(char *lines) {
    for (char *end; lines; lines = end) {
        end = strchr(lines, '\n');
        if (end) *end = 0;
        utf8_tame(lines);
        if (end) *end++ = '\n';
    }
}

void format_line_v(FILE *out, const char *format, va_list args) {
    char *line = NULL;
    if (vasprintf(&line, format, args) < 0) line = NULL; /* no memory: the line is lost */
    if (line) utf8_tame(line);
    fprintf(out, "%s\n", line ? line : "");
    free(line);
}

void format_line(FILE *out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    format_line_v(out, format, args);
    va_end(args);
}
