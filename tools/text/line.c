#include "tools/text/output.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/text/format.h"

static atomic_bool line_stands; /* a live line is on the terminal now */

void line_print(const char *format, ...) {
    va_list args;
    va_start(args, format);
    flockfile(stdout);
    if (atomic_exchange(&line_stands, false)) fputs("\r\033[K", stdout);
    format_line_v(stdout, format, args);
    streams_flush();
    funlockfile(stdout);
    va_end(args);
}

size_t line_columns(void) {
    struct winsize size;
    if (!isatty(STDOUT_FILENO)) return LINE_BYTES - 1;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    size_t width = known ? size.ws_col : 80;
    return width < LINE_BYTES - 1 ? width : LINE_BYTES - 1;
}

void line_live(const char *line) {
    flockfile(stdout);
    printf("\r\033[K%.*s", (int)line_columns() - 1, line);
    streams_flush();
    atomic_store(&line_stands, true);
    funlockfile(stdout);
}
