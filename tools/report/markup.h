/* Text inside HTML and SVG. */
#ifndef ZERO_TOOLS_REPORT_MARKUP_H
#define ZERO_TOOLS_REPORT_MARKUP_H

#include <stdio.h>

/* Escapes what markup would take for its own. */
void markup_text(FILE *file, const char *text);

#endif
