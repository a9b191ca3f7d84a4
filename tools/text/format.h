/* Formats numbers and names for people. Each function writes into a small buffer and returns it. */
#pragma once

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

struct text {
    char chars[40];
};

struct text format_bytes(uint64_t bytes);    /* "12.3 MiB" */
struct text format_count(double count);      /* "10.8 M"; below ten thousand without a unit */
struct text format_grouped(uint64_t count);  /* "12,345" */
struct text format_duration(double seconds); /* "2m05s" */

/* A name out of a file, without the characters that a terminal obeys. */
struct shown {
    char chars[256];
};
struct shown format_name(const char *name);

/* Print one line for people. Names in it may be anybody's, so the characters that a terminal obeys become "?". */
void format_line_v(FILE *out, const char *format, va_list args);
void format_line(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for a text of several lines, in place. */
void format_tame(char *lines);
