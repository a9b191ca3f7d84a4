/* Text inside HTML and SVG. */
#ifndef ZERO_TOOLS_REPORT_MARKUP_H
#define ZERO_TOOLS_REPORT_MARKUP_H

#include <stdio.h>

/* Writes text and escapes the characters that have a meaning in markup. */
void markup_text(FILE *file, const char *text);

/* A number for people: "11,770", "0.01234", "1.2e-05". Returns `out`. */
const char *markup_number(char out[32], double value);

#endif
