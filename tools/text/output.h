/* The streams of the process, and what is written to them. */
#pragma once

#include <stddef.h>
#include <stdio.h>

/* ---- streams.c: the standard input, output and error of the process ---- */
/* Called first in the program: opens /dev/null for a stream that the caller has closed. Without this the next file that
 * the program opens gets the stream's number, and progress lines are written into that file. */
void streams_open(void);

/* Flushes stdout and keeps the reason of the first failure. The caller may continue; streams_close reports the
 * failure. */
void streams_flush(void);

/* Called last in the program: returns `status`, or EXIT_FAILURE with a message on stderr if a line of stdout was
 * lost. */
int streams_close(const char *command, int status);

/* ---- line.c: lines on stdout for people: whole lines, and on a terminal one live line at the end, which the next line replaces. Any
 * thread may call these functions, at any time. ---- */
enum { LINE_BYTES = 128 }; /* of a live line, and the most columns */

void line_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
void line_live(const char *line);

/* A live line that wraps cannot be overwritten. A file or a pipe takes whole lines. */
size_t line_columns(void);

/* ---- printer.c: prints generated text as it comes: only whole characters, no control characters but newline and tab, and U+FFFD for
 * bytes that are no UTF-8 ---- */
struct printer {
    FILE *out;
    unsigned char held[4]; /* the first bytes of a character */
    unsigned count, wanted;
};

void printer_put(struct printer *printer, const char *bytes, size_t count);
void printer_end(struct printer *printer); /* the held bytes are no character */
