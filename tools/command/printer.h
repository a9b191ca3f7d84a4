/* Prints generated text as it comes: only whole characters, no control characters but newline and tab, and U+FFFD for bytes
 * that are no UTF-8. */
#ifndef ZERO_TOOLS_COMMAND_PRINTER_H
#define ZERO_TOOLS_COMMAND_PRINTER_H

#include <stddef.h>
#include <stdio.h>

struct printer {
    FILE *out;
    unsigned char held[4]; /* the first bytes of a character */
    unsigned count, wanted;
};

void printer_put(struct printer *printer, const char *bytes, size_t count);
void printer_end(struct printer *printer); /* the held bytes are no character */

#endif
